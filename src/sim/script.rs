//! From a step and a request to the bytes of the answer: what is written, in which writes, with
//! which silences between, and how the connection ends.
//!
//! Pure: no socket and no clock, so a whole answer can be compared with a golden text, and the
//! player in `server` stays too small to be wrong. The price is that an answer exists in memory
//! before it is sent; `Program::check` bounds it.

mod broken;

use super::faults::{self, ErrorAnswer};
use super::pieces::{first_pieces, pieces_of};
use super::step::{Admit, Cut, KeepalivesForever, Refuse, RefuseAfterOutput, Shape, Step};
use super::streams::{Asked, Failure, Voice, voice};
use bytes::Bytes;
use std::{fmt::Write as _, time::Duration};

/// An answer, ready to be played.
#[derive(Debug)]
pub(super) struct Script {
    /// The status it states, where it states one.
    pub status: Option<u16>,
    pub acts: Vec<Act>,
    pub end: End,
}

/// One thing that the player does.
#[derive(Debug)]
pub(super) enum Act {
    /// One write, without delay by the kernel.
    Write(Bytes),
    Pause(Duration),
    /// The same write again and again, until the peer leaves.
    Repeat(Bytes, Duration),
    /// Nothing, until the peer leaves.
    Silence,
}

/// How the connection goes on after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    KeepAlive,
    /// FIN.
    Close,
    /// FIN, then what still comes is read and dropped for a while, so that no RST overtakes the answer.
    Linger,
    /// RST.
    Reset,
}

/// The answer of a step. `flap` and `chance` are resolved before; asked directly they refuse.
pub(super) fn script(step: &Step, asked: &Asked) -> Script {
    match step {
        Step::Admit(how) => admit(asked, how),
        Step::Refuse(how) => refuse(asked, how),
        Step::RefuseAfterOutput(how) => refuse_after_output(asked, how),
        Step::RateLimit(how) => error(asked, faults::rate_limit(asked, how)),
        Step::Quota(how) => error(asked, faults::quota(asked, how)),
        Step::Auth => error(asked, faults::auth(asked)),
        Step::Deactivated => error(asked, faults::deactivated(asked)),
        Step::Unsupported => error(asked, faults::unsupported(asked)),
        Step::Forbidden => error(asked, faults::forbidden(asked)),
        Step::Challenge => {
            let mitigated = [("cf-mitigated".to_owned(), "challenge".to_owned())];
            document(
                asked,
                (403, HTML),
                faults::CHALLENGE,
                &mitigated,
                Duration::ZERO,
            )
        }
        Step::Html200 => document(asked, (200, HTML), faults::PORTAL, &[], Duration::ZERO),
        Step::Policy => error(asked, faults::policy(asked)),
        Step::ClientError => error(asked, faults::client_error(asked)),
        Step::State(how) => error(asked, faults::state(asked, how)),
        Step::Hang => raw(vec![Act::Silence], End::Close),
        Step::HangAfterHead => hang_after_head(asked),
        Step::KeepalivesForever(how) => keepalives(asked, how),
        Step::Cut(how) => broken::cut(asked, how, End::Close),
        Step::Reset => raw(Vec::new(), End::Reset),
        Step::ResetAfter(how) => {
            let cut_there = Cut {
                after: how.deltas,
                mid_frame: false,
            };
            broken::cut(asked, &cut_there, End::Reset)
        }
        Step::Garbage => raw(vec![write(GARBAGE)], End::Close),
        Step::HalfHead => raw(vec![write("HTTP/1.1 200 OK\r\ncontent-ty")], End::Close),
        Step::EndlessHead => {
            let line = format!("x-filler: {}\r\n", "f".repeat(1012));
            let acts = vec![
                write("HTTP/1.1 200 OK\r\n"),
                Act::Repeat(line.into(), Duration::ZERO),
            ];
            raw(acts, End::Close)
        }
        Step::EndlessLifecycle => endless_lifecycle(asked),
        Step::Stall(how) => {
            let cut_there = Cut {
                after: how.after,
                mid_frame: false,
            };
            let mut answer = broken::cut(asked, &cut_there, End::Close);
            answer.acts.push(Act::Silence);
            answer
        }
        Step::Malformed(how) => broken::malformed(asked, how.after),
        Step::LyingLength(how) => broken::lying_length(asked, *how),
        Step::DoubleChunkEnd => broken::double_chunk_end(asked),
        Step::NoTerminal => broken::no_terminal(asked),
        Step::NoDone => broken::no_done(asked),
        Step::Early503(how) => {
            let overload = Refuse {
                shape: Shape::Http503,
                ..Refuse::default()
            };
            let mut answer = refuse(asked, &overload);
            answer.end = if how.reset { End::Reset } else { End::Linger };
            answer
        }
        Step::Flap(flap) => script(&flap.refuse, asked),
        Step::Chance(chance) => script(&chance.refuse, asked),
        Step::Seats(seats) => script(&seats.refuse, asked),
    }
}

