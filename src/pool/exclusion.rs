//! Exclusions: what a credential, or a credential with one model, has said it will not do for now.
//!
//! A rate limit, a spent quota, a key that is not accepted: the upstream says so itself, so it is a
//! fact with an end and not a score. This file keeps these facts for one credential as plain values;
//! it has no clock and no lock. Three ways lead back, see [`Comeback`]; in all of them
//! - of two deadlines for the same exclusion the later holds,
//! - a probe is one request at a time, and one that brings no answer frees its place,
//! - only a probe ends or doubles an exclusion early. A request that was under way before can neither
//!   prove that a key works again nor make ten refusals of the same second count as ten doublings;
//!   *unreachable* alone is ended by any answer, since that is all it denies.
//!
//! One deadline per credential was refused: a rate limit of one model would then hide the others,
//! and the end of the shorter fact would be taken for the end of both.
//!
//! At most [`MAX_MODELS`] models are remembered: their names come from clients.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::admission::{HoldOut, PairState, Scope, Verdict, retry_after};

mod entry;
mod handover;

use entry::{Comeback, Entry, Exclusion, MAX_STATED, QUOTA_PROBE, within_bounds};
pub(super) use entry::{Passage, ProbeToken, Shown};
pub use handover::{ExclusionsHandover, known_basis};

/// Models that are remembered per credential (chosen: more than any vendor serves).
pub const MAX_MODELS: usize = 512;

/// Where an exclusion's end comes from, for status.
pub type Basis = &'static str;

/// What an answer says about its own exclusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stated {
    /// Time from now to its end; kept within sensible bounds.
    pub after: Duration,
    /// Where that was read: `retry_after`, `upstream_reset` or `rule`.
    pub basis: Basis,
    /// Only this model's share of the quota is spent.
    pub pair_only: bool,
}

impl From<retry_after::Stated> for Stated {
    fn from(stated: retry_after::Stated) -> Stated {
        Stated {
            after: stated.after,
            basis: stated.basis,
            pair_only: false,
        }
    }
}

/// Everything that excludes one credential, or its pairs, at the moment.
#[derive(Debug, Default)]
pub(super) struct Exclusions {
    drained: Option<Instant>,
    whole: Entry,
    pairs: HashMap<Box<str>, Entry>,
    failures: Vec<Instant>,
    last_token: u64,
}

/// What an attempt came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lesson<'a> {
    pub model: &'a str,
    pub verdict: Verdict,
    pub stated: Option<Stated>,
    /// The claim of the attempt, with the model it was claimed for.
    pub probe: Option<(ProbeToken, &'a str)>,
}

/// Failures of the network that make a credential unreachable, and within which time (the policy's).
const FAILURES: usize = 3;
const FAILURES_WITHIN: Duration = Duration::from_secs(30);
/// Out for so long at first, and at most (the policy's).
const UNREACHABLE_FIRST: Duration = Duration::from_secs(1);
const UNREACHABLE_MAX: Duration = Duration::from_secs(30);
/// Models forgotten at once where there are too many, so that made-up names do not cost a search
/// through all of them each (chosen).
const FORGOTTEN_AT_ONCE: usize = 16;

const BY_DEFAULT: Basis = "default";
const BY_DOUBLING: Basis = "doubling";
const BY_OPERATOR: Basis = "operator";
const BY_FAILURES: Basis = "unreachable";

impl Exclusions {
    /// Whether a request for `model` may pass.
    pub fn passage(&self, model: &str, now: Instant) -> Passage {
        if self.drained.is_some() {
            return Passage::Drained;
        }
        let pair = self.pairs.get(model).into_iter();
        let all = self.whole.0.iter().chain(pair.flat_map(|entry| &entry.0));
        all.map(|exclusion| exclusion.passage(now))
            .fold(Passage::Free, Passage::and)
    }

    /// Claims every probe that is due; to be called where [`Self::passage`] said so.
    pub fn claim(&mut self, model: &str, now: Instant) -> ProbeToken {
        self.last_token += 1;
        let token = ProbeToken(self.last_token);
        for exclusion in self.reach(model) {
            if exclusion.passage(now) == Passage::Probe {
                exclusion.comeback.set_claim(Some(token));
            }
        }
        token
    }

