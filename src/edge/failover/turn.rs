//! A request's turn: at once as a rule, and after a wait where its model is full.
//!
//! While a model is full, the pool lets one attempt a second go. The others wait here, not longer than
//! `admission.wait.max_time` and not more of them than `admission.wait.max_waiting`, clients in turn;
//! beyond either they are told when to come back, as all are when the process drains. Only the one
//! whose turn it is asks the pool, and a newcomer does not pass those that wait. Their bodies stay
//! within the memory budget, and a client that leaves gives its place back.

use std::time::{Duration, Instant};

use pingora::proxy::Session;

use super::Course;
use crate::admission::full::Start;
use crate::admission::room::Standing;
use crate::edge::waiting::Place;

/// How often the one whose turn it is asks the pool: an admission elsewhere may have earned it a start.
/// Chosen: a quarter of the pool's own pace.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// How often those behind look whether the model is still full. Chosen: nothing is lost by it, since
/// those that waited are let go spread over ten times as long.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

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
    /// Waits for the request's turn.
    pub(super) async fn turn(&self, session: &mut Session) -> Turn {
        let (pool, room, wait) = (&self.edge.pool, &self.edge.waiting, self.edge.policy.wait);
        // An address is no session: behind one there may be a campus, which is not to pay for one loop.
        let model = self.plan.ask.model.as_deref();
        let named = self.plan.session.map(|it| it.root);
        let line = model.unwrap_or_default();
        let mut place: Option<Place> = None;
        let mut since = None;
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
                    let allowance = pool.allowance(model, named, since, now);
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
                place = room.enter(line, self.plan.client, now);
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
