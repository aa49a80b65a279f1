//! What a process tells its successor of scores, sessions and those that wait.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Ledger, Settler, lock};
use crate::admission::elapsed::FromNow;
use crate::admission::patience::PatienceHandover;
use crate::admission::score::{MAX_SESSIONS, ScoresHandover};
use crate::pool::CredentialIndex;

/// Everything but which models are full: that is found out again within seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LedgerHandover {
    scores: ScoresHandover,
    patience: PatienceHandover,
    /// Session, its home where that is not the ring's, and when it was last heard of.
    homes: Vec<(u64, Option<usize>, FromNow)>,
}

impl Ledger {
    /// Everything that is known.
    pub fn hand_over(&self, now: Instant) -> LedgerHandover {
        let mut inner = lock(&self.0);
        let scores = inner.scores.hand_over(now);
        let homes = inner.homes.iter().map(|(session, settler)| {
            let home = settler.home.map(|it| it.0);
            (*session, home, FromNow::of(settler.last, now))
        });
        LedgerHandover {
            scores,
            patience: inner.patience.hand_over(now),
            homes: homes.collect(),
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
        for (session, home, last) in told.homes.iter().take(MAX_SESSIONS) {
            let settler = Settler {
                home: home.and_then(&here).map(CredentialIndex),
                last: last.at(now),
            };
            inner.homes.entry(*session, || settler);
        }
    }
}
