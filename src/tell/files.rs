//! The files of one log: the one that is written, and those that a rotation has moved away.
//!
//! logrotate renames `FILE` to `FILE.1`, that to `FILE.2`, and so on, and packs them (`FILE.2.gz`).
//! What was asked for may stand in any of them, so all are found; how many are read is decided by what
//! their first lines say and never by the time of a file, which a copy changes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::line::{Line, rfc3339};
use super::log;

/// How much later than the first line of the next file a request may have come whose line is in a
/// file: two processes serve during a reload. Chosen: no reload lets both accept for so long.
const OVERLAP: Duration = Duration::from_secs(60);

/// The files of the log at `path`, the newest first; never empty. Where a file is being packed, the
/// one that is whole is meant.
///
/// # Errors
///
/// The folder cannot be listed.
pub fn of(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut older: BTreeMap<u32, PathBuf> = BTreeMap::new();
    let folder = match path.parent() {
        None => return Ok(vec![path.to_owned()]),
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
    };
    let Some(name) = path.file_name() else {
        return Ok(vec![path.to_owned()]);
    };
    for entry in std::fs::read_dir(folder)? {
        let moved = entry?.file_name();
        let rest = moved
            .as_encoded_bytes()
            .strip_prefix(name.as_encoded_bytes());
        let Some(rest) = rest.and_then(|rest| std::str::from_utf8(rest).ok()) else {
            continue;
        };
        let (number, is_packed) = match rest.strip_suffix(".gz") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let number = number.strip_prefix('.').and_then(|it| it.parse().ok());
        let Some(number) = number else { continue };
        let moved = path.with_file_name(&moved);
        if is_packed {
            older.entry(number).or_insert(moved);
        } else {
            older.insert(number, moved);
        }
    }
    let mut files: Vec<PathBuf> = older.into_values().collect();
    // Between its move and the reload there is none; where there is nothing at all, that is said.
    if files.is_empty() || path.exists() {
        files.insert(0, path.to_owned());
    }
    Ok(files)
}

/// Those of `files` that may hold a request that came at `since` or later; both the newest first.
///
/// # Errors
///
/// This file cannot be read.
pub fn needed(files: &[PathBuf], since: &str) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let mut needed = Vec::new();
    for path in files {
        needed.push(path.clone());
        if needed.len() == files.len() {
            break;
        }
        // What is in the next file was written before this line, and came before that.
        let written = |bytes: &[u8]| {
            let line = Line::read(bytes)?;
            let taken = Duration::from_millis(line.ms_total);
            line.came()?.checked_add(taken)?.checked_add(OVERLAP)
        };
        let first = log::first(path, written).map_err(|error| (path.clone(), error))?;
        if first.is_some_and(|written| *rfc3339(written) < *since) {
            break;
        }
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[PathBuf]) -> Vec<&str> {
        let names = files.iter().map(|it| it.file_name().unwrap());
        names.map(|it| it.to_str().unwrap()).collect()
    }

    #[test]
    fn files_are_found_by_their_numbers_and_the_newest_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "a", "a.1", "a.2", "a.2.gz", "a.10.gz", "a.3.gz", "a.b", "a.gz", "b.1", "a.1.tmp",
        ] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let log = folder.path().join("a");
        let all = ["a", "a.1", "a.2", "a.3.gz", "a.10.gz"];
        assert_eq!(names(&of(&log).unwrap()), all);
        std::fs::remove_file(&log).unwrap();
        assert_eq!(names(&of(&log).unwrap()), all[1..]);
        assert_eq!(names(&of(&folder.path().join("c")).unwrap()), ["c"]);
    }

    #[test]
    fn as_many_are_read_as_the_time_needs() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("a");
        for (name, came, ms) in [
            // A stream that began before the rotation and ended after it.
            ("a", "2026-11-03T00:00:00.000Z", 3_600_000),
            ("a.1", "2026-11-02T00:00:00.000Z", 5),
            ("a.2", "2026-11-01T00:00:00.000Z", 5),
        ] {
            let line = format!(r#"{{"ts":"{came}","request_id":"br-x","ms_total":{ms}}}"#);
            std::fs::write(folder.path().join(name), format!("{{\"ts\":\n{line}\n")).unwrap();
        }
        let files = of(&log).unwrap();
        for (since, expected) in [
            ("2026-11-03T02:00:00.000Z", &["a"][..]),
            ("2026-11-03T00:59:00.000Z", &["a", "a.1"]),
            ("2026-11-02T00:01:01.000Z", &["a", "a.1"]),
            ("2026-11-02T00:00:59.000Z", &["a", "a.1", "a.2"]),
            ("2020-01-01T00:00:00.000Z", &["a", "a.1", "a.2"]),
        ] {
            assert_eq!(names(&needed(&files, since).unwrap()), expected, "{since}");
        }
    }
}
