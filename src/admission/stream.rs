//! After commit: bytes pass as they come, and berth only listens.
//!
//! ```text
//!   Open ── terminal frame ──▶ Finished ── upstream's end ──▶ complete
//!    │ ╲── failed ───────────▶ Failed     the body ends at once, cleanly
//!    │  ╲─ error (Responses) ▶ Erred ──── failed, end, give_up_waiting ──▶ Failed
//!    └──── upstream's end ───▶ truncated: the client must see a broken body
//! ```
//!
//! Four things are done, and no more. A failure's code is rewritten (`rewrite`), because the Codex
//! client takes two of them as final. An `error` whose terminal frame does not follow gets one,
//! because that client ignores errors and waits for the end. And a stream that ends without its
//! terminal frame is reported as truncated, because SDKs take a clean end for success. Of a failure the
//! secret that the upstream was sent is taken out (`withheld`).
//!
//! A healthy frame is never copied and never parsed: its kind is read off its first bytes. An
//! unfinished frame waits only while its beginning could still be that of a failure, and never beyond
//! [`LONGEST_WAIT`] bytes.

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use super::dialect::Endpoint;
use super::facts::Facts;
use super::frame::{Meaning, is_terminal, meaning};
use super::gate::{Refusal, refusal};
use super::json::{Object, number, text};
use super::kind::{Kind, could_be_failure, kind_of};
use super::policy::ClientErrorCode;
use super::rewrite;
use super::rules::Reading;
use super::sse::{Event, Splitter};
use super::usage::Usage;
use super::verdict::Shape;

/// An unfinished frame that might be a failure is kept back up to this many bytes. Chosen: ten times
/// the largest failure frame seen in reports, which echo the request's instructions.
pub const LONGEST_WAIT: usize = 1024 * 1024;

/// What to do after a piece has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Go on, but call [`Stream::give_up_waiting`] after [`super::gate::TERMINAL_WAIT`].
    AwaitTerminal,
    /// End the body now, cleanly: a failure has been told in full.
    EndNow,
}

/// How a stream ended when the upstream ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client may see a clean end.
    Complete,
    /// The client must see a broken one.
    Truncated,
}

/// An answer that has been committed.
#[derive(Debug)]
pub struct Stream {
    endpoint: Endpoint,
    reading: Reading,
    code: ClientErrorCode,
    frames: bool,
    splitter: Splitter,
    unfinished: BytesMut,
    passing: Passing,
    seen: u64,
    state: State,
    response_id: Option<String>,
    usage: Usage,
    rewritten: Option<(&'static str, u64)>,
    synthesised: bool,
}

/// Whether the beginning of the current frame has passed already.
#[derive(Debug, PartialEq)]
enum Passing {
    No,
    /// Yes, and nobody needs to know what it says.
    Unread,
    /// Yes, and a copy is kept to be read at its end: at most [`LONGEST_WAIT`] bytes of it, which
    /// are enough to know its kind.
    Read(BytesMut),
}

#[derive(Debug)]
enum State {
    Open,
    /// An error came; its terminal frame should follow.
    Erred {
        facts: Facts,
        sequence: Option<f64>,
    },
    /// The terminal frame came.
    Finished,
    /// A failure came.
    Failed(Box<Refusal>),
}

impl Stream {
    /// A stream of events.
    pub fn events(endpoint: Endpoint, reading: Reading, code: ClientErrorCode) -> Stream {
        Stream {
            endpoint,
            reading,
            code,
            frames: true,
            splitter: Splitter::default(),
            unfinished: BytesMut::new(),
            passing: Passing::No,
            seen: 0,
            state: State::Open,
            response_id: None,
            usage: Usage::default(),
            rewritten: None,
            synthesised: false,
        }
    }

    /// A body that is passed on unread: a document, or something that berth does not know.
    pub fn opaque(endpoint: Endpoint, reading: Reading) -> Stream {
        Stream {
            frames: false,
            state: State::Finished,
            ..Stream::events(endpoint, reading, ClientErrorCode::Keep)
        }
    }

