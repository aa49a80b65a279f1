//! berth itself: the product's own pool, driven with simulated times.
//!
//! What the edge does around the pool is done here too, and nothing else: it asks whether a request
//! may start, leases a credential for each attempt, tells the lease its verdict, settles once, and
//! tells the client when to come back.

use std::time::{Duration, Instant};

use berth::admission::full::Start as Begin;
use berth::admission::share::Client;
use berth::admission::{PairState, Policy as Rules, Verdict};
use berth::pool::{
    Ask, Balance, Choice, CredentialId, CredentialIndex, CredentialSpec, Lease, Lineage,
    ModelPatterns, Pool, Reach, Refused, RetryWindow, RouteIndex, RouteMembers, SecretSource,
    Settlement, Why,
};

use super::policies::{Policy, Request, Start};
use super::world::World;

pub struct Berth {
    pub pool: Pool,
    rules: Rules,
    budget: RetryWindow,
    origin: Instant,
    weights: Vec<u32>,
    /// By slot.
    leases: Vec<Option<Lease>>,
    refused: Vec<Vec<Refused>>,
    why: Vec<Option<Why>>,
    waiting: usize,
}

const MODELS: [&str; 2] = ["m0", "m1"];
const ROUTE: RouteIndex = RouteIndex(0);

impl Berth {
    pub fn new(world: &World, seed: u64) -> Berth {
        Berth::with(world, Rules::default(), seed)
    }

    /// With other rules than those of the table.
    pub fn with(world: &World, rules: Rules, seed: u64) -> Berth {
        let credentials: Vec<_> = (0..world.weights.len())
            .map(|it| credential(world, it))
            .collect();
        let origin = Instant::now();
        let route = RouteMembers {
            name: "/v1".to_owned(),
            credentials: credentials.iter().map(|it| it.id.clone()).collect(),
            balance: Balance::LeastInFlight,
            affinity: Some(Duration::from_secs(3_600)),
        };
        let pool = Pool::new(credentials, vec![route], (&rules, seed), origin);
        Berth {
            pool: pool.expect("the laboratory's credentials are sound"),
            budget: RetryWindow::new(rules.retry_budget, origin),
            rules,
            origin,
            weights: world.weights.clone(),
            leases: (0..world.sessions).map(|_| None).collect(),
            refused: vec![Vec::new(); world.sessions],
            why: vec![None; world.sessions],
            waiting: 0,
        }
    }

    pub fn at(&self, time: f64) -> Instant {
        self.origin + Duration::from_secs_f64(time.max(0.0))
    }

    fn settle(&self, request: &Request, admitted: Option<usize>, now: f64) {
        let settlement = Settlement {
            route: ROUTE,
            model: Some(MODELS[request.model]),
            session: Some(Lineage::root(request.session)),
            refused: &self.refused[request.slot],
            admitted: admitted.map(CredentialIndex),
            began: self.at(request.sent),
        };
        self.pool.settle(&settlement, self.at(now));
    }

    fn learn(&self, request: &Request, verdict: Verdict, now: f64) {
        if let Some(lease) = &self.leases[request.slot] {
            lease.learn(Some(MODELS[request.model]), verdict, None, self.at(now));
        }
    }
}

impl Policy for Berth {
    fn start(&mut self, request: &Request, now: f64) -> Start {
        self.refused[request.slot].clear();
        self.why[request.slot] = None;
        let waiting = request.waiting.map(|it| self.at(it));
        let allowance = self.pool.allowance(
            Some(MODELS[request.model]),
            Some(request.session),
            waiting,
            self.at(now),
        );
        let was_waiting = usize::from(request.waiting.is_some());
        self.waiting -= was_waiting;
        match allowance.start {
            Begin::Go => {
                self.budget.deposit(self.at(now));
                Start::Go(allowance.attempts)
            }
            Begin::WaitUntil(until) => {
                let waited = request.waiting.map_or(0.0, |since| now - since);
                let is_long = waited >= self.rules.wait.max_time.as_secs_f64();
                if is_long || self.waiting >= self.rules.wait.max_waiting {
                    return Start::GiveUp;
                }
                self.waiting += 1;
                Start::Wait(until.duration_since(self.origin).as_secs_f64())
            }
        }
    }

