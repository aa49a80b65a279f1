//! Where a session lives: pingora's consistent hashing over the credentials of a tier.
//!
//! A place on the ring comes from the credential's id and from nothing else, so that it is the same
//! on every node, after a restart, and when others are added or taken away: about as many sessions
//! move as the change has weight. The address that pingora wants for it is made from a hash of the id
//! and is never connected to.
//!
//! Cost: 160 points per unit of weight; the weights are scaled so that shares are even and the ring
//! stays small. Pingora generates the points of a larger weight as those of the smaller one and more,
//! so that another scale moves few sessions.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use pingora::lb::selection::Consistent;
use pingora::lb::{Backend, LoadBalancer};
use sha2::{Digest, Sha256};

use super::balance::{balancer, member};
use super::credential::Credential;
use super::error::PoolError;

/// The ring of a tier.
pub(super) struct Ring(LoadBalancer<Consistent>);

/// Units of weight on one ring, together (chosen: 1.6 million points, 13 MB).
const WEIGHT: u64 = 10_000;
/// A small ring has so many units for one of weight (chosen: with 160 points, shares are off by 8 %
/// as a rule; with 1,280, by less than 3 %, and a sibling near its limit feels that)...
const FINE: u64 = 8;
/// ...and half, a quarter or none of that where they would be more than this together (chosen: among so many
/// each has little, and to put a million points in order takes a third of a start). Where the scale changes,
/// at 251, 501 and 1,001 units of weight, up to half of the sessions move.
const FINE_WEIGHT: u64 = 2_000;

/// Points passed for each different credential that is wanted (chosen: neighbours repeat, and the
/// ring is only walked as long as it is likely to bring somebody new).
const POINTS_EACH: usize = 16;

impl Ring {
    pub fn new(members: &[Arc<Credential>]) -> Result<Ring, PoolError> {
        let total: u64 = members.iter().map(|it| u64::from(it.weight())).sum();
        let backends: BTreeSet<_> = members.iter().map(|it| backend(it, total)).collect();
        Ok(Ring(balancer(backends)?))
    }

    /// Goes along the ring from the session's place, past at most `count` credentials, until `take`
    /// is satisfied.
    pub fn walk<T>(
        &self,
        session: u64,
        count: usize,
        take: impl FnMut(&Arc<Credential>) -> Option<T>,
    ) -> Option<T> {
        let state = RefCell::new((take, None, count));
        let accept = |backend: &Backend, _healthy: bool| {
            let (take, taken, left) = &mut *state.borrow_mut();
            *taken = member(backend).and_then(take);
            *left -= 1;
            taken.is_some() || *left == 0
        };
        let key = session.to_le_bytes();
        self.0.select_with(&key, count * POINTS_EACH, accept);
        state.into_inner().1
    }
}

fn backend(credential: &Arc<Credential>, total: u64) -> Backend {
    let digest = Sha256::digest(credential.id().as_str());
    let mut address = [0; 16];
    address
        .iter_mut()
        .zip(digest)
        .for_each(|(to, from)| *to = from);
    let weight = u64::from(credential.weight());
    let weight = match total > WEIGHT {
        true => (weight * WEIGHT / total).max(1),
        false => weight << (FINE_WEIGHT / total.max(1)).clamp(1, FINE).ilog2(),
    };
    let mut ext = http::Extensions::new();
    ext.insert(Arc::clone(credential));
    Backend {
        addr: SocketAddr::from((Ipv6Addr::from(address), 1)).into(),
        weight: weight as usize,
        ext,
    }
}
