//! berth: an edge load balancer for AI APIs that fails over before the first word.
//!
//! `docs/architecture.md` is the map.

// Bytes from a network reach most of this crate: nothing in it may panic on them. Not in Cargo.toml,
// because the programs in tests/ may.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

pub mod admission;
pub mod clients;
pub mod config;
pub mod demo;
pub mod edge;
pub mod observe;
pub mod operator;
pub mod pool;
pub mod probe;
pub mod service;
pub mod sim;
pub mod start;
pub mod tell;
pub mod terminal;
