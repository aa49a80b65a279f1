//! Whether a request may move, to whom, and what the pool learns from it.

use std::sync::Arc;
use std::time::Instant;

use super::Course;
use crate::admission::Endpoint;
use crate::edge::owners::Thing;
use crate::observe::words::Blocked;
use crate::pool::{self, Choice, CredentialIndex, Lease, Lineage, RouteIndex, Settlement, Why};

impl Course<'_> {
    /// The credential for another attempt, or why there is none. `unsent` says that nothing of the
    /// last one was sent.
    pub(super) fn next(&mut self, unsent: bool) -> Result<Arc<Lease>, Blocked> {
        let now = Instant::now();
        let ask = &self.plan.ask;
        if self.deadline.is_some_and(|at| at <= now) {
            return Err(Blocked::RequestTime);
        }
        if !unsent {
            if self.plan.endpoint == Endpoint::Other {
                return Err(Blocked::NotRepeatable);
            }
            if !self.body.is_whole() {
                return Err(Blocked::BodyNotReplayable);
            }
            if ask.previous_response_id.is_some() {
                return Err(Blocked::PreviousResponseId);
            }
        }
        if self.made >= self.allowed || self.edge.pool.is_full(ask.model.as_deref()) {
            return Err(Blocked::MaxAttempts);
        }
        let lease = self.choose(now).map_err(|why| match why.other_realm {
            true => Blocked::EncryptedContent,
            false => Blocked::NothingLeft,
        })?;
        if !(self.edge).withdraw(RouteIndex(self.plan.route), self.plan.asker.share, now) {
            return Err(Blocked::RetryBudget);
        }
        Ok(lease)
    }

    /// A credential that has not been tried: the one that a stored response belongs to and no other;
    /// the one that made a turn's state, if it can be had; else the pool's choice.
    pub(super) fn choose(&self, now: Instant) -> Result<Arc<Lease>, Why> {
        let owner = self.owner();
        if owner.is_some() {
            return self.ask(owner, now);
        }
        let maker = self.plan.turn_state.and_then(|state| state.maker);
        if let Some(maker) = maker.filter(|maker| !self.tried.contains(maker))
            && let Ok(lease) = self.ask(Some(maker), now)
        {
            return Ok(lease);
        }
        self.ask(None, now)
    }

    /// The one that the request belongs to and may not leave.
    pub(super) fn owner(&self) -> Option<CredentialIndex> {
        let previous = self.plan.ask.previous_response_id.as_deref()?;
        self.edge.owners.maker(Thing::Response, previous.as_bytes())
    }

    fn ask(&self, only: Option<CredentialIndex>, now: Instant) -> Result<Arc<Lease>, Why> {
        let ask = pool::Ask {
            route: RouteIndex(self.plan.route),
            model: self.plan.ask.model.as_deref(),
            tried: &self.tried,
            only,
            session: self.plan.session,
            reach: self.plan.reach(),
        };
        match self.edge.pool.choose(&ask, now) {
            Choice::Take(lease) => Ok(Arc::new(lease)),
            Choice::None(why) => Err(why),
        }
    }

    /// Whether a turn's state may go to this credential: it is worth nothing to any other.
    pub(super) fn keeps_turn_state(&self, lease: &Lease) -> bool {
        let maker = self.plan.turn_state.and_then(|state| state.maker);
        match maker {
            _ if self.own.is_some() => false,
            Some(maker) => maker == lease.credential().index(),
            None => self.tried.len() <= 1,
        }
    }

    /// Tells the pool who had no seat and who had one: what each is worth is a matter of contrast.
    pub(super) fn settle(&mut self, admitted: Option<CredentialIndex>) {
        if admitted.is_none() && self.without_seat.is_empty() {
            return;
        }
        let client = Lineage::root(self.plan.asker.share.hash());
        let settlement = Settlement {
            route: RouteIndex(self.plan.route),
            model: self.plan.ask.model.as_deref(),
            session: Some(self.plan.session.unwrap_or(client)),
            refused: &self.without_seat,
            admitted,
            began: self.began,
        };
        self.edge.settle(&settlement, Instant::now());
        self.without_seat.clear();
    }

    pub(super) fn same_realm(&self, lease: &Lease) -> bool {
        let realm = &lease.credential().spec().realm;
        self.tried.iter().all(|tried| {
            let credential = self.edge.pool.credentials().get(tried.0);
            credential.is_some_and(|c| c.spec().realm == *realm)
        })
    }
}