    /// The probe ended without an answer; without effect if it brought one before.
    pub fn release(&mut self, token: ProbeToken, model: &str) {
        for exclusion in self.reach(model) {
            if exclusion.comeback.claim() == Some(token) {
                exclusion.comeback.set_claim(None);
            }
        }
    }

    /// Draws every consequence of an attempt.
    pub fn learn(&mut self, lesson: Lesson, now: Instant) {
        let answered = lesson.verdict.is_answer();
        if answered {
            self.failures.clear();
            self.whole.end(|it| it.state == PairState::Unreachable);
        }
        let was_probe = self.settle_probe(&lesson, answered, now);
        if lesson.verdict.counts_as_unreachable() {
            self.count_failure(now);
        }
        match lesson.verdict.hold_out() {
            HoldOut::Nothing => {}
            HoldOut::Stated {
                scope,
                state,
                default,
            } => {
                let pair_only = lesson.stated.is_some_and(|stated| stated.pair_only);
                let scope = if pair_only { Scope::Pair } else { scope };
                let (after, basis) = match lesson.stated {
                    Some(stated) => (within_bounds(stated.after), stated.basis),
                    None => (default, BY_DEFAULT),
                };
                self.entry(scope, lesson.model, now)
                    .extend(state, now, after, basis);
            }
            HoldOut::Doubling {
                scope,
                state,
                first,
                max,
            } => {
                if !was_probe {
                    self.entry(scope, lesson.model, now).double_later(
                        state,
                        now,
                        (first, max),
                        BY_DOUBLING,
                    );
                }
            }
        }
    }

    /// An operator takes the credential, or one model of it, out for a time.
    pub fn hold_out(&mut self, model: Option<&str>, time: Duration, now: Instant) {
        let (scope, model) = match model {
            Some(model) => (Scope::Pair, model),
            None => (Scope::Credential, ""),
        };
        let time = time.min(MAX_STATED);
        self.entry(scope, model, now)
            .extend(PairState::HeldOut, now, time, BY_OPERATOR);
    }

    /// An operator takes the credential out until [`Self::enable`].
    pub fn drain(&mut self, now: Instant) {
        self.drained.get_or_insert(now);
    }

    /// Ends what an operator did, and what waits for the operator.
    pub fn enable(&mut self) {
        self.drained = None;
        self.end(|it| it.state == PairState::HeldOut || it.is_about_the_secret());
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        // The tokens go on, or a probe still under way could be taken for a later one.
        *self = Exclusions {
            last_token: self.last_token,
            ..Exclusions::default()
        };
    }

    /// What was said about the old secret says nothing about the new one.
    pub fn secret_changed(&mut self) {
        self.end(Exclusion::is_about_the_secret);
    }

    /// The earliest time at which a request for any model may pass; `None` while drained.
    pub fn passable_from(&self) -> Option<Passable> {
        match self.drained {
            Some(_) => None,
            None => Some(match self.whole.0.iter().map(Exclusion::passable).max() {
                Some(time) => Passable::From(time),
                None => Passable::Now,
            }),
        }
    }

    /// What excludes the credential with every model.
    pub fn shown(&self, now: Instant) -> Option<Shown> {
        if let Some(since) = self.drained {
            return Some(Shown {
                state: PairState::Drained,
                since,
                left: None,
                basis: BY_OPERATOR,
            });
        }
        self.whole.shown(now)
    }

    /// What excludes single models, in the order of their names.
    pub fn shown_pairs(&self, now: Instant) -> Vec<(&str, Shown)> {
        let pairs = self.pairs.iter();
        let mut shown: Vec<_> = pairs
            .filter_map(|(model, entry)| Some((&**model, entry.shown(now)?)))
            .collect();
        shown.sort_unstable_by_key(|(model, _)| *model);
        shown
    }

