//! Which credential takes a request.
//!
//! The candidates are gone through in classes, each in the order of the route's tiers, and each tier
//! in the order of its balance (`balance`). Whoever is found able is taken in the same step, so two
//! threads cannot both find the last place free. Nothing is ever taken that is excluded, except as the
//! probe that an exclusion allows; a tier is used only when no credential of a lower one can take the
//! request. Where nobody can, the answer says why, and when it may be worth asking again.
//!
//! A list of healthy credentials, kept up to date in the background, was refused: what matters differs
//! by model and by request, and a list is always a little late.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::balance::Tier;
use super::credential::{Credential, CredentialIndex, CredentialSecretError, Moment, Standing};
use super::exclusion::{Basis, Shown};
use super::lease::Lease;
use super::spec::{Balance, CredentialId, CredentialSpec};
use crate::admission::PairState;

/// Credentials in one pool (pingora's selection counts to 65,535; chosen well below).
pub const MAX_CREDENTIALS: usize = 10_000;

/// Largest weight (chosen: pingora's round robin keeps a list with a place per unit of weight).
pub const MAX_WEIGHT: u32 = 1_000;

/// Every credential, and who may be used on which route.
#[derive(Debug)]
pub struct Pool {
    origin: Instant,
    credentials: Vec<Arc<Credential>>,
    by_id: HashMap<CredentialId, CredentialIndex>,
    routes: Vec<Route>,
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

/// The state of a credential or of a pair, for status and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairView {
    /// The credential.
    pub credential: CredentialId,
    /// The model, `*` for the credential itself; empty for requests that name none.
    pub model: String,
    /// What it is.
    pub state: PairState,
    /// For how long.
    pub since: Option<Duration>,
    /// How much longer; `None` where that is not known.
    pub left: Option<Duration>,
    /// Where the end comes from.
    pub basis: Option<Basis>,
}

/// What a look at the secret files brought.
#[derive(Debug, Default)]
pub struct SecretChanges {
    /// Those that have another secret now.
    pub changed: Vec<CredentialId>,
    /// Those that keep their old one for want of a good one.
    pub errors: Vec<CredentialSecretError>,
}

/// A pool cannot be made so.
#[derive(Debug)]
pub enum PoolError {
    /// More than [`MAX_CREDENTIALS`].
    TooMany(usize),
    /// Two credentials of one name.
    Duplicate(CredentialId),
    /// A weight above [`MAX_WEIGHT`].
    Weight(CredentialId, u32),
    /// Secrets that cannot be had, all of them.
    Secrets(Vec<CredentialSecretError>),
    /// A route names no credential.
    NoMembers(String),
    /// A route names a credential that does not exist.
    Unknown(String, CredentialId),
    /// A route names a credential twice.
    Repeated(String, CredentialId),
    /// pingora refused to build its selection.
    Balancer(Box<pingora::Error>),
    /// pingora waited while building its selection, which it does not do with a fixed list.
    BalancerWaits,
}

struct Route {
    members: Vec<Arc<Credential>>,
    /// Lowest first.
    tiers: Vec<Tier>,
}

/// The classes of candidates.
#[derive(Clone, Copy, Debug)]
enum Class {
    /// Nothing speaks against them, or they are due for a probe.
    Ready,
}

/// The classes in the order in which they are asked.
const ORDER: [Class; 1] = [Class::Ready];

