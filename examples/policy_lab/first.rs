//! berth's first version, kept to show what the rules of today replaced: every refusal cools its
//! pair, episodes close it for longer, and a share of refusals shuns it; when all are closed the
//! answer is a 503.

use std::collections::{HashMap, VecDeque};

use berth::admission::dice::Dice;

use super::policies::{Class, Ground, Policy, Request, Start, until};
use super::world::World;

pub struct First {
    ground: Ground,
    dice: Dice,
    /// By model and credential.
    pairs: Vec<Vec<Pair>>,
    /// By model: the last refusal everywhere, and until when one attempt is made.
    crowded: Vec<(f64, f64)>,
    /// By slot.
    sessions: Vec<Session>,
    tokens: f64,
    at: f64,
    most_tokens: f64,
}

#[derive(Clone, Default)]
struct Pair {
    until: f64,
    level: i32,
    levelled: f64,
    shunned: bool,
    probe_from: f64,
    probing: bool,
    doublings: i32,
    shunned_at: f64,
    /// When, whether it began an episode, and whether it was a refusal.
    seen: VecDeque<(f64, bool, bool)>,
}

#[derive(Clone, Default)]
struct Session {
    name: u64,
    /// By credential: the beginning of the last episode.
    episodes: HashMap<usize, f64>,
    refused: Vec<(usize, f64, bool)>,
    probes: bool,
}

impl First {
    pub fn new(world: &World, seed: u64) -> First {
        let count = world.weights.len();
        First {
            ground: Ground::new(world),
            dice: Dice::new(seed),
            pairs: vec![vec![Pair::default(); count]; world.models],
            crowded: vec![(-1e9, 0.0); world.models],
            sessions: vec![Session::default(); world.sessions],
            tokens: 10.0,
            at: 0.0,
            most_tokens: 30.0 + 0.2 * world.sessions as f64 / 3.0,
        }
    }

    fn class(&self, credential: usize, model: usize, now: f64) -> Class {
        let pair = &self.pairs[model][credential];
        match pair.shunned {
            _ if now < pair.until => Class::Closed,
            false => Class::Ready,
            true if now >= pair.probe_from && !pair.probing => Class::Probe,
            true => Class::Closed,
        }
    }

    fn longer(&mut self, time: f64) -> f64 {
        time * (1.0 + 0.2 * self.dice.fraction())
    }

    /// Draws the consequences for a pair that refused what another admitted.
    fn blame(&mut self, model: usize, (credential, at, new): (usize, f64, bool), now: f64) {
        let level = self.pairs[model][credential].level;
        let cooling = self.longer(1.0);
        let pair = &mut self.pairs[model][credential];
        pair.seen.push_back((at, new, true));
        if new {
            let passed = at - pair.levelled;
            pair.level = match pair.levelled > 0.0 && passed <= 120.0 {
                true => level + 1,
                false => (level - (passed / 120.0) as i32).max(0),
            };
            pair.level = pair.level.min(4);
            pair.levelled = at;
            let time = (5.0 * 2_f64.powi(pair.level)).min(60.0);
            pair.until = pair.until.max(at + time * cooling);
        }
        self.shun(model, credential, now);
    }

    fn shun(&mut self, model: usize, credential: usize, now: f64) {
        for pair in &mut self.pairs[model] {
            while pair.seen.front().is_some_and(|it| now - it.0 > 900.0) {
                pair.seen.pop_front();
            }
        }
        let count = |pair: &Pair| {
            let refused = pair.seen.iter().filter(|it| it.2).count();
            (refused as f64, pair.seen.len() as f64)
        };
        let others = (0..).zip(&self.pairs[model]);
        let others = others.filter(|(at, _)| *at != credential);
        let sum = others.fold((0.0, 0.0), |sum, (_, pair)| {
            let (refused, all) = count(pair);
            (sum.0 + refused, sum.1 + all)
        });
        let siblings = sum.0 / f64::max(sum.1, 1.0);
        let all = self.pairs[model].len();
        let shunned = self.pairs[model].iter().filter(|it| it.shunned).count() + 1;
        let pair = &mut self.pairs[model][credential];
        let (refused, seen) = count(pair);
        let episodes = pair.seen.iter().filter(|it| it.1).count();
        let share = refused / seen.max(1.0);
        let few = shunned <= all / 4 && shunned < all;
        if !pair.shunned && episodes >= 4 && share >= 0.5 && siblings <= share / 2.0 && few {
            if now - pair.shunned_at > 1_800.0 {
                pair.doublings = 0;
            }
            pair.shunned = true;
            pair.shunned_at = now;
            pair.probing = false;
            pair.probe_from = now + (120.0 * 2_f64.powi(pair.doublings)).min(600.0);
        }
    }
}

