//! What the simulation asks of a policy, and what all but berth have in common.
//!
//! The rivals are given everything that is not their policy: the same homes for sessions, the same
//! bound on new sessions, three attempts, and clients that obey the `Retry-After` they are told.

use super::world::World;
use berth::admission::dice::{fraction, mix};

/// A request as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The place of its session in the simulation.
    pub slot: usize,
    /// The session's name.
    pub session: u64,
    pub model: usize,
    /// Bits of the credentials that were tried.
    pub tried: u32,
    pub attempts: u32,
    /// The session was never admitted.
    pub is_new: bool,
    /// Its loop is one client's fault.
    pub poisoned: bool,
    /// When the client first asked, when this try began, when its last attempt did.
    pub asked: f64,
    pub began: f64,
    pub sent: f64,
    /// Since when it waits for a seat.
    pub waiting: Option<f64>,
}

/// Whether a request may start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// With so many attempts.
    Go(u32),
    Wait(f64),
    GiveUp,
}

/// A policy: who is tried, and what is learned.
pub trait Policy {
    /// Whether a request may start.
    fn start(&mut self, _request: &Request, _now: f64) -> Start {
        Start::Go(3)
    }
    /// Whether another attempt may be made.
    fn may_go_on(&mut self, _request: &Request, _now: f64) -> bool {
        true
    }
    /// The credential for an attempt; it is in flight until `done`.
    fn choose(&mut self, request: &Request, now: f64) -> Option<usize>;
    fn refused(&mut self, request: &Request, credential: usize, now: f64);
    fn admitted(&mut self, request: &Request, credential: usize, now: f64);
    /// An admitted request is over.
    fn done(&mut self, slot: usize, credential: usize);
    /// Nothing is left: the client is told to come back after so many seconds.
    fn give_up(&mut self, request: &Request, now: f64) -> f64;
    /// Requests in flight.
    fn in_flight(&self, credential: usize) -> usize;
    /// Whether newcomers are kept away from a pair.
    fn withholds(&mut self, credential: usize, model: usize, now: f64) -> bool;
    /// Whether a session of this name lives at `credential`.
    fn lives_at(&mut self, session: u64, credential: usize, now: f64) -> bool;
}

/// How a credential stands with a rival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Class {
    Ready,
    /// After all others, the lowest number first.
    Last(f64),
    Closed,
    /// Closed, but for one probe.
    Probe,
}

/// Homes of sessions and what is in flight.
pub struct Ground {
    pub weights: Vec<u32>,
    most: Vec<usize>,
    in_flight: Vec<usize>,
    /// By slot: the session, and where it stays if that is not its first place.
    homes: Vec<(u64, Option<usize>)>,
}

/// A new session goes to a credential below so much of its fair share.
const BOUND: f64 = 1.25;

impl Ground {
    pub fn new(world: &World) -> Ground {
        Ground {
            weights: world.weights.clone(),
            most: (0..world.weights.len())
                .map(|it| world.most_in_flight(it))
                .collect(),
            in_flight: vec![0; world.weights.len()],
            homes: vec![(0, None); world.sessions],
        }
    }

    /// The first in the order of the session that is open.
    pub fn choose(
        &mut self,
        request: &Request,
        class: impl Fn(usize) -> Class,
    ) -> Option<(usize, bool)> {
        let chosen = self.find(request, class)?;
        self.in_flight[chosen.0] += 1;
        Some(chosen)
    }

    fn find(&self, request: &Request, class: impl Fn(usize) -> Class) -> Option<(usize, bool)> {
        let (mut crowded, mut last) = (None, None::<(f64, usize)>);
        for credential in self.order(request) {
            let tried = request.tried >> credential & 1 == 1;
            if tried || self.in_flight[credential] >= self.most[credential] {
                continue;
            }
            match class(credential) {
                Class::Ready if request.is_new && self.is_crowded(credential) => {
                    crowded = crowded.or(Some((credential, false)));
                }
                Class::Ready => return Some((credential, false)),
                Class::Probe => return Some((credential, true)),
                Class::Last(rank) if last.is_none_or(|(least, _)| rank < least) => {
                    last = Some((rank, credential));
                }
                Class::Last(_) | Class::Closed => {}
            }
        }
        crowded.or(last.map(|(_, credential)| (credential, false)))
    }

    /// A session's places, by weighted rendezvous.
    fn order(&self, request: &Request) -> Vec<usize> {
        let height = |credential: usize| {
            let chance = fraction(mix(request.session ^ mix(credential as u64 + 77)));
            -f64::from(self.weights[credential]) / (chance + f64::EPSILON).ln()
        };
        let mut order: Vec<usize> = (0..self.weights.len()).collect();
        order.sort_by(|a, b| height(*b).total_cmp(&height(*a)));
        let (session, home) = self.homes[request.slot];
        let first = match (request.poisoned, home) {
            (true, _) => Some(0),
            (false, home) => home.filter(|_| session == request.session),
        };
        if let Some(first) = first {
            order.retain(|it| *it != first);
            order.insert(0, first);
        }
        order
    }

    fn is_crowded(&self, credential: usize) -> bool {
        let all: usize = self.in_flight.iter().sum();
        let weight: u32 = self.weights.iter().sum();
        let share = f64::from(self.weights[credential]) / f64::from(weight);
        let fair = (all + 1) as f64 * share;
        self.in_flight[credential] as f64 + 1.0 > (BOUND * fair).max(2.0)
    }

    pub fn admitted(&mut self, request: &Request, credential: usize) {
        if request.is_new {
            let alone = request.tried.count_ones() == 1;
            self.homes[request.slot] = (request.session, alone.then_some(credential));
        }
    }

    pub fn over(&mut self, credential: usize) {
        self.in_flight[credential] -= 1;
    }

    pub fn in_flight(&self, credential: usize) -> usize {
        self.in_flight[credential]
    }
}

/// What a rival tells a client whose credentials are closed until then.
pub fn until(earliest: f64, now: f64) -> f64 {
    match earliest - now {
        left if left <= 0.0 => 5.0,
        left => left.clamp(1.0, 60.0).ceil(),
    }
}
