//! The gate: an answer's opening is held until it proves to be one.
//!
//! ```text
//!            neutral              output, complete, limit
//!   Hold ───────────────▶ Hold ──────────────────────────▶ Commit   (stream.rs takes over)
//!     │                     │
//!     │ error               └─────────── failed ─────────▶ Refuse   (the attempt is dropped)
//!     ▼                                                       ▲
//!   AwaitTerminal ───── failed, end, give_up_waiting ─────────┘
//! ```
//!
//! The problem: upstreams say 200, open a stream, and refuse inside it. The promise: no byte leaves
//! before [`Step::Commit`], every byte held is in [`Gate::into_held`] in the order it came, and what
//! was refused never leaves. Refused: looking at the first chunk only, which `response.created`
//! defeats, and matching on raw bytes, which a quoted prompt defeats.
//!
//! Limits: the bytes held (`hold.max_bytes`). Times are the caller's: it owns the clock.

mod held;

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use super::dialect::Endpoint;
use super::facts::Facts;
use super::frame::{Meaning, meaning};
use super::retry_after::{self, Stated};
use super::rules::{Evidence, Reading, Ruling};
use super::sse::{Event, Splitter};
use super::verdict::{Shape, Verdict};
use held::Held;

/// What an answer's head says about its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// `text/event-stream`.
    Stream,
    /// JSON.
    Json,
    /// HTML.
    Page,
    /// Something else.
    Other,
    /// In a content coding that berth cannot read.
    Coded,
    /// Nothing, or `text/plain`, which is used for anything: the first byte tells.
    Unstated,
}

/// What the gate has to know about the answer's head.
#[derive(Clone, Copy, Debug)]
pub struct AnswerHead {
    /// Its status.
    pub status: u16,
    /// What its body is.
    pub media: Media,
    /// A challenge of the edge in front of the upstream.
    pub challenge: bool,
    /// Its rate-limit headers say that a quota's window is used up.
    pub spent: bool,
    /// There is no body: the answer to a HEAD, a 204, a 304.
    pub bodiless: bool,
}

/// Why a stream was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommitReason {
    /// Output began.
    Output,
    /// The whole answer is there.
    Complete,
    /// More bytes than may be held.
    HoldLimit,
    /// More time than may be held; decided by the caller.
    HoldTimeout,
    /// Nothing that berth reads.
    Opaque,
    /// An error that no other credential would change; decided by the caller.
    PassedOn,
}

/// A refusal, with what it stands on.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// What it means, by which rule.
    pub ruling: Ruling,
    /// Where it was written.
    pub shape: Shape,
    /// What it says.
    pub facts: Facts,
}

impl Refusal {
    /// Whether the request is longer than its model takes, in the code that says so. Words are not
    /// enough: a prompt may be about them.
    pub fn is_too_long(&self) -> bool {
        self.ruling.verdict == Verdict::ClientError
            && self.facts.code.as_deref() == Some("context_length_exceeded")
    }

    /// How long it says that it will last, or else its rule. `headers` are those of its own head.
    pub fn stated(&self, headers: Option<&HeaderMap>, now: SystemTime) -> Option<Stated> {
        let Ruling { verdict, hold, .. } = self.ruling;
        let by_rule = |after| Stated {
            after,
            basis: "rule",
        };
        retry_after::stated(verdict, &self.facts, headers, now).or(hold.map(by_rule))
    }
}

/// What to do after a piece of the answer.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Wait for more.
    Hold,
    /// Wait for more, but not longer than [`TERMINAL_WAIT`] from the first such step on: an error
    /// came, and the frame that ends the stream should follow.
    AwaitTerminal,
    /// Let everything held go.
    Commit(CommitReason),
    /// Drop everything held.
    Refuse(Box<Refusal>),
}

/// How long an `error` frame waits for its `response.failed`. Chosen: they come in one packet as a
/// rule, and half a second is not noticed.
pub const TERMINAL_WAIT: std::time::Duration = std::time::Duration::from_millis(500);

