//! What is fuzzed, compiled by itself.
//!
//! The policy and the configuration import nothing but the specs, so this crate takes their files and
//! leaves out everything else: without Pingora and a runtime it builds in well under a minute, with
//! them in several. Each module of [`targets`] has one function that takes any bytes and panics if a
//! promise is broken; `tests/corpus.rs` of the crate outside calls the same functions.

// Of the specs and the policy only a part is called here.
#![allow(dead_code, unused_imports)]

#[path = "../../src/admission/mod.rs"]
pub mod admission;
#[path = "../../src/clients/mod.rs"]
pub mod clients;
#[path = "../../src/config/mod.rs"]
pub mod config;

#[path = "../../src/edge/spec.rs"]
pub mod edge_spec;
#[path = "../../src/observe/spec.rs"]
pub mod observe_spec;
#[path = "../../src/pool/spec.rs"]
pub mod pool;
pub mod targets;

/// The part of `edge` that the configuration builds.
pub mod edge {
    pub use crate::edge_spec as spec;
}

/// The part of `observe` that the configuration builds.
pub mod observe {
    pub use crate::observe_spec as spec;
}
