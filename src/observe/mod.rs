//! The trail: audit, metrics, admin. It is told; it never decides.

pub mod audit;
pub mod ids;
pub mod record;
pub mod safe;
pub mod spec;
pub mod words;