/// One attempt's answer, held.
#[derive(Debug)]
pub struct Gate {
    endpoint: Endpoint,
    reading: Reading,
    head: AnswerHead,
    reader: Reader,
    held: Held,
    held_frames: usize,
    max_bytes: usize,
    streamed: bool,
    refused: bool,
}

#[derive(Debug)]
enum Reader {
    /// No byte has told yet what the body is.
    Sniffing,
    /// Frames of an event stream.
    Frames(Frames),
    /// One document, judged at its end.
    Document { page: bool },
    /// Nothing to read.
    Nothing,
}

#[derive(Debug, Default)]
struct Frames {
    splitter: Splitter,
    unfinished: BytesMut,
    seen: usize,
    error: Option<Facts>,
}

impl Gate {
    /// A gate for an answer of which only the head is known. `streamed` says that the request asked
    /// for a stream. What the head alone decides is the first step.
    pub fn new(
        endpoint: Endpoint,
        reading: Reading,
        head: AnswerHead,
        streamed: bool,
        max_bytes: usize,
    ) -> (Gate, Step) {
        let failed = head.status >= 400;
        let reader = match head.media {
            _ if head.bodiless && !failed => Reader::Nothing,
            _ if failed => Reader::Document {
                page: head.media == Media::Page || head.challenge,
            },
            _ if endpoint == Endpoint::Other => Reader::Nothing,
            Media::Stream => Reader::Frames(Frames::default()),
            // A stream under the wrong name is still one.
            Media::Json => Reader::Sniffing,
            Media::Page => Reader::Document { page: true },
            Media::Unstated => Reader::Sniffing,
            Media::Other if streamed => Reader::Sniffing,
            Media::Other | Media::Coded => Reader::Nothing,
        };
        let step = match reader {
            Reader::Nothing if head.bodiless => Step::Commit(CommitReason::Complete),
            Reader::Nothing => Step::Commit(CommitReason::Opaque),
            _ => Step::Hold,
        };
        let gate = Gate {
            endpoint,
            reading,
            head,
            reader,
            held: Held::default(),
            held_frames: 0,
            max_bytes,
            streamed,
            refused: false,
        };
        (gate, step)
    }

    /// A piece of the body arrived.
    pub fn push(&mut self, mut piece: Bytes) -> Step {
        if piece.is_empty() {
            return self.waiting();
        }
        self.held.keep(&piece);
        if matches!(self.reader, Reader::Sniffing) {
            self.sniff(&piece);
            if self.reads_frames() {
                // A byte order mark may have come in pieces before this one.
                piece = self.held.whole().into();
            }
        }
        let step = match &mut self.reader {
            Reader::Frames(frames) => {
                let step = frames.push(piece, self.endpoint);
                self.held_frames = frames.seen;
                self.ruled(step)
            }
            Reader::Sniffing | Reader::Document { .. } => Step::Hold,
            Reader::Nothing => Step::Commit(CommitReason::Opaque),
        };
        match step {
            Step::Hold | Step::AwaitTerminal if self.held.bytes() > self.max_bytes => {
                self.limit_reached()
            }
            step => step,
        }
    }

    /// No more can be held. An error is one by its status, however long it is; anything else is let
    /// go.
    pub fn limit_reached(&mut self) -> Step {
        if self.head.status >= 400 {
            self.refuse_document()
        } else {
            Step::Commit(CommitReason::HoldLimit)
        }
    }

    /// The body ended, cleanly.
    pub fn end(&mut self) -> Step {
        match &mut self.reader {
            Reader::Frames(frames) => {
                let step = frames.end(self.endpoint);
                self.held_frames = frames.seen;
                self.ruled(step)
            }
            Reader::Sniffing | Reader::Document { .. } => self.judge_document(),
            Reader::Nothing => Step::Commit(CommitReason::Complete),
        }
    }

