//! Whose fault a refusal is, told by contrast: what each pair (credential, model) is worth trying.
//!
//! A refusal alone says nothing: the account may be at fault, the model, or the region. But the same
//! request refused on A and then admitted on B speaks against A. So the caller reports, once per
//! request, who refused and who admitted ([`Scores::settle`]); only a session's first word about a
//! pair counts; and a pair is measured by how much worse it is than the model's others (*excess*).
//! From this comes an order ([`Scores::outlook`]), never an exclusion: the last pair cannot be taken
//! away.
//!
//! Promises. A request that was refused by everything moves no score. A success of a warm session
//! clears nothing that newcomers have met. One session moves a pair's score once per episode. Memory
//! is bounded in sessions, models and pairs, whatever clients call them. A clock that seems to run
//! backwards changes nothing.
//!
//! Refused: closing a pair on a refusal (noise of 1 % over many sessions then closes every pair); a
//! failure rate over a window (sessions that are warm succeed all the while and hide that newcomers
//! are turned away); absolute marks (when everybody refuses, nobody is at fault). The numbers come
//! out of a simulation, see `docs/policy.md`.
//!
//! Limit: a model's pairs are compared over all routes; two routes with different credentials for
//! one model share a median.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::dice::{self, Dice};
use super::policy::{Cooldown, Probe, ScoreMarks};
use super::recent::Recent;
use super::verdict::PairState;

mod handover;
mod model;
mod outlook;
mod pair;
mod session;

pub use handover::ScoresHandover;
use model::Model;
pub use outlook::{Last, Outlook, Standing};
use pair::Numbers;
pub use pair::{Evidence, Probed};
use session::{Memory, Weighs};

/// A credential, as the caller numbers them.
pub type Credential = usize;

/// Sessions remembered, each with one model (chosen: a busy hour of a large edge; 10 MiB as a rule).
pub const MAX_SESSIONS: usize = 100_000;
/// Models with a score at once (chosen: more than any edge serves).
pub const MAX_MODELS: usize = 512;
/// Pairs with a score at once, over all models (chosen: 10 MiB).
pub const MAX_PAIRS: usize = 65_536;

/// How long a credential may be taken for shunned with a model after that has ended (chosen: much shorter
/// than what makes it end, and rare beside choices; to look through all pairs may take a millisecond).
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The scores of every pair.
#[derive(Debug)]
pub struct Scores {
    numbers: Numbers,
    models: HashMap<Box<str>, Model>,
    sessions: Recent<u64, Memory>,
    /// With how many models each credential is shunned, on evidence that is not old.
    shunned: BTreeMap<Credential, usize>,
    /// When that was last found, for all of them.
    looked: Option<Instant>,
    /// At least as many pairs as have a score; counted again when that seems too many.
    pairs: usize,
    dice: Dice,
    serial: u64,
}

/// All the pairs of a model that one route could use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// How many.
    pub count: usize,
    /// Their weights together.
    pub weight: u64,
}

/// A pair that had no seat for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whose pair.
    pub credential: Credential,
    /// Its weight.
    pub weight: u32,
    /// The refusal's own `Retry-After`.
    pub stated: Option<Duration>,
}

/// What became of one request.
#[derive(Clone, Copy, Debug)]
pub struct Settled<'a> {
    /// Its model.
    pub model: &'a str,
    /// The pairs of the model.
    pub peers: Peers,
    /// The session, or whatever else an episode belongs to; without one each refusal counts.
    pub session: Option<u64>,
    /// Those that refused it, in any order.
    pub refused: &'a [Refusal],
    /// The one that admitted it.
    pub admitted: Option<Credential>,
    /// The model is full, so that a refusal says nothing about the pair.
    pub full: bool,
}

/// The right to probe a shunned pair; to be ended by [`Scores::probed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSerial(u64);

/// A pair's score, for status.
#[derive(Clone, Debug, PartialEq)]
pub struct PairScore<'a> {
    /// Whose pair.
    pub credential: Credential,
    /// Its model.
    pub model: &'a str,
    /// What newcomers met.
    pub score: f64,
    /// What warm sessions met.
    pub warm: f64,
    /// The score above the median of the model's other pairs.
    pub excess: f64,
    /// Ready, cooling, shunned or probing.
    pub state: PairState,
    /// Since when, unless ready.
    pub since: Option<Instant>,
    /// The end of a cooling, or the time of the next probe.
    pub until: Option<Instant>,
    /// What the score rests on.
    pub evidence: Evidence,
}

