//! One attempt on its way: with which body, in which times, over which connection.

use std::sync::Arc;

use pingora::proxy::Session;

use super::Course;
use crate::edge::attempt::{Attempt, Held, Purpose, Times};
use crate::edge::delivery::bounded;
use crate::edge::headers::Framing;
use crate::edge::task::{Report, Task};
use crate::edge::upstream::{Connection, Upstream};
use crate::pool::Lease;

impl Course<'_> {
    /// Starts the attempt and holds its answer. A pooled connection that turns out to be dead is
    /// replaced by a fresh one, and an address that does not answer by the next: neither counts.
    pub(super) async fn connect(
        &mut self,
        session: &mut Session,
        upstream: &Arc<Upstream>,
        lease: &Arc<Lease>,
    ) -> Option<(Attempt, Held)> {
        let mut connection = Connection::Any;
        let mut addresses = upstream.addresses();
        loop {
            let task = self.task(upstream, lease, connection);
            let (purpose, times) = (self.purpose(upstream, lease), self.times(upstream));
            let mut attempt = Attempt::start(session, task, self.body.source(), purpose, times)?;
            let held = attempt.hold(session).await;
            if !matches!(held, Held::Broken) {
                return Some((attempt, held));
            }
            let report = attempt.report();
            let dead = report.was_dead()
                && attempt.head().is_none()
                && self.body.is_whole()
                && connection == Connection::Any;
            if dead {
                self.sent_before = true;
                connection = Connection::Fresh;
            } else if !report.was_connected() && addresses > 1 {
                addresses -= 1;
            } else {
                return Some((attempt, held));
            }
        }
    }

    fn task(&self, upstream: &Arc<Upstream>, lease: &Arc<Lease>, connection: Connection) -> Task {
        let length = self.body.bytes().len();
        let framing = match (self.body.is_whole(), length) {
            (true, 0) => Framing::Empty,
            (true, length) => Framing::Length(length),
            (false, _) => Framing::AsCame,
        };
        Task {
            upstream: upstream.clone(),
            lease: lease.clone(),
            below: self.plan.below.clone(),
            query: self.plan.query.clone(),
            framing,
            plain: true,
            renamed: self.fell_back_to(),
            keeps_turn_state: self.keeps_turn_state(lease),
            connection,
            report: Arc::new(Report::default()),
        }
    }

    fn purpose(&self, upstream: &Upstream, lease: &Lease) -> Purpose {
        Purpose {
            endpoint: self.plan.endpoint,
            reading: self.edge.reading(upstream, lease.secrets()),
            streamed: self.plan.ask.stream,
            head_only: self.plan.head_only,
            max_bytes: self.edge.policy.hold.max_bytes,
            memory: self.edge.memory.clone(),
            client: self.plan.asker.share,
        }
    }

    fn times(&self, upstream: &Upstream) -> Times {
        let spec = &upstream.spec;
        let head = match self.plan.ask.stream {
            true => spec.header_timeout,
            false => spec.non_stream_timeout,
        };
        let hold = self
            .plan
            .ask
            .stream
            .then_some(self.edge.policy.hold.max_time);
        Times {
            head: bounded(head),
            hold: Some(bounded(hold.unwrap_or(spec.non_stream_timeout))),
            request: self.deadline,
            idle: bounded(spec.idle_timeout),
        }
    }
}
