//! The log: where lines go, what must never be in one, and how many there may be.
//!
//! pingora's own debug and trace lines print whole heads, a client's key and a credential's secret
//! among them. An operator who turns the level up at night must not leak them, so lines of the
//! libraries below berth end at `info`, whatever `RUST_LOG` says.
//!
//! A level says who is needed. `error`: berth does not do what it was told. `warn`: it goes on, and
//! somebody should look. `info`: what happened. A library cannot know that: what pingora calls an error
//! is mostly one client's connection, so [`level`] says what it is here. No place in the source says more
//! than a few lines in a second (see [`super::flood`]), but for the audit, which is no message, and for
//! orders, of which none may be missing. What was left out is said with the next line, or when the log is
//! flushed, which [`crate::edge::state::tend`] does every second. How a line looks is in [`super::line`].

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use log::kv::Value;
use log::{Level, LevelFilter, Log, Metadata, Record};

use super::flood::{Flood, Place};
use super::line::Style;

/// The audit, where it has no file of its own.
pub const AUDIT: &str = "berth::audit";

/// What an operator had done: each order is said.
pub const ORDERS: &str = "berth::admin";

/// Libraries that handle secrets on the wire.
const BELOW: [&str; 6] = ["pingora", "h2", "hyper", "rustls", "tokio", "mio"];

struct Guarded<L> {
    below: L,
    flood: Mutex<Flood>,
}

/// Starts the log on stderr: `RUST_LOG`, or `info` with pingora's start-up lines left out.
///
/// # Panics
///
/// Never: a second start is ignored.
pub fn start() {
    let default = env_logger::Env::default().default_filter_or("info,pingora_core=warn");
    let style = Style::of_stderr();
    let logger = env_logger::Builder::from_env(default)
        .format(move |to, record| writeln!(to, "{}", style.line(record, SystemTime::now())))
        .build();
    log::set_max_level(logger.filter());
    let _ = log::set_boxed_logger(Box::new(Guarded::new(logger)));
}

/// Says on stderr why a command did not do what it was told.
pub fn last_words(text: &str) {
    eprintln!("{}", Style::of_stderr().last_words(text));
}

impl<L: Log> Guarded<L> {
    fn new(below: L) -> Guarded<L> {
        let flood = Mutex::default();
        Guarded { below, flood }
    }

    fn log_at(&self, record: &Record<'_>, now: Instant) {
        if !is_allowed(record.metadata()) || !self.below.enabled(record.metadata()) {
            return;
        }
        let level = level(record);
        if record.target() != AUDIT && record.target() != ORDERS {
            let place = Place {
                module: record.module_path_static().unwrap_or_default(),
                line: record.line().unwrap_or_default(),
                level,
            };
            let mut flood = self.flood.lock().unwrap_or_else(PoisonError::into_inner);
            let overdue = flood.overdue(now);
            let admitted = flood.admits(place, now);
            drop(flood);
            self.left_out(overdue);
            if !admitted {
                return;
            }
        }
        self.below.log(
            &Record::builder()
                .args(*record.args())
                .level(level)
                .target(record.target())
                .key_values(record.key_values())
                .build(),
        );
    }

    fn flush_at(&self, now: Instant) {
        let mut flood = self.flood.lock().unwrap_or_else(PoisonError::into_inner);
        let overdue = flood.overdue(now);
        drop(flood);
        self.left_out(overdue);
    }

    fn left_out(&self, overdue: Vec<(Place, u64)>) {
        for (place, lines) in overdue {
            let facts = [("lines", Value::from(lines))];
            self.below.log(
                &Record::builder()
                    .args(format_args!("more lines of this kind were left out"))
                    .level(place.level)
                    .target(place.module)
                    .key_values(&facts)
                    .build(),
            );
        }
    }
}

impl<L: Log> Log for Guarded<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_allowed(metadata) && self.below.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        self.log_at(record, Instant::now());
    }

    fn flush(&self) {
        self.flush_at(Instant::now());
        self.below.flush();
    }
}

fn is_allowed(metadata: &Metadata<'_>) -> bool {
    metadata.level() <= LevelFilter::Info || !is_below(metadata.target())
}

/// What a level of a library means here.
fn level(record: &Record<'_>) -> Level {
    match record.level() {
        Level::Error if is_below(record.target()) => match record.target() {
            // Nobody can come in: no file descriptors are left, as a rule.
            LISTENING if record.args().to_string().starts_with("Accept() failed") => Level::Error,
            // A scanner, a client that does not trust the certificate, one that left in its head.
            LISTENING => Level::Info,
            target if target.starts_with("pingora_core::apps") => Level::Info,
            _ => Level::Warn,
        },
        level => level,
    }
}