impl Pool {
    /// Reads the secrets of `credentials` and puts them in order for `routes`.
    pub fn new(
        credentials: Vec<CredentialSpec>,
        routes: Vec<RouteMembers>,
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
            if let Some(lease) = owner.and_then(|owner| ask.take(owner, Class::Ready, now)) {
                return Choice::Take(lease);
            }
            return Choice::None(ask.why(owner, now));
        }
        let moment = Moment::of(now, self.origin);
        for class in ORDER {
            for tier in &route.tiers {
                if let Some(lease) = tier.first(moment, |it| ask.take(it, class, now)) {
                    return Choice::Take(lease);
                }
            }
        }
        Choice::None(ask.why(&route.members, now))
    }

    /// Every credential, by its index.
    pub fn credentials(&self) -> &[Arc<Credential>] {
        &self.credentials
    }

    /// The credential of this name.
    pub fn credential(&self, id: &CredentialId) -> Option<&Arc<Credential>> {
        self.credentials.get(self.by_id.get(id)?.0)
    }

    /// The state of each credential (model `*`), and of each pair that is excluded by itself.
    pub fn snapshot(&self, now: Instant) -> Vec<PairView> {
        let mut views = Vec::with_capacity(self.credentials.len());
        for credential in &self.credentials {
            let view = |model: String, shown: Option<Shown>| PairView {
                credential: credential.id().clone(),
                model,
                state: shown.as_ref().map_or(PairState::Ready, |it| it.state),
                since: shown
                    .as_ref()
                    .map(|it| now.saturating_duration_since(it.since)),
                left: shown.as_ref().and_then(|it| it.left),
                basis: shown.map(|it| it.basis),
            };
            let (whole, pairs) = credential.shown(now);
            views.push(view("*".to_owned(), whole));
            views.extend(
                pairs
                    .into_iter()
                    .map(|(model, shown)| view(model, Some(shown))),
            );
        }
        views
    }

    /// Takes a credential, or one model of it, out for a time; whether it exists.
    pub fn hold_out(
        &self,
        id: &CredentialId,
        model: Option<&str>,
        time: Duration,
        now: Instant,
    ) -> bool {
        self.with(id, |it| it.hold_out(model, time, now))
    }

    /// Takes a credential out until it is enabled; whether it exists.
    pub fn drain(&self, id: &CredentialId, now: Instant) -> bool {
        self.with(id, |it| it.drain(now))
    }

    /// Ends a drain, hold-outs and the exclusions that doubt the secret; whether it exists.
    pub fn enable(&self, id: &CredentialId) -> bool {
        self.with(id, Credential::enable)
    }

    /// Forgets everything that was learned about a credential; whether it exists.
    pub fn reset(&self, id: &CredentialId) -> bool {
        self.with(id, Credential::reset)
    }

    /// Reads again the secrets whose files were written since. Reads files: not for a thread that
    /// serves requests.
    pub fn reload_secrets(&self) -> SecretChanges {
        let mut changes = SecretChanges::default();
        for credential in &self.credentials {
            match credential.reload() {
                Ok(true) => changes.changed.push(credential.id().clone()),
                Ok(false) => {}
                Err(error) => changes.errors.push(error),
            }
        }
        changes
    }

    fn with(&self, id: &CredentialId, act: impl FnOnce(&Credential)) -> bool {
        self.credential(id).map(|it| act(it)).is_some()
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
        let tiers = tiers.values();
        let tiers = tiers.map(|members| Tier::new(route.balance, members));
        Ok(Route {
            members,
            tiers: tiers.collect::<Result<_, _>>()?,
        })
    }
}

impl Ask<'_> {
    fn take(&self, credential: &Arc<Credential>, class: Class, now: Instant) -> Option<Lease> {
        let belongs = match class {
            Class::Ready => !self.tried.contains(&credential.index()) && self.is_served(credential),
        };
        belongs.then(|| credential.take(self.model, now)).flatten()
    }

    fn is_served(&self, credential: &Credential) -> bool {
        credential.spec().models.serve(self.model)
    }

    /// Looks once more at everybody who serves the model. In between somebody may have become able;
    /// it counts as busy, since to ask again is right.
    fn why<'a>(&self, members: impl IntoIterator<Item = &'a Arc<Credential>>, now: Instant) -> Why {
        let mut why = Why::nobody();
        let (mut undrained, mut able, mut tried) = (false, false, false);
        let serving = members.into_iter().filter(|it| self.is_served(it));
        for credential in serving {
            why.reason = NoneReason::DrainedAll;
            let was_tried = self.tried.contains(&credential.index());
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
    fn nobody() -> Why {
        Why {
            earliest: None,
            reason: NoneReason::NoCredentialServesModel,
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.members.iter().map(|it| it.id());
        f.debug_list().entries(names).finish()
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::TooMany(count) => write!(
                f,
                "{count} credentials: berth takes at most {MAX_CREDENTIALS}, so split them over \
                 several processes"
            ),
            PoolError::Duplicate(id) => {
                write!(f, "two credentials are named {id}: rename one of them")
            }
            PoolError::Weight(id, weight) => write!(
                f,
                "credential {id}: weight {weight} is above {MAX_WEIGHT}: only the ratio counts, so \
                 divide all weights alike"
            ),
            PoolError::Secrets(errors) => {
                for (count, error) in errors.iter().enumerate() {
                    f.write_str(if count == 0 { "" } else { "\n" })?;
                    error.fmt(f)?;
                }
                Ok(())
            }
            PoolError::NoMembers(route) => {
                write!(f, "route {route} has no credentials: list at least one")
            }
            PoolError::Unknown(route, id) => write!(
                f,
                "route {route} lists {id}, which is no credential: correct the name or add it"
            ),
            PoolError::Repeated(route, id) => {
                write!(f, "route {route} lists {id} twice: use its weight instead")
            }
            PoolError::Balancer(error) => write!(f, "cannot build the selection: {error}"),
            PoolError::BalancerWaits => f.write_str(
                "cannot build the selection: pingora did not finish at once; this is a defect of \
                 berth, please report it",
            ),
        }
    }
}

impl std::error::Error for PoolError {}

#[cfg(test)]
mod tests;
