//! berth: an edge load balancer for AI APIs that fails over before the first word.
//!
//! `docs/architecture.md` is the map.

pub mod admission;
pub mod config;
pub mod demo;
pub mod edge;
pub mod observe;
pub mod pool;
pub mod sim;
pub mod start;