impl Scores {
    /// Nothing is known yet. The same seed and the same story give the same times.
    pub fn new(marks: ScoreMarks, cooldown: Cooldown, probe: Probe, seed: u64) -> Scores {
        Scores {
            numbers: Numbers {
                marks,
                cooldown,
                probe,
            },
            models: HashMap::new(),
            sessions: Recent::new(MAX_SESSIONS),
            shunned: BTreeMap::new(),
            looked: None,
            pairs: 0,
            dice: Dice::new(seed),
            serial: 0,
        }
    }

    /// How the pairs of `model` stand for a request of `session`.
    pub fn outlook(
        &mut self,
        model: &str,
        peers: Peers,
        session: Option<u64>,
        now: Instant,
    ) -> Outlook {
        let mut outlook = Outlook::default();
        self.look(now);
        let numbers = &self.numbers;
        if let Some(known) = self.models.get_mut(model) {
            known.among(peers);
            known.refresh(numbers, now);
            known.order(now, &mut outlook);
        }
        outlook.widen(wide(&self.shunned));
        let Some(memory) = session.and_then(|it| self.sessions.peek(&key(it, model))) else {
            return outlook;
        };
        let passes =
            |last: &Last| memory.is_warm(last.credential, now) && last.warm < numbers.marks.cool_at;
        outlook.last.retain(|last| !passes(last));
        outlook.familiar = memory.familiar(now).collect();
        outlook.avoided = memory.avoided(numbers.marks.episode, now).collect();
        outlook
    }

    /// Draws every consequence of a request.
    pub fn settle(&mut self, settled: &Settled, now: Instant) {
        let mut blamed = Vec::new();
        let mut warm = false;
        let episode = self.numbers.marks.episode;
        let mut weigh = |memory: &mut Memory| {
            for refusal in settled.refused {
                let weighs = memory.refused(refusal.credential, !settled.full, episode, now);
                blamed.push((*refusal, weighs));
            }
            if let Some(admitted) = settled.admitted {
                warm = memory.admitted(admitted, now);
            }
        };
        match settled.session {
            Some(session) => weigh(
                self.sessions
                    .entry(key(session, settled.model), Memory::default),
            ),
            None => weigh(&mut Memory::default()),
        }
        let Some(admitted) = settled.admitted else {
            // Refused by everything: evidence about the model, and about no pair.
            return;
        };
        blamed.retain(|(refusal, weighs)| {
            *weighs != Weighs::Nothing && !settled.full && refusal.credential != admitted
        });
        if !blamed.is_empty() && !self.models.contains_key(settled.model) {
            self.make_room();
            self.models
                .insert(settled.model.into(), Model::new(settled.peers, now));
        }
        let Some(model) = self.models.get_mut(settled.model) else {
            // Nothing is known against anybody, so an admission changes nothing.
            return;
        };
        model.among(settled.peers);
        model.refresh(&self.numbers, now);
        let mut shunned = Vec::new();
        for (refusal, weighs) in blamed {
            let others = model.others(refusal.credential);
            self.serial += 1;
            let (serial, numbers, dice) = (self.serial, &self.numbers, &mut self.dice);
            let marks = &numbers.marks;
            let before = model.len();
            model.with(refusal.credential, refusal.weight, |pair| match weighs {
                Weighs::Newcomer => {
                    let before = pair.shunned.is_some();
                    pair.blame(numbers, (others, refusal.stated), serial, dice, now);
                    if pair.shunned.is_some() && !before {
                        shunned.push(refusal.credential);
                    }
                }
                Weighs::Warm => pair.warm = (pair.warm + marks.refused).min(marks.ceiling),
                Weighs::Nothing => {}
            });
            self.pairs += model.len() - before;
        }
        let less = self.numbers.marks.admitted;
        if let Some(pair) = model.get(admitted) {
            if warm {
                pair.warm = (pair.warm - less).max(0.0);
            } else {
                pair.score = (pair.score - less).max(0.0);
                pair.evidence.admitted += 1;
            }
        }
        for credential in shunned {
            self.count(credential, now);
        }
    }

