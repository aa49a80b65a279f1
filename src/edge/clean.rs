//! The clean path: modes `observe` and `off`.
//!
//! An operator who doubts berth must be able to take it out of the way without taking it off the wire.
//! So in these modes an answer takes pingora's ordinary path, byte for byte: nothing is held, nothing
//! is switched, nothing rewritten, and the request streams. A credential is still chosen, which needs
//! the model; it is looked for in the first 64 KiB of the body, which is what pingora can replay.
//! `observe` reads a copy of what passes and tells the trail what it would have called it.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::header;
use pingora::Error;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::prelude::HttpPeer;
use pingora::proxy::{FailToProxy, Session};

use crate::admission::ask::Ask;
use crate::admission::coding::Decoder;
use crate::admission::gate::{CommitReason, Gate, Refusal, Step};
use crate::admission::policy::{ClientErrorCode, Mode};
use crate::admission::rules::Reading;
use crate::admission::stream::Stream;
use crate::admission::usage::Usage;
use crate::admission::{Endpoint, Verdict};
use crate::observe::record::CredentialName;
use crate::observe::words::{Outcome, Then};
use crate::pool::{self, Choice, Lease, RouteIndex, Stated};

use super::answer::{self, Answer};
use super::body::{BodyFault, declared_length, next_piece};
use super::head::{self, Head};
use super::headers::{self, Framing};
use super::pace::Pace;
use super::proxy::Ctx;
use super::request::{Plan, Served, Way, read_ask};
use super::state::Edge;
use super::tale::{Ended, Tale, Told, head_is_its_own, upstream_request_id};
use super::upstream::{Connection, Upstream};

/// What is looked at of a request's body; pingora replays as much, and nothing of a body that is more.
const LOOKED_AT: usize = 64 * 1024;

/// The most that one read gives: a buffer of HTTP/1.1, a frame of HTTP/2.
const MOST_READ: usize = 64 * 1024;
const MOST_READ_2: usize = 16 * 1024;

/// A request on the clean path.
pub struct Clean {
    tale: Tale,
    plan: Plan,
    lease: Lease,
    upstream: Arc<Upstream>,
    reading: Reading,
    sent: Instant,
    observing: bool,
    told: Told,
    status: Option<u16>,
    bytes: u64,
    first_byte: Option<Instant>,
    watched: Watched,
    /// What a document reports; a stream counts itself.
    of_document: Usage,
    max_bytes: usize,
    headers: Option<http::HeaderMap>,
    /// What was looked at and pingora will not replay.
    ahead: Option<Bytes>,
    pace: Pace,
}

/// What an observer has seen so far.
enum Watched {
    /// Nothing, or nobody watches.
    Nothing,
    /// The opening of an answer.
    Opening(Box<Gate>, Option<Decoder>),
    /// An answer under way.
    Stream(Box<Stream>, Option<Decoder>),
    /// It was refused.
    Refused(Box<Refusal>),
}