    /// [`TERMINAL_WAIT`] is over: the error that was waiting is the refusal.
    pub fn give_up_waiting(&mut self) -> Step {
        match &mut self.reader {
            Reader::Frames(frames) => match frames.error.take() {
                Some(facts) => self.refuse(facts, Shape::Sse),
                None => Step::Hold,
            },
            _ => Step::Hold,
        }
    }

    /// Everything held, in the order it came; of a refusal without what it must not say.
    pub fn into_held(self) -> Vec<Bytes> {
        if self.refused
            && let Some(clean) = self.reading.withheld.bytes(&self.held.whole())
        {
            return vec![clean];
        }
        self.held.into_pieces()
    }

    /// Whether the body is an event stream.
    pub fn reads_frames(&self) -> bool {
        matches!(self.reader, Reader::Frames(_))
    }

    /// How many bytes are held.
    pub fn held_bytes(&self) -> usize {
        self.held.bytes()
    }

    /// How many whole frames have been read.
    pub fn held_frames(&self) -> usize {
        self.held_frames
    }

    fn waiting(&self) -> Step {
        match &self.reader {
            Reader::Frames(frames) if frames.error.is_some() => Step::AwaitTerminal,
            _ => Step::Hold,
        }
    }

    /// Decides what the body is by its first byte that is not white space; there was none before `piece`.
    fn sniff(&mut self, piece: &[u8]) {
        let mark = |b: &u8| b"\xef\xbb\xbf".contains(b);
        let mut bytes = piece.iter().copied();
        let first = bytes.find(|b| !b.is_ascii_whitespace() && !mark(b));
        self.reader = match first {
            None => return,
            Some(b'{' | b'[') => Reader::Document { page: false },
            Some(b'<') => Reader::Document { page: true },
            Some(first) if self.head.media == Media::Json && !b":dei".contains(&first) => {
                Reader::Document { page: false }
            }
            Some(_) => Reader::Frames(Frames::default()),
        };
    }

    fn judge_document(&mut self) -> Step {
        let page = matches!(self.reader, Reader::Document { page: true });
        if self.head.status >= 400 || page {
            return self.refuse_document();
        }
        let body = self.held.whole();
        match Facts::of_failed_document(&body) {
            Some(facts) => self.refuse(facts, Shape::Json200),
            None if !self.is_whole(&body) => no_answer("broken_document", Shape::Json200),
            None => Step::Commit(CommitReason::Complete),
        }
    }

    /// Whether a body is a whole answer: JSON to its last bracket, and something at all.
    fn is_whole(&self, body: &[u8]) -> bool {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        if matches!(self.reader, Reader::Sniffing) {
            return self.endpoint == Endpoint::Models && !self.streamed;
        }
        serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
    }

    fn refuse_document(&mut self) -> Step {
        let body = self.held.whole();
        let facts = facts_of_error(&body);
        let starts_like_a_page = body.trim_ascii_start().first() == Some(&b'<');
        if starts_like_a_page {
            self.reader = Reader::Document { page: true };
        }
        self.refuse(facts, Shape::of_status(self.head.status))
    }

    /// Turns the frames' meaning into a step.
    fn ruled(&mut self, step: FrameStep) -> Step {
        match step {
            FrameStep::Hold => self.waiting(),
            FrameStep::Commit => Step::Commit(CommitReason::Output),
            FrameStep::Failed(facts) => self.refuse(facts, Shape::Sse),
            FrameStep::EndedWithoutAnswer => no_answer("ended_without_answer", Shape::Sse),
        }
    }

    fn refuse(&mut self, facts: Facts, shape: Shape) -> Step {
        self.refused = true;
        let page = matches!(self.reader, Reader::Document { page: true });
        Step::Refuse(Box::new(refusal(
            facts,
            shape,
            self.head.status,
            &self.reading,
            page,
            self.head.spent,
        )))
    }
}

