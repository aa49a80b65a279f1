//! The pairs of one model, side by side.

use std::time::{Duration, Instant};

use super::super::verdict::PairState;
use super::pair::{Numbers, Pair};
use super::{Credential, Last, Outlook, PairScore, Peers};

/// The pairs of a model that have a score; all others stand at nothing.
#[derive(Debug)]
pub struct Model {
    /// All of its pairs, as last told.
    pub peers: Peers,
    /// When something was last learned.
    pub learned: Instant,
    /// The time for which the scores hold.
    at: Instant,
    /// By credential.
    pairs: Vec<Pair>,
    median: Median,
    /// Something was changed since the median was taken.
    changed: bool,
}

/// The median of the others, for each pair: it is one of two numbers, since to leave one pair out
/// moves the middle by one place at most.
#[derive(Clone, Copy, Debug, Default)]
struct Median {
    /// Without one of the lower half.
    above: f64,
    /// Without one of the upper half.
    below: f64,
}

impl Model {
    pub fn new(peers: Peers, now: Instant) -> Model {
        Model {
            peers,
            learned: now,
            at: now,
            pairs: Vec::new(),
            median: Median::default(),
            changed: false,
        }
    }

    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// These are all of its pairs.
    pub fn among(&mut self, peers: Peers) {
        self.changed |= self.peers != peers;
        self.peers = peers;
    }

    /// Brings every score to `now`, and ends each shunning whose excess has fallen.
    pub fn refresh(&mut self, numbers: &Numbers, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        if passed.is_zero() && !self.changed {
            return;
        }
        self.at = self.at.max(now);
        let factor = decay(passed, numbers.marks.half_life);
        for pair in &mut self.pairs {
            pair.score *= factor;
            pair.warm *= factor;
        }
        let before = self.pairs.len();
        self.pairs.retain(|pair| !pair.is_blank(now));
        self.median = match self.changed || self.pairs.len() != before {
            true => self.median(),
            // All scores fall alike, and the median with them.
            false => self.median.times(factor),
        };
        self.changed = false;
        let (median, marks) = (self.median, &numbers.marks);
        for pair in &mut self.pairs {
            if pair.score - median.without(pair.score) < marks.cool_at {
                pair.shunned = None;
            }
        }
    }

    /// Those that have a score.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Everything that goes last.
    pub fn order(&self, now: Instant, outlook: &mut Outlook) {
        let heavy = |pair: &&Pair| pair.is_cooling(now) || pair.shunned.is_some();
        let held: u64 = self
            .pairs
            .iter()
            .filter(heavy)
            .map(|pair| u64::from(pair.weight))
            .sum();
        let ready = self.peers.weight.saturating_sub(held);
        let cooling_counts = 2 * ready >= self.peers.weight;
        let last = self.pairs.iter().filter_map(|pair| {
            let shunned = pair.shunned.is_some();
            let goes_last = shunned || (pair.is_cooling(now) && cooling_counts);
            goes_last.then(|| Last {
                credential: pair.credential,
                score: pair.score,
                warm: pair.warm,
                shunned,
                probe: pair.is_due(now),
            })
        });
        outlook.last.extend(last);
    }

    /// The median score of the pairs other than this one.
    pub fn others(&self, credential: Credential) -> f64 {
        let own = self.find(credential).ok();
        let own = own.and_then(|at| self.pairs.get(at));
        self.median().without(own.map_or(0.0, |pair| pair.score))
    }

    /// The pair of this credential, where something is known about it.
    pub fn get(&mut self, credential: Credential) -> Option<&mut Pair> {
        let at = self.find(credential).ok()?;
        self.changed = true;
        self.pairs.get_mut(at)
    }

    /// Changes the pair of this credential.
    pub fn with(&mut self, credential: Credential, weight: u32, act: impl FnOnce(&mut Pair)) {
        self.learned = self.at;
        self.changed = true;
        let at = match self.find(credential) {
            Ok(at) => at,
            Err(at) => {
                self.pairs.insert(at, Pair::new(credential, weight));
                at
            }
        };
        if let Some(pair) = self.pairs.get_mut(at) {
            pair.weight = weight;
            act(pair);
        }
    }

    pub fn remove(&mut self, credential: Credential) {
        self.changed = true;
        self.pairs.retain(|pair| pair.credential != credential);
    }

    /// Whether the pair of this credential is shunned, and was refused within this time.
    pub fn is_shunned_within(&self, credential: Credential, time: Duration, now: Instant) -> bool {
        let found = self.find(credential).ok();
        let pair = found.and_then(|at| self.pairs.get(at));
        pair.is_some_and(|pair| pair.is_shunned_within(time, now))
    }

    /// Whose pairs are.
    pub fn shunned_within(
        &self,
        time: Duration,
        now: Instant,
    ) -> impl Iterator<Item = Credential> + '_ {
        let pairs = self.pairs.iter();
        let shunned = pairs.filter(move |pair| pair.is_shunned_within(time, now));
        shunned.map(|pair| pair.credential)
    }

    /// Every pair, for status.
    pub fn scores<'a>(
        &'a self,
        name: &'a str,
        now: Instant,
    ) -> impl Iterator<Item = PairScore<'a>> + 'a {
        self.pairs.iter().map(move |pair| {
            let cooling = pair.cooling.filter(|it| it.until > now);
            let (state, since, until) = match (pair.shunned, cooling) {
                (Some(it), _) if it.under_way > 0 || it.in_a_row > 0 => {
                    (PairState::Probing, Some(it.since), Some(it.due))
                }
                (Some(it), _) => (PairState::Shunned, Some(it.since), Some(it.due)),
                (None, Some(it)) => (PairState::Cooling, Some(it.since), Some(it.until)),
                (None, None) => (PairState::Ready, None, None),
            };
            PairScore {
                credential: pair.credential,
                model: name,
                score: pair.score,
                warm: pair.warm,
                excess: pair.score - self.median.without(pair.score),
                state,
                since,
                until,
                evidence: pair.evidence,
            }
        })
    }

    fn find(&self, credential: Credential) -> Result<usize, usize> {
        self.pairs
            .binary_search_by_key(&credential, |pair| pair.credential)
    }

    fn median(&self) -> Median {
        let count = self.peers.count.max(self.pairs.len());
        let Some(middle) = count.checked_sub(2).map(|others| others / 2) else {
            return Median::default();
        };
        let zeros = count - self.pairs.len();
        let mut scores: Vec<f64> = self.pairs.iter().map(|pair| pair.score).collect();
        let mut ranked = |rank: usize| match rank.checked_sub(zeros) {
            Some(at) if at < scores.len() => *scores.select_nth_unstable_by(at, f64::total_cmp).1,
            Some(_) | None => 0.0,
        };
        Median {
            below: ranked(middle),
            above: ranked(middle + 1),
        }
    }
}

impl Median {
    fn times(self, factor: f64) -> Median {
        Median {
            above: self.above * factor,
            below: self.below * factor,
        }
    }

    fn without(self, score: f64) -> f64 {
        match score <= self.below {
            true => self.above,
            false => self.below,
        }
    }
}

fn decay(passed: Duration, half_life: Duration) -> f64 {
    (-passed.as_secs_f64() / half_life.as_secs_f64().max(1e-3)).exp2()
}
