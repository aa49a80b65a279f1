//! `berth status`: the state of every credential and model, in a table that fits the terminal.
//!
//! Everything comes from a running berth's `/status` ([`super::port`]): by a URL, or by its configuration,
//! and then over the control socket, which needs no token, or else over the admin port. What it says is printed, and
//! whoever listens there may say anything: only printable characters reach the terminal. Where the
//! terminal is narrow, names are shortened first, and then columns left out, the least telling first;
//! without a terminal nothing is.

use secrecy::SecretString;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use terminal_size::{Height, Width};

use super::clients_table as clients;
use super::clients_table::Client;
use super::port::AdminPort;
use super::watch::watch;
use crate::config::Config;
use crate::observe::brief::brief;
use crate::observe::groups::Kind;
use crate::observe::rank;
use crate::observe::status::SpanCounts;
use crate::service::Place;
use crate::terminal::ascii_json;

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
pub fn run(whom: &Whom, by: Option<Kind>, telling: Telling) -> Result<(), String> {
    let doors = doors(whom)?;
    let ask = move || ask(&doors, by.as_ref());
    let document = ask()?;
    match telling {
        Telling::Json => print(&json(&document)?),
        Telling::Once => print(&table(&document, width())?),
        Telling::Watch => {
            let again = move || {
                let told = ask().and_then(|document| table(&document, width()));
                told.unwrap_or_else(|why| format!("{why}; asked again every two seconds\n"))
            };
            watch(table(&document, width())?, Arc::new(again))
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
fn ask(doors: &[AdminPort], by: Option<&Kind>) -> Result<Vec<u8>, String> {
    let path = match by {
        Some(kind) => format!("/status?{}", kind.query()),
        None => "/status".to_owned(),
    };
    let mut why = String::new();
    for door in doors {
        match door.get(&path) {
            Ok(document) => return Ok(document),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

fn json(document: &[u8]) -> Result<String, String> {
    let document: serde_json::Value = serde_json::from_slice(document).map_err(|_| OTHER)?;
    let text = format!("{document:#}\n");
    Ok(String::from_utf8_lossy(&ascii_json(text.as_bytes())).into_owned())
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
    #[serde(default)]
    groups: Option<Groups>,
}

#[derive(Deserialize)]
struct Groups {
    by: String,
    rows: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    group: String,
    model: String,
    credentials: u64,
    ready: u64,
    in_flight: u64,
    refused: SpanCounts,
    admitted: SpanCounts,
}

#[derive(Deserialize)]
struct Credential {
    id: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
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

/// The table of a `/status` document, at most `width` characters wide; by group, where it has groups.
///
/// # Errors
///
/// It is no such document, or no credential has the label that it was asked for.
pub fn table(document: &[u8], width: Option<usize>) -> Result<String, String> {
    let status: Status = serde_json::from_slice(document).map_err(|_| OTHER)?;
    let mut heads = HEADS.map(str::to_owned);
    let rows: Vec<[String; COLUMNS]> = match &status.groups {
        Some(groups) => {
            let kind = Kind::parse(&groups.by).ok_or(OTHER)?;
            let labels = status.credentials.iter().flat_map(|it| it.labels.keys());
            if let Some(problem) = kind.problem(labels) {
                return Err(plain(&problem));
            }
            let name = plain(kind.name()).to_uppercase();
            heads = [
                &name, "MODEL", "READY", "", HEADS[4], HEADS[5], HEADS[6], HEADS[7],
            ]
            .map(str::to_owned);
            group_rows(&groups.rows)
        }
        None => {
            let credentials = status.credentials.iter();
            credentials.flat_map(|it| rows(it, &status)).collect()
        }
    };
    let mut text = head(&status);
    let widths = widths(&heads, &rows, width);
    line(&mut text, &heads, &widths);
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
    let in_flight = status.credentials.iter().map(|it| it.in_flight);
    let in_flight = in_flight.fold(0, u64::saturating_add);
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

/// One row for each pair of a credential that says something, as far as there is room ([`rank`]), or one
/// for the credential itself. What is in flight is the credential's, so it stands in its first row.
fn rows(credential: &Credential, status: &Status) -> Vec<[String; COLUMNS]> {
    let of_it = status.pairs.iter().filter(|pair| {
        pair.credential == credential.id && (pair.model != "*" || pair.state != "ready")
    });
    let (of_it, rest) = rank::shown(of_it, status.credentials.len(), |pair| rank::Facts {
        model: &pair.model,
        state: &pair.state,
        refused: pair.refused,
        admitted: pair.admitted,
    });
    let rest = rest.map(|rest| Pair {
        credential: credential.id.clone(),
        model: format!("and {} more", rest.pairs),
        state: String::new(),
        left_ms: None,
        refused: rest.refused,
        admitted: rest.admitted,
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
    let of_it = of_it.into_iter().chain(&rest).enumerate();
    let rows: Vec<_> = of_it.map(row).collect();
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

/// One row for each group and model; what is in flight is the group's.
fn group_rows(groups: &[Group]) -> Vec<[String; COLUMNS]> {
    let mut before = None;
    let row = |it: &Group| {
        let is_first = before.replace(it.group.clone()).as_ref() != Some(&it.group);
        let span = |refused: u32, admitted: u32| format!("{refused}/{admitted}");
        [
            plain(&it.group),
            plain(&it.model),
            format!("{} of {}", it.ready, it.credentials),
            String::new(),
            match is_first {
                true => it.in_flight.to_string(),
                false => String::new(),
            },
            span(it.refused.quarter, it.admitted.quarter),
            span(it.refused.hour, it.admitted.hour),
            span(it.refused.day, it.admitted.day),
        ]
    };
    groups.iter().map(row).collect()
}

/// How wide each column is; 0 is left out.
fn widths(
    heads: &[String; COLUMNS],
    rows: &[[String; COLUMNS]],
    terminal: Option<usize>,
) -> [usize; COLUMNS] {
    let mut widths = [0; COLUMNS];
    for row in rows.iter().chain([heads]) {
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

/// The size of the terminal, if there is one.
pub(super) fn terminal() -> Option<(Width, Height)> {
    let here = std::io::stdout().is_terminal();
    here.then(terminal_size::terminal_size).flatten()
}

fn width() -> Option<usize> {
    terminal().map(|(Width(columns), _)| usize::from(columns))
}

pub(super) fn print(text: &str) -> Result<(), String> {
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
const TOKEN: &str = "BERTH_ADMIN_TOKEN";
const OTHER: &str = "the berth that runs is of another version";

#[cfg(test)]
mod tests;
