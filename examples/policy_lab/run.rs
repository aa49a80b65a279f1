//! Runs one policy through one situation, event by event.
//!
//! A session is a few turns with time to think between them; a turn is a few requests, one after the
//! other; a request is tried up to thirty times, each time when the last answer said. After its last
//! turn another session takes its place. Everything is decided by the seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use berth::admission::dice::{Dice, mix};

use super::figures::Tally;
use super::policies::{Policy, Request, Start};
use super::world::{Attempt, MOST, World, exponential, log_normal, several};

/// A session as the client and the upstreams know it.
struct Session {
    turns: u32,
    requests: u32,
    poisoned: bool,
    model: usize,
    /// A request is under way.
    is_asking: bool,
    tries: u32,
    was_turned_away: bool,
    was_admitted: bool,
    /// By credential: the last admission and the last refusal.
    admitted: [f64; MOST],
    refused: [f64; MOST],
    allowed: u32,
    request: Request,
    attempt: Outcome,
}

#[derive(Clone, Copy, Default)]
struct Outcome {
    credential: usize,
    refused: bool,
    cold: bool,
    latency: f64,
}

/// What happens to a session next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask,
    StartAgain,
    Verdict,
    End,
}

/// Tries of the client (measured: the Codex client asks up to thirty times).
const TRIES: u32 = 30;
/// An upstream keeps a session's cache for so long (invented: ten minutes of warmth).
const CACHE: f64 = 600.0;
/// A request is given up after so long over its attempts.
const REQUEST_TIME: f64 = 240.0;
const TURNS: f64 = 8.0;
const REQUESTS: f64 = 3.0;
/// How often it is looked who is kept from whom, seconds.
const SAMPLE: f64 = 10.0;

pub struct Run<'a> {
    world: &'a World,
    policy: &'a mut dyn Policy,
    dice: Dice,
    seed: u64,
    now: f64,
    named: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event, usize)>>,
    counted: u64,
    sessions: Vec<Session>,
    tally: Tally,
}

