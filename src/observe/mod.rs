//! The trail: audit, metrics, admin. It is told; it never decides.

pub mod audit;
pub mod ids;
pub mod metrics;
pub mod models;
pub mod record;
pub mod safe;
mod scrape;
pub mod snapshot;
pub mod spec;
pub mod window;
pub mod words;