/// A JSON error.
pub(super) fn error(asked: &Asked, answer: ErrorAnswer) -> Script {
    json(
        asked,
        answer.status,
        &answer.body.to_string(),
        &answer.headers,
        Duration::ZERO,
    )
}

/// A response head of an endpoint, `framing` being the header line that frames the body.
pub(super) fn head(
    asked: &Asked,
    status: u16,
    content_type: Option<&str>,
    framing: &str,
    more: &[(String, String)],
) -> String {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(asked.now);
    let mut head = format!(
        "HTTP/1.1 {status} {}\r\ndate: {}\r\nserver: berth-sim\r\n",
        reason(status),
        httpdate::fmt_http_date(time),
    );
    // Writing to a String cannot fail.
    if let Some(content_type) = content_type {
        let _ = write!(head, "content-type: {content_type}\r\n");
    }
    let id_header = if asked.endpoint.is_anthropic() {
        "request-id"
    } else {
        "x-request-id"
    };
    let _ = write!(head, "{framing}\r\n{id_header}: req_{}\r\n", asked.id);
    for (name, value) in more {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head.push_str("\r\n");
    head
}

fn admit(asked: &Asked, how: &Admit) -> Script {
    let mut voice = voice(asked, how.call.as_ref());
    let pieces = pieces_of(asked, how);
    let headers: Vec<_> = how.headers.clone().into_iter().collect();
    if !asked.stream {
        let delay = how.head_after + how.first_output_after;
        return json(
            asked,
            200,
            &voice.document(&pieces.concat()).to_string(),
            &headers,
            delay,
        );
    }
    let mut stream = Stream::new(asked, true, &headers, how.head_after);
    stream.frames(voice.lifecycle(2, how.rate_limits));
    stream.pause(how.first_output_after);
    stream.output(&mut *voice, &pieces, how.delta_gap);
    let whole = pieces.concat();
    stream.frames(voice.close(&whole));
    stream.frames(voice.terminal(&whole));
    stream.end()
}

fn refuse(asked: &Asked, how: &Refuse) -> Script {
    let fault = faults::overload(asked, how);
    let mut headers = faults::retry_after(how.retry_after);
    headers.extend(how.headers.clone());
    let failure = match how.shape {
        Shape::Sse => Failure::Whole,
        Shape::SseBareError => Failure::BareError,
        Shape::SseFirst => Failure::TerminalOnly,
        Shape::Http400 | Shape::Http429 | Shape::Http500 | Shape::Http503 | Shape::Http529 => {
            let (status, body) = (faults::status_of(how.shape), asked.error_document(&fault));
            return json(asked, status, &body.to_string(), &headers, how.after);
        }
        Shape::Json200 => {
            let body = voice(asked, None).failed_document(&fault, "");
            return json(asked, 200, &body.to_string(), &headers, how.after);
        }
    };
    let mut voice = voice(asked, None);
    if !asked.stream {
        let body = voice.failed_document(&fault, "");
        return json(asked, 200, &body.to_string(), &headers, how.after);
    }
    let mut stream = Stream::new(asked, how.content_type, &headers, Duration::ZERO);
    if how.shape != Shape::SseFirst {
        stream.frames(voice.lifecycle(how.lifecycle, false));
    }
    stream.pause(how.after);
    stream.frames(voice.failure(&fault, failure, ""));
    stream.end()
}

fn refuse_after_output(asked: &Asked, how: &RefuseAfterOutput) -> Script {
    let fault = faults::late_overload(asked, &how.code, &how.message);
    let mut voice = voice(asked, None);
    let pieces = first_pieces(asked, how.deltas);
    let so_far = pieces.concat();
    if !asked.stream {
        let body = voice.failed_document(&fault, &so_far);
        return json(asked, 200, &body.to_string(), &[], Duration::ZERO);
    }
    let mut stream = Stream::new(asked, true, &[], Duration::ZERO);
    stream.frames(voice.lifecycle(2, false));
    stream.output(&mut *voice, &pieces, Duration::ZERO);
    stream.frames(voice.failure(&fault, Failure::Whole, &so_far));
    stream.end()
}

fn hang_after_head(asked: &Asked) -> Script {
    let head = if asked.stream {
        head(asked, 200, Some(EVENT_STREAM), CHUNKED, &[])
    } else {
        head(asked, 200, Some(JSON), "content-length: 512", &[])
    };
    Script {
        status: Some(200),
        acts: vec![write(head), Act::Silence],
        end: End::Close,
    }
}

fn keepalives(asked: &Asked, how: &KeepalivesForever) -> Script {
    let mut voice = voice(asked, None);
    let mut stream = Stream::working(asked, &mut *voice);
    let frame = match (asked.stream, how.comments) {
        (true, true) => Bytes::from_static(b": keepalive\n\n"),
        (true, false) => voice.keepalive(),
        (false, _) => BLANK_LINE,
    };
    stream.acts.push(Act::Repeat(chunk(&frame), how.gap));
    stream.end()
}

fn endless_lifecycle(asked: &Asked) -> Script {
    let mut voice = voice(asked, None);
    let mut stream = Stream::working(asked, &mut *voice);
    let frame = if asked.stream {
        // The second lifecycle frame of a fresh voice: `in_progress`, or what keeps the dialect busy.
        let frames = super::streams::voice(asked, None).lifecycle(2, false);
        frames.last().cloned().unwrap_or(BLANK_LINE)
    } else {
        BLANK_LINE
    };
    stream.acts.push(Act::Repeat(chunk(&frame), Duration::ZERO));
    stream.end()
}

/// A stream in the making.
struct Stream {
    acts: Vec<Act>,
}

impl Stream {
    fn new(asked: &Asked, typed: bool, more: &[(String, String)], head_after: Duration) -> Stream {
        let mut stream = Stream { acts: Vec::new() };
        stream.pause(head_after);
        let kind = typed.then_some(EVENT_STREAM);
        stream
            .acts
            .push(write(head(asked, 200, kind, CHUNKED, more)));
        stream
    }

    /// A stream after its lifecycle frames, or a document of which only the head is out.
    fn working(asked: &Asked, voice: &mut dyn Voice) -> Stream {
        if asked.stream {
            let mut stream = Stream::new(asked, true, &[], Duration::ZERO);
            stream.frames(voice.lifecycle(2, false));
            return stream;
        }
        Stream {
            acts: vec![write(head(asked, 200, Some(JSON), CHUNKED, &[]))],
        }
    }

    fn frames(&mut self, frames: Vec<Bytes>) {
        let writes = frames.iter().map(|frame| Act::Write(chunk(frame)));
        self.acts.extend(writes);
    }

    fn output(&mut self, voice: &mut dyn Voice, pieces: &[String], gap: Duration) {
        self.frames(voice.open());
        for (index, piece) in pieces.iter().enumerate() {
            if index > 0 {
                self.pause(gap);
            }
            self.frames(vec![voice.delta(piece)]);
        }
    }

    fn pause(&mut self, span: Duration) {
        if !span.is_zero() {
            self.acts.push(Act::Pause(span));
        }
    }

    /// Ends the body as HTTP wants it.
    fn end(mut self) -> Script {
        self.acts.push(write(LAST_CHUNK));
        Script {
            status: Some(200),
            acts: self.acts,
            end: End::KeepAlive,
        }
    }
}

fn json(
    asked: &Asked,
    status: u16,
    body: &str,
    more: &[(String, String)],
    after: Duration,
) -> Script {
    document(asked, (status, JSON), body, more, after)
}

fn document(
    asked: &Asked,
    (status, kind): (u16, &str),
    body: &str,
    more: &[(String, String)],
    after: Duration,
) -> Script {
    let framing = format!("content-length: {}", body.len());
    let mut whole = head(asked, status, Some(kind), &framing, more);
    whole.push_str(body);
    let mut acts = Vec::new();
    if !after.is_zero() {
        acts.push(Act::Pause(after));
    }
    acts.push(write(whole));
    Script {
        status: Some(status),
        acts,
        end: End::KeepAlive,
    }
}

/// An answer that states no status, or none that can be relied on.
fn raw(acts: Vec<Act>, end: End) -> Script {
    Script {
        status: None,
        acts,
        end,
    }
}

fn write(bytes: impl Into<Bytes>) -> Act {
    Act::Write(bytes.into())
}

/// One HTTP chunk.
fn chunk(frame: &[u8]) -> Bytes {
    let mut chunk = format!("{:x}\r\n", frame.len()).into_bytes();
    chunk.extend_from_slice(frame);
    chunk.extend_from_slice(b"\r\n");
    chunk.into()
}

/// The words of a status; clients ignore them, people do not.
pub(super) fn reason(status: u16) -> &'static str {
    match status {
        529 => "Overloaded",
        status => http::StatusCode::from_u16(status)
            .ok()
            .and_then(|status| status.canonical_reason())
            .unwrap_or("Unknown"),
    }
}

const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=UTF-8";
const CHUNKED: &str = "transfer-encoding: chunked";
const LAST_CHUNK: &str = "0\r\n\r\n";
/// What some upstreams send to keep a slow document's connection busy: JSON allows it before the value.
const BLANK_LINE: Bytes = Bytes::from_static(b"\n");
/// The beginning of a TLS alert, then text: neither HTTP/1 nor the preface of HTTP/2.
const GARBAGE: &str = "\x15\x03\x01\x00\x02\x02\x28 this is not HTTP\r\n\r\n";

#[cfg(test)]
#[path = "tests/golden.rs"]
mod tests;
