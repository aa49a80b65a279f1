//! What a process tells its successor of scores, sessions and those that wait.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::super::sessions::SessionsHandover;
use super::{Ledger, lock};
use crate::admission::patience::PatienceHandover;
use crate::admission::score::ScoresHandover;

/// Everything but which models are full: that is found out again within seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LedgerHandover {
    scores: ScoresHandover,
    patience: PatienceHandover,
    sessions: SessionsHandover,
}

impl Ledger {
    /// Everything that is known.
    pub fn hand_over(&self, now: Instant) -> LedgerHandover {
        let mut inner = lock(&self.0);
        LedgerHandover {
            scores: inner.scores.hand_over(now),
            patience: inner.patience.hand_over(now),
            sessions: inner.sessions.hand_over(now),
        }
    }

    /// Knows from now on what another process knew. `here` is the place of a credential in this pool,
    /// by its place in the other.
    pub fn take_over(
        &self,
        told: &LedgerHandover,
        here: impl Fn(usize) -> Option<usize>,
        now: Instant,
    ) {
        let mut inner = lock(&self.0);
        inner.scores.take_over(&told.scores, &here, now);
        inner.patience.take_over(&told.patience, now);
        inner.sessions.take_over(&told.sessions, &here, now);
    }
}
