//! Which credential takes a request.
//!
//! The candidates are gone through in classes (`search`): what was learned from refusals puts them in
//! order and excludes nobody. Whoever is found able is taken in the same step, so two threads cannot
//! both find the last place free. Nothing is ever taken that is excluded by its own word, except as
//! the probe that an exclusion allows; of those that are ready, a tier is used only when no credential
//! of a lower one can take the request. Where nobody can, the answer says why, and when it may be
//! worth asking again. What became of a request is told once, by [`Pool::settle`].
//!
//! A list of healthy credentials, kept up to date in the background, was refused: what matters differs
//! by model and by request, and a list is always a little late.

mod home;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::NO_MODEL;
use super::balance::Tier;
use super::credential::{Credential, CredentialIndex, Moment, Standing};
use super::error::PoolError;
use super::lease::Lease;
use super::ledger::{Allowance, Ledger, refusal};
use super::ring::Ring;
use super::roster::Rosters;
use super::search::{Orders, Search};
use super::sessions::{Lineage, Names};
use super::spec::{Balance, CredentialId, CredentialSpec};
use crate::admission::Policy;
use crate::admission::score::Settled;
use home::Settles;

/// Credentials in one pool (pingora's selection counts to 65,535; chosen well below).
pub const MAX_CREDENTIALS: usize = 10_000;

/// Largest weight (chosen: pingora's round robin keeps a list with a place per unit of weight).
pub const MAX_WEIGHT: u32 = 1_000;

/// Every credential, and who may be used on which route.
#[derive(Debug)]
pub struct Pool {
    origin: Instant,
    pub(super) credentials: Vec<Arc<Credential>>,
    by_id: HashMap<CredentialId, CredentialIndex>,
    routes: Vec<Route>,
    pub(super) ledger: Arc<Ledger>,
    max_attempts: u32,
    turns: AtomicU64,
}

/// The credentials of a route, as configured.
#[derive(Clone, Debug)]
pub struct RouteMembers {
    /// Its name, for messages.
    pub name: String,
    /// In the order listed.
    pub credentials: Vec<CredentialId>,
    /// How they are chosen.
    pub balance: Balance,
    /// Sessions stay where they are, and how long an exception to their place on the ring is
    /// remembered; `None` is off.
    pub affinity: Option<Duration>,
}

/// The place of a route in the list that the pool was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteIndex(pub usize);

/// A request that needs a credential.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Its route.
    pub route: RouteIndex,
    /// Its model, at most 128 bytes.
    pub model: Option<&'a str>,
    /// Who was tried before.
    pub tried: &'a [CredentialIndex],
    /// The one that it belongs to and may not leave.
    pub only: Option<CredentialIndex>,
    /// Its session, without the model.
    pub session: Option<Lineage>,
    /// How far it may go.
    pub reach: Reach,
}

/// How far a request may go from where its session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To any credential.
    Anywhere,
    /// Within the realm: what it carries was encrypted there, and is worth nothing elsewhere.
    Realm,
}

/// What became of a request; told once, when it is admitted or nothing is left to try.
#[derive(Clone, Copy, Debug)]
pub struct Settlement<'a> {
    /// Its route.
    pub route: RouteIndex,
    /// Its model.
    pub model: Option<&'a str>,
    /// As in its [`Ask`]; a request without a session is told by a hash of its client or address.
    pub session: Option<Lineage>,
    /// Who had no seat for it (`capacity`, nothing else).
    pub refused: &'a [Refused],
    /// Who admitted it.
    pub admitted: Option<CredentialIndex>,
    /// When its last attempt began: the admitted one, or the last one refused.
    pub began: Instant,
}

/// A credential that had no seat for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which one.
    pub credential: CredentialIndex,
    /// The refusal's own `Retry-After`.
    pub stated: Option<Duration>,
}

/// What became of an [`Ask`].
#[derive(Debug)]
pub enum Choice {
    /// This one; it is in flight from now on.
    Take(Lease),
    /// Nobody.
    None(Why),
}

/// Why there is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Why {
    /// Time to the earliest end among the exclusions, those of credentials already tried included.
    pub earliest: Option<Duration>,
    /// What stands in the way.
    pub reason: NoneReason,
    /// Somebody in another realm could have taken it.
    pub other_realm: bool,
}

/// What stands in the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoneReason {
    /// No credential of the route serves the model.
    NoCredentialServesModel,
    /// Nobody was tried; all are excluded (or some, and the others drained).
    AllExcluded,
    /// At least one only lacks a free place.
    AllBusy,
    /// All that could be tried were.
    AllTried,
    /// Every one is drained.
    DrainedAll,
}

struct Route {
    members: Vec<Arc<Credential>>,
    /// Lowest first.
    tiers: Vec<Orders>,
    rosters: Rosters,
    balance: Balance,
    affinity: Option<Duration>,
}

