//! Everything that the edge holds while it serves, put together from the configuration once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant, SystemTime};

use pingora::connectors::http::Connector;
use tokio::sync::{mpsc, watch};

use crate::admission::day::Day;
use crate::admission::rules::Reading;
use crate::admission::share::Client;
use crate::admission::{Dialect, Policy};
use crate::observe::admin::{Control, Order, UnknownCredential};
use crate::observe::ids::SessionKey;
use crate::observe::safe::SafeText;
use crate::observe::snapshot::{self, CredentialView, MemoryView, ModelView, RuleView, Snapshot};
use crate::observe::trail::Trail;
use crate::pool::{
    BY_SCORE, CredentialId, CredentialIndex, CredentialSpec, MemoryBudget, PairView, Pool,
    PoolError, RetryWindow, RouteIndex, RouteMembers, Secrets,
};

use super::clients::{Clients, ClientsSource, LOOK_EVERY};
use super::news::News;
use super::owners::Owners;
use super::places::Places;
use super::spec::{Limits, RouteSpec, UpstreamSpec};
use super::turns::Turns;
use super::upstream::{Upstream, UpstreamError, connector};
use super::waiting::WaitingRoom;

/// What the edge is made from.
#[derive(Debug)]
pub struct Parts {
    /// By name.
    pub upstreams: BTreeMap<String, UpstreamSpec>,
    /// In the order of the configuration.
    pub credentials: Vec<CredentialSpec>,
    /// In the order of the configuration.
    pub routes: Vec<RouteSpec>,
    /// What is done with refusals.
    pub policy: Policy,
    /// What a client may send.
    pub limits: Limits,
    /// Say in answers which credential it was.
    pub disclose: bool,
    /// Who may ask; `None` is everybody who reaches a listener.
    pub clients: Option<ClientsSource>,
    /// What `check` warns about, for the status.
    pub warnings: Vec<String>,
}

/// The edge.
pub struct Edge {
    /// In the order of the configuration.
    pub routes: Vec<RouteSpec>,
    /// What is done with refusals.
    pub policy: Policy,
    /// What a client may send.
    pub limits: Limits,
    /// Say in answers which credential it was.
    pub disclose: bool,
    /// Held and replayable bytes of all requests.
    pub memory: MemoryBudget,
    /// The credentials.
    pub pool: Pool,
    /// Told how each request ended.
    pub trail: Arc<Trail>,
    /// Makes sessions' names unreadable.
    pub session_key: SessionKey,
    route_names: Vec<Arc<str>>,
    budgets: Vec<RetryWindow>,
    upstreams: Vec<Arc<Upstream>>,
    /// The upstream of each credential.
    of_credential: Vec<Arc<Upstream>>,
    warnings: Vec<String>,
    /// Who may ask; `None` is everybody who reaches a listener.
    pub clients: Option<Clients>,
    /// What belongs to the credential that made it.
    pub owners: Owners,
    /// Requests that wait for a seat.
    pub waiting: WaitingRoom,
    /// Places for connections.
    pub(super) places: Places,
    /// Of those that handle large bodies.
    pub(super) turns: Arc<Turns>,
    draining: watch::Sender<bool>,
    /// Connects to upstreams, and keeps connections that nobody uses.
    pub(super) connector: Arc<Connector>,
    /// Another process has taken over, for good.
    pub(super) succeeded: AtomicBool,
    /// Told what happens, once another process has taken over.
    pub(super) heir: RwLock<Option<mpsc::Sender<News>>>,
}

/// The edge cannot be put together.
#[derive(Debug)]
pub enum EdgeError {
    /// A credential or a secret.
    Pool(PoolError),
    /// An upstream's certificates or proxy.
    Upstream(UpstreamError),
    /// The list of clients.
    Clients(String),
    /// A credential of an upstream that does not exist; the configuration rules it out.
    NoUpstream(CredentialId),
}

