//! A check that no clock disturbs: instructions of each piece of work, against those of a committed
//! list. `make instructions`.
//!
//! ```text
//! instructions             a table; exit 1 where one needs a quarter more than the list says
//! instructions --write     takes what is counted now for the list
//! ```
//!
//! valgrind's callgrind counts. It runs this same program once for each piece, which then does its
//! work so often as the piece says; preparing it does not count.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Command, ExitCode, Stdio};

use berth_pure::{ALL, Piece, Work};

/// What is allowed beyond the list. Chosen: another compiler or processor moves less, and what a
/// reviewer calls a regression moves more.
const TOLERANCE: f64 = 0.25;
const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");

fn main() -> ExitCode {
    let word = std::env::args().nth(1);
    if let Some(piece) = ALL.iter().find(|it| Some(it.name) == word.as_deref()) {
        let mut work = (piece.prepare)();
        measured_work(&mut work, piece.times);
        return ExitCode::SUCCESS;
    }
    match compare(word.as_deref() == Some("--write")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            println!(
                "\nMore than a quarter above the list. If that is worth it, say why in the commit, and take"
            );
            println!("the new counts with `make instructions WRITE=1`.");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("instructions: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Counted: callgrind is told this name.
#[inline(never)]
fn measured_work(work: &mut Work, times: u32) {
    for _ in 0..times {
        work();
    }
}

fn compare(write: bool) -> Result<bool, String> {
    let list = std::fs::read_to_string(LIST).unwrap_or_default();
    let listed: BTreeMap<&str, u64> = list
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, count)| Some((name, count.trim().parse().ok()?)))
        .collect();
    println!(
        "{:<20} {:>14} {:>14} {:>9}",
        "instructions", "listed", "now", "change"
    );
    let (mut good, mut fresh) = (true, String::new());
    for piece in ALL.into_iter().filter(|it| it.times > 0) {
        let now = count(&piece)? / u64::from(piece.times);
        let _ = writeln!(fresh, "{} {now}", piece.name);
        let Some(before) = listed.get(piece.name).copied() else {
            println!("{:<20} {:>14} {now:>14}", piece.name, "-");
            good &= write;
            continue;
        };
        let change = now as f64 / before as f64 - 1.0;
        let too_many = change > TOLERANCE;
        let mark = if too_many { "  too many" } else { "" };
        println!(
            "{:<20} {before:>14} {now:>14} {:>8.1}%{mark}",
            piece.name,
            change * 100.0
        );
        good &= !too_many || write;
    }
    if write {
        std::fs::write(LIST, fresh).map_err(|e| format!("{LIST}: {e}"))?;
    }
    Ok(good)
}

fn count(piece: &Piece) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*measured_work*")
        .arg(program)
        .arg(piece.name)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("valgrind: {e}; it is Debian's package of that name"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, count)| count.trim().parse().ok());
    match collected {
        Some(count) if output.status.success() && count > 0 => Ok(count),
        _ => Err(format!(
            "{}: callgrind counted nothing:\n{said}",
            piece.name
        )),
    }
}
