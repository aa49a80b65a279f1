//! `berth status`: the state of every credential and model, in a table that fits the terminal.
//!
//! Everything comes from a running berth's `/status` ([`super::port`]): by a URL, or by its configuration,
//! and then over the control socket, which needs no token, or else over the admin port. What it says is printed, and
//! whoever listens there may say anything: only printable characters reach the terminal. Where the
//! terminal is narrow, names are shortened first, and then columns left out, the least telling first;
//! without a terminal nothing is.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;

use super::clients_table as clients;
use super::clients_table::Client;
use super::port::AdminPort;
use crate::config::Config;
use crate::observe::brief::brief;
use crate::observe::status::SpanCounts;
use crate::service::Place;

/// Where the berth is that is asked.
#[derive(Debug)]
pub enum Whom<'w> {
    /// At this URL; its token is in a file or in the environment.
    Url(&'w str, Option<&'w Path>),
    /// The one that runs with this configuration, which is in this file.
    Configured(&'w Config, &'w Path),
}

/// What is printed, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// The table, once.
    Once,
    /// The table, again and again.
    Watch,
    /// The document, once.
    Json,
}

/// Asks and tells.
///
/// # Errors
///
/// Why there is nothing to tell, in a sentence for people. Watching goes on once it has begun.
pub fn run(whom: &Whom, telling: Telling) -> Result<(), String> {
    let doors = doors(whom)?;
    let document = ask(&doors)?;
    match telling {
        Telling::Json => print(&json(&document)?),
        Telling::Once => print(&table(&document, terminal())?),
        Telling::Watch => {
            let mut shown = table(&document, terminal())?;
            loop {
                let cleared = if terminal().is_some() { CLEAR } else { "" };
                print(&format!("{cleared}{shown}\n"))?;
                std::thread::sleep(EVERY);
                let told = ask(&doors).and_then(|document| table(&document, terminal()));
                shown = told.unwrap_or_else(|why| format!("{why}\n"));
            }
        }
    }
}

/// The ways in, in the order in which they are tried.
fn doors(whom: &Whom) -> Result<Vec<AdminPort>, String> {
    match whom {
        Whom::Url(url, file) => Ok(vec![AdminPort::at(url, token(*file)?)?]),
        Whom::Configured(config, path) => {
            let place = Place::new(&config.process.runtime_dir, path);
            let mut doors = vec![AdminPort::socket(&place.serving())];
            if let Some(admin) = &config.admin {
                // Its token may be for the service's user only: the socket is enough.
                doors.extend(AdminPort::configured(admin));
            }
            Ok(doors)
        }
    }
}

fn token(file: Option<&Path>) -> Result<Option<SecretString>, String> {
    let text = match file {
        None => std::env::var(TOKEN).ok(),
        Some(file) => {
            let text = std::fs::read_to_string(file);
            Some(text.map_err(|e| format!("--token-file {}: {e}", file.display()))?)
        }
    };
    let token = text.map(|text| text.trim().to_owned());
    let token = token.filter(|token| !token.is_empty());
    match token {
        Some(token) if !token.bytes().all(|b| b.is_ascii_graphic()) => Err(format!(
            "the token in {TOKEN} or --token-file has characters that no header can carry"
        )),
        token => Ok(token.map(SecretString::from)),
    }
}

