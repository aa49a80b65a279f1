//! The policy at the heart of berth, as plain values and functions.
//!
//! Nothing in this folder does I/O, has a clock of its own or imports a sibling: bytes and times come
//! in, decisions go out. `edge` feeds it and acts on what it says.

// What is disallowed, and why: clippy.toml.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod allowance;
pub mod ask;
pub mod coding;
pub mod day;
pub mod dialect;
pub mod dice;
pub mod elapsed;
pub mod facts;
pub mod frame;
pub mod full;
pub mod gate;
mod json;
mod kind;
pub mod model;
pub mod patience;
pub mod policy;
pub mod recent;
pub mod retry_after;
pub mod rewrite;
pub mod room;
pub mod rules;
pub mod score;
pub mod share;
pub mod sse;
pub mod stream;
pub mod turn_metadata;
pub mod usage;
pub mod verdict;
pub mod withheld;

pub use dialect::{Dialect, Endpoint};
pub use policy::Policy;
pub use verdict::{HoldOut, PairState, Scope, Shape, Switch, Telling, Verdict, Words};
pub use withheld::Withheld;
