//! What the admin interface asks of the rest of berth.

use std::time::Duration;

use crate::observe::snapshot::Snapshot;
use crate::pool::CredentialId;

/// The process, as an operator sees it. The edge implements it over the pool; tests with a fake.
pub trait Control: Send + Sync {
    /// The pool at this moment.
    fn snapshot(&self) -> Snapshot;

    /// Whether it serves, and does not drain. The state of the pool does not matter here.
    fn ready(&self) -> bool;

    /// Carries out an order about one credential.
    fn order(&self, credential: &CredentialId, order: &Order) -> Result<(), UnknownCredential>;
}

/// What an operator wants done with a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Send it no requests until `Enable`.
    Drain,
    /// End every exclusion: drained, held out, rejected.
    Enable,
    /// Forget scores, exclusions and what was learned.
    Reset,
    /// Send it none for a time.
    HoldOut {
        /// For this model; `None` is every model.
        model: Option<String>,
        /// For this long.
        time: Duration,
    },
}

/// No credential has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCredential;