impl Edge {
    /// Prepares a request for pingora's own path; `true` says that it has been answered.
    pub(super) async fn clean(
        &self,
        session: &mut Session,
        mut tale: Tale,
        ctx: &mut Ctx,
    ) -> pingora::Result<bool> {
        *ctx = Ctx::Request;
        let answered = |served| match served {
            Served::Whole => Ok(true),
            Served::Broken => Error::e_explain(pingora::ErrorType::WriteError, "the client left"),
        };
        let mut plan = match self.way(session) {
            Way::Upstream(plan) => plan,
            Way::Answer(_, answer, outcome) => {
                return answered(self.answer_unread(session, tale, answer, outcome).await);
            }
        };
        if let Some(name) = self.route_name(plan.route) {
            tale.route(name);
        }
        if let Err((answer, outcome)) = self.admit(session, &mut plan, &mut tale) {
            return answered(self.answer_unread(session, tale, answer, outcome).await);
        }
        if declared_length(session).is_some_and(|length| length > self.limits.request_body) {
            let answer = Answer::too_large(plan.dialect, self.limits.request_body);
            return answered(
                self.answer(session, tale, answer, Outcome::ClientError)
                    .await,
            );
        }
        self.be_patient(session);
        let mut pace = Pace::new(self.limits.client_timeout, Instant::now());
        let (ask, ahead, to_the_end) = match self.look(session, &mut pace).await {
            Ok(seen) => seen,
            Err(fault) => {
                let answer = self.body_fault(session, tale, plan.dialect, fault);
                return answered(answer.await);
            }
        };
        let plan = self.read(plan, session, ask);
        self.tell(&mut tale, &plan);
        if let Some(answer) = plan.beyond_its_models(to_the_end) {
            let outcome = Outcome::ClientError;
            return answered(match to_the_end {
                true => self.answer(session, tale, answer, outcome).await,
                false => self.refuse_body(session, tale, answer, outcome).await,
            });
        }
        let wanted = pool::Ask {
            route: RouteIndex(plan.route),
            model: plan.ask.model.as_deref(),
            tried: &[],
            only: None,
            session: plan.session,
            reach: plan.reach(),
        };
        let lease = match self.pool.choose(&wanted, Instant::now()) {
            Choice::Take(lease) => lease,
            Choice::None(why) => {
                let after = answer::retry_after(why.earliest, self.policy.retry_after);
                let words = ("server_error", "No credential can take this request now.");
                let answer = Answer::retry(plan.dialect, words, after);
                let outcome = Outcome::NoneAvailable;
                return answered(self.answer(session, tale, answer, outcome).await);
            }
        };
        let Some(upstream) = self.upstream(lease.credential().index()).cloned() else {
            return Error::e_explain(pingora::ErrorType::InternalError, "no upstream");
        };
        *ctx = Ctx::Clean(Box::new(Clean {
            tale,
            plan,
            reading: self.reading(&upstream, lease.secrets()),
            lease,
            upstream,
            sent: Instant::now(),
            observing: self.policy.mode == Mode::Observe,
            told: Told::default(),
            status: None,
            bytes: 0,
            first_byte: None,
            watched: Watched::Nothing,
            of_document: Usage::default(),
            max_bytes: self.policy.hold.max_bytes,
            headers: None,
            ahead,
            pace,
        }));
        Ok(false)
    }

    /// Reads the beginning of the body, and says whether that is all of it. pingora replays it, or, where
    /// it is more than that, gets it in front of the rest: then there always is a rest.
    async fn look(
        &self,
        session: &mut Session,
        pace: &mut Pace,
    ) -> Result<(Ask, Option<Bytes>, bool), BodyFault> {
        if session.is_body_empty() {
            return Ok((Ask::default(), None, true));
        }
        if session.req_header().headers.contains_key(header::EXPECT) {
            let told = session.write_continue_response().await;
            told.map_err(|_| BodyFault::ClientGone)?;
        }
        session.enable_retry_buffering();
        let declared = declared_length(session).filter(|length| *length > LOOKED_AT);
        let http2 = session.as_downstream().is_http2();
        let mut start = Vec::new();
        let mut to_the_end = false;
        while start.len() < LOOKED_AT {
            let beyond = http2 && start.len() + MOST_READ_2 > LOOKED_AT;
            let last = declared.is_some_and(|length| length - start.len() <= MOST_READ);
            if beyond || last {
                break;
            }
            match next_piece(session, pace).await? {
                Some(piece) => start.extend_from_slice(&piece),
                None => {
                    to_the_end = true;
                    break;
                }
            }
        }
        let start = Bytes::from(start);
        let ask = read_ask(session, &start, &self.turns).await;
        let ahead = (start.len() > LOOKED_AT).then_some(start);
        Ok((ask, ahead, to_the_end))
    }
}

impl Clean {
    pub(super) fn peer(&self) -> Option<HttpPeer> {
        let credential = self.lease.credential().index();
        self.upstream.peer(credential, Connection::Any)
    }

    /// A piece of the request's body, on its way up.
    pub(super) fn piece(&mut self, piece: &mut Option<Bytes>) -> pingora::Result<()> {
        let now = Instant::now();
        if now > self.pace.until() {
            return Error::e_explain(pingora::ErrorType::ReadTimedout, "the body drips");
        }
        self.pace.came(piece.as_ref().map_or(0, Bytes::len), now);
        if let Some(ahead) = self.ahead.take() {
            let rest = piece.take().unwrap_or_default();
            *piece = Some([ahead, rest].concat().into());
        }
        Ok(())
    }

