//! In which order the credentials of one tier are tried: pingora's selection, and two of our own.
//!
//! The order is made here, the decision elsewhere: a caller goes through it and takes the first one
//! that can take the request, so that an order is never wrong, only better or worse.
//!
//! - `round_robin` is pingora's, but only its first choice. Its way on from there hands the whole
//!   share of an excluded credential to the next one, and turns the common counter while doing so,
//!   after which some credentials may never be first again. What its first choice cannot take goes to
//!   the least busy one instead.
//! - pingora has no least-connections. [`LeastInFlight`] is a [`BackendSelection`] of ours: fewest in
//!   flight for the weight, and where that is equal in turn, by weight.
//! - [`FillFirst`] is the order listed.
//!
//! Both of ours try last what looks unable to take anything (excluded with every model, or full).
//! An excluded credential has nothing in flight, so it would come first each time, and to ask a few
//! hundred of them in vain costs more than all the rest. It is a hint: whoever looks unable is still
//! tried.
//!
//! Cost: a step through pingora's iterator is a copy of the backend and two hashes, near half a
//! microsecond. A route with hundreds of credentials that serve *different* models pays it for each
//! that does not serve the one asked for.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use pingora::lb::discovery::Static;
use pingora::lb::selection::{BackendIter, BackendSelection, RoundRobin};
use pingora::lb::{Backend, Backends, LoadBalancer};

use super::credential::{Credential, Moment};
use super::error::PoolError;
use super::lease::Lease;
use super::spec::Balance;

/// The credentials of one tier of a route, with the order in which they are tried.
pub(super) struct Tier {
    members: usize,
    order: Order,
}

enum Order {
    InTurn {
        first: LoadBalancer<RoundRobin>,
        displaced: LoadBalancer<LeastInFlight>,
    },
    LeastInFlight(LoadBalancer<LeastInFlight>),
    FillFirst(LoadBalancer<FillFirst>),
}

impl Tier {
    /// A tier of `members`, in the order listed.
    pub fn new(balance: Balance, members: &[Arc<Credential>]) -> Result<Tier, PoolError> {
        let backends: BTreeSet<_> = (0..).zip(members).map(backend).collect();
        let order = match balance {
            Balance::RoundRobin => Order::InTurn {
                first: balancer(backends.clone())?,
                displaced: balancer(backends)?,
            },
            Balance::LeastInFlight => Order::LeastInFlight(balancer(backends)?),
            Balance::FillFirst => Order::FillFirst(balancer(backends)?),
        };
        Ok(Tier {
            members: members.len(),
            order,
        })
    }

    /// The lease of the first one, in this tier's order, that `take` gets one from; with `only_first`
    /// of the first one in turn or of none.
    pub fn first(
        &self,
        moment: Moment,
        only_first: bool,
        take: impl Fn(&Arc<Credential>) -> Option<Lease>,
    ) -> Option<Lease> {
        let taken = Cell::new(None);
        let accept = |backend: &Backend, _healthy: bool| {
            let lease = member(backend).and_then(&take);
            let accepted = lease.is_some();
            taken.set(lease);
            accepted
        };
        let key = moment.to_key();
        match &self.order {
            Order::InTurn { first, displaced } => {
                // Accepted in any case: to go on would turn pingora's counter once more.
                first.select_with(&key, 1, |backend, healthy| {
                    accept(backend, healthy);
                    true
                });
                let lease = taken.take();
                if lease.is_some() || only_first {
                    return lease;
                }
                displaced.select_with(&key, self.members, accept);
            }
            Order::LeastInFlight(all) => {
                all.select_with(&key, self.members, accept);
            }
            Order::FillFirst(all) => {
                all.select_with(&key, self.members, accept);
            }
        }
        taken.take()
    }
}

/// A backend is known to pingora by its address and weight alone, and the credentials of one
/// upstream share the real address. So each gets one of its own, from the block that is reserved
/// and routed nowhere; what it stands for travels beside it.
fn backend((position, credential): (u32, &Arc<Credential>)) -> Backend {
    let address = Ipv4Addr::from_bits(Ipv4Addr::new(240, 0, 0, 0).to_bits() | position);
    let mut ext = http::Extensions::new();
    ext.insert(Arc::clone(credential));
    Backend {
        addr: SocketAddr::from((address, 1)).into(),
        weight: credential.weight() as usize,
        ext,
    }
}

pub(super) fn member(backend: &Backend) -> Option<&Arc<Credential>> {
    backend.ext.get::<Arc<Credential>>()
}

/// A balancer whose selector is filled: pingora fills it by its first update.
pub(super) fn balancer<S>(backends: BTreeSet<Backend>) -> Result<LoadBalancer<S>, PoolError>
where
    S: BackendSelection + 'static,
    S::Iter: BackendIter,
{
    let balancer = LoadBalancer::<S>::from_backends(Backends::new(Static::new(backends)));
    {
        // Static discovery has nothing to wait for, so one poll is all it takes.
        let update = pin!(balancer.update());
        match update.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => done.map_err(PoolError::Balancer)?,
            Poll::Pending => return Err(PoolError::BalancerWaits),
        }
    }
    Ok(balancer)
}