impl fmt::Display for EdgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EdgeError::Pool(e) => e.fmt(f),
            EdgeError::Upstream(e) => e.fmt(f),
            EdgeError::Clients(e) => e.fmt(f),
            EdgeError::NoUpstream(id) => write!(f, "credential `{id}`: its upstream is unknown"),
        }
    }
}

impl std::error::Error for EdgeError {}

impl Edge {
    /// Reads secrets, certificates and clients, and puts the edge together.
    ///
    /// # Errors
    ///
    /// What cannot be read.
    pub fn new(parts: Parts, trail: Arc<Trail>, now: Instant) -> Result<Edge, EdgeError> {
        let mut by_name = BTreeMap::new();
        for (name, spec) in parts.upstreams {
            let upstream = Upstream::new(&name, spec).map_err(EdgeError::Upstream)?;
            by_name.insert(name, Arc::new(upstream));
        }
        let mut of_credential = Vec::with_capacity(parts.credentials.len());
        for spec in &parts.credentials {
            let upstream = by_name
                .get(&spec.upstream)
                .ok_or_else(|| EdgeError::NoUpstream(spec.id.clone()))?;
            of_credential.push(upstream.clone());
        }
        let members = parts.routes.iter().map(|route| RouteMembers {
            name: route_name(route).to_owned(),
            credentials: route.credentials.clone(),
            balance: route.balance,
            affinity: route.affinity,
        });
        let admission = (&parts.policy, rand::random());
        let pool = Pool::new(parts.credentials, members.collect(), admission, now)
            .map_err(EdgeError::Pool)?;
        let clients = parts.clients.map(|source| Clients::open(source, now));
        let clients = clients.transpose().map_err(EdgeError::Clients)?;
        let budget = parts.policy.retry_budget;
        Ok(Edge {
            route_names: parts.routes.iter().map(|r| route_name(r).into()).collect(),
            budgets: parts
                .routes
                .iter()
                .map(|_| RetryWindow::new(budget, now))
                .collect(),
            waiting: WaitingRoom::new(parts.policy.wait.max_waiting),
            routes: parts.routes,
            policy: parts.policy,
            limits: parts.limits,
            disclose: parts.disclose,
            memory: MemoryBudget::new(parts.limits.memory),
            pool,
            trail,
            session_key: SessionKey::random(),
            upstreams: by_name.into_values().collect(),
            of_credential,
            warnings: parts.warnings,
            clients,
            owners: Owners::default(),
            places: Places::new(
                parts.limits.connections,
                parts.limits.connections_per_address,
            ),
            connector: Arc::new(connector(parts.limits.connections)),
            turns: Arc::default(),
            draining: watch::Sender::new(false),
            succeeded: AtomicBool::new(false),
            heir: RwLock::new(None),
        })
    }

    /// Every upstream.
    pub fn upstreams(&self) -> &[Arc<Upstream>] {
        &self.upstreams
    }

    /// The upstream of a credential.
    pub fn upstream(&self, credential: CredentialIndex) -> Option<&Arc<Upstream>> {
        self.of_credential.get(credential.0)
    }

    /// By what an answer of `upstream` is read, to an attempt that begins now with these secrets.
    pub fn reading(&self, upstream: &Upstream, secrets: &Secrets) -> Reading {
        Reading {
            withheld: secrets.withheld().clone(),
            rules: self.policy.rules.clone(),
            today: today(),
            dialect: upstream.spec.dialect,
            upstream: upstream.name.clone(),
        }
    }

    /// The dialect that a route's clients speak; OpenAI's outside every route.
    pub fn dialect(&self, route: Option<usize>) -> Dialect {
        let member = || {
            let id = self.routes.get(route?)?.credentials.first()?;
            self.upstream(self.pool.credential(id)?.index())
        };
        member().map_or(Dialect::OpenAi, |upstream| upstream.spec.dialect)
    }

