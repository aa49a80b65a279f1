//! The credentials: what each is, whether it takes a request now, and which one is chosen.
//!
//! [`Pool`] is asked once per attempt and answers with a [`Lease`] or with why there is none. What
//! an attempt came to is told to its lease; everything that follows for the credential follows from
//! that. Times come in as arguments, so a test can live through a month in a millisecond; the only
//! I/O is the reading of secrets. What was learned from whole requests, scores, full models and
//! sessions, is `ledger`'s: it orders the candidates, while `exclusion` says who is one at all.

mod balance;
mod choice;
mod credential;
mod error;
mod exclusion;
mod expiry;
mod handover;
mod lease;
mod ledger;
mod memory;
mod retry_budget;
mod ring;
mod roster;
mod search;
mod secret;
mod sessions;
pub mod spec;
mod token_route;
mod views;

pub use choice::{
    Ask, Choice, MAX_CREDENTIALS, MAX_WEIGHT, NoneReason, Pool, Reach, Refused, RouteIndex,
    RouteMembers, Settlement, Why,
};
pub use credential::{Credential, CredentialIndex, CredentialSecretError, Secrets};
pub use error::PoolError;
pub use exclusion::{Basis, MAX_MODELS, Stated};
pub use expiry::Expiry;
pub use handover::{Places, PoolHandover};
pub use lease::Lease;
pub use ledger::{Allowance, FullModel};
pub use memory::{Full, MemoryBudget, Reservation};
pub use retry_budget::RetryWindow;
pub use secret::{SecretError, read_secret};
pub use sessions::{Lineage, Names};
pub use spec::{Balance, CredentialId, CredentialSpec, HeaderSource, ModelPatterns, SecretSource};
pub use token_route::TokenRoute;
pub use views::{BY_SCORE, PairView, SecretChanges};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What requests without a model are known by, here and to operators, as if it were a model's name.
pub const NO_MODEL: &str = "none";

/// Locks `mutex`, also after a panic elsewhere: every critical section in this module leaves plain
/// values that are whole between any two statements, so poisoning would only spread the damage.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
