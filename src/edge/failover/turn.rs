//! A request's turn: at once as a rule, after a wait where its model is full or all places are taken.
//!
//! While a model is full, the pool lets one attempt a second go. The others wait here, not longer than
//! `admission.wait.max_time` and not more of them than `admission.wait.max_waiting`, clients in turn;
//! beyond either they are told when to come back, as all are when the process drains. Only the one
//! whose turn it is asks the pool, and a newcomer does not pass those that wait. Their bodies stay
//! within the memory budget, and a client that leaves gives its place back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pingora::proxy::Session;

use super::Course;
use crate::admission::full::Start;
use crate::admission::room::Standing;
use crate::edge::waiting::Place;
use crate::pool::{Lease, NO_MODEL, NoneReason, Why};

/// How often the one whose turn it is asks the pool: an admission elsewhere may have earned it a start.
/// Chosen: a quarter of the pool's own pace.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// How often those behind look whether the model is still full. Chosen: nothing is lost by it, since
/// those that waited are let go spread over ten times as long.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How often the next one in line looks for a free place; one request in each line does.
/// Chosen: a client notices nothing of it.
const LOOK_FOR_PLACE: Duration = Duration::from_millis(25);

/// What came of looking for a place.
pub enum Seat {
    /// This one.
    Taken(Arc<Lease>),
    /// There is none, or none came free in time.
    None(Why),
    /// Nobody needs one: the client left.
    Left,
}

/// What a request may do.
pub enum Turn {
    /// Make so many attempts.
    Go(u32),
    /// Nothing: the model is full, and the wait is over.
    Full,
    /// Nothing: the client left.
    Left,
}

impl Course<'_> {
    /// A credential for the first attempt; waits where all that could be asked have as much in flight as
    /// they may. `since` is when the request began to wait.
    pub(super) async fn seat(&self, session: &mut Session, since: &mut Option<Instant>) -> Seat {
        let (room, wait) = (&self.edge.waiting, self.edge.policy.wait);
        let line = self.line();
        let mut place: Option<Place> = None;
        loop {
            let now = Instant::now();
            let standing = match &place {
                Some(place) => place.standing(),
                None if room.waiting(&line) > 0 => Standing::Behind,
                None => Standing::Next,
            };
            let mut again = LOOK_AGAIN;
            let end = *since.get_or_insert(now) + wait.max_time;
            if standing != Standing::Behind || now >= end {
                match self.choose(now) {
                    Ok(lease) => {
                        if let Some(place) = place {
                            place.starts();
                        }
                        return Seat::Taken(lease);
                    }
                    Err(why) if why.reason != NoneReason::AllBusy || now >= end => {
                        return Seat::None(why);
                    }
                    Err(why) if standing == Standing::Out => return Seat::None(why),
                    Err(_) => again = LOOK_FOR_PLACE,
                }
            }
            if place.is_none() {
                place = room.enter(&line, self.plan.asker.share, now);
            }
            let Some(place) = &place else {
                return match self.choose(now) {
                    Ok(lease) => Seat::Taken(lease),
                    Err(why) => Seat::None(why),
                };
            };
            tokio::select! {
                () = tokio::time::sleep_until((now + again).min(end).into()) => {}
                () = self.edge.drains() => return Seat::None(Why::busy()),
                () = place.rung() => {}
                _ = session.downstream_session.read_body_or_idle(true), if self.body.is_whole() => {
                    return Seat::Left;
                }
            }
        }
    }

    /// The line of those that need the same places. A space is in no model's name, so it is no line of
    /// those that wait for a model.
    fn line(&self) -> String {
        let owner = self.owner().map(|it| it.0);
        let model = self.plan.ask.model.as_deref().unwrap_or_default();
        format!("busy {} {owner:?} {model}", self.plan.route)
    }

    /// Waits for the request's turn with its model; `since` is when it began to.
    pub(super) async fn turn(&self, session: &mut Session, since: &mut Option<Instant>) -> Turn {
        let (pool, room, wait) = (&self.edge.pool, &self.edge.waiting, self.edge.policy.wait);
        // An address is no session: behind one there may be a campus, which is not to pay for one loop.
        let model = self.plan.ask.model.as_deref();
        let named = self.plan.session.map(|it| it.root);
        let line = model.unwrap_or(NO_MODEL);
        let mut place: Option<Place> = None;
        loop {
            let now = Instant::now();
            let standing = match &place {
                Some(place) => place.standing(),
                None if room.waiting(line) > 0 => Standing::Behind,
                None => Standing::Next,
            };
            let is_full = pool.is_full(model);
            let until = match standing {
                Standing::Out => return Turn::Full,
                Standing::Behind if is_full => now + LOOK_AGAIN,
                Standing::Next | Standing::Behind => {
                    let allowance = pool.allowance(model, named, *since, now);
                    match allowance.start {
                        Start::Go => {
                            if let Some(place) = place {
                                place.starts();
                            }
                            return Turn::Go(allowance.attempts);
                        }
                        Start::WaitUntil(until) if is_full => until.min(now + ASK_AGAIN),
                        Start::WaitUntil(until) => until,
                    }
                }
            };
            let end = *since.get_or_insert(now) + wait.max_time;
            if place.is_none() {
                place = room.enter(line, self.plan.asker.share, now);
            }
            let Some(place) = place.as_ref().filter(|_| now < end) else {
                return Turn::Full;
            };
            // Never a busy loop, whatever the pool says.
            let until = until.min(end).max(now + Duration::from_millis(10));
            tokio::select! {
                () = tokio::time::sleep_until(until.into()) => {}
                // Another process takes over, which may know of a seat: the client is to ask that.
                () = self.edge.drains() => return Turn::Full,
                () = place.rung() => {}
                _ = session.downstream_session.read_body_or_idle(true), if self.body.is_whole() => {
                    return Turn::Left;
                }
            }
        }
    }
}