    /// Passes a piece on: what is to be sent now is appended to `out`.
    pub fn pass(&mut self, piece: Bytes, out: &mut Vec<Bytes>) -> Flow {
        if !self.frames {
            out.push(piece);
            return Flow::Continue;
        }
        let (mut at, mut sent) = (0, 0);
        while let Some(length) = piece
            .get(at..)
            .and_then(|rest| self.splitter.next_end(rest))
        {
            let end = at + length;
            if self.passing != Passing::No {
                self.pass_end(piece.get(at..end).unwrap_or_default());
                at = end;
                continue;
            }
            let waited = !self.unfinished.is_empty();
            let replaced = if waited {
                self.unfinished
                    .extend_from_slice(piece.get(at..end).unwrap_or_default());
                let frame = self.unfinished.split().freeze();
                Some(self.listen(&frame).unwrap_or(frame))
            } else {
                self.listen(piece.get(at..end).unwrap_or_default())
            };
            if let Some(bytes) = replaced {
                if at > sent && !waited {
                    out.push(piece.slice(sent..at));
                }
                out.push(bytes);
                sent = end;
            }
            at = end;
            if matches!(self.state, State::Failed(_)) {
                push_rest(out, &piece, sent, end);
                return Flow::EndNow;
            }
        }
        let rest = piece.get(at..).unwrap_or_default();
        if rest.is_empty() {
            push_rest(out, &piece, sent, piece.len());
        } else if self.passing != Passing::No {
            self.pass_more(rest);
            push_rest(out, &piece, sent, piece.len());
        } else if self.unfinished.is_empty() && !could_be_failure(self.endpoint, rest) {
            self.pass_from(rest);
            push_rest(out, &piece, sent, piece.len());
        } else {
            push_rest(out, &piece, sent, at);
            self.unfinished.extend_from_slice(rest);
            let decided = !could_be_failure(self.endpoint, &self.unfinished);
            if decided || self.unfinished.len() > LONGEST_WAIT {
                let start = self.unfinished.split().freeze();
                self.pass_from(&start);
                out.push(start);
            }
        }
        match self.state {
            State::Erred { .. } => Flow::AwaitTerminal,
            _ => Flow::Continue,
        }
    }

    /// The upstream ended the body, cleanly.
    pub fn end(&mut self, out: &mut Vec<Bytes>) -> Ending {
        if !self.unfinished.is_empty() {
            // A vendor's last frame may lack its empty line.
            let frame = self.unfinished.split().freeze();
            out.push(self.listen(&frame).unwrap_or(frame));
        }
        self.pass_end(&[]);
        self.give_up_waiting(out);
        match self.state {
            State::Finished | State::Failed(_) => Ending::Complete,
            State::Open | State::Erred { .. } => Ending::Truncated,
        }
    }

    /// The time for a terminal frame is over: an error that is still without one gets it.
    pub fn give_up_waiting(&mut self, out: &mut Vec<Bytes>) {
        if !matches!(self.state, State::Erred { .. }) {
            return;
        }
        if let State::Erred { facts, sequence } = std::mem::replace(&mut self.state, State::Open) {
            out.push(self.terminal_frame(&facts, sequence));
            self.synthesised = true;
            self.fail(facts);
        }
    }

