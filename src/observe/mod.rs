//! The trail: audit, metrics, admin. It is told; it never decides.
//!
//! The edge fills a [`record::Record`] while it serves a request and hands it to
//! [`trail::Trail::finished`] at the end; nothing here can refuse, delay or fail that request. What
//! the pool is at a moment comes as a [`snapshot::Snapshot`] from whoever implements
//! [`admin::Control`], so that this folder knows neither the edge nor the pool's inside.

pub mod admin;
pub mod allowances;
pub mod audit;
pub mod brief;
mod flood;
pub mod groups;
pub mod hits;
pub mod ids;
mod line;
pub mod log;
pub mod metrics;
pub mod models;
#[cfg(not(feature = "otlp"))]
#[path = "no_otlp.rs"]
pub mod otlp;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod rank;
pub mod record;
pub mod refusals;
pub mod safe;
mod scrape;
pub mod snapshot;
pub mod spec;
pub mod status;
pub mod totals;
pub mod trace;
pub mod trail;
pub mod window;
pub mod words;

/// Whether the environment names a collector of traces.
fn names_collector() -> bool {
    [
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ]
    .iter()
    .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}
