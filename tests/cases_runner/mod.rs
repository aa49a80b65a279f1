//! Replays the cases of `tests/cases/` against a proxy, over raw sockets.
//!
//! **Problem.** The cases say byte for byte what an upstream sends and what a client must see. A
//! mock inside the process would test our idea of HTTP against itself.
//!
//! **Promise.** Every field of every case is either acted upon or refused while loading: the types
//! of [`format`] know no field that is ignored in silence, and the words of the semantic assertions
//! are closed lists ([`judge`]). What cannot be judged against the outside contract is counted and
//! printed, never dropped.
//!
//! **Refused alternative.** An HTTP library on both sides. It would merge writes, hide a broken end
//! and repair what the cases break on purpose. Only the HTTP/2 client uses one.
//!
//! The parts, in the order in which a case meets them: [`format`] reads it, [`script`] expands its
//! bytes, [`player`] is the upstream, [`config`] and [`process`] are berth, [`client`] and [`h2c`]
//! are the client, [`play`] is the run, [`judge`] compares, [`report`] prints.

pub mod client;
pub mod config;
pub mod disputed;
pub mod exchange;
pub mod format;
pub mod h2c;
mod home;
pub mod http1;
pub mod judge;
pub mod later;
pub mod pass_through;
pub mod play;
pub mod player;
pub mod process;
pub mod report;
pub mod script;
pub mod socket;
pub mod special;
pub mod variants;
