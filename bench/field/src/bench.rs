//! What all measurements share: who runs, how long, how often, and in which order.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::contenders::{Contender, Place, Who};
use crate::report::Report;
use crate::upstream::Upstream;

/// A bench under way.
pub struct Bench {
    /// Where things are.
    pub place: Place,
    /// The upstream of all.
    pub upstream: Upstream,
    /// What was found.
    pub report: Report,
    /// Short and once: to see that it works, not to learn anything.
    pub quick: bool,
}

/// The figures of each, one for each round.
pub type Rounds<T> = BTreeMap<Who, Vec<T>>;

impl Bench {
    /// So many rounds, or one.
    pub fn rounds(&self, rounds: usize) -> usize {
        if self.quick { 1 } else { rounds }
    }

    /// So many seconds, or a fifth of them.
    pub fn seconds(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(if self.quick { seconds / 5.0 } else { seconds })
    }

    /// Starts those that can be started; who cannot is reported.
    pub fn start(&mut self, all: &[Who]) -> Vec<Contender> {
        let mut started = Vec::new();
        for who in all {
            match self.place.start(*who) {
                Ok(contender) => started.push(contender),
                Err(why) => self.report.missing(format!("{}: {why}", who.name())),
            }
        }
        started
    }

    /// Measures each in turn, round by round; every second round backwards, so that nobody always
    /// follows the same one.
    pub fn alternate<T>(
        &self,
        contenders: &[Contender],
        rounds: usize,
        mut measure: impl FnMut(&Contender) -> T,
    ) -> Rounds<T> {
        let mut found: Rounds<T> = BTreeMap::new();
        for round in 0..self.rounds(rounds) {
            let mut order: Vec<&Contender> = contenders.iter().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for contender in order {
                eprint!("  round {}: {} \r", round + 1, contender.who.name());
                found
                    .entry(contender.who)
                    .or_default()
                    .push(measure(contender));
            }
        }
        found
    }
}

/// One figure of each round of `who`.
pub fn column<T>(rounds: &Rounds<T>, who: Who, figure: impl Fn(&T) -> f64) -> Vec<f64> {
    let of = rounds.get(&who);
    of.into_iter().flatten().map(figure).collect()
}
