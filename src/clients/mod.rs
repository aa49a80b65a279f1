//! Who may ask, and how much?
//!
//! A key that the operator gave out stands for a client. Here it is decided whether a key is one of
//! those, and whether its client is within its limits: requests in a minute, requests in flight, tokens
//! in a day, a list of models, a last day. No clock and no socket: times come in, decisions go out. Where
//! keys come from is `edge::client`; files and the disk are `edge::clients`.
//!
//! Promises. Only digests of keys are known here, never a key. A stranger costs two digests and leaves
//! nothing behind: no entry, no label, no count of its own. Whoever is refused is told which limit it was
//! and when that ends; to be told that a key's time is over, one must have the key. Memory is bounded by
//! the number of clients, which is the operator's.

mod key;
mod minute;
mod register;
mod spec;
mod spending;

pub use key::KeyDigest;
pub use register::{ClientFigures, ClientView, Denied, MAX_CLIENTS, Permit, Refusal, Register};
pub use spec::{ClientId, ClientSpec};
pub use spending::{NOT_COUNTED, NOT_KEPT, SpendingHandover};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic elsewhere: what is locked here is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
