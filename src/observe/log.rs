//! The log: where lines go, and what must never be in one.
//!
//! pingora's own debug and trace lines print whole heads, a client's key and a credential's secret
//! among them. An operator who turns the level up at night must not leak them, so lines of the
//! libraries below berth end at `info`, whatever `RUST_LOG` says.

use log::{LevelFilter, Log, Metadata, Record};

/// Libraries that handle secrets on the wire.
const BELOW: [&str; 6] = ["pingora", "h2", "hyper", "rustls", "tokio", "mio"];

struct Guarded(env_logger::Logger);

/// Starts the log on stderr: `RUST_LOG`, or `info` with pingora's start-up lines left out.
///
/// # Panics
///
/// Never: a second start is ignored.
pub fn start() {
    let default = env_logger::Env::default().default_filter_or("info,pingora_core=warn");
    let logger = env_logger::Builder::from_env(default).build();
    log::set_max_level(logger.filter());
    let _ = log::set_boxed_logger(Box::new(Guarded(logger)));
}

impl Log for Guarded {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_allowed(metadata) && self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if is_allowed(record.metadata()) {
            self.0.log(record);
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}

fn is_allowed(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    metadata.level() <= LevelFilter::Info || !BELOW.iter().any(|name| target.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::Level;

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
}
