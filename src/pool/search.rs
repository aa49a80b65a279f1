//! The search for the credential of one attempt: the policy's order of classes.
//!
//! ```text
//!   home                        a session's own place, unless something speaks against it
//!   per tier, lowest first:
//!     ready                     below 1.25 x its fair share, or a shunned one that is due for a probe
//!     avoided                   by this session, below 1.25 x
//!     ready                     below 2 x
//!     avoided                   below 2 x
//!   then over all tiers:
//!     last                      cooling or shunned, lowest score first
//!     rest                      ready beyond its limit
//! ```
//!
//! The fair share of a credential is its part, by weight, of one more than its tier has in flight; at
//! least 2 (4 for the second limit), for small numbers have no shares. It keeps the siblings of a bad
//! credential from being pushed over the edge by its load. A session moves along the ring, so that it
//! is displaced to the same place each time. Without a session, or on a route without affinity, the
//! route's balance is the order and the first limit does not exist; the second holds while anything
//! goes last, except for `fill_first`, which fills on purpose.
//!
//! The first class is searched in pingora's order, since it nearly always has somebody; what follows
//! is one pass over the tier.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

use super::NO_MODEL;
use super::balance::Tier;
use super::choice::Ask;
use super::credential::{Credential, Moment};
use super::lease::Lease;
use super::ledger::Ledger;
use super::ring::Ring;
use super::roster::{Roster, TierRoster};
use super::sessions::Home;
use super::spec::Balance;
use crate::admission::dice;
use crate::admission::score::{Outlook, Standing};

/// One tier of a route: its orders.
pub(super) struct Orders {
    pub balance: Tier,
    /// Where sessions live, if they live anywhere.
    pub ring: Option<Ring>,
}

/// The search for one attempt.
pub(super) struct Search<'a> {
    pub ask: &'a Ask<'a>,
    pub balance: Balance,
    pub orders: &'a [Orders],
    pub roster: &'a Roster,
    pub outlook: Outlook,
    pub ledger: &'a Arc<Ledger>,
    /// The session and where it lives, where the route has affinity.
    pub resident: Option<(u64, Home)>,
    /// The realm that the request may not leave.
    pub realm: Option<&'a str>,
    /// Differs from one search to the next.
    pub turn: u64,
    pub moment: Moment,
    pub now: Instant,
}

/// A ready pair takes displaced and new requests up to this part of its fair share, at least so many
/// (the policy's).
const FIRST: Limit = Limit(1.25, 2.0);
/// And up to this while something is left that goes last (the policy's).
const SECOND: Limit = Limit(2.0, 4.0);
/// Credentials passed along the ring before the rest of the tier is put in order (chosen: a walk of
/// pingora costs near half a microsecond each).
const WALK: usize = 32;

#[derive(Clone, Copy)]
struct Limit(f64, f64);

/// A class of candidates, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Probe,
    Ready,
    Avoided,
    ReadyBelowSecond,
    AvoidedBelowSecond,
    Last,
    Rest,
}

/// What a tier has in flight, and the weight that carries it.
#[derive(Default)]
struct Load(OnceCell<(u64, u64)>);

