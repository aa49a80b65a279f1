//! A small request of berth's own through one credential, judged like a client's.
//!
//! The swap is the experiment: the same request through several credentials says whose fault a refusal
//! is. So this goes the way that a client's request would go (the upstream's addresses, TLS, proxy and
//! headers; the credential's secret), and the answer meets the same gate. It stops at the verdict: the
//! connection is closed, and what is not read is not paid for where the upstream stops with it.
//!
//! Bounds: one connection of its own, the gate's bytes, the time that the caller gives. Nothing of the
//! answer is kept but names that [`crate::observe::safe`] lets through.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header;
use pingora::connectors::http::Connector;
use pingora::http::RequestHeader;
use pingora::protocols::http::client::HttpSession;
use serde_json::json;

use crate::admission::gate::{CommitReason, Gate, Refusal, Step, TERMINAL_WAIT};
use crate::admission::rules::Reading;
use crate::admission::{Dialect, Endpoint, Shape, Verdict};
use crate::observe::safe::{SafeCode, UpstreamRequestId};
use crate::pool::{CredentialIndex, Secrets};

use super::head::{self, Head};
use super::headers::{self, Framing};
use super::tale::upstream_request_id;
use super::upstream::{Connection, Upstream};

/// The least that an upstream takes for a request: a path and a body.
#[derive(Clone, Debug)]
pub struct Question {
    reading: Reading,
    endpoint: Endpoint,
    below: &'static str,
    body: Bytes,
}

/// What an answer is held within.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// From the connect to the verdict.
    pub time: Duration,
    /// Of the body.
    pub bytes: usize,
}

/// What it came to.
#[derive(Clone, Debug)]
pub struct Reply {
    /// What is known of it.
    pub finding: Finding,
    /// Where a refusal was written.
    pub shape: Option<Shape>,
    /// The status, if a head came.
    pub status: Option<u16>,
    /// The error's code.
    pub code: Option<SafeCode>,
    /// The upstream's own id of it.
    pub upstream_request_id: Option<UpstreamRequestId>,
    /// From the connect to the verdict.
    pub took: Duration,
    /// Why there is no verdict, or what the network said where there was no answer.
    pub fault: Option<String>,
}

/// What is known of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It has a verdict.
    Judged(Verdict),
    /// A client would get it, but no output was seen: it says nothing about a seat.
    Unjudged,
}

impl Finding {
    /// What it is called.
    pub fn as_str(self) -> &'static str {
        match self {
            Finding::Judged(verdict) => verdict.as_str(),
            Finding::Unjudged => "unjudged",
        }
    }

    /// Whether there was a seat.
    pub fn was_admitted(self) -> bool {
        matches!(self, Finding::Judged(verdict) if verdict.was_admitted())
    }
}

impl Question {
    /// For one word from `model`, as a stream, not stored.
    pub fn new(reading: Reading, model: &str) -> Question {
        let (endpoint, below, body) = match reading.dialect {
            Dialect::OpenAi => {
                let text = json!({"type": "input_text", "text": "Say ok."});
                let body = json!({
                    "model": model,
                    "instructions": "Answer with one word.",
                    "input": [{"type": "message", "role": "user", "content": [text]}],
                    "max_output_tokens": LEAST_TOKENS,
                    "store": false,
                    "stream": true,
                });
                (Endpoint::Responses, "/responses", body)
            }
            Dialect::Anthropic => {
                let body = json!({
                    "model": model,
                    "max_tokens": 1,
                    "messages": [{"role": "user", "content": "Say ok."}],
                    "stream": true,
                });
                (Endpoint::Messages, "/messages", body)
            }
        };
        Question {
            reading,
            endpoint,
            below,
            body: body.to_string().into(),
        }
    }

    /// Asks it of `upstream` with the secrets of a credential.
    pub async fn ask(&self, upstream: &Upstream, secrets: &Secrets, bounds: Bounds) -> Reply {
        let started = Instant::now();
        let mut reply = Reply {
            finding: Finding::Judged(Verdict::Timeout),
            shape: None,
            status: None,
            code: None,
            upstream_request_id: None,
            took: Duration::ZERO,
            fault: None,
        };
        let asked = self.put(upstream, secrets, bounds.bytes, &mut reply);
        if let Ok(Err(error)) = tokio::time::timeout(bounds.time, asked).await {
            reply.finding = Finding::Judged(Verdict::Transport);
            // The kind alone: a context may hold what was sent.
            reply.fault = Some(error.etype().as_str().to_owned());
        }
        let is_secret = |text: &[u8]| secrets.are_in(text);
        reply.code = reply.code.map(|it| it.without(is_secret));
        let id = reply.upstream_request_id;
        reply.upstream_request_id = id.and_then(|it| it.without(is_secret));
        reply.took = started.elapsed();
        reply
    }

