//! The one other model that a request may be tried with.
//!
//! Another model is another answer, so it is asked only where the operator wrote it down
//! (`routes[].fallback_models`), only when the request's own model is full, came to nothing with all that
//! were asked, or has no room for a request of this length, once in a request, and visibly: `x-berth-model`, the audit, the metrics. The first model
//! of the list that somebody can serve now is taken; there is no way on from there, to a third model or
//! back. The body's `model` is rewritten and nothing else.
//!
//! A model that the client itself may not ask for is passed over.
//!
//! A request that belongs to somebody stays: one that goes on from a stored response does not fall
//! back, one that carries encrypted content does so only within its realm. A body that is not kept
//! whole, or does not name its model in exactly one place, cannot be rewritten.
//!
//! One attempt of `admission.max_attempts` is set aside for it, so that the limit holds for both models
//! together. To allow one more was refused: the limit says "all kinds together".

use std::sync::Arc;
use std::time::Instant;

use pingora::proxy::Session;

use super::Course;
use crate::edge::request::coding;
use crate::pool::{self, Choice, CredentialIndex, Lease, RouteIndex};

/// What a request had before it fell back.
pub struct Own {
    model: Option<String>,
    tried: Vec<CredentialIndex>,
}

impl<'a> Course<'a> {
    /// How many of `attempts` the request's own model has.
    pub(super) fn set_aside(&self, attempts: u32) -> u32 {
        let most = self.edge.policy.max_attempts.get();
        match self.fallbacks() {
            [] => attempts,
            [..] => attempts.min(most - 1).max(1),
        }
    }

    /// Turns the request into one for a fallback model, and takes a credential for it; `None` where it
    /// may not fall back, or nobody can serve any of its models now.
    pub(super) async fn fall_back(&mut self, session: &Session) -> Option<Arc<Lease>> {
        let (edge, now) = (self.edge, Instant::now());
        let most = edge.policy.max_attempts.get();
        let refused = self.refused.as_ref();
        if self.made >= most
            || self.deadline.is_some_and(|at| at <= now)
            || refused.is_some_and(|it| !it.asks_another_model())
        {
            return None;
        }
        let permit = self.plan.asker.permit.as_ref();
        let may = |model: &&String| permit.is_none_or(|permit| permit.has_model(Some(model)));
        let mut models = self.fallbacks().iter().filter(may);
        let (model, lease, attempts) = models.find_map(|model| self.seat_with(model, now))?;
        let reservation = edge.memory.reservation(self.plan.asker.share);
        let (coding, largest) = (coding(session), edge.limits.replay_body);
        let renamed = self.body.renamed(coding, model, largest, reservation);
        let body = renamed.await?;
        let route = RouteIndex(self.plan.route);
        if self.made > 0 && !edge.withdraw(route, self.plan.asker.share, now) {
            return None;
        }
        // What the own model came to is known, and told, before another one has a part in it.
        self.settle(None);
        self.tale.falls_back(model);
        self.own = Some(Own {
            model: self.plan.ask.model.replace(model.to_owned()),
            tried: std::mem::take(&mut self.tried),
        });
        self.allowed = self.made.saturating_add(attempts).min(most);
        self.body = body;
        Some(lease)
    }

    /// The fallback model that is asked, once one is.
    pub(super) fn fell_back_to(&self) -> Option<String> {
        let model = self.plan.ask.model.as_ref();
        model.filter(|_| self.own.is_some()).cloned()
    }

    /// The request is about its own model again: nothing is left to try, and that is what the client is
    /// told about.
    pub(super) fn fall_forward(&mut self) {
        if let Some(own) = self.own.take() {
            self.plan.ask.model = own.model;
            self.tried = own.tried;
        }
    }

    /// The models that this request may be tried with, in order.
    pub(super) fn fallbacks(&self) -> &'a [String] {
        let plan = &self.plan;
        // Of a request that was silent and is no stream the work may be done and paid for.
        let is_paid = self.timed_out && !plan.ask.stream;
        let may = self.own.is_none()
            && !is_paid
            && self.body.is_whole()
            && plan.endpoint.may_be_repeated()
            && plan.ask.previous_response_id.is_none();
        let models = || {
            let route = self.edge.routes.get(plan.route).filter(|_| may)?;
            route.fallback_models.get(plan.ask.model.as_deref()?)
        };
        models().map_or(&[], Vec::as_slice)
    }

    /// A credential that can serve `model` now, and how many attempts the request has with it. A model
    /// that is full is passed over: its few starts are for those that wait for it.
    fn seat_with<'m>(&self, model: &'m str, now: Instant) -> Option<(&'m str, Arc<Lease>, u32)> {
        let (pool, session) = (&self.edge.pool, self.plan.session);
        if pool.is_full(Some(model)) {
            return None;
        }
        let ask = pool::Ask {
            route: RouteIndex(self.plan.route),
            model: Some(model),
            tried: &[],
            only: None,
            session,
            reach: self.plan.reach(),
        };
        let Choice::Take(lease) = pool.choose(&ask, now) else {
            return None;
        };
        if self.plan.ask.encrypted_content && !self.is_at_home(&lease) {
            return None;
        }
        let root = session.map(|it| it.root);
        let attempts = pool.allowance(Some(model), root, None, now).attempts;
        Some((model, Arc::new(lease), attempts))
    }

    /// Whether what the request's own model made is good with this credential: its realm is that of
    /// those that were tried, or, where none was, of all that could have been.
    fn is_at_home(&self, lease: &Lease) -> bool {
        if !self.tried.is_empty() {
            return self.same_realm(lease);
        }
        let (realm, model) = (
            &lease.credential().spec().realm,
            self.plan.ask.model.as_deref(),
        );
        let route = self.edge.routes.get(self.plan.route);
        route.is_some_and(|route| {
            let specs = route.credentials.iter().filter_map(|id| {
                let credential = self.edge.pool.credential(id)?;
                Some(credential.spec())
            });
            let mut serving = specs.filter(|spec| spec.models.serve(model));
            serving.all(|spec| spec.realm == *realm)
        })
    }
}
