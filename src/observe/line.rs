//! How a line of the log is written: a sentence that never changes, then its facts as `key=value`.
//!
//! A sentence is found by its words and a fact by its key, so that `grep credential=campus-a` and the
//! logfmt stage of a log store both work. What could be mistaken for the next fact, or for the next line,
//! is quoted as a JSON string; a line is one line whatever a library or a peer puts into it.
//!
//! The journal has a time of its own and takes the level from a prefix (`sd-daemon(3)`), so there neither
//! is written as text.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use log::kv::{self, Key, Source, Value, VisitSource};
use log::{Level, Record};

/// For whom lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Whoever reads stderr.
    Plain,
    /// systemd's journal.
    Journal,
}

impl Style {
    /// Whether stderr is what systemd connected to its journal.
    pub fn of_stderr() -> Style {
        let stderr = io::stderr().as_fd().try_clone_to_owned();
        let here = stderr.and_then(|fd| File::from(fd).metadata());
        let here = here.map(|it| format!("{}:{}", it.dev(), it.ino()));
        match (std::env::var("JOURNAL_STREAM"), here) {
            (Ok(journal), Ok(here)) if journal == here => Style::Journal,
            _ => Style::Plain,
        }
    }

    /// One line, without its end.
    pub fn line(self, record: &Record<'_>, now: SystemTime) -> String {
        let (level, target) = (record.level(), record.target());
        let mut text = match self {
            Style::Plain => {
                let now = humantime::format_rfc3339_seconds(now);
                format!("[{now} {level:<5} {target}] ")
            }
            Style::Journal => format!("{}{target}: ", priority(level)),
        };
        let printed = |c: char| if c.is_control() { ' ' } else { c };
        text.extend(record.args().to_string().chars().map(printed));
        // Writing to a string does not fail.
        let _ = write!(text, "{}", Facts(record.key_values()));
        text
    }

    /// A text that a program ends with, in so many lines as it has.
    pub fn last_words(self, text: &str) -> String {
        match self {
            Style::Plain => text.to_owned(),
            Style::Journal => {
                let lines = text.lines();
                let lines: Vec<_> = lines
                    .map(|it| format!("{}{it}", priority(Level::Error)))
                    .collect();
                lines.join("\n")
            }
        }
    }
}

/// ` key=value` for each fact.
pub struct Facts<'a>(pub &'a dyn Source);

impl fmt::Display for Facts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Written<'f, 'b>(&'f mut fmt::Formatter<'b>);
        impl<'kvs> VisitSource<'kvs> for Written<'_, '_> {
            fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
                let value = value.to_string();
                let quoted = match is_plain(&value) {
                    true => value,
                    false => serde_json::Value::String(value).to_string(),
                };
                write!(self.0, " {key}={quoted}").map_err(kv::Error::from)
            }
        }
        self.0.visit(&mut Written(f)).map_err(|_| fmt::Error)
    }
}

fn is_plain(value: &str) -> bool {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !['"', '=', '\\'].contains(&c);
    !value.is_empty() && value.chars().all(plain)
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::Error => "<3>",
        Level::Warn => "<4>",
        Level::Info => "<6>",
        Level::Debug | Level::Trace => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn line(style: Style, level: Level, facts: &[(&str, &str)]) -> String {
        let facts: Vec<_> = facts
            .iter()
            .map(|(key, value)| (*key, Value::from(*value)))
            .collect();
        let record = Record::builder()
            .args(format_args!("a thing\n\u{1b}happened"))
            .level(level)
            .target("berth::x")
            .key_values(&facts)
            .build();
        style.line(&record, UNIX_EPOCH + Duration::from_secs(1_775_044_800))
    }

    #[test]
    fn a_line_is_one_line_and_its_facts_can_be_found() {
        let facts = [
            ("credential", "campus-a"),
            ("reason", "a \"word\"\nand more"),
            ("pair", "a=b"),
            ("nothing", ""),
            ("address", "http://[::1]:80"),
        ];
        assert_eq!(
            line(Style::Plain, Level::Info, &facts),
            "[2026-04-01T12:00:00Z INFO  berth::x] a thing  happened credential=campus-a \
             reason=\"a \\\"word\\\"\\nand more\" pair=\"a=b\" nothing=\"\" address=http://[::1]:80"
        );
    }

    #[test]
    fn the_journal_has_a_level_and_its_own_time() {
        for (level, prefix) in [
            (Level::Error, "<3>"),
            (Level::Warn, "<4>"),
            (Level::Info, "<6>"),
            (Level::Debug, "<7>"),
        ] {
            let expected = format!("{prefix}berth::x: a thing  happened pid=7");
            assert_eq!(line(Style::Journal, level, &[("pid", "7")]), expected);
        }
        assert_eq!(Style::Journal.last_words("a\nb\n"), "<3>a\n<3>b");
        assert_eq!(Style::Plain.last_words("a\nb"), "a\nb");
    }
}
