//! The story of a request while it is being served.
//!
//! Every path through `request` tells it here, and it ends in exactly one [`Record`]. It is told once,
//! at the end, so that a request cannot be counted twice or half.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use pingora::proxy::Session;

use crate::admission::gate::{CommitReason, Refusal};
use crate::admission::usage::Usage;
use crate::admission::{Dialect, Shape, Verdict};
use crate::observe::ids::{RequestId, SessionHash};
use crate::observe::record::{self, AttemptRecord, CredentialName, Record, Rewrote};
use crate::observe::safe::{MethodName, SafeCode, SafePath, SafeText, UpstreamRequestId};
use crate::observe::trace::Trace;
use crate::observe::words::{self, Blocked, Outcome, Then, Transport};

use super::attempt::Attempt;
use super::delivery::Delivery;

/// A story in the making.
pub struct Tale {
    record: Record,
    /// The model of the attempts from here on.
    model: Option<SafeText>,
    started: Instant,
}

/// How an attempt ended, for its line in the story.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// What it came to.
    pub verdict: Verdict,
    /// What was refused, where something was.
    pub refusal: Option<&'a Refusal>,
    /// What is done next.
    pub then: Then,
    /// The upstream may have done the work all the same.
    pub possible_duplicate: bool,
}

impl Tale {
    /// The story of `session`'s request begins.
    pub fn begin(session: &Session) -> Tale {
        let ts = SystemTime::now();
        let request = session.req_header();
        let record = Record {
            ts,
            request_id: RequestId::new(ts),
            trace: Trace::of(&request.headers),
            client: None,
            route: None,
            method: MethodName::new(&request.method),
            path: SafePath::new(request.uri.path()),
            model: None,
            session: None,
            transport: Transport::Http,
            attempts: Vec::new(),
            commit_reason: None,
            outcome: Outcome::ClientError,
            blocked: None,
            rewrote: None,
            status: None,
            bytes_out: 0,
            usage: None,
            ms_total: 0,
            first_output: None,
            terminal_synthesised: None,
        };
        Tale {
            record,
            model: None,
            started: Instant::now(),
        }
    }

    /// Its id.
    pub fn id(&self) -> RequestId {
        self.record.request_id
    }

    /// When it began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// How many attempts have been told.
    pub fn attempts(&self) -> usize {
        self.record.attempts.len()
    }

    /// Who asks.
    pub fn client(&mut self, id: &Arc<str>) {
        self.record.client = Some(id.clone());
    }

    /// Where it goes.
    pub fn route(&mut self, route: &Arc<str>) {
        self.record.route = Some(route.clone());
    }

    /// What it asks for.
    pub fn asks(&mut self, model: Option<&str>, session: Option<SessionHash>) {
        self.record.model = model.map(SafeText::new);
        self.model = self.record.model.clone();
        self.record.session = session;
    }

    /// From here on another model is asked.
    pub fn falls_back(&mut self, model: &str) {
        self.model = Some(SafeText::new(model));
        self.then(Then::FallBack);
    }

    /// An attempt ended.
    pub fn attempt(&mut self, attempt: &Attempt, credential: &CredentialName, ended: Ended<'_>) {
        let ms = Some(millis(attempt.sent().elapsed()));
        self.attempt_at(Told::of(attempt), credential, ended, (attempt.sent(), ms));
    }

    /// An attempt ended of which only this is left; it was sent then, and judged so many milliseconds
    /// later.
    pub fn attempt_at(
        &mut self,
        told: Told,
        credential: &CredentialName,
        ended: Ended<'_>,
        (sent, ms_to_verdict): (Instant, Option<u64>),
    ) {
        let Ended {
            verdict,
            refusal,
            then,
            possible_duplicate,
        } = ended;
        let code = refusal.and_then(|r| r.facts.code.as_deref().or(r.facts.kind.as_deref()));
        self.record.attempts.push(AttemptRecord {
            credential: credential.clone(),
            model: self.model.clone(),
            verdict,
            shape: refusal.map(|r| r.shape),
            status: told.status,
            code: code.map(SafeCode::new),
            rule: refusal.map(|r| r.ruling.rule.clone()),
            sent_after: sent.saturating_duration_since(self.started),
            ms_to_verdict,
            held_frames: told.held.0,
            held_bytes: told.held.1,
            committed: then == Then::Commit,
            upstream_request_id: told.upstream_request_id,
            possible_duplicate,
            then,
        });
    }

