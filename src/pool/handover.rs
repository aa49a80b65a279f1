//! What a pool tells the pool of the process that takes over.
//!
//! Credentials are told apart by name, so the successor's configuration may have others, or the same in
//! another order: what is said of one that is gone is forgotten. Times travel as what they are from
//! now. Secrets do not travel: each process reads its own.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::choice::Pool;
use super::credential::CredentialIndex;
use super::exclusion::{ExclusionsHandover, Stated, known_basis};
use super::ledger::LedgerHandover;
use super::spec::CredentialId;
use crate::admission::Verdict;

/// Exclusions, scores, and where sessions live.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolHandover {
    /// By the place of the credential in the pool that tells.
    credentials: Vec<(String, ExclusionsHandover)>,
    ledger: LedgerHandover,
}

/// The places of another pool's credentials in this one.
#[derive(Clone, Debug)]
pub struct Places(Vec<Option<CredentialIndex>>);

impl Places {
    /// Where the credential is here that was at this place there, if it is here at all.
    pub fn here(&self, there: usize) -> Option<CredentialIndex> {
        self.0.get(there).copied().flatten()
    }
}

impl Stated {
    /// As another process has told it.
    pub fn told(after: Duration, basis: &str, pair_only: bool) -> Stated {
        Stated {
            after,
            basis: known_basis(basis),
            pair_only,
        }
    }
}

impl Pool {
    /// Draws the consequences of a verdict that another process has met.
    pub fn hear(
        &self,
        id: &CredentialId,
        model: Option<&str>,
        told: (Verdict, Option<Stated>),
        now: Instant,
    ) {
        if let Some(credential) = self.credential(id) {
            credential.learn(model, told, None, now);
        }
    }

    /// Everything that was learned.
    pub fn hand_over(&self, now: Instant) -> PoolHandover {
        let credentials = self.credentials.iter();
        let told = credentials.map(|it| (it.id().to_string(), it.hand_over(now)));
        PoolHandover {
            credentials: told.collect(),
            ledger: self.ledger.hand_over(now),
        }
    }

    /// Knows from now on what another pool had learned; for a pool that has learned nothing yet.
    pub fn take_over(&self, told: &PoolHandover, now: Instant) -> Places {
        let found = told.credentials.iter().map(|(name, exclusions)| {
            let credential = self.credential(&CredentialId::new(name)?)?;
            credential.take_over(exclusions, now);
            Some(credential.index())
        });
        let places = Places(found.collect());
        let here = |there| places.here(there).map(|it| it.0);
        self.ledger.take_over(&told.ledger, here, now);
        places
    }
}
