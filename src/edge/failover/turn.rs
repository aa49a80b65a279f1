//! A request's turn: at once as a rule, and after a wait where its model is full.
//!
//! While a model is full, the pool lets one attempt a second go. The others wait here, not longer than
//! `admission.wait.max_time` and not more of them than `admission.wait.max_waiting`; beyond either they
//! are told when to come back, as all are when the process drains. Their bodies stay within the memory budget, and a client that leaves
//! gives its place back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pingora::proxy::Session;

use super::Course;
use crate::admission::full::Start;

/// What a request may do.
pub enum Turn {
    /// Make so many attempts.
    Go(u32),
    /// Nothing: the model is full, and the wait is over.
    Full,
    /// Nothing: the client left.
    Left,
}

/// The place of one request among those that wait.
struct Place<'a>(&'a AtomicUsize);

impl Course<'_> {
    /// Waits for the request's turn.
    pub(super) async fn turn(&self, session: &mut Session) -> Turn {
        let wait = self.edge.policy.wait;
        // An address is no session: behind one there may be a campus, which is not to pay for one loop.
        let (ask, named) = (&self.plan.ask, self.plan.session.map(|it| it.root));
        let mut place = None;
        let mut since = None;
        loop {
            let now = Instant::now();
            let allowance = self
                .edge
                .pool
                .allowance(ask.model.as_deref(), named, since, now);
            let until = match allowance.start {
                Start::Go => return Turn::Go(allowance.attempts),
                Start::WaitUntil(until) => until,
            };
            let end = *since.get_or_insert(now) + wait.max_time;
            if place.is_none() {
                place = Place::take(&self.edge.waiting, wait.max_waiting);
            }
            if place.is_none() || now >= end {
                return Turn::Full;
            }
            // Never a busy loop, whatever the pool says.
            let until = until.min(end).max(now + Duration::from_millis(10));
            tokio::select! {
                () = tokio::time::sleep_until(until.into()) => {}
                // Another process takes over, which may know of a seat: the client is to ask that.
                () = self.edge.drains() => return Turn::Full,
                _ = session.downstream_session.read_body_or_idle(true), if self.body.is_whole() => {
                    return Turn::Left;
                }
            }
        }
    }
}

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize, most: usize) -> Option<Place<'a>> {
        let one_more = |count: usize| (count < most).then_some(count + 1);
        waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()
            .map(|_| Place(waiting))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