/// A body that is no answer, and says nothing of why.
fn no_answer(rule: &'static str, shape: Shape) -> Step {
    Step::Refuse(Box::new(Refusal {
        ruling: Ruling::plain(rule, Verdict::Transient),
        shape,
        facts: Facts::default(),
    }))
}

/// The refusal that some facts make.
pub fn refusal(
    mut facts: Facts,
    shape: Shape,
    status: u16,
    reading: &Reading,
    page: bool,
    spent: bool,
) -> Refusal {
    facts.withhold(&reading.withheld);
    let evidence = Evidence {
        // Inside a 2xx an error may state its status; a real one is not overruled by words.
        status: match (status, facts.status) {
            (200..=299, Some(stated)) => stated,
            (status, _) => status,
        },
        dialect: reading.dialect,
        upstream: &reading.upstream,
        code: facts.code.as_deref(),
        kind: facts.kind.as_deref(),
        message: facts.message.as_deref(),
        page,
        spent: spent || facts.resets_in.is_some() || facts.resets_at.is_some(),
    };
    Refusal {
        ruling: reading.rules.rule_on(&evidence, reading.today),
        shape,
        facts,
    }
}

enum FrameStep {
    Hold,
    Commit,
    Failed(Facts),
    EndedWithoutAnswer,
}

impl Frames {
    fn push(&mut self, mut piece: Bytes, endpoint: Endpoint) -> FrameStep {
        while let Some(end) = self.splitter.next_end(&piece) {
            let rest = piece.split_off(end);
            let frame = self.finish(std::mem::replace(&mut piece, rest));
            match self.take(&frame, endpoint) {
                FrameStep::Hold => {}
                decided => return decided,
            }
        }
        self.unfinished.extend_from_slice(&piece);
        FrameStep::Hold
    }

    /// At the end an unfinished frame counts: a vendor's last frame may lack its empty line.
    fn end(&mut self, endpoint: Endpoint) -> FrameStep {
        let frame = self.finish(Bytes::new());
        match self.take(&frame, endpoint) {
            FrameStep::Hold => match self.error.take() {
                Some(facts) => FrameStep::Failed(facts),
                None => FrameStep::EndedWithoutAnswer,
            },
            decided => decided,
        }
    }

    fn finish(&mut self, last: Bytes) -> Bytes {
        if self.unfinished.is_empty() {
            return last;
        }
        self.unfinished.extend_from_slice(&last);
        self.unfinished.split().freeze()
    }

    fn take(&mut self, frame: &[u8], endpoint: Endpoint) -> FrameStep {
        let first = self.seen == 0;
        if !frame.is_empty() {
            self.seen += 1;
        }
        match meaning(endpoint, &Event::read(frame, first)) {
            Meaning::Neutral => FrameStep::Hold,
            Meaning::Output => FrameStep::Commit,
            Meaning::Error(facts) => {
                self.error = Some(facts);
                FrameStep::Hold
            }
            Meaning::Failed { output: true, .. } => FrameStep::Commit,
            Meaning::Failed { facts, .. } => FrameStep::Failed(self.more_telling(facts)),
        }
    }

    /// Of an error and its terminal frame, the one that says more: terminal frames without a code
    /// have been seen after errors with one.
    fn more_telling(&mut self, last: Facts) -> Facts {
        match self.error.take() {
            Some(error) if last.code.is_none() && last.message.is_none() => error,
            Some(error) if last.code.is_none() && error.code.is_some() => error,
            _ => last,
        }
    }
}

/// An error body is JSON, an event stream of one event, or text.
fn facts_of_error(body: &[u8]) -> Facts {
    let start = body.trim_ascii_start();
    if (start.starts_with(b"event:") || start.starts_with(b"data:"))
        && let Some(data) = Event::read(start, false).data
    {
        return Facts::of_error_body(&data);
    }
    Facts::of_error_body(body)
}

#[cfg(test)]
mod tests;
