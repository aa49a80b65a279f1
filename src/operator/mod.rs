//! What an operator asks from the command line, beyond serving.
//!
//! These commands run beside a berth that serves, or without one: what only a running one knows is
//! asked of its admin port ([`port`]), and left out, with a word of why, where it does not answer.

pub mod clients;
mod clients_table;
pub mod port;
pub mod rules;
pub mod status;
mod watch;