    /// A route's name in the trail.
    pub fn route_name(&self, route: usize) -> Option<&Arc<str>> {
        self.route_names.get(route)
    }

    /// A first attempt is made on a route.
    pub fn deposit(&self, route: RouteIndex, now: Instant) {
        if let Some(budget) = self.budgets.get(route.0) {
            budget.deposit(now);
        }
    }

    /// Whether a route's budget has another attempt for `client`.
    pub fn withdraw(&self, route: RouteIndex, client: Client, now: Instant) -> bool {
        self.budgets
            .get(route.0)
            .is_some_and(|budget| budget.withdraw(client, now))
    }

    /// Takes a new list of clients and writes down what they spent, where it is time.
    fn tend_clients(&self, now: Instant) {
        if let Some(clients) = &self.clients {
            clients.look(now);
            if !self.has_heir() {
                clients.save_sometimes(now);
            }
        }
    }

    /// The process ends: what is not on the disk yet is written there.
    pub fn flush(&self) {
        if let Some(clients) = self.clients.as_ref().filter(|_| !self.has_heir()) {
            clients.save(Instant::now());
        }
        self.trail.flush();
    }

    /// From now on the process drains.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Returns once the process drains.
    pub async fn drains(&self) {
        // The sender lives as long as `self`.
        let _ = self.draining.subscribe().wait_for(|drains| *drains).await;
    }
}

impl Control for Edge {
    fn snapshot(&self) -> Snapshot {
        let now = Instant::now();
        let views = self.pool.snapshot(now);
        let whole = |id: &CredentialId| {
            let view = views.iter().find(|v| v.credential == *id && v.model == "*");
            view.map_or(crate::admission::PairState::Ready, |view| view.state)
        };
        let credentials = self.pool.credentials().iter().map(|credential| {
            let spec = credential.spec();
            CredentialView {
                id: spec.id.clone(),
                upstream: spec.upstream.clone(),
                labels: spec.labels.clone(),
                route: credential.token_route(),
                in_flight: u64::from(credential.in_flight()),
                secret_expires: credential.secret_expires(),
                state: whole(&spec.id),
            }
        });
        let pairs = views.iter().map(|view| snapshot::PairView {
            credential: view.credential.clone(),
            model: (view.model != "*").then(|| SafeText::new(&view.model)),
            state: view.state,
            since: view.since.unwrap_or_default(),
            left: view.left,
            basis: basis(view),
            score: view.score,
            excess: view.excess,
        });
        let full = self.pool.full_models(now);
        let models = full.iter().map(|full| ModelView {
            model: SafeText::new(&full.model),
            full: true,
            waiting: self.waiting.waiting(&full.model) as u64,
        });
        let today = today();
        let rules = self.policy.rules.all().map(|rule| RuleView {
            name: rule.name.clone(),
            source: rule.origin.as_str(),
            verdict: rule.verdict,
            expires: rule.expires(),
            expired: rule.is_expired(today),
        });
        let expired = self.policy.rules.expired(today).map(|(rule, last)| {
            format!(
                "the rule {} has expired: its last day was {last}, and it matches nothing any more",
                rule.name
            )
        });
        let clients = self.clients.as_ref();
        let of_clients = clients.map(|it| it.warnings(self.policy.mode));
        let clients = clients.map(|it| it.register.views(now, today));
        Snapshot {
            clients: clients.unwrap_or_default(),
            draining: !self.ready(),
            waiting: self.waiting.all() as u64,
            connections: self.places.open() as u64,
            credentials: credentials.collect(),
            pairs: pairs.collect(),
            models: models.collect(),
            memory: MemoryView {
                used: self.memory.used() as u64,
                limit: self.memory.limit() as u64,
            },
            hold_limit: self.policy.hold.max_time,
            rules: rules.collect(),
            warnings: (self.warnings.iter().cloned())
                .chain(expired)
                .chain(of_clients.into_iter().flatten())
                .collect(),
        }
    }