    pub(super) fn request(&self, request: &mut RequestHeader) -> pingora::Result<()> {
        let (below, query) = (&self.plan.below, self.plan.query.as_deref());
        let secrets = self.lease.secrets();
        headers::to_upstream(
            request,
            &self.upstream,
            secrets,
            below,
            query,
            Framing::AsCame,
            false,
        )
    }

    pub(super) fn head(
        &mut self,
        edge: &Edge,
        session: &mut Session,
        response: &mut ResponseHeader,
    ) -> pingora::Result<()> {
        if response.status.is_informational() {
            return Ok(());
        }
        // The body passes byte for byte in these modes; a head is read, and cleaned, by everybody.
        headers::withhold(response, &self.reading.withheld);
        self.status = Some(response.status.as_u16());
        self.told.status = self.status;
        self.told.upstream_request_id = upstream_request_id(&response.headers);
        if self.observing {
            let credential = self.lease.credential().id();
            edge.trail
                .heard(credential, &response.headers, Instant::now());
            let head_only = session.req_header().method == http::Method::HEAD;
            let Head { answer, decoder } = head::read(response, head_only);
            let (endpoint, reading) = (self.plan.endpoint, self.reading.clone());
            let streamed = self.plan.ask.stream;
            let (gate, step) = Gate::new(endpoint, reading, answer, streamed, self.max_bytes);
            self.headers = Some(response.headers.clone());
            self.watched = Watched::Opening(Box::new(gate), decoder);
            self.step(step);
        }
        headers::to_client(response, false);
        let id = self.tale.id().to_string();
        response.insert_header("x-berth-request-id", id)?;
        Ok(())
    }

    pub(super) fn body(&mut self, piece: Option<&Bytes>, end: bool) {
        let piece = piece.cloned().unwrap_or_default();
        if !piece.is_empty() {
            self.bytes += piece.len() as u64;
            self.first_byte.get_or_insert_with(Instant::now);
        }
        match &mut self.watched {
            Watched::Nothing | Watched::Refused(_) => {}
            Watched::Opening(gate, decoder) => {
                let step = match decoded(decoder, piece) {
                    Some(piece) => gate.push(piece),
                    None => Step::Commit(CommitReason::Opaque),
                };
                self.step(step);
                if end && let Watched::Opening(gate, _) = &mut self.watched {
                    let step = gate.end();
                    self.step(step);
                }
            }
            Watched::Stream(stream, decoder) => {
                if let Some(piece) = decoded(decoder, piece) {
                    stream.pass(piece, &mut Vec::new());
                }
                if end {
                    stream.end(&mut Vec::new());
                }
            }
        }
    }

    pub(super) async fn fail(
        &mut self,
        edge: &Edge,
        session: &mut Session,
        error: &Error,
    ) -> FailToProxy {
        let upstream = *error.esource() == pingora::ErrorSource::Upstream;
        if session.response_written().is_none() && upstream {
            let after = answer::retry_after(None, edge.policy.retry_after);
            let words = ("server_error", "The upstream could not be reached.");
            let answer = Answer::retry(self.plan.dialect, words, after);
            if let Ok(mut head) = answer.head() {
                let id = self.tale.id().to_string();
                let _ = head.insert_header("x-berth-request-id", id);
                let _ = session.write_response_header(Box::new(head), false).await;
                let _ = session.write_response_body(Some(answer.body), true).await;
                self.status = Some(answer.status);
            }
        }
        FailToProxy {
            error_code: 0,
            can_reuse_downstream: false,
        }
    }