/// Where pingora accepts and shakes hands.
const LISTENING: &str = "pingora_core::services::listening";

fn is_below(target: &str) -> bool {
    BELOW.iter().any(|name| target.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::line::Facts;
    use std::time::Duration;

    /// Keeps what it is told.
    #[derive(Default)]
    struct Kept(Mutex<Vec<String>>);

    impl Log for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &Record<'_>) {
            let facts = Facts(record.key_values());
            let line = format!(
                "{} {} {}{facts}",
                record.level(),
                record.target(),
                record.args()
            );
            self.0.lock().unwrap().push(line);
        }

        fn flush(&self) {}
    }

    fn said(log: &Guarded<Kept>) -> Vec<String> {
        std::mem::take(&mut log.below.0.lock().unwrap())
    }

    /// A line of `target`, from one place.
    fn say(log: &Guarded<Kept>, of: (Level, &'static str), now: Instant) {
        say_text(log, of, "line", now);
    }

    fn say_text(
        log: &Guarded<Kept>,
        (level, target): (Level, &'static str),
        text: &str,
        now: Instant,
    ) {
        log.log_at(
            &Record::builder()
                .args(format_args!("{text}"))
                .level(level)
                .target(target)
                .module_path_static(Some(target))
                .line(Some(7))
                .build(),
            now,
        );
    }

    #[test]
    fn heads_on_the_wire_are_never_logged() {
        let allowed =
            |target, level| is_allowed(&Metadata::builder().target(target).level(level).build());
        assert!(!allowed("pingora_proxy::proxy_h1", Level::Debug));
        assert!(!allowed(
            "pingora_core::protocols::http::v1::client",
            Level::Trace
        ));
        assert!(allowed("pingora_core::server", Level::Warn));
        assert!(allowed("berth::edge", Level::Trace));
    }

    #[test]
    fn an_outage_does_not_flood_the_log_and_is_counted_in_it() {
        let (log, start) = (Guarded::new(Kept::default()), Instant::now());
        let refused = (Level::Info, "berth::edge::failover");
        (0..300).for_each(|ms| say(&log, refused, start + Duration::from_millis(ms)));
        assert_eq!(said(&log), vec!["INFO berth::edge::failover line"; 10]);
        say(
            &log,
            (Level::Warn, "berth::other"),
            start + Duration::from_secs(2),
        );
        assert_eq!(
            said(&log),
            [
                "INFO berth::edge::failover more lines of this kind were left out lines=290",
                "WARN berth::other line"
            ]
        );
    }

    #[test]
    fn what_was_left_out_is_said_though_no_other_line_comes() {
        let (log, start) = (Guarded::new(Kept::default()), Instant::now());
        (0..12).for_each(|_| say(&log, (Level::Info, "berth::edge"), start));
        said(&log);
        log.flush_at(start);
        assert!(said(&log).is_empty());
        log.flush_at(start + Duration::from_secs(1));
        assert_eq!(
            said(&log),
            ["INFO berth::edge more lines of this kind were left out lines=2"]
        );
    }

    #[test]
    fn the_audit_and_orders_are_never_cut_short() {
        for target in [AUDIT, ORDERS] {
            let (log, start) = (Guarded::new(Kept::default()), Instant::now());
            (0..300).for_each(|_| say(&log, (Level::Info, target), start));
            assert_eq!(said(&log).len(), 300);
        }
    }

    #[test]
    fn what_pingora_calls_an_error_gets_the_level_that_it_means() {
        let (log, now) = (Guarded::new(Kept::default()), Instant::now());
        for (target, text) in [
            (LISTENING, "Accept() failed Too many open files"),
            (LISTENING, "Downstream handshake error"),
            ("pingora_core::apps::http_app", "HTTP server fails to read"),
            ("pingora_core::connectors", "failed to acquire"),
            ("berth::service::life", "line"),
        ] {
            say_text(&log, (Level::Error, target), text, now);
        }
        assert_eq!(
            said(&log),
            [
                "ERROR pingora_core::services::listening Accept() failed Too many open files",
                "INFO pingora_core::services::listening Downstream handshake error",
                "INFO pingora_core::apps::http_app HTTP server fails to read",
                "WARN pingora_core::connectors failed to acquire",
                "ERROR berth::service::life line",
            ]
        );
    }
}