    async fn put(
        &self,
        upstream: &Upstream,
        secrets: &Secrets,
        max_bytes: usize,
        reply: &mut Reply,
    ) -> pingora::Result<()> {
        if upstream.look_up().await.is_err() && upstream.addresses() == 0 {
            return Err(pingora::Error::new(pingora::ErrorType::Custom(
                "the name is not known",
            )));
        }
        // No connection is shared, so the index of the credential does not matter.
        let Some(peer) = upstream.peer(CredentialIndex(0), Connection::Fresh) else {
            return Err(pingora::Error::new(pingora::ErrorType::Custom(
                "there is no address",
            )));
        };
        let request = self.request(upstream, secrets)?;
        let connector: Connector = Connector::new(None);
        let (mut session, _) = connector.get_http_session(&peer).await?;
        let request = match session {
            HttpSession::H2(_) => headers::for_http2(request, upstream.spec.base_url.tls)?,
            HttpSession::H1(_) | HttpSession::Custom(_) => request,
        };
        session.write_request_header(Box::new(request)).await?;
        session.write_request_body(self.body.clone(), true).await?;
        session.finish_request_body().await?;
        let decided = self.judge(&mut session, max_bytes, reply).await;
        session.shutdown().await;
        decided
    }

    fn request(&self, upstream: &Upstream, secrets: &Secrets) -> pingora::Result<RequestHeader> {
        let mut request = RequestHeader::build("POST", self.below.as_bytes(), None)?;
        request.insert_header(header::CONTENT_TYPE, "application/json")?;
        request.insert_header(header::ACCEPT, "text/event-stream")?;
        let agent = concat!("berth/", env!("CARGO_PKG_VERSION"));
        request.insert_header(header::USER_AGENT, agent)?;
        if upstream.spec.dialect == Dialect::Anthropic {
            request.insert_header("anthropic-version", "2023-06-01")?;
        }
        let framing = Framing::Length(self.body.len());
        headers::to_upstream(
            &mut request,
            upstream,
            secrets,
            self.below,
            None,
            framing,
            true,
        )?;
        Ok(request)
    }

    async fn judge(
        &self,
        session: &mut HttpSession,
        max_bytes: usize,
        reply: &mut Reply,
    ) -> pingora::Result<()> {
        let head = loop {
            session.read_response_header().await?;
            match session.response_header() {
                Some(head) if head.status.is_informational() => {}
                Some(head) => break head,
                None => return Err(pingora::Error::new(pingora::ErrorType::InvalidHTTPHeader)),
            }
        };
        reply.status = Some(head.status.as_u16());
        reply.upstream_request_id = upstream_request_id(&head.headers);
        let Head {
            answer,
            mut decoder,
        } = head::read(head, false);
        let (mut gate, mut step) =
            Gate::new(self.endpoint, self.reading.clone(), answer, true, max_bytes);
        let mut terminal = None;
        loop {
            step = match step {
                Step::Commit(reason) => {
                    reply.let_through(reason);
                    return Ok(());
                }
                Step::Refuse(refusal) => {
                    reply.refused(&refusal);
                    return Ok(());
                }
                Step::Hold | Step::AwaitTerminal => {
                    if matches!(step, Step::AwaitTerminal) {
                        let now = tokio::time::Instant::now;
                        terminal.get_or_insert_with(|| now() + TERMINAL_WAIT);
                    }
                    match read(session, terminal).await {
                        Some(Ok(piece)) => take(&mut gate, &mut decoder, piece),
                        None => gate.give_up_waiting(),
                        // An error that only lacked its end is one.
                        Some(Err(broken)) => match gate.give_up_waiting() {
                            Step::Hold => return Err(broken),
                            step => step,
                        },
                    }
                }
            }
        }
    }
}

impl Reply {
    fn let_through(&mut self, reason: CommitReason) {
        let why = match reason {
            CommitReason::Output | CommitReason::Complete => {
                self.finding = Finding::Judged(Verdict::Admitted);
                return;
            }
            CommitReason::HoldLimit | CommitReason::HoldTimeout => {
                "no output within admission.hold.max_bytes"
            }
            CommitReason::Opaque | CommitReason::PassedOn => "in a form that cannot be read",
        };
        self.finding = Finding::Unjudged;
        self.fault = Some(why.to_owned());
    }

    fn refused(&mut self, refusal: &Refusal) {
        let facts = &refusal.facts;
        self.finding = Finding::Judged(refusal.ruling.verdict);
        self.shape = Some(refusal.shape);
        self.code = facts
            .code
            .as_deref()
            .or(facts.kind.as_deref())
            .map(SafeCode::new);
    }
}

/// The least that the Responses API takes for `max_output_tokens`.
const LEAST_TOKENS: u32 = 16;

/// The next piece of the body; `None` where it does not come until the time that there is.
async fn read(
    session: &mut HttpSession,
    until: Option<tokio::time::Instant>,
) -> Option<pingora::Result<Option<Bytes>>> {
    match until {
        None => Some(session.read_response_body().await),
        Some(until) => tokio::time::timeout_at(until, session.read_response_body())
            .await
            .ok(),
    }
}

fn take(
    gate: &mut Gate,
    decoder: &mut Option<crate::admission::coding::Decoder>,
    piece: Option<Bytes>,
) -> Step {
    let Some(piece) = piece else {
        return gate.end();
    };
    match decoder {
        None => gate.push(piece),
        Some(decoder) => match decoder.push(&piece) {
            Ok(piece) => gate.push(piece),
            Err(_) => gate.end(),
        },
    }
}