    /// Ends or continues what the attempt has probed; whether it has probed its secret.
    fn settle_probe(&mut self, lesson: &Lesson, answered: bool, now: Instant) -> bool {
        let Some((token, model)) = lesson.probe else {
            return false;
        };
        let verdict = lesson.verdict;
        let rejected = matches!(verdict.hold_out(), HoldOut::Doubling { .. });
        let mut probed_secret = false;
        let mut settle = |it: &mut Exclusion| {
            if it.comeback.claim() != Some(token) {
                return true;
            }
            it.comeback.set_claim(None);
            let unreachable = it.state == PairState::Unreachable;
            match &mut it.comeback {
                Comeback::Lapses => true,
                Comeback::Early { .. } if verdict == Verdict::Admitted => false,
                Comeback::Early { due, .. } => {
                    if answered {
                        *due = now + QUOTA_PROBE;
                    }
                    true
                }
                Comeback::Probed { step, max, .. } => {
                    let again = if unreachable {
                        verdict.counts_as_unreachable()
                    } else {
                        probed_secret = true;
                        rejected
                    };
                    if again {
                        *step = (*step * 2).min(*max);
                        it.until = it.until.max(now + *step);
                    }
                    again || !answered
                }
            }
        };
        self.whole.0.retain_mut(&mut settle);
        if let Some(entry) = self.pairs.get_mut(model) {
            entry.0.retain_mut(&mut settle);
        }
        probed_secret
    }

    fn count_failure(&mut self, now: Instant) {
        let unreachable = |it: &Exclusion| it.state == PairState::Unreachable;
        if self.whole.0.iter().any(unreachable) {
            // Those that were under way fail too; only the probe counts.
            return;
        }
        self.failures
            .retain(|then| now.saturating_duration_since(*then) <= FAILURES_WITHIN);
        self.failures.push(now);
        if self.failures.len() >= FAILURES {
            self.failures.clear();
            let times = (UNREACHABLE_FIRST, UNREACHABLE_MAX);
            self.whole
                .double_later(PairState::Unreachable, now, times, BY_FAILURES);
        }
    }

    fn end(&mut self, over: impl Fn(&Exclusion) -> bool) {
        self.whole.end(&over);
        self.pairs.retain(|_, entry| {
            entry.end(&over);
            !entry.0.is_empty()
        });
    }

    /// What a claim for `model` can reach.
    fn reach(&mut self, model: &str) -> impl Iterator<Item = &mut Exclusion> {
        let pair = self.pairs.get_mut(model).into_iter();
        let pair = pair.flat_map(|entry| &mut entry.0);
        self.whole.0.iter_mut().chain(pair)
    }

    /// The entry of a scope, without what is over in it.
    fn entry(&mut self, scope: Scope, model: &str, now: Instant) -> &mut Entry {
        let entry = match scope {
            Scope::Credential => &mut self.whole,
            Scope::Pair => {
                if !self.pairs.contains_key(model) {
                    self.make_room(now);
                }
                self.pairs.entry(model.into()).or_default()
            }
        };
        entry.end(|it| it.is_over(now));
        entry
    }

    /// Forgets what is over, then those that end soonest, an operator's word last of all.
    fn make_room(&mut self, now: Instant) {
        if self.pairs.len() < MAX_MODELS {
            return;
        }
        self.pairs.retain(|_, entry| {
            entry.end(|it| it.is_over(now));
            !entry.0.is_empty()
        });
        if self.pairs.len() < MAX_MODELS {
            return;
        }
        let mut ends: Vec<_> = self.pairs.values().map(Entry::worth).collect();
        let (_, last, _) = ends.select_nth_unstable(FORGOTTEN_AT_ONCE - 1);
        let (last, mut left) = (*last, FORGOTTEN_AT_ONCE);
        self.pairs.retain(|_, entry| {
            let forget = left > 0 && entry.worth() <= last;
            left -= usize::from(forget);
            !forget
        });
    }
}

/// When a request for any model may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passable {
    /// At any time.
    Now,
    /// From then on, perhaps as a probe.
    From(Instant),
}

#[cfg(test)]
mod tests;