impl Pool {
    /// Reads the secrets of `credentials` and puts them in order for `routes`. The same `seed` and the
    /// same story give the same choices.
    pub fn new(
        credentials: Vec<CredentialSpec>,
        routes: Vec<RouteMembers>,
        (policy, seed): (&Policy, u64),
        now: Instant,
    ) -> Result<Pool, PoolError> {
        if credentials.len() > MAX_CREDENTIALS {
            return Err(PoolError::TooMany(credentials.len()));
        }
        let mut by_id = HashMap::new();
        let mut made = Vec::with_capacity(credentials.len());
        let mut errors = Vec::new();
        for (index, spec) in credentials.into_iter().enumerate() {
            let index = CredentialIndex(index);
            if spec.weight.get() > MAX_WEIGHT {
                return Err(PoolError::Weight(spec.id, spec.weight.get()));
            }
            if by_id.insert(spec.id.clone(), index).is_some() {
                return Err(PoolError::Duplicate(spec.id));
            }
            match Credential::new(index, spec, now) {
                Ok(credential) => made.push(Arc::new(credential)),
                Err(error) => errors.push(error),
            }
        }
        if !errors.is_empty() {
            return Err(PoolError::Secrets(errors));
        }
        let mut pool = Pool {
            origin: now,
            credentials: made,
            by_id,
            routes: Vec::with_capacity(routes.len()),
            ledger: Arc::new(Ledger::new(policy, seed)),
            max_attempts: policy.max_attempts.get(),
            turns: AtomicU64::new(0),
        };
        for route in routes {
            let route = pool.route(route)?;
            pool.routes.push(route);
        }
        Ok(pool)
    }

    /// Takes a credential for `ask`, or says why there is none.
    pub fn choose(&self, ask: &Ask, now: Instant) -> Choice {
        let Some(route) = self.routes.get(ask.route.0) else {
            return Choice::None(Why::nobody());
        };
        if let Some(only) = ask.only {
            let owner = route.members.iter().find(|it| it.index() == only);
            let taken = owner.and_then(|owner| ask.take(owner, now));
            return taken.map_or_else(|| Choice::None(ask.why(owner, None, now)), Choice::Take);
        }
        let roster = route.rosters.of(ask.model);
        let model = ask.model.unwrap_or(NO_MODEL);
        let root = ask.session.map(|it| it.root);
        let resident = ask.session.zip(route.affinity).map(|(session, ttl)| {
            let home = self.ledger.sessions(|it| it.home(session, ttl, now));
            (session.root, home)
        });
        let realm = match ask.reach {
            Reach::Anywhere => None,
            Reach::Realm => self.realm_of(ask, (route, &roster), resident),
        };
        let search = Search {
            ask,
            balance: route.balance,
            orders: &route.tiers,
            outlook: self.ledger.outlook(model, roster.peers, root, now),
            roster: &roster,
            ledger: &self.ledger,
            resident,
            realm,
            turn: self.turns.fetch_add(1, Ordering::Relaxed),
            moment: Moment::of(now, self.origin),
            now,
        };
        match search.run() {
            Some(lease) => Choice::Take(lease),
            None => Choice::None(ask.why(&route.members, realm, now)),
        }
    }

    /// Draws every consequence of a request for scores, sessions and its model; to be told once per
    /// request, when it is admitted or nothing is left to try.
    pub fn settle(&self, settlement: &Settlement, now: Instant) {
        let Some(route) = self.routes.get(settlement.route.0) else {
            return;
        };
        let roster = route.rosters.of(settlement.model);
        let model = settlement.model.unwrap_or(NO_MODEL);
        let refused = settlement.refused.iter().filter_map(|it| {
            let credential = self.credentials.get(it.credential.0)?;
            Some(refusal(it.credential, credential.weight(), it.stated))
        });
        let refused: Vec<_> = refused.collect();
        let settled = Settled {
            model,
            peers: roster.peers,
            session: settlement.session.map(|it| it.root),
            refused: &refused,
            admitted: settlement.admitted.map(|it| it.0),
            full: false,
        };
        self.ledger
            .settle(settled, roster.peers.count, settlement.began, now);
        let (Some(session), Some(ttl), Some(admitted)) =
            (settlement.session, route.affinity, settlement.admitted)
        else {
            return;
        };
        let settles = Settles {
            home: self.ledger.sessions(|it| it.home(session, ttl, now)),
            session,
            admitted,
            displaced: refused.is_empty(),
        };
        if let Some(home) = self.moves(&settles, (route, &roster), settlement.model) {
            self.ledger
                .sessions(|it| it.settle_down(session, home, now));
        }
    }

    /// To which session these names belong.
    pub fn lineage(&self, names: Names, now: Instant) -> Option<Lineage> {
        self.ledger.sessions(|it| it.lineage(names, now))
    }