impl Search<'_> {
    pub fn run(&self) -> Option<Lease> {
        let loads: Vec<Load> = self.roster.tiers.iter().map(|_| Load::default()).collect();
        if let Some((_, Home::Elsewhere(home))) = self.resident {
            // In whichever tier: it stays where its state is.
            let mut all = self.roster.tiers.iter().zip(&loads);
            let at_home = all.find_map(|(tier, load)| {
                let home = tier.members.iter().find(|it| it.index() == home)?;
                self.take_ready(tier, load, home, true)
            });
            if at_home.is_some() {
                return at_home;
            }
        }
        for (place, (tier, load)) in (0..).zip(self.roster.tiers.iter().zip(&loads)) {
            let orders = self.orders.get(tier.tier)?;
            let first = match (self.resident, &orders.ring) {
                (Some((session, home)), Some(ring)) => {
                    let at_home = place == 0 && home == Home::OnRing;
                    self.along_the_ring(tier, load, ring, (session, at_home))
                }
                _ => self.balanced(tier, load, orders),
            };
            let within = first.or_else(|| self.first_of(&[(tier, load)], false));
            if within.is_some() {
                return within;
            }
        }
        let all: Vec<_> = self.roster.tiers.iter().zip(&loads).collect();
        self.first_of(&all, true)
    }

    /// The session's place on the ring, or the next one that is ready.
    fn along_the_ring(
        &self,
        tier: &TierRoster,
        load: &Load,
        ring: &Ring,
        (session, at_home): (u64, bool),
    ) -> Option<Lease> {
        // The first on the ring that serves the model is home, also where it was tried already.
        let mut at_home = at_home;
        ring.walk(session, WALK.min(tier.members.len()), |it| {
            if !it.spec().models.serve(self.ask.model) {
                return None;
            }
            let at_home = std::mem::take(&mut at_home);
            self.take_ready(tier, load, it, at_home)
        })
    }

    /// The first in the order of the route's balance that is ready.
    fn balanced(&self, tier: &TierRoster, load: &Load, orders: &Orders) -> Option<Lease> {
        // Where something goes last, the order of pingora would begin with it: it is the idlest.
        let eager = self.outlook.last.is_empty() || self.balance == Balance::RoundRobin;
        if !eager {
            return None;
        }
        let only_first = !self.outlook.last.is_empty();
        orders.balance.first(self.moment, only_first, |it| {
            let serves = it.spec().models.serve(self.ask.model);
            serves.then(|| self.take_ready(tier, load, it, false))?
        })
    }

    /// Takes a pair of the first class.
    fn take_ready(
        &self,
        tier: &TierRoster,
        load: &Load,
        credential: &Arc<Credential>,
        at_home: bool,
    ) -> Option<Lease> {
        if !self.may_take(credential) {
            return None;
        }
        match self.outlook.standing(credential.index().0) {
            Standing::Probe => self.take_probing(credential),
            Standing::Ready { familiar } => {
                let takes = at_home || familiar || self.is_first(tier, load, credential);
                takes.then(|| credential.take(self.ask.model, self.now))?
            }
            Standing::Avoided { .. } | Standing::Last { .. } => None,
        }
    }

    fn may_take(&self, credential: &Credential) -> bool {
        let in_realm = self.realm.is_none_or(|it| credential.spec().realm == it);
        in_realm && !self.ask.tried.contains(&credential.index())
    }

    fn take_probing(&self, credential: &Arc<Credential>) -> Option<Lease> {
        let model = self.ask.model.unwrap_or(NO_MODEL);
        let trial = self.ledger.probe(model, credential.index(), self.now)?;
        let lease = credential.take(self.ask.model, self.now)?;
        Some(lease.trying(trial))
    }

    /// Takes the first candidate by class, and then in the order of its class; those that go last
    /// and the rest only `at_last`, and then no others.
    fn first_of(&self, tiers: &[(&TierRoster, &Load)], at_last: bool) -> Option<Lease> {
        let mut candidates = Vec::new();
        for (place, (tier, load)) in (0_u64..).zip(tiers) {
            for (position, credential) in (0_u64..).zip(&tier.members) {
                if !self.may_take(credential) {
                    continue;
                }
                let (class, key) = self.class((tier, load, at_last), credential, position);
                if (class >= Class::Last) == at_last {
                    candidates.push(((class, key, place), credential));
                }
            }
        }
        // Nearly always the first one is taken, so no more is put in order than is asked for.
        let ranks = (0..).zip(&candidates);
        let ranks = ranks.map(|(at, (rank, _))| Reverse((*rank, at)));
        let mut ranks: BinaryHeap<Reverse<(_, usize)>> = ranks.collect();
        while let Some(Reverse(((class, ..), at))) = ranks.pop() {
            let (_, credential) = candidates.get(at)?;
            let lease = match class {
                Class::Probe => self.take_probing(credential),
                _ => credential.take(self.ask.model, self.now),
            };
            if lease.is_some() {
                return lease;
            }
        }
        None
    }

    /// The class of a candidate, and its place in it: the lower the sooner.
    fn class(
        &self,
        (tier, load, at_last): (&TierRoster, &Load, bool),
        credential: &Arc<Credential>,
        position: u64,
    ) -> (Class, u64) {
        let order = || self.order(credential, position);
        let within = |limit| self.is_within(tier, load, credential, limit);
        match self.outlook.standing(credential.index().0) {
            Standing::Probe if !at_last => (Class::Probe, order()),
            Standing::Probe => {
                // Its places for probes were taken meanwhile, or it had no room then.
                let last = self.outlook.last(credential.index().0);
                (Class::Last, last.map_or(0.0, |it| it.score).to_bits())
            }
            // Scores are not negative, and the bits of such numbers ascend with them.
            Standing::Last { score } => (Class::Last, score.to_bits()),
            Standing::Ready { familiar } => {
                let first = familiar || self.is_first(tier, load, credential);
                match (first, first || within(SECOND)) {
                    (true, _) => (Class::Ready, order()),
                    (false, true) => (Class::ReadyBelowSecond, order()),
                    (false, false) => (Class::Rest, order()),
                }
            }
            Standing::Avoided { since } => {
                // Whoever refused longest ago is the likeliest to have a seat again.
                let ago = self.now.saturating_duration_since(since);
                let key = u64::MAX - u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
                match (within(FIRST), within(SECOND)) {
                    (true, _) => (Class::Avoided, key),
                    (false, true) => (Class::AvoidedBelowSecond, key),
                    (false, false) => (Class::Rest, key),
                }
            }
        }
    }

    /// Whether a ready pair belongs to the first class.
    fn is_first(&self, tier: &TierRoster, load: &Load, credential: &Credential) -> bool {
        match self.resident {
            Some(_) => self.is_within(tier, load, credential, FIRST),
            None => {
                self.balance == Balance::FillFirst
                    || self.outlook.last.is_empty()
                    || self.is_within(tier, load, credential, SECOND)
            }
        }
    }

    fn is_within(
        &self,
        tier: &TierRoster,
        load: &Load,
        credential: &Credential,
        Limit(factor, least): Limit,
    ) -> bool {
        let (in_flight, weight) = *load.0.get_or_init(|| {
            // What is excluded carries nothing, and its weight falls to the others.
            let carrying = tier.members.iter();
            let carrying = carrying.filter(|it| !it.looks_excluded(self.moment));
            carrying.fold((0, 0), |(in_flight, weight), it| {
                (
                    in_flight + u64::from(it.in_flight()),
                    weight + u64::from(it.weight()),
                )
            })
        });
        let share = f64::from(credential.weight()) / weight.max(1) as f64;
        let fair = (in_flight + 1) as f64 * share;
        f64::from(credential.in_flight()) + 1.0 <= (factor * fair).max(least)
    }

    /// The order among those of one class.
    fn order(&self, credential: &Credential, position: u64) -> u64 {
        match (self.resident, self.balance) {
            (Some((session, _)), _) => dice::mix(session ^ credential.hash()),
            (None, Balance::FillFirst) => position,
            (None, Balance::RoundRobin | Balance::LeastInFlight) => {
                // Equal ones in another order each time.
                let turn = dice::mix(credential.hash() ^ dice::mix(self.turn)) >> 44;
                let load =
                    (u64::from(credential.in_flight()) << 20) / u64::from(credential.weight());
                (load.min(1 << 43) << 20) | turn
            }
        }
    }
}

/// Where the ring places a session among those that serve a model.
pub(super) fn place_of(
    orders: &[Orders],
    roster: &Roster,
    session: u64,
    model: Option<&str>,
) -> Option<super::CredentialIndex> {
    let tier = roster.tiers.first()?;
    let ring = orders.get(tier.tier)?.ring.as_ref()?;
    ring.walk(session, WALK.min(tier.members.len()), |it| {
        it.spec().models.serve(model).then(|| it.index())
    })
}