    fn may_go_on(&mut self, request: &Request, now: f64) -> bool {
        // A client for each session: what one of them may take is not what is measured here.
        let client = Client::hashed(request.session);
        !self.pool.is_full(Some(MODELS[request.model]))
            && self.budget.withdraw(client, self.at(now))
    }

    fn choose(&mut self, request: &Request, now: f64) -> Option<usize> {
        let tried: Vec<_> = (0..self.weights.len())
            .filter(|it| request.tried >> it & 1 == 1)
            .map(CredentialIndex)
            .collect();
        let ask = Ask {
            route: ROUTE,
            model: Some(MODELS[request.model]),
            tried: &tried,
            only: None,
            session: Some(Lineage::root(request.session)),
            reach: Reach::Anywhere,
        };
        match self.pool.choose(&ask, self.at(now)) {
            Choice::Take(lease) => {
                let index = lease.credential().index().0;
                self.leases[request.slot] = Some(lease);
                Some(index)
            }
            Choice::None(why) => {
                self.why[request.slot] = Some(why);
                None
            }
        }
    }

    fn refused(&mut self, request: &Request, credential: usize, now: f64) {
        self.learn(request, Verdict::Capacity, now);
        self.leases[request.slot] = None;
        self.refused[request.slot].push(Refused {
            credential: CredentialIndex(credential),
            stated: None,
        });
    }

    fn admitted(&mut self, request: &Request, credential: usize, now: f64) {
        self.learn(request, Verdict::Admitted, now);
        self.settle(request, Some(credential), now);
    }

    fn done(&mut self, slot: usize, _credential: usize) {
        self.leases[slot] = None;
    }

    fn give_up(&mut self, request: &Request, now: f64) -> f64 {
        self.settle(request, None, now);
        let told = self.pool.retry_after(
            Some(request.session),
            Some(MODELS[request.model]),
            self.why[request.slot].as_ref(),
            self.at(now),
        );
        // The header has whole seconds.
        told.as_secs_f64().round().max(1.0)
    }

    fn in_flight(&self, credential: usize) -> usize {
        self.pool.credentials()[credential].in_flight() as usize
    }

    fn withholds(&mut self, credential: usize, model: usize, now: f64) -> bool {
        let views = self.pool.snapshot(self.at(now));
        let last = |view: &&berth::pool::PairView| {
            view.model == MODELS[model] && view.state != PairState::Ready
        };
        let index = |name: &str| name.trim_start_matches('c').parse::<usize>().unwrap_or(0);
        let last: Vec<_> = views
            .iter()
            .filter(last)
            .map(|it| (index(it.credential.as_str()), it.state))
            .collect();
        let held: u32 = last.iter().map(|(it, _)| self.weights[*it]).sum();
        let all: u32 = self.weights.iter().sum();
        let cooling_counts = 2 * (all - held) >= all;
        last.iter().any(|(it, state)| {
            *it == credential && (*state != PairState::Cooling || cooling_counts)
        })
    }

    fn lives_at(&mut self, session: u64, credential: usize, now: f64) -> bool {
        let request = Ask {
            route: ROUTE,
            model: Some(MODELS[0]),
            tried: &[],
            only: None,
            session: Some(Lineage::root(session)),
            reach: Reach::Anywhere,
        };
        match self.pool.choose(&request, self.at(now)) {
            Choice::Take(lease) => lease.credential().index().0 == credential,
            Choice::None(_) => false,
        }
    }
}

fn credential(world: &World, index: usize) -> CredentialSpec {
    let everything = globset::Glob::new("*").expect("a star is a glob");
    let most = u32::try_from(world.most_in_flight(index)).ok();
    CredentialSpec {
        id: CredentialId::new(&format!("c{index}")).expect("a short name"),
        upstream: "simulated".to_owned(),
        // Any variable that is set: nothing is ever sent.
        secret: SecretSource::Env("PATH".to_owned()),
        models: ModelPatterns::new(vec![(true, everything.compile_matcher())]),
        weight: world.weights[index].try_into().expect("weights are not 0"),
        tier: 0,
        max_in_flight: most.and_then(|it| it.try_into().ok()),
        headers: Vec::new(),
        realm: "simulated".to_owned(),
        labels: Default::default(),
    }
}