/// The first answer; where there is none, why not at the last door.
fn ask(doors: &[AdminPort]) -> Result<Vec<u8>, String> {
    let mut why = String::new();
    for door in doors {
        match door.get("/status") {
            Ok(document) => return Ok(document),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

fn json(document: &[u8]) -> Result<String, String> {
    let document: serde_json::Value = serde_json::from_slice(document).map_err(|_| OTHER)?;
    Ok(format!("{document:#}\n"))
}

#[derive(Deserialize)]
struct Status {
    version: String,
    uptime_s: u64,
    draining: bool,
    credentials: Vec<Credential>,
    pairs: Vec<Pair>,
    models: Vec<Model>,
    #[serde(default)]
    clients: Vec<Client>,
    #[serde(default)]
    clients_left_out: usize,
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct Credential {
    id: String,
    in_flight: u64,
    state: String,
}

#[derive(Deserialize)]
struct Pair {
    credential: String,
    model: String,
    state: String,
    left_ms: Option<u64>,
    refused: SpanCounts,
    admitted: SpanCounts,
}

#[derive(Deserialize)]
struct Model {
    model: String,
    full: bool,
    waiting: u64,
}

/// The table of a `/status` document, at most `width` characters wide.
///
/// # Errors
///
/// It is no such document.
pub fn table(document: &[u8], width: Option<usize>) -> Result<String, String> {
    let status: Status = serde_json::from_slice(document).map_err(|_| OTHER)?;
    let mut text = head(&status);
    let rows: Vec<[String; COLUMNS]> = status
        .credentials
        .iter()
        .flat_map(|credential| rows(credential, &status.pairs))
        .collect();
    let widths = widths(&rows, width);
    line(&mut text, &HEADS.map(str::to_owned), &widths);
    rows.iter().for_each(|row| line(&mut text, row, &widths));
    text.push_str(&clients::table(
        &status.clients,
        status.clients_left_out,
        width,
    ));
    Ok(text)
}

fn head(status: &Status) -> String {
    let all = status.credentials.len();
    let ready = status.credentials.iter().filter(|it| it.state == "ready");
    let in_flight: u64 = status.credentials.iter().map(|it| it.in_flight).sum();
    let mut text = format!(
        "berth {}, up {}: {} of {all} credentials ready, {in_flight} in flight\n",
        plain(&status.version),
        brief(status.uptime_s.saturating_mul(1_000)),
        ready.count(),
    );
    if status.draining {
        text.push_str("it drains: no new requests are taken\n");
    }
    for model in status.models.iter().filter(|it| it.full) {
        let _ = writeln!(
            text,
            "full for everybody: {}, {} waiting",
            plain(&model.model),
            model.waiting
        );
    }
    for warning in &status.warnings {
        let _ = writeln!(text, "warning: {}", plain(warning));
    }
    text.push('\n');
    text
}

/// One row for each pair of a credential that says something, or one for the credential itself. What
/// is in flight is the credential's, so it stands in its first row.
fn rows(credential: &Credential, pairs: &[Pair]) -> Vec<[String; COLUMNS]> {
    let of_it = pairs.iter().filter(|pair| {
        pair.credential == credential.id && (pair.model != "*" || pair.state != "ready")
    });
    let row = |(number, pair): (usize, &Pair)| {
        let span = |refused: u32, admitted: u32| format!("{refused}/{admitted}");
        let in_flight = credential.in_flight.to_string();
        let (refused, admitted) = (pair.refused, pair.admitted);
        [
            plain(&credential.id),
            plain(&pair.model),
            plain(&pair.state),
            pair.left_ms.map_or_else(String::new, brief),
            if number == 0 {
                in_flight
            } else {
                String::new()
            },
            span(refused.quarter, admitted.quarter),
            span(refused.hour, admitted.hour),
            span(refused.day, admitted.day),
        ]
    };
    let rows: Vec<_> = of_it.enumerate().map(row).collect();
    if !rows.is_empty() {
        return rows;
    }
    let none = Pair {
        credential: credential.id.clone(),
        model: "*".to_owned(),
        state: credential.state.clone(),
        left_ms: None,
        refused: SpanCounts::default(),
        admitted: SpanCounts::default(),
    };
    vec![row((0, &none))]
}

/// How wide each column is; 0 is left out.
fn widths(rows: &[[String; COLUMNS]], terminal: Option<usize>) -> [usize; COLUMNS] {
    let mut widths = HEADS.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let Some(terminal) = terminal else {
        return widths;
    };
    let too_wide = |widths: &[usize; COLUMNS]| {
        let shown = widths.iter().filter(|width| **width > 0);
        let needed: usize = shown.map(|width| width + GAP).sum();
        needed.saturating_sub(GAP).saturating_sub(terminal)
    };
    for column in SHORTENED {
        let excess = too_wide(&widths);
        if let Some(width) = widths.get_mut(column) {
            *width = width.saturating_sub(excess).max(SHORTEST.min(*width));
        }
    }
    for column in LEFT_OUT {
        if too_wide(&widths) > 0
            && let Some(width) = widths.get_mut(column)
        {
            *width = 0;
        }
    }
    widths
}

fn line(text: &mut String, cells: &[String; COLUMNS], widths: &[usize; COLUMNS]) {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths).filter(|(_, width)| **width > 0) {
        let fits = cell.len() <= *width;
        let shown: String = match fits {
            true => cell.clone(),
            false => cell.chars().take(width - 1).chain(['~']).collect(),
        };
        let _ = write!(line, "{shown:<0$}", width + GAP);
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

/// A terminal obeys characters that do not print.
pub(super) fn plain(text: &str) -> String {
    let shown = |c: char| {
        if c == ' ' || c.is_ascii_graphic() {
            c
        } else {
            '?'
        }
    };
    text.chars().take(MAX_TEXT).map(shown).collect()
}

/// Columns of the terminal, if there is one.
fn terminal() -> Option<usize> {
    let here = std::io::stdout().is_terminal();
    let size = here.then(terminal_size::terminal_size).flatten();
    size.map(|(width, _)| usize::from(width.0))
}

fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| e.to_string())
}

/// Of the table.
const COLUMNS: usize = 8;
/// The last three are refused/admitted.
const HEADS: [&str; COLUMNS] = [
    "CREDENTIAL",
    "MODEL",
    "STATE",
    "LEFT",
    "IN FLIGHT",
    "REF/ADM 15M",
    "1H",
    "24H",
];
/// Between two columns.
const GAP: usize = 2;
/// The columns that are shortened, in this order: model, credential.
const SHORTENED: [usize; 2] = [1, 0];
/// Characters that are left of them.
const SHORTEST: usize = 8;
/// The columns that are left out, in this order: the hour, the day, in flight, the time left.
const LEFT_OUT: [usize; 4] = [6, 7, 4, 3];
/// Characters; a warning is the longest text.
const MAX_TEXT: usize = 400;
/// Chosen: a person sees a change, and berth does not notice the watching.
const EVERY: Duration = Duration::from_secs(2);
/// To the upper left, and everything away.
const CLEAR: &str = "\x1b[H\x1b[2J";
const TOKEN: &str = "BERTH_ADMIN_TOKEN";
const OTHER: &str = "the berth that runs is of another version";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document() -> Vec<u8> {
        let counts = |a: u32, b: u32, c: u32| json!({"15m": a, "1h": b, "24h": c});
        let pair = |credential: &str, model: &str, state: &str, left: Option<u64>| {
            json!({
                "credential": credential, "model": model, "state": state, "left_ms": left,
                "refused": counts(2, 9, 120), "admitted": counts(14, 60, 1_400), "future": [1],
            })
        };
        let credential = |id: &str, in_flight: u32, state: &str| json!({"id": id, "in_flight": in_flight, "state": state});
        let document = json!({
            "version": "0.1.0", "uptime_s": 11_100, "draining": true,
            "credentials": [
                credential("campus-a", 3, "ready"),
                credential("campus-of-the-long-name", 0, "rejected"),
                credential("spare", 0, "ready"),
            ],
            "pairs": [
                pair("campus-a", "*", "ready", None),
                pair("campus-a", "gpt-5.6-sol", "cooling", Some(3_500)),
                pair("campus-a", "gpt-5.6-sol-extended-20260901", "ready", None),
                pair("campus-of-the-long-name", "*", "rejected", Some(900_000)),
            ],
            "models": [
                {"model": "gpt-5.6-sol", "full": true, "waiting": 4},
                {"model": "\u{1b}[2Jx", "full": true, "waiting": 0},
            ],
            "warnings": ["audit: 1 lines lost since the start; the log says why\n\u{7}"],
        });
        document.to_string().into_bytes()
    }

    #[test]
    fn the_table_is_as_promised_at_every_width() {
        let golden = include_str!("../../tests/golden/status.txt");
        let mut shown = String::new();
        for width in [None, Some(80), Some(60), Some(20)] {
            let table = table(&document(), width).unwrap();
            let name = width.map_or("no terminal".to_owned(), |width| format!("{width} columns"));
            let _ = write!(shown, "--- {name}\n{table}");
        }
        assert_eq!(shown, golden);
    }

    #[test]
    fn no_line_of_the_table_is_wider_than_the_terminal() {
        let mut asked = 0;
        for width in 44..140 {
            let text = table(&document(), Some(width)).unwrap();
            let (_, table) = text.split_once("\n\n").unwrap();
            assert!(
                table.lines().all(|line| line.len() <= width),
                "{width}\n{table}"
            );
            asked += table.lines().count();
        }
        assert_eq!(asked, 96 * 5);
    }

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        let text = table(&document(), None).unwrap();
        assert!(
            text.chars()
                .all(|c| c == '\n' || c == ' ' || c.is_ascii_graphic())
        );
        assert!(
            json(&document())
                .unwrap()
                .chars()
                .all(|c| c == '\n' || !c.is_control())
        );
        for other in [&b""[..], b"{}", b"[]", b"\xff"] {
            assert_eq!(table(other, None), Err(OTHER.to_owned()));
        }
    }
}
