//! The trail: audit, metrics, admin. It is told; it never decides.

pub mod spec;
