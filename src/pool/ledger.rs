//! What the pool has learned from requests as a whole: scores, full models, waiting sessions.
//!
//! The rules are pure values in `admission`; this puts them behind one short lock and keeps for each
//! model and session the one that belongs to it. One lock for all was chosen over one per model:
//! every critical section is a few table look-ups, and a probe's place, the score that follows from
//! it and what a session remembers change together or not at all.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::credential::CredentialIndex;
use super::lock;
use super::sessions::Sessions;
use crate::admission::Policy;
use crate::admission::full::{Fullness, Start, Turn};
use crate::admission::patience::Patience;
use crate::admission::recent::Recent;
use crate::admission::score::{
    MAX_MODELS, Outlook, Peers, ProbeSerial, Probed, Refusal, Scores, Settled,
};
use crate::admission::{PairState, dice, policy};

mod handover;

pub use handover::LedgerHandover;

/// Scores, full models and waiting sessions.
pub(super) struct Ledger(Mutex<Inner>);

struct Inner {
    full_rules: policy::Full,
    scores: Scores,
    full: Recent<Box<str>, Fullness>,
    patience: Patience,
    sessions: Sessions,
}

/// How many attempts a request has, and when it may make the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Attempts in all.
    pub attempts: u32,
    /// When the first may start.
    pub start: Start,
}

/// A model that is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullModel {
    /// The model.
    pub model: String,
    /// For how long it has been.
    pub since: Duration,
}

/// A pair's score, for status.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scored {
    pub credential: CredentialIndex,
    pub model: String,
    pub state: PairState,
    pub since: Option<Instant>,
    pub until: Option<Instant>,
    pub score: f64,
    pub excess: f64,
    pub evidence: crate::admission::score::Evidence,
}

/// The probe of a shunned pair; its place is free again when this is dropped.
pub(super) struct Trial {
    ledger: Arc<Ledger>,
    model: Box<str>,
    credential: CredentialIndex,
    serial: ProbeSerial,
    began: Instant,
    ended: AtomicBool,
}

impl Ledger {
    pub fn new(policy: &Policy, seed: u64) -> Ledger {
        let scores = Scores::new(policy.score, policy.cooldown, policy.probe, seed);
        Ledger(Mutex::new(Inner {
            full_rules: policy.full,
            scores,
            full: Recent::new(MAX_MODELS),
            patience: Patience::new(policy.retry_after, dice::mix(seed)),
            sessions: Sessions::default(),
        }))
    }

    pub fn outlook(
        &self,
        model: &str,
        peers: Peers,
        session: Option<u64>,
        now: Instant,
    ) -> Outlook {
        lock(&self.0).scores.outlook(model, peers, session, now)
    }

    /// What is known of sessions.
    pub fn sessions<R>(&self, act: impl FnOnce(&mut Sessions) -> R) -> R {
        act(&mut lock(&self.0).sessions)
    }

    /// Draws every consequence of a request that was admitted or has nothing left.
    pub fn settle(&self, settled: Settled, serving: usize, began: Instant, now: Instant) {
        let mut inner = lock(&self.0);
        let Inner {
            full_rules,
            scores,
            full,
            patience,
            ..
        } = &mut *inner;
        let is_full = |it: &Fullness| it.full_since().is_some();
        let settled = Settled {
            full: full.peek(settled.model).is_some_and(is_full),
            ..settled
        };
        scores.settle(&settled, now);
        let key = settled.session.map(|it| in_model(it, settled.model));
        match settled.admitted {
            Some(_) => {
                if let Some(key) = key {
                    patience.admitted(key);
                }
                match full.get(settled.model) {
                    Some(model) => model.admitted(began, now),
                    None => full
                        .entry(settled.model.into(), || Fullness::new(*full_rules))
                        .admitted(began, now),
                }
            }
            None if settled.refused.is_empty() => {}
            None => {
                if let Some(key) = key {
                    patience.refused_everywhere(key, began, now);
                }
                let model = full.entry(settled.model.into(), || Fullness::new(*full_rules));
                model.refused(began);
                let session = settled.session.unwrap_or_default();
                model.refused_everywhere(session, (settled.refused.len(), serving), now);
            }
        }
    }

