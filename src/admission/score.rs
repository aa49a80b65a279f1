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

use std::collections::HashMap;
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

/// The scores of every pair.
#[derive(Debug)]
pub struct Scores {
    numbers: Numbers,
    models: HashMap<Box<str>, Model>,
    sessions: Recent<u64, Memory>,
    /// Who was found shunned with which models.
    shunned: HashMap<Credential, Vec<Box<str>>>,
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
            shunned: HashMap::new(),
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
        let wide = self.wide(Some(model), now);
        let numbers = &self.numbers;
        if let Some(known) = self.models.get_mut(model) {
            known.peers = peers;
            known.refresh(numbers, now);
            known.order(now, &mut outlook);
        }
        outlook.widen(wide);
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
        model.peers = settled.peers;
        model.refresh(&self.numbers, now);
        for (refusal, weighs) in blamed {
            let others = model.others(refusal.credential);
            self.serial += 1;
            let (serial, numbers, dice) = (self.serial, &self.numbers, &mut self.dice);
            let marks = &numbers.marks;
            let before = model.len();
            model.with(refusal.credential, refusal.weight, |pair| match weighs {
                Weighs::Newcomer => {
                    pair.blame(numbers, (others, refusal.stated), serial, dice, now);
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
        self.remember_shunned(settled.model);
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
        self.remember_shunned(model);
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

    /// Credentials that go last with every model, since two or more of theirs are shunned; without those
    /// of which `but` is one, for that pair has a say of its own.
    pub fn wide(&mut self, but: Option<&str>, now: Instant) -> Vec<Credential> {
        let (models, numbers) = (&mut self.models, &self.numbers);
        // A probe that was due long ago and was not made says that nobody asks for the model any more:
        // it is no reason to doubt the others.
        let asked_within = 2 * numbers.probe.max;
        let mut wide = Vec::new();
        let several = self.shunned.iter_mut().filter(|(_, names)| names.len() > 1);
        for (credential, names) in several {
            let (mut evidence, mut is_own) = (0, false);
            names.retain(|name| {
                let Some(model) = models.get_mut(name) else {
                    return false;
                };
                model.refresh(numbers, now);
                let lately = model.shunned_within(*credential, asked_within, now);
                if lately == Some(true) {
                    evidence += 1;
                    is_own |= but == Some(&**name);
                }
                lately.is_some()
            });
            if evidence > 1 && !is_own {
                wide.push(*credential);
            }
        }
        wide
    }

    /// Remembers who is shunned with this model.
    fn remember_shunned(&mut self, model: &str) {
        let Some((name, known)) = self.models.get_key_value(model) else {
            return;
        };
        self.shunned.retain(|credential, names| {
            names.retain(|it| it != name || known.is_shunned(*credential));
            !names.is_empty()
        });
        for credential in known.shunned() {
            let names = self.shunned.entry(credential).or_default();
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
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

fn key(session: u64, model: &str) -> u64 {
    dice::mix(session ^ dice::hash(model))
}

#[cfg(test)]
mod tests;