impl<'a> Run<'a> {
    pub fn new(world: &'a World, policy: &'a mut dyn Policy, dice: Dice, seed: u64) -> Run<'a> {
        Run {
            world,
            policy,
            dice,
            seed,
            now: 0.0,
            named: 0,
            events: BinaryHeap::new(),
            counted: 0,
            sessions: Vec::new(),
            tally: Tally::default(),
        }
    }

    pub fn finish(mut self) -> Tally {
        for slot in 0..self.world.sessions {
            let poisoned = slot == 0 && self.world.has_poison();
            let session = self.session(slot, poisoned);
            self.sessions.push(session);
            let first = match self.world.name {
                "g" => 60.0 + self.dice.fraction(),
                _ if poisoned => self.world.from,
                _ => self.dice.fraction() * (self.world.think * 2.0).min(120.0),
            };
            self.later(first, Event::Ask, slot);
        }
        let mut sample = self.world.from - 1.0;
        while let Some(Reverse((time, _, event, slot))) = self.events.pop() {
            let time = f64::from_bits(time);
            if time > self.world.length {
                break;
            }
            while sample <= time {
                self.sample(sample);
                sample += SAMPLE;
            }
            self.now = time;
            match event {
                Event::Ask => self.ask(slot),
                Event::StartAgain => self.start(slot),
                Event::Verdict => self.verdict(slot),
                Event::End => self.end(slot),
            }
        }
        self.tally
    }

    fn later(&mut self, time: f64, event: Event, slot: usize) {
        self.counted += 1;
        let event = (time.max(0.0).to_bits(), self.counted, event, slot);
        self.events.push(Reverse(event));
    }

    fn session(&mut self, slot: usize, poisoned: bool) -> Session {
        let name = loop {
            self.named += 1;
            let name = mix(self.named ^ (self.seed << 32));
            if !poisoned || self.policy.lives_at(name, 0, self.now) {
                break name;
            }
        };
        let second = self.world.models == 2 && self.dice.fraction() < 0.4;
        let turns = several(&mut self.dice, TURNS);
        Session {
            turns: if poisoned { u32::MAX } else { turns },
            requests: 0,
            poisoned,
            model: usize::from(second),
            is_asking: false,
            tries: 0,
            was_turned_away: false,
            was_admitted: false,
            admitted: [f64::NEG_INFINITY; MOST],
            refused: [f64::NEG_INFINITY; MOST],
            allowed: 0,
            request: Request {
                slot,
                session: name,
                model: usize::from(second),
                tried: 0,
                attempts: 0,
                is_new: true,
                poisoned,
                asked: 0.0,
                began: 0.0,
                sent: 0.0,
                waiting: None,
            },
            attempt: Outcome::default(),
        }
    }

    /// The client sends a request, for the first time or again.
    fn ask(&mut self, slot: usize) {
        let requests = several(&mut self.dice, REQUESTS);
        let now = self.now;
        let session = &mut self.sessions[slot];
        session.request.waiting = None;
        if !session.is_asking {
            session.is_asking = true;
            if session.requests == 0 {
                session.requests = requests;
            }
            session.tries = 0;
            session.was_turned_away = false;
            session.request.asked = now;
            self.tally.requests += 1;
        }
        self.start(slot);
    }

    fn start(&mut self, slot: usize) {
        let now = self.now;
        let session = &mut self.sessions[slot];
        session.request = Request {
            tried: 0,
            attempts: 0,
            is_new: !session.was_admitted,
            began: now,
            ..session.request
        };
        match self.policy.start(&session.request, now) {
            Start::Go(attempts) => {
                session.allowed = attempts;
                session.request.waiting = None;
                self.attempt(slot);
            }
            Start::Wait(until) => {
                session.request.waiting.get_or_insert(now);
                self.later(until, Event::StartAgain, slot);
            }
            Start::GiveUp => self.turn_away(slot),
        }
    }

    fn attempt(&mut self, slot: usize) {
        let now = self.now;
        let session = &self.sessions[slot];
        let request = session.request;
        let first = request.attempts == 0;
        let over = request.attempts >= session.allowed || now - request.began > REQUEST_TIME;
        if over || (!first && !self.policy.may_go_on(&request, now)) {
            return self.turn_away(slot);
        }
        let Some(credential) = self.policy.choose(&request, now) else {
            return self.turn_away(slot);
        };
        let cached = now - session.admitted[credential] < CACHE;
        let attempt = Attempt {
            credential,
            model: session.model,
            time: now,
            warm: cached && session.admitted[credential] > session.refused[credential],
            in_flight: self.policy.in_flight(credential),
            poisoned: session.poisoned,
        };
        let refused = self.dice.fraction() < self.world.refusal(&attempt);
        let latency = match refused {
            true => 1.0 + 2.0 * self.dice.fraction(),
            false => log_normal(&mut self.dice, 4.0, 1.357).min(119.0),
        };
        let session = &mut self.sessions[slot];
        session.attempt = Outcome {
            credential,
            refused,
            cold: session.was_admitted && !cached,
            latency,
        };
        session.request.tried |= 1 << credential;
        session.request.attempts += 1;
        session.request.sent = now;
        self.tally.attempts += 1;
        self.later(now + latency, Event::Verdict, slot);
    }

    fn verdict(&mut self, slot: usize) {
        let now = self.now;
        let session = &mut self.sessions[slot];
        let Outcome {
            credential,
            refused,
            cold,
            latency,
        } = session.attempt;
        if refused {
            session.refused[credential] = now;
            self.tally.refusals += 1;
            self.policy.refused(&session.request, credential, now);
            return self.attempt(slot);
        }
        self.policy.admitted(&session.request, credential, now);
        session.was_admitted = true;
        session.admitted[credential] = now;
        self.tally.moved_cold += u64::from(cold);
        self.tally.waits.push(now - session.request.asked - latency);
        let rest = log_normal(&mut self.dice, 10.0, 0.8);
        self.later(now + rest, Event::End, slot);
    }

    fn end(&mut self, slot: usize) {
        let session = &mut self.sessions[slot];
        self.policy.done(slot, session.attempt.credential);
        session.requests -= 1;
        self.next(slot);
    }

    /// The client is told to come back, and does; or it has come back often enough.
    fn turn_away(&mut self, slot: usize) {
        let now = self.now;
        let session = &mut self.sessions[slot];
        let after = self.policy.give_up(&session.request, now);
        if !session.was_turned_away {
            session.was_turned_away = true;
            self.tally.turned_away += 1;
        }
        session.tries += 1;
        if session.tries < TRIES {
            return self.later(now + after, Event::Ask, slot);
        }
        self.tally.lost += 1;
        self.tally.waits.push(now - session.request.asked);
        session.requests = 0;
        self.next(slot);
    }

    /// The next request, turn or session.
    fn next(&mut self, slot: usize) {
        let now = self.now;
        let session = &mut self.sessions[slot];
        session.is_asking = false;
        if session.requests > 0 {
            let pause = exponential(&mut self.dice, 2.0) + 0.1;
            return self.later(now + pause, Event::Ask, slot);
        }
        self.tally.turns += 1;
        session.turns -= 1;
        let pause = match session.poisoned {
            true => 3.0,
            false => exponential(&mut self.dice, self.world.think),
        };
        if session.turns == 0 {
            self.sessions[slot] = self.session(slot, false);
        }
        self.later(now + pause, Event::Ask, slot);
    }

    fn sample(&mut self, time: f64) {
        for model in 0..self.world.models {
            for credential in 0..self.world.weights.len() {
                if self.world.is_healthy(credential, model, time) {
                    let weight = f64::from(self.world.weights[credential]);
                    self.tally.healthy += weight;
                    if self.policy.withholds(credential, model, time) {
                        self.tally.withheld += weight;
                    }
                }
            }
        }
    }
}