    /// How many attempts a request has, and when it may make the first; to be asked before each start.
    /// While the model is full a `Go` takes one of its few places: it is to be used. `waiting` is the
    /// time at which the request was first told to wait, if it was.
    pub fn allowance(
        &self,
        model: Option<&str>,
        session: Option<u64>,
        waiting: Option<Instant>,
        now: Instant,
    ) -> Allowance {
        let model = model.unwrap_or(NO_MODEL);
        let told = (self.max_attempts, waiting);
        self.ledger.allowance(model, session, told, now)
    }

    /// Whether the model is full, so that no attempt beyond the one under way is worth making.
    pub fn is_full(&self, model: Option<&str>) -> bool {
        self.ledger.is_full(model.unwrap_or(NO_MODEL))
    }

    /// When a client is to come back that nothing can be done for now; `why` where nobody could be
    /// asked.
    pub fn retry_after(
        &self,
        session: Option<u64>,
        model: Option<&str>,
        why: Option<&Why>,
        now: Instant,
    ) -> Duration {
        let told = self
            .ledger
            .retry_after(session, model.unwrap_or(NO_MODEL), now);
        match why {
            Some(Why {
                earliest: Some(earliest),
                reason: NoneReason::AllExcluded,
                ..
            }) => self.ledger.spread(*earliest),
            Some(_) | None => told,
        }
    }

    /// Every credential, by its index.
    pub fn credentials(&self) -> &[Arc<Credential>] {
        &self.credentials
    }

    /// The credential of this name.
    pub fn credential(&self, id: &CredentialId) -> Option<&Arc<Credential>> {
        self.credentials.get(self.by_id.get(id)?.0)
    }

    fn route(&self, route: RouteMembers) -> Result<Route, PoolError> {
        let mut members = Vec::with_capacity(route.credentials.len());
        let mut tiers: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        let mut seen = HashSet::new();
        for id in route.credentials {
            let Some(credential) = self.credential(&id) else {
                return Err(PoolError::Unknown(route.name, id));
            };
            if !seen.insert(credential.index()) {
                return Err(PoolError::Repeated(route.name, id));
            }
            let tier = tiers.entry(credential.spec().tier).or_default();
            tier.push(Arc::clone(credential));
            members.push(Arc::clone(credential));
        }
        if members.is_empty() {
            return Err(PoolError::NoMembers(route.name));
        }
        let tiers: Vec<_> = tiers.into_values().collect();
        let orders = tiers.iter().map(|members| {
            let ring = route.affinity.map(|_| Ring::new(members)).transpose()?;
            let balance = Tier::new(route.balance, members)?;
            Ok(Orders { balance, ring })
        });
        Ok(Route {
            members,
            tiers: orders.collect::<Result<_, PoolError>>()?,
            rosters: Rosters::new(&tiers),
            balance: route.balance,
            affinity: route.affinity,
        })
    }
}

impl Ask<'_> {
    fn take(&self, credential: &Arc<Credential>, now: Instant) -> Option<Lease> {
        let belongs = !self.tried.contains(&credential.index()) && self.is_served(credential);
        belongs.then(|| credential.take(self.model, now)).flatten()
    }

    fn is_served(&self, credential: &Credential) -> bool {
        credential.spec().models.serve(self.model)
    }

    /// Looks once more at everybody who serves the model. In between somebody may have become able;
    /// it counts as busy, since to ask again is right.
    fn why<'a>(
        &self,
        members: impl IntoIterator<Item = &'a Arc<Credential>>,
        realm: Option<&str>,
        now: Instant,
    ) -> Why {
        let mut why = Why::nobody();
        let (mut undrained, mut able, mut tried) = (false, false, false);
        let serving = members.into_iter().filter(|it| self.is_served(it));
        for credential in serving {
            let was_tried = self.tried.contains(&credential.index());
            if realm.is_some_and(|realm| credential.spec().realm != realm) {
                let able = credential.standing(self.model, now) == Standing::Able;
                why.other_realm |= able && !was_tried;
                continue;
            }
            why.reason = NoneReason::DrainedAll;
            tried |= was_tried;
            match credential.standing(self.model, now) {
                Standing::Drained => continue,
                Standing::Able => able |= !was_tried,
                Standing::Excluded { left } => {
                    let earlier = why.earliest.into_iter().chain(left).min();
                    why.earliest = earlier;
                }
            }
            undrained = true;
        }
        if able {
            why.reason = NoneReason::AllBusy;
        } else if tried {
            why.reason = NoneReason::AllTried;
        } else if undrained {
            why.reason = NoneReason::AllExcluded;
        }
        why
    }
}

impl Why {
    /// All that could be asked have as much in flight as they may.
    pub fn busy() -> Why {
        Why {
            reason: NoneReason::AllBusy,
            ..Why::nobody()
        }
    }

    fn nobody() -> Why {
        Why {
            earliest: None,
            reason: NoneReason::NoCredentialServesModel,
            other_realm: false,
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.members.iter().map(|it| it.id());
        f.debug_list().entries(names).finish()
    }
}

#[cfg(test)]
mod tests;
