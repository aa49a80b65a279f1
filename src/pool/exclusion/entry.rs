//! One exclusion: until when it holds and how it ends.

use std::time::{Duration, Instant};

use super::Basis;
use crate::admission::PairState;

/// Names the one request that probes; unique within its credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeToken(pub u64);

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Nothing is in the way.
    Free,
    /// As a probe, which has to be claimed.
    Probe,
    /// Not now; `left` until it may, where that is known.
    Out { left: Option<Duration> },
    /// Not until an operator says so.
    Drained,
}

/// One exclusion as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub state: PairState,
    pub since: Instant,
    pub left: Option<Duration>,
    pub basis: Basis,
}

/// The exclusions of one scope, at most one of each kind.
#[derive(Debug, Default)]
pub struct Entry(pub Vec<Exclusion>);

#[derive(Debug)]
pub struct Exclusion {
    pub state: PairState,
    pub since: Instant,
    pub until: Instant,
    pub basis: Basis,
    pub comeback: Comeback,
}

/// How an exclusion ends.
///
/// ```text
/// Lapses    out ------------------------ until: over
/// Early     out --- due: one probe ----- until: over     admitted: over at once
/// Probed    out --- until: one probe     refused: out for twice as long; any other answer: over
/// ```
#[derive(Debug)]
pub enum Comeback {
    Lapses,
    Early {
        due: Instant,
        claim: Option<ProbeToken>,
    },
    Probed {
        step: Duration,
        max: Duration,
        claim: Option<ProbeToken>,
    },
}

/// Shortest of all (chosen: a stated 0 must not become a hot loop).
const MIN_STATED: Duration = Duration::from_secs(1);
/// Longest of all (chosen: a month's quota; beyond it a mistaken unit is more likely).
pub const MAX_STATED: Duration = Duration::from_secs(30 * 24 * 3600);
/// Between two probes of a spent quota (the policy's number).
pub const QUOTA_PROBE: Duration = Duration::from_secs(30 * 60);

impl Entry {
    pub fn end(&mut self, over: impl Fn(&Exclusion) -> bool) {
        self.0.retain(|it| !over(it));
    }

    /// Excludes until `after` has gone by, or as long as it does already.
    pub fn extend(&mut self, state: PairState, now: Instant, after: Duration, basis: Basis) {
        let until = now + after;
        let same = |it: &&mut Exclusion| it.state == state && !it.is_probed();
        if let Some(it) = self.0.iter_mut().find(same) {
            if until > it.until {
                it.until = until;
                it.basis = basis;
            }
            return;
        }
        let comeback = match state {
            PairState::Spent => Comeback::Early {
                due: now + QUOTA_PROBE,
                claim: None,
            },
            _ => Comeback::Lapses,
        };
        self.0.push(Exclusion {
            state,
            since: now,
            until,
            basis,
            comeback,
        });
    }

    /// Excludes for the first time, or for as long again as it does already.
    pub fn double_later(
        &mut self,
        state: PairState,
        now: Instant,
        (first, max): (Duration, Duration),
        basis: Basis,
    ) {
        for it in &mut self.0 {
            if let Comeback::Probed { step, .. } = it.comeback
                && it.state == state
            {
                it.until = it.until.max(now + step);
                return;
            }
        }
        self.0.push(Exclusion {
            state,
            since: now,
            until: now + first,
            basis,
            comeback: Comeback::Probed {
                step: first,
                max,
                claim: None,
            },
        });
    }

    pub fn shown(&self, now: Instant) -> Option<Shown> {
        let there = self.0.iter().filter(|it| !it.is_over(now));
        let last = there.max_by_key(|it| it.until)?;
        Some(Shown {
            state: last.state,
            since: last.since,
            left: Some(last.until.saturating_duration_since(now)),
            basis: last.basis,
        })
    }

    /// How much is lost when it is forgotten.
    pub fn worth(&self) -> (bool, Option<Instant>) {
        let by_operator = self.0.iter().any(|it| it.state == PairState::HeldOut);
        (by_operator, self.0.iter().map(|it| it.until).max())
    }
}

impl Exclusion {
    pub fn passage(&self, now: Instant) -> Passage {
        let left = || self.until.saturating_duration_since(now);
        match &self.comeback {
            Comeback::Lapses | Comeback::Early { .. } if self.until <= now => Passage::Free,
            Comeback::Early { due, claim: None } if *due <= now => Passage::Probe,
            Comeback::Lapses | Comeback::Early { .. } => Passage::Out { left: Some(left()) },
            Comeback::Probed { .. } if now < self.until => Passage::Out { left: Some(left()) },
            Comeback::Probed { claim: None, .. } => Passage::Probe,
            Comeback::Probed { claim: Some(_), .. } => Passage::Out { left: None },
        }
    }

    pub fn passable(&self) -> Instant {
        match &self.comeback {
            Comeback::Lapses | Comeback::Probed { .. } => self.until,
            Comeback::Early { due, .. } => self.until.min(*due),
        }
    }

    pub fn is_over(&self, now: Instant) -> bool {
        self.passage(now) == Passage::Free
    }

    fn is_probed(&self) -> bool {
        matches!(self.comeback, Comeback::Probed { .. })
    }

    /// `auth` and `deactivated`: both doubt the secret, so they double as one.
    pub fn is_about_the_secret(&self) -> bool {
        self.is_probed() && self.state == PairState::Rejected
    }
}

impl Comeback {
    pub fn claim(&self) -> Option<ProbeToken> {
        match self {
            Comeback::Lapses => None,
            Comeback::Early { claim, .. } | Comeback::Probed { claim, .. } => *claim,
        }
    }

    pub fn set_claim(&mut self, to: Option<ProbeToken>) {
        match self {
            Comeback::Lapses => {}
            Comeback::Early { claim, .. } | Comeback::Probed { claim, .. } => *claim = to,
        }
    }
}

impl Passage {
    /// Of two that both have to be passed: the stricter, the later.
    pub fn and(self, other: Passage) -> Passage {
        match (self, other) {
            (Passage::Drained, _) | (_, Passage::Drained) => Passage::Drained,
            (Passage::Out { left: one }, Passage::Out { left: two }) => Passage::Out {
                left: one.zip(two).map(|(one, two)| one.max(two)),
            },
            (out @ Passage::Out { .. }, _) | (_, out @ Passage::Out { .. }) => out,
            (Passage::Probe, _) | (_, Passage::Probe) => Passage::Probe,
            (Passage::Free, Passage::Free) => Passage::Free,
        }
    }
}

/// What an answer states, between the shortest and the longest exclusion.
pub fn within_bounds(stated: Duration) -> Duration {
    stated.clamp(MIN_STATED, MAX_STATED)
}
