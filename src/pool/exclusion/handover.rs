//! What a process tells its successor of exclusions.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::entry::{Comeback, Entry, Exclusion, MAX_STATED};
use super::{BY_DEFAULT, BY_DOUBLING, BY_FAILURES, BY_OPERATOR, Basis, Exclusions, MAX_MODELS};
use crate::admission::PairState;
use crate::admission::elapsed::FromNow;
use crate::admission::retry_after::{BY_RESET, BY_RETRY_AFTER};

/// The exclusions of one credential.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExclusionsHandover {
    drained: Option<FromNow>,
    whole: Vec<ExclusionHandover>,
    pairs: Vec<(String, Vec<ExclusionHandover>)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ExclusionHandover {
    state: String,
    since: FromNow,
    until: FromNow,
    basis: String,
    comeback: ComebackHandover,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ComebackHandover {
    Lapses,
    Early { due: FromNow },
    Probed { step: Duration, max: Duration },
}

/// Exclusions of one scope, at most (chosen: there is one of each kind).
const MOST: usize = 16;

impl Exclusions {
    /// Everything that still holds.
    pub fn hand_over(&self, now: Instant) -> ExclusionsHandover {
        let told = |entry: &Entry| -> Vec<_> {
            let there = entry.0.iter().filter(|it| !it.is_over(now));
            there.map(|it| it.hand_over(now)).collect()
        };
        let pairs = self.pairs.iter();
        let pairs = pairs.map(|(model, entry)| (model.to_string(), told(entry)));
        ExclusionsHandover {
            drained: self.drained.map(|it| FromNow::of(it, now)),
            whole: told(&self.whole),
            pairs: pairs.filter(|(_, entry)| !entry.is_empty()).collect(),
        }
    }

    /// Excludes from now on what another process excluded. A secret that was rejected is probed at
    /// once: this process has read it anew.
    pub fn take_over(&mut self, told: &ExclusionsHandover, now: Instant) {
        let entry = |told: &[ExclusionHandover]| {
            let told = told.iter().take(MOST);
            Entry(told.filter_map(|it| it.taken_over(now)).collect())
        };
        self.drained = told.drained.map(|it| it.at(now));
        self.whole = entry(&told.whole);
        let pairs = told.pairs.iter().take(MAX_MODELS);
        let pairs = pairs.map(|(model, told)| (model.as_str().into(), entry(told)));
        self.pairs = pairs.filter(|(_, entry)| !entry.0.is_empty()).collect();
    }
}

impl Exclusion {
    fn hand_over(&self, now: Instant) -> ExclusionHandover {
        ExclusionHandover {
            state: self.state.as_str().to_owned(),
            since: FromNow::of(self.since, now),
            until: FromNow::of(self.until, now),
            basis: self.basis.to_owned(),
            comeback: match self.comeback {
                Comeback::Lapses => ComebackHandover::Lapses,
                Comeback::Early { due, .. } => ComebackHandover::Early {
                    due: FromNow::of(due, now),
                },
                Comeback::Probed { step, max, .. } => ComebackHandover::Probed { step, max },
            },
        }
    }
}

impl ExclusionHandover {
    /// `None` where this version knows no such state.
    fn taken_over(&self, now: Instant) -> Option<Exclusion> {
        let known = |state: &PairState| state.as_str() == self.state;
        let mut exclusion = Exclusion {
            state: PairState::ALL.into_iter().find(known)?,
            since: self.since.at(now),
            until: self.until.at(now).min(now + MAX_STATED),
            basis: known_basis(&self.basis),
            comeback: match self.comeback {
                ComebackHandover::Lapses => Comeback::Lapses,
                ComebackHandover::Early { due } => Comeback::Early {
                    due: due.at(now),
                    claim: None,
                },
                ComebackHandover::Probed { step, max } => Comeback::Probed {
                    step: step.min(MAX_STATED),
                    max: max.min(MAX_STATED),
                    claim: None,
                },
            },
        };
        if exclusion.is_about_the_secret() {
            exclusion.until = exclusion.until.min(now);
        }
        Some(exclusion)
    }
}

/// A basis of this version by its name.
pub fn known_basis(told: &str) -> Basis {
    let known = [
        BY_DEFAULT,
        BY_DOUBLING,
        BY_OPERATOR,
        BY_FAILURES,
        BY_RETRY_AFTER,
        BY_RESET,
    ];
    let found = known.into_iter().find(|it| *it == told);
    found.unwrap_or("handed_over")
}

#[cfg(test)]
mod tests {
    use super::super::{Lesson, Passage};
    use super::*;
    use crate::admission::Verdict;

    fn taught(exclusions: &mut Exclusions, model: &str, verdict: Verdict, now: Instant) {
        let lesson = Lesson {
            model,
            verdict,
            stated: None,
            probe: None,
        };
        exclusions.learn(lesson, now);
    }

    fn moved(old: &Exclusions, now: Instant) -> Exclusions {
        let told = serde_json::to_string(&old.hand_over(now)).unwrap();
        let mut new = Exclusions::default();
        new.take_over(&serde_json::from_str(&told).unwrap(), now);
        new
    }

    #[test]
    fn each_kind_holds_as_long_in_the_next_process() {
        let now = Instant::now();
        let mut old = Exclusions::default();
        taught(&mut old, "limited", Verdict::RateLimit, now);
        taught(&mut old, "unsupported", Verdict::ModelUnsupported, now);
        taught(&mut old, "x", Verdict::Quota, now);
        old.hold_out(Some("held"), Duration::from_secs(60), now);
        let later = now + Duration::from_secs(2);
        let new = moved(&old, later);
        for model in ["limited", "unsupported", "held", "x", "other"] {
            assert_eq!(
                new.passage(model, later),
                old.passage(model, later),
                "{model}"
            );
            let much_later = later + Duration::from_secs(40 * 60);
            assert_eq!(
                new.passage(model, much_later),
                old.passage(model, much_later)
            );
        }
        assert_eq!(new.shown(later), old.shown(later));
        assert_eq!(new.shown_pairs(later), old.shown_pairs(later));
    }

    #[test]
    fn what_is_drained_stays_drained_and_a_rejected_secret_is_probed_at_once() {
        let now = Instant::now();
        let mut old = Exclusions::default();
        taught(&mut old, "m", Verdict::Auth, now);
        assert!(matches!(old.passage("m", now), Passage::Out { .. }));
        assert_eq!(moved(&old, now).passage("m", now), Passage::Probe);
        old.drain(now);
        assert_eq!(moved(&old, now).passage("m", now), Passage::Drained);
    }
}