    /// The failure that ended the stream, if one did.
    pub fn failure(&self) -> Option<&Refusal> {
        match &self.state {
            State::Failed(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Whether the terminal frame has come (always so for what is passed on unread).
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished | State::Failed(_))
    }

    /// Whether it is passed on unread.
    pub fn is_opaque(&self) -> bool {
        !self.frames
    }

    /// The response's id, where one was named.
    pub fn response_id(&self) -> Option<&str> {
        self.response_id.as_deref()
    }

    /// The tokens that the answer reported.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The code that was rewritten, and how often.
    pub fn rewritten(&self) -> Option<(&'static str, u64)> {
        self.rewritten
    }

    /// Whether a terminal frame was added.
    pub fn synthesised(&self) -> bool {
        self.synthesised
    }

    /// A frame begins to pass before it is whole.
    fn pass_from(&mut self, start: &[u8]) {
        self.passing = match kind_of(self.endpoint, start) {
            Kind::Plain => Passing::Unread,
            Kind::Opening | Kind::Telling => Passing::Read(BytesMut::from(start)),
        };
    }

    fn pass_more(&mut self, bytes: &[u8]) {
        if let Passing::Read(copy) = &mut self.passing {
            let room = LONGEST_WAIT.saturating_sub(copy.len());
            copy.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    fn pass_end(&mut self, bytes: &[u8]) {
        self.pass_more(bytes);
        if let Passing::Read(copy) = std::mem::replace(&mut self.passing, Passing::No) {
            self.listen(&copy);
        }
    }

    /// Looks at a whole frame; returns what is to be sent instead, if anything.
    fn listen(&mut self, frame: &[u8]) -> Option<Bytes> {
        let first = self.seen == 0;
        self.seen += 1;
        match kind_of(self.endpoint, frame) {
            Kind::Plain => None,
            Kind::Opening if self.response_id.is_some() => None,
            Kind::Opening | Kind::Telling => {
                self.read(frame, first);
                if matches!(self.state, State::Erred { .. } | State::Failed(_)) {
                    return self.rewrite(frame);
                }
                None
            }
        }
    }

    fn read(&mut self, frame: &[u8], first: bool) {
        let event = Event::read(frame, first);
        let data = event.data.as_deref().unwrap_or_default();
        if data.trim_ascii() == b"[DONE]" {
            self.finish();
            return;
        }
        let name = event.name.and_then(|name| std::str::from_utf8(name).ok());
        let Some(object) = Object::parse(data) else {
            // Not JSON, or more than was kept of it: its name alone tells.
            match name {
                Some("error" | "response.failed") => self.fail(Facts::of_text(data)),
                Some(name) if is_terminal(name) => self.finish(),
                _ => {}
            }
            return;
        };
        let response = Object::of(object.response);
        if self.response_id.is_none() {
            self.response_id = response.as_ref().and_then(|r| text(r.id));
        }
        self.usage.add(&object, response.as_ref());
        let kind = object.kind();
        let kind = kind.as_deref().or(name);
        match meaning(self.endpoint, &event) {
            Meaning::Failed { facts, .. } => {
                let facts = match std::mem::replace(&mut self.state, State::Open) {
                    State::Erred { facts: earlier, .. } if facts.code.is_none() => earlier,
                    _ => facts,
                };
                self.fail(facts);
            }
            Meaning::Error(mut facts) => {
                facts.withhold(&self.reading.withheld);
                self.state = State::Erred {
                    facts,
                    sequence: number(object.sequence_number),
                };
            }
            Meaning::Neutral | Meaning::Output => {
                let chat_ends =
                    self.endpoint == Endpoint::Chat && super::kind::has_finish_reason(frame);
                if chat_ends || kind.is_some_and(is_terminal) {
                    self.finish();
                }
            }
        }
    }

    fn finish(&mut self) {
        if matches!(self.state, State::Open) {
            self.state = State::Finished;
        }
    }

    fn fail(&mut self, facts: Facts) {
        let refusal = refusal(facts, Shape::Sse, 200, &self.reading, false, false);
        self.state = State::Failed(Box::new(refusal));
    }

    fn rewrite(&mut self, frame: &[u8]) -> Option<Bytes> {
        let clean = self.reading.withheld.bytes(frame);
        let Some(change) = rewrite::frame(clean.as_deref().unwrap_or(frame), &self.code) else {
            return clean;
        };
        self.rewritten.get_or_insert((change.from, 0)).1 += 1;
        Some(change.bytes)
    }

    /// One `response.failed` for an error that came without it.
    fn terminal_frame(&mut self, facts: &Facts, sequence: Option<f64>) -> Bytes {
        let own = facts.code.as_deref().unwrap_or("server_error");
        let code = match (&self.code, rewrite::is_fatal(own)) {
            (ClientErrorCode::Replace(code), Some(_)) => code.as_str(),
            _ => own,
        };
        let data = serde_json::json!({
            "type": "response.failed",
            "sequence_number": sequence.map_or(self.seen, |n| n as u64 + 1),
            "response": {
                "id": self.response_id.as_deref().unwrap_or("resp_unknown"),
                "object": "response",
                "status": "failed",
                "error": {
                    "code": code,
                    "message": facts.message.as_deref().unwrap_or("The stream ended with an error."),
                },
                "output": [],
            },
        });
        Bytes::from(format!("event: response.failed\ndata: {data}\n\n"))
    }
}

fn push_rest(out: &mut Vec<Bytes>, piece: &Bytes, from: usize, to: usize) {
    if from < to {
        out.push(piece.slice(from..to));
    }
}

/// Whether a frame has a usage object in it.
pub(super) fn has_usage(frame: &[u8]) -> bool {
    memmem::find(frame, b"\"usage\"").is_some_and(|at| {
        let after = frame.get(at + 7..).unwrap_or_default();
        let value = after
            .iter()
            .find(|b| !b.is_ascii_whitespace() && **b != b':');
        value == Some(&b'{')
    })
}

#[cfg(test)]
mod tests;