    fn ready(&self) -> bool {
        !*self.draining.borrow()
    }

    fn order(&self, id: &CredentialId, order: &Order) -> Result<(), UnknownCredential> {
        let now = Instant::now();
        let known = match order {
            Order::Drain => self.pool.drain(id, now),
            Order::Enable => self.pool.enable(id),
            Order::Reset => self.pool.reset(id),
            Order::HoldOut { model, time } => self.pool.hold_out(id, model.as_deref(), *time, now),
        };
        if known {
            Ok(())
        } else {
            Err(UnknownCredential)
        }
    }
}

/// Looks up names, re-reads secrets and clients, writes down what these spent and flushes the log, for as long as
/// the process lives: what drains may still need all of it.
pub async fn tend(edge: Arc<Edge>) {
    /// How often secret files are looked at. Chosen: nobody waits longer for a rotation.
    const SECRETS_EVERY: Duration = Duration::from_secs(5);
    /// How often the log says what it left out, should no line come that says it first.
    const FLUSH_EVERY: Duration = Duration::from_secs(1);
    let mut names = tokio::time::interval(super::upstream::LOOK_UP_EVERY);
    let mut secrets = tokio::time::interval(SECRETS_EVERY);
    let mut log = tokio::time::interval(FLUSH_EVERY);
    let mut clients = tokio::time::interval(LOOK_EVERY);
    let mut told = BTreeSet::new();
    // The first look-up was made before anything was served.
    names.tick().await;
    loop {
        tokio::select! {
            _ = log.tick() => log::logger().flush(),
            _ = names.tick() => look_up(&edge).await,
            _ = secrets.tick() => {
                let edge = edge.clone();
                let looked = move || reload_secrets(&edge, &told);
                told = tokio::task::spawn_blocking(looked).await.unwrap_or_default();
            }
            _ = clients.tick(), if edge.clients.is_some() => {
                let edge = edge.clone();
                let _ = tokio::task::spawn_blocking(move || edge.tend_clients(Instant::now())).await;
            }
        }
    }
}

/// Looks up every upstream's name.
pub async fn look_up(edge: &Edge) {
    for upstream in edge.upstreams() {
        if let Err(e) = upstream.look_up().await {
            let known = upstream.addresses();
            log::warn!(
                upstream:% = upstream.name, name:% = upstream.authority, known, error:% = e;
                "a name cannot be looked up, the known addresses stay in use"
            );
        }
    }
}

/// Whose secret could not be read, and why.
type Told = (CredentialId, String);

/// Reads secrets whose files were written. Gives what is wrong now; what is in `told` is not said again.
fn reload_secrets(edge: &Edge, told: &BTreeSet<Told>) -> BTreeSet<Told> {
    let changes = edge.pool.reload_secrets();
    for id in changes.changed {
        log::info!(credential:% = id; "a secret was replaced");
    }
    let errors = changes.errors.iter();
    let errors: BTreeSet<Told> = errors
        .map(|it| (it.credential.clone(), it.to_string()))
        .collect();
    for (credential, error) in errors.difference(told) {
        log::warn!(credential:%, error:%; "a secret cannot be read, the old value stays in use");
    }
    errors
}

/// Why a pair is where it is, and what that rests on.
fn basis(view: &PairView) -> String {
    let Some(basis) = view.basis else {
        return String::new();
    };
    if basis != BY_SCORE {
        return basis.to_owned();
    }
    format!(
        "score {:.0}, {:.0} above its siblings: {} newcomers refused here and admitted elsewhere, {} admitted here",
        view.score, view.excess, view.evidence.refused, view.evidence.admitted
    )
}

/// The day that it is, in UTC.
pub(super) fn today() -> Day {
    Day::of(SystemTime::now())
}

fn route_name(route: &RouteSpec) -> &str {
    if route.path_prefix.is_empty() {
        "/"
    } else {
        &route.path_prefix
    }
}