    /// The last attempt turns out to have come to something else.
    pub fn correct_last(&mut self, verdict: Verdict, refusal: Option<&Refusal>) {
        if let Some(last) = self.record.attempts.last_mut() {
            last.verdict = verdict;
            if let Some(refusal) = refusal {
                last.shape = Some(refusal.shape);
                last.rule = Some(refusal.ruling.rule.clone());
                last.code = refusal.facts.code.as_deref().map(SafeCode::new);
            }
        }
    }

    /// What is done after the last attempt.
    pub fn then(&mut self, then: Then) {
        if let Some(last) = self.record.attempts.last_mut() {
            last.then = then;
        }
    }

    /// Why it was not tried elsewhere.
    pub fn blocked(&mut self, why: Blocked) {
        self.record.blocked = Some(why);
    }

    /// A code was replaced.
    pub fn rewrote(&mut self, from: &str, to: &str, times: u64) {
        self.record.rewrote = Some(Rewrote {
            from: SafeCode::new(from),
            to: SafeCode::new(to),
            times,
        });
    }

    /// The code that was replaced.
    pub fn rewrote_from(&self) -> Option<&str> {
        self.record
            .rewrote
            .as_ref()
            .map(|codes| codes.from.as_str())
    }

    /// An answer is let through.
    pub fn commits(&mut self, reason: CommitReason) {
        self.record.commit_reason = Some(match reason {
            CommitReason::Output => words::CommitReason::Output,
            CommitReason::Complete => words::CommitReason::Complete,
            CommitReason::HoldLimit => words::CommitReason::HoldLimit,
            CommitReason::HoldTimeout => words::CommitReason::HoldTimeout,
            CommitReason::Opaque => words::CommitReason::Opaque,
            CommitReason::PassedOn => words::CommitReason::ErrorPassedOn,
        });
    }

    /// An answer passes without being held.
    pub fn passes(&mut self) {
        self.record.commit_reason = Some(words::CommitReason::NotHeld);
    }

    /// An answer was delivered.
    pub fn delivered(&mut self, delivery: &Delivery, dialect: Dialect) {
        self.record.status = Some(delivery.status);
        self.record.bytes_out = delivery.bytes_out;
        self.record.first_output = Some(delivery.first_byte.duration_since(self.started));
        self.usage(delivery.usage);
        if delivery.synthesised {
            self.record.terminal_synthesised = Some(dialect);
        }
    }

    /// What the answer used.
    pub fn usage(&mut self, usage: Usage) {
        self.record.usage = usage.is_known().then_some(record::Usage {
            input: usage.input,
            cached: usage.cached,
            output: usage.output,
            reasoning: usage.reasoning,
        });
    }

    /// berth answered in its own words.
    pub fn answered(&mut self, status: u16, bytes: usize) {
        self.record.status = Some(status);
        self.record.bytes_out = bytes as u64;
    }

    /// The story ends.
    pub fn end(mut self, outcome: Outcome) -> Record {
        self.record.outcome = outcome;
        self.record.ms_total = millis(self.started.elapsed());
        self.record
    }
}

/// What is told of an attempt.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The upstream's status.
    pub status: Option<u16>,
    /// Frames and bytes held.
    pub held: (u32, u64),
    /// The upstream's own id.
    pub upstream_request_id: Option<UpstreamRequestId>,
}

impl Told {
    /// What is told of `attempt`.
    pub fn of(attempt: &Attempt) -> Told {
        let (frames, bytes) = attempt.holding();
        let head = attempt.head();
        Told {
            status: head.map(|head| head.status.as_u16()),
            held: (u32::try_from(frames).unwrap_or(u32::MAX), bytes as u64),
            upstream_request_id: head.and_then(|head| upstream_request_id(&head.headers)),
        }
    }
}

/// The id that an upstream gave a request.
pub fn upstream_request_id(headers: &http::HeaderMap) -> Option<UpstreamRequestId> {
    ["x-request-id", "request-id", "x-oai-request-id"]
        .into_iter()
        .find_map(|name| headers.get(name))
        .and_then(|value| UpstreamRequestId::new(value.as_bytes()))
}

/// Whether a refusal's own head states times that can be believed: one inside a 200 has none.
pub fn head_is_its_own(shape: Shape) -> bool {
    match shape {
        Shape::Sse | Shape::Json200 | Shape::WebSocket => false,
        Shape::Http400
        | Shape::Http429
        | Shape::Http500
        | Shape::Http503
        | Shape::Http529
        | Shape::Handshake => true,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