    pub(super) fn end(mut self, edge: &Edge, error: Option<&Error>) {
        let client_left = error.is_some_and(|e| *e.esource() == pingora::ErrorSource::Downstream);
        let (verdict, refusal) = match (&self.watched, error) {
            // An error that was passed on stays what it was called, whoever read it.
            (Watched::Refused(refusal), _) => (refusal.ruling.verdict, Some(&**refusal)),
            _ if client_left => (Verdict::ClientGone, None),
            (Watched::Stream(stream, _), _) => after_commit(stream, error),
            (_, Some(_)) if self.told.status.is_some() => (Verdict::TruncatedAfterCommit, None),
            (_, Some(_)) => (Verdict::Transport, None),
            (_, None) => (by_status(self.status), None),
        };
        let stated = refusal.and_then(|refusal| {
            let headers = self
                .headers
                .as_ref()
                .filter(|_| head_is_its_own(refusal.shape));
            refusal.stated(headers, SystemTime::now())
        });
        if self.observing {
            let (model, stated) = (self.plan.ask.model.as_deref(), stated.map(Stated::from));
            self.lease.learn(model, verdict, stated, Instant::now());
        }
        let admitted = match &self.watched {
            Watched::Stream(..) => true,
            Watched::Nothing => {
                self.status.is_some() && by_status(self.status) == Verdict::Admitted
            }
            Watched::Opening(..) | Watched::Refused(_) => false,
        };
        let outcome = match verdict {
            _ if client_left => Outcome::ClientGone,
            Verdict::Admitted => Outcome::Ok,
            Verdict::ClientError | Verdict::Policy | Verdict::State => Outcome::ClientError,
            _ => Outcome::UpstreamError,
        };
        let name = CredentialName(self.lease.credential().id().clone());
        let ended = Ended {
            verdict,
            refusal,
            then: match verdict {
                Verdict::ClientGone if !admitted => Then::GiveUp,
                _ => Then::Commit,
            },
            possible_duplicate: false,
        };
        let ms = self
            .first_byte
            .map(|at| at.duration_since(self.sent).as_millis() as u64);
        let told = std::mem::take(&mut self.told);
        self.tale.attempt_at(told, &name, ended, (self.sent, ms));
        if let Watched::Stream(stream, _) = &self.watched {
            let usage = stream.usage();
            let usage = if usage.is_known() {
                usage
            } else {
                self.of_document
            };
            self.tale.usage(usage);
        }
        self.tale.passes();
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        self.tale.answered(self.status.unwrap_or(0), bytes);
        edge.finish(self.tale, outcome);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Hold | Step::AwaitTerminal => {}
            Step::Refuse(refusal) => self.watched = Watched::Refused(refusal),
            Step::Commit(reason) => {
                let Watched::Opening(gate, decoder) =
                    std::mem::replace(&mut self.watched, Watched::Nothing)
                else {
                    return;
                };
                let mut stream = watcher(&gate, self.plan.endpoint, self.reading.clone());
                let is_document = !gate.reads_frames() && reason == CommitReason::Complete;
                let held = gate.into_held();
                if is_document {
                    self.of_document = Usage::of_document(&held.concat());
                }
                for piece in held {
                    stream.pass(piece, &mut Vec::new());
                }
                self.watched = Watched::Stream(Box::new(stream), decoder);
            }
        }
    }
}

fn watcher(gate: &Gate, endpoint: Endpoint, reading: Reading) -> Stream {
    if gate.reads_frames() {
        Stream::events(endpoint, reading, ClientErrorCode::Keep)
    } else {
        Stream::opaque(endpoint, reading)
    }
}

fn decoded(decoder: &mut Option<Decoder>, piece: Bytes) -> Option<Bytes> {
    match decoder {
        None => Some(piece),
        Some(decoder) => decoder.push(&piece).ok(),
    }
}

fn after_commit<'a>(stream: &'a Stream, error: Option<&Error>) -> (Verdict, Option<&'a Refusal>) {
    match stream.failure() {
        Some(refusal) if refusal.ruling.verdict == Verdict::Capacity => {
            (Verdict::CapacityAfterCommit, Some(refusal))
        }
        Some(refusal) => (Verdict::TruncatedAfterCommit, Some(refusal)),
        None if error.is_some() => (Verdict::TruncatedAfterCommit, None),
        None if !stream.is_opaque() && !stream.is_finished() => {
            (Verdict::TruncatedAfterCommit, None)
        }
        None => (Verdict::Admitted, None),
    }
}

/// Where nobody watches, the status is all there is.
fn by_status(status: Option<u16>) -> Verdict {
    match status {
        Some(429) => Verdict::RateLimit,
        Some(401) => Verdict::Auth,
        Some(400..=499) => Verdict::ClientError,
        Some(500..=599) => Verdict::Transient,
        _ => Verdict::Admitted,
    }
}