    /// Takes one of the places for probes of a shunned pair.
    pub fn probe(
        &mut self,
        model: &str,
        credential: Credential,
        now: Instant,
    ) -> Option<ProbeSerial> {
        let pair = self.models.get_mut(model)?.get(credential)?;
        if !pair.is_due(now) {
            return None;
        }
        let shunned = pair.shunned.as_mut()?;
        shunned.under_way += 1;
        Some(ProbeSerial(shunned.serial))
    }

    /// A probe ended; without effect where its shunning is over.
    pub fn probed(
        &mut self,
        model: &str,
        credential: Credential,
        probe: ProbeSerial,
        probed: Probed,
        now: Instant,
    ) {
        let (numbers, dice) = (&self.numbers, &mut self.dice);
        let Some(known) = self.models.get_mut(model) else {
            return;
        };
        known.refresh(numbers, now);
        if let Some(pair) = known.get(credential) {
            pair.probed(numbers, probe.0, probed, dice, now);
        }
        self.count(credential, now);
    }

    /// Forgets what is known about a credential.
    pub fn forget(&mut self, credential: Credential) {
        for model in self.models.values_mut() {
            model.remove(credential);
        }
        self.shunned.remove(&credential);
    }

    /// Every pair about which something is known, as it is at `now`.
    pub fn pairs(&mut self, now: Instant) -> Vec<PairScore<'_>> {
        let numbers = &self.numbers;
        let mut pairs = Vec::new();
        for (name, model) in &mut self.models {
            model.refresh(numbers, now);
            pairs.extend(model.scores(name, now));
        }
        pairs
    }

    /// Credentials that go last with every model, since two or more of theirs are shunned.
    pub fn wide(&mut self, now: Instant) -> impl Iterator<Item = Credential> {
        self.look(now);
        wide(&self.shunned)
    }

    /// Looks once in a while through every pair for those that are shunned no longer.
    fn look(&mut self, now: Instant) {
        let lately = |then| now.saturating_duration_since(then) < LOOK_EVERY;
        if self.looked.is_some_and(lately) {
            return;
        }
        self.looked = Some(now);
        if self.shunned.is_empty() {
            return;
        }
        for model in self.models.values_mut() {
            model.refresh(&self.numbers, now);
        }
        self.count_all(now);
    }

    /// Counts the models with which each credential is shunned.
    fn count_all(&mut self, now: Instant) {
        let asked_within = self.asked_within();
        self.shunned.clear();
        for model in self.models.values() {
            for credential in model.shunned_within(asked_within, now) {
                *self.shunned.entry(credential).or_default() += 1;
            }
        }
    }

    /// The same of one credential.
    fn count(&mut self, credential: Credential, now: Instant) {
        let asked_within = self.asked_within();
        let models = self.models.values();
        let shunned = models.filter(|it| it.is_shunned_within(credential, asked_within, now));
        match shunned.count() {
            0 => self.shunned.remove(&credential),
            models => self.shunned.insert(credential, models),
        };
    }

    /// A probe that was due longer ago and was not made says that nobody asks for the model any more: it is
    /// no reason to doubt the credential's other pairs.
    fn asked_within(&self) -> Duration {
        2 * self.numbers.probe.max
    }

    /// Forgets the models that nothing was learned about for longest: an eighth of them at once, so
    /// that made-up names do not cost a search through all of them each.
    fn make_room(&mut self) {
        while self.models.len() >= MAX_MODELS || self.pairs >= MAX_PAIRS {
            self.pairs = self.models.values().map(Model::len).sum();
            if self.models.len() < MAX_MODELS && self.pairs < MAX_PAIRS {
                return;
            }
            let mut ages: Vec<Instant> = self.models.values().map(|it| it.learned).collect();
            let eighth = ages.len() / 8;
            let (_, oldest, _) = ages.select_nth_unstable(eighth);
            let oldest = *oldest;
            self.models.retain(|_, model| model.learned > oldest);
        }
    }
}

/// Shunned with more than one model.
fn wide(shunned: &BTreeMap<Credential, usize>) -> impl Iterator<Item = Credential> {
    let several = shunned.iter().filter(|(_, models)| **models > 1);
    several.map(|(credential, _)| *credential)
}

fn key(session: u64, model: &str) -> u64 {
    dice::mix(session ^ dice::hash(model))
}

#[cfg(test)]
mod tests;