    /// How many attempts a request has, and when it may make the first.
    pub fn allowance(
        &self,
        model: &str,
        session: Option<u64>,
        (max_attempts, waiting): (u32, Option<Instant>),
        now: Instant,
    ) -> Allowance {
        let mut inner = lock(&self.0);
        let Inner { full, patience, .. } = &mut *inner;
        let mut attempts = max_attempts;
        if session.is_some_and(|it| patience.is_short(in_model(it, model), now)) {
            attempts = 1;
        }
        let Some(known) = full.get(model) else {
            return Allowance {
                attempts,
                start: Start::Go,
            };
        };
        if known.full_since().is_some() {
            attempts = 1;
        }
        // Two requests of one session may wait together; to be let go together does not hurt.
        let ticket = dice::mix(session.unwrap_or_default() ^ dice::hash(model));
        let start = known.try_start(Turn { waiting, ticket }, now);
        Allowance { attempts, start }
    }

    /// Whether attempts beyond the first are worth nothing now.
    pub fn is_full(&self, model: &str) -> bool {
        let inner = lock(&self.0);
        let known = inner.full.peek(model);
        known.is_some_and(|it| it.full_since().is_some())
    }

    pub fn retry_after(&self, session: Option<u64>, model: &str, now: Instant) -> Duration {
        let key = session.map(|it| in_model(it, model));
        lock(&self.0).patience.retry_after(key, now)
    }

    /// A stated time within the bounds, and not the same for everybody.
    pub fn spread(&self, time: Duration) -> Duration {
        lock(&self.0).patience.spread(time)
    }

    pub fn forget(&self, credential: CredentialIndex) {
        lock(&self.0).scores.forget(credential.0);
    }

    pub fn full_models(&self, now: Instant) -> Vec<FullModel> {
        let inner = lock(&self.0);
        let full = inner.full.iter().filter_map(|(model, it)| {
            Some(FullModel {
                model: model.to_string(),
                since: now.saturating_duration_since(it.full_since()?),
            })
        });
        let mut full: Vec<_> = full.collect();
        full.sort_unstable_by(|a, b| a.model.cmp(&b.model));
        full
    }

    /// Every pair about which something is known, by credential and model.
    pub fn scored(&self, now: Instant) -> Vec<Scored> {
        let mut inner = lock(&self.0);
        let pairs = inner.scores.pairs(now).into_iter().map(|it| Scored {
            credential: CredentialIndex(it.credential),
            model: it.model.to_owned(),
            state: it.state,
            since: it.since,
            until: it.until,
            score: it.score,
            excess: it.excess,
            evidence: it.evidence,
        });
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_unstable_by(|a, b| (a.credential, &a.model).cmp(&(b.credential, &b.model)));
        pairs
    }

    /// Credentials that go last with every model.
    pub fn wide(&self, now: Instant) -> Vec<CredentialIndex> {
        let mut inner = lock(&self.0);
        inner.scores.wide(now).map(CredentialIndex).collect()
    }

    /// Takes one of the places for probes of a shunned pair.
    pub fn probe(
        self: &Arc<Self>,
        model: &str,
        credential: CredentialIndex,
        now: Instant,
    ) -> Option<Trial> {
        let serial = lock(&self.0).scores.probe(model, credential.0, now)?;
        Some(Trial {
            ledger: Arc::clone(self),
            model: model.into(),
            credential,
            serial,
            began: now,
            ended: AtomicBool::new(false),
        })
    }
}

impl Trial {
    /// Says what the probe came to; only the first word counts.
    pub fn end(&self, probed: Probed, now: Instant) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut inner = lock(&self.ledger.0);
        let (model, credential) = (&*self.model, self.credential.0);
        let full = inner.full.peek(model).and_then(Fullness::full_since);
        // A refusal by a full model says nothing about the pair.
        let probed = match probed {
            Probed::Refused if full.is_some() => Probed::Nothing,
            it => it,
        };
        inner
            .scores
            .probed(model, credential, self.serial, probed, now);
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // There is no clock here, and none is needed: to free a place changes no time.
        self.end(Probed::Nothing, self.began);
    }
}

/// The key of a session with one model.
fn in_model(session: u64, model: &str) -> u64 {
    dice::mix(session ^ dice::hash(model))
}

/// The refusal of a pair, in the words of the score.
pub(super) fn refusal(
    credential: CredentialIndex,
    weight: u32,
    stated: Option<Duration>,
) -> Refusal {
    Refusal {
        credential: credential.0,
        weight,
        stated,
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial")
            .field("model", &self.model)
            .field("credential", &self.credential)
            .finish_non_exhaustive()
    }
}
