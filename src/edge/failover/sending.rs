//! One attempt on its way: with which body, in which times, over which connection.

use std::sync::Arc;

use http::{Version, header};
use pingora::proxy::Session;
use pingora::{Error, ErrorType};

use super::Course;
use crate::edge::attempt::{Attempt, Held, Purpose, Times};
use crate::edge::delivery::bounded;
use crate::edge::exchange::Outgoing;
use crate::edge::headers::{self, Framing};
use crate::edge::request::TURN_STATE;
use crate::edge::turns::LARGE;
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
    ) -> (Box<Attempt>, Held) {
        let mut connection = Connection::Any;
        let mut addresses = upstream.addresses();
        loop {
            let request = self.outgoing(session, upstream, lease, connection);
            let (purpose, times) = (self.purpose(upstream, lease), self.times(upstream));
            let mut attempt = Attempt::start(request, self.body.source(), purpose, times);
            let held = attempt.hold(session).await;
            if !matches!(held, Held::Broken) {
                return (attempt, held);
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
                return (attempt, held);
            }
        }
    }

    fn outgoing(
        &self,
        session: &Session,
        upstream: &Upstream,
        lease: &Lease,
        connection: Connection,
    ) -> pingora::Result<Outgoing> {
        let length = self.body.bytes().len();
        let framing = match (self.body.is_whole(), length) {
            (true, 0) => Framing::Empty,
            (true, length) => Framing::Length(length),
            (false, _) => Framing::AsCame,
        };
        let mut head = Box::new(session.req_header().clone());
        if let Some(model) = self.fell_back_to() {
            headers::rename(&mut head, &model)?;
        }
        if !self.keeps_turn_state(lease) {
            head.remove_header(TURN_STATE);
        }
        let (below, query) = (&self.plan.below, self.plan.query.as_deref());
        let secrets = lease.secrets();
        headers::to_upstream(&mut head, upstream, secrets, below, query, framing, true)
            .map_err(|e| e.into_down())?;
        head.set_version(Version::HTTP_11);
        let framed = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
        if framing == Framing::AsCame && !framed.iter().any(|it| head.headers.contains_key(it)) {
            // HTTP/2 needs no length, and HTTP/1 without any framing has no body.
            head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
        }
        let is_large = length > LARGE || framing == Framing::AsCame;
        let peer = upstream.peer(lease.credential().index(), connection);
        let unknown = "the upstream's name has no known address";
        Ok(Outgoing {
            pool: self.edge.connector.clone(),
            peer: peer.ok_or_else(|| Error::explain(ErrorType::ConnectNoRoute, unknown))?,
            head,
            has_body: framing != Framing::Empty,
            turns: is_large.then(|| self.edge.turns.clone()),
        })
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