impl Policy for First {
    fn start(&mut self, request: &Request, now: f64) -> Start {
        let session = &mut self.sessions[request.slot];
        if session.name != request.session {
            *session = Session {
                name: request.session,
                ..Session::default()
            };
        }
        session.refused.clear();
        self.tokens += 0.2;
        match now < self.crowded[request.model].1 {
            true => Start::Go(1),
            false => Start::Go(3),
        }
    }

    fn may_go_on(&mut self, request: &Request, now: f64) -> bool {
        if now < self.crowded[request.model].1 {
            return false;
        }
        self.tokens = (self.tokens + (now - self.at) * 3.0).min(self.most_tokens);
        self.at = now;
        let has = self.tokens >= 1.0;
        if has {
            self.tokens -= 1.0;
        }
        has
    }

    fn choose(&mut self, request: &Request, now: f64) -> Option<usize> {
        let classes: Vec<_> = (0..self.pairs[request.model].len())
            .map(|it| self.class(it, request.model, now))
            .collect();
        let (credential, probes) = self.ground.choose(request, |it| classes[it])?;
        self.pairs[request.model][credential].probing |= probes;
        self.sessions[request.slot].probes = probes;
        Some(credential)
    }

    fn refused(&mut self, request: &Request, credential: usize, now: f64) {
        self.ground.over(credential);
        let cooling = self.longer(5.0);
        let session = &mut self.sessions[request.slot];
        let last = session.episodes.get(&credential).copied();
        let new = last.is_none_or(|then| now - then > 300.0);
        if new {
            session.episodes.insert(credential, now);
        }
        session.refused.push((credential, now, new));
        let pair = &mut self.pairs[request.model][credential];
        pair.until = pair.until.max(now + cooling);
        if session.probes {
            pair.probing = false;
            pair.doublings += 1;
            pair.probe_from = now + (120.0 * 2_f64.powi(pair.doublings)).min(600.0);
        }
    }

    fn admitted(&mut self, request: &Request, credential: usize, now: f64) {
        self.ground.admitted(request, credential);
        self.crowded[request.model].1 = 0.0;
        let pair = &mut self.pairs[request.model][credential];
        pair.seen.push_back((now, false, false));
        if self.sessions[request.slot].probes {
            (pair.probing, pair.shunned, pair.until) = (false, false, 0.0);
        }
        let refused = std::mem::take(&mut self.sessions[request.slot].refused);
        for refusal in refused {
            self.blame(request.model, refusal, now);
        }
    }

    fn done(&mut self, _slot: usize, credential: usize) {
        self.ground.over(credential);
    }

    fn give_up(&mut self, request: &Request, now: f64) -> f64 {
        if !self.sessions[request.slot].refused.is_empty() {
            let (last, one_attempt) = &mut self.crowded[request.model];
            if now - *last < 10.0 {
                *one_attempt = now + 5.0;
            }
            *last = now;
        }
        let ends = self.pairs[request.model].iter().map(|it| match it.shunned {
            true => it.until.max(it.probe_from),
            false => it.until,
        });
        until(ends.fold(f64::MAX, f64::min), now)
    }

    fn in_flight(&self, credential: usize) -> usize {
        self.ground.in_flight(credential)
    }

    fn withholds(&mut self, credential: usize, model: usize, now: f64) -> bool {
        self.class(credential, model, now) != Class::Ready
    }

    fn lives_at(&mut self, _session: u64, _credential: usize, _now: f64) -> bool {
        true
    }
}