/// Fewest in flight for the weight first, equal ones in turn.
struct LeastInFlight {
    members: Box<[Member]>,
    /// The sum of the weights up to and including each member.
    upto: Box<[usize]>,
    total: usize,
    turn: AtomicUsize,
}

/// In the order listed.
struct FillFirst(Box<[Member]>);

struct Member {
    backend: Backend,
    credential: Arc<Credential>,
}

fn members(backends: &BTreeSet<Backend>) -> Box<[Member]> {
    let known = |backend: &Backend| {
        Some(Member {
            backend: backend.clone(),
            credential: Arc::clone(member(backend)?),
        })
    };
    backends.iter().filter_map(known).collect()
}

impl BackendSelection for LeastInFlight {
    type Iter = ByLoad;
    type Config = ();

    fn build(backends: &BTreeSet<Backend>) -> Self {
        let members = members(backends);
        let mut total = 0;
        let upto = members
            .iter()
            .map(|member| {
                total += member.backend.weight;
                total
            })
            .collect();
        LeastInFlight {
            members,
            upto,
            total,
            turn: AtomicUsize::new(0),
        }
    }

    fn iter(self: &Arc<Self>, key: &[u8]) -> ByLoad {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let total = self.total.max(1);
        let slot = turn % total;
        ByLoad {
            start: self.upto.partition_point(|upto| *upto <= slot),
            // Every other lap goes the other way round, or the share of one that cannot take its
            // turn would always fall to the same neighbour.
            backwards: (turn / total) % 2 == 1,
            moment: Moment::from_key(key),
            progress: Progress::Nothing,
            selection: Arc::clone(self),
        }
    }
}

/// Goes through a [`LeastInFlight`]. Nearly always the first one is taken, so the rest is put in
/// order only when it is asked for.
struct ByLoad {
    selection: Arc<LeastInFlight>,
    moment: Moment,
    start: usize,
    backwards: bool,
    progress: Progress,
}

enum Progress {
    Nothing,
    First(usize),
    Rest(BinaryHeap<Reverse<Ranked>>),
}

/// Rank and position.
type Ranked = ((bool, u64, usize), usize);

impl ByLoad {
    fn ranked(&self) -> impl Iterator<Item = Ranked> + '_ {
        let count = self.selection.members.len();
        let rank = move |(position, member): (usize, &Member)| {
            let credential = &member.credential;
            let turn = if self.backwards {
                (self.start + count - position) % count
            } else {
                (position + count - self.start) % count
            };
            // Scaled, so that the division keeps the difference between 1 of 3 and 1 of 4.
            let load = (u64::from(credential.in_flight()) << 20) / u64::from(credential.weight());
            ((credential.looks_unable(self.moment), load, turn), position)
        };
        self.selection.members.iter().enumerate().map(rank)
    }
}

impl BackendIter for ByLoad {
    fn next(&mut self) -> Option<&Backend> {
        let position = match &mut self.progress {
            Progress::Nothing => {
                let (_, position) = self.ranked().min()?;
                self.progress = Progress::First(position);
                position
            }
            Progress::First(gone) => {
                let gone = *gone;
                let rest = self.ranked().filter(|(_, position)| *position != gone);
                let mut rest: BinaryHeap<_> = rest.map(Reverse).collect();
                let next = rest.pop();
                self.progress = Progress::Rest(rest);
                next?.0.1
            }
            Progress::Rest(rest) => rest.pop()?.0.1,
        };
        let member = self.selection.members.get(position)?;
        Some(&member.backend)
    }
}

impl BackendSelection for FillFirst {
    type Iter = AsListed;
    type Config = ();

    fn build(backends: &BTreeSet<Backend>) -> Self {
        // The addresses ascend with the position, and so does the set.
        FillFirst(members(backends))
    }

    fn iter(self: &Arc<Self>, key: &[u8]) -> AsListed {
        AsListed {
            selection: Arc::clone(self),
            moment: Moment::from_key(key),
            position: 0,
            passed_over: VecDeque::new(),
        }
    }
}

/// Goes through a [`FillFirst`].
struct AsListed {
    selection: Arc<FillFirst>,
    moment: Moment,
    position: usize,
    passed_over: VecDeque<usize>,
}

impl BackendIter for AsListed {
    fn next(&mut self) -> Option<&Backend> {
        let members = &self.selection.0;
        while let Some(member) = members.get(self.position) {
            let position = self.position;
            self.position += 1;
            if !member.credential.looks_unable(self.moment) {
                return Some(&member.backend);
            }
            self.passed_over.push_back(position);
        }
        let position = self.passed_over.pop_front()?;
        members.get(position).map(|member| &member.backend)
    }
}
