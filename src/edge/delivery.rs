//! From commit on: the answer goes to the client, and there is no way back.
//!
//! The head and everything held are written at once, and then each piece as it comes. The end is the
//! hard part, because clients take a clean end for success: a stream ends cleanly only after its
//! terminal frame, a failure that was told in full ends it at once, and everything else ends broken.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, Version, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::HttpTask;
use pingora::proxy::Session;

use crate::admission::Verdict;
use crate::admission::facts;
use crate::admission::gate::{Refusal, TERMINAL_WAIT};
use crate::admission::policy::ClientErrorCode;
use crate::admission::rewrite;
use crate::admission::stream::{Ending, Flow, Stream};
use crate::admission::usage::Usage;
use crate::observe::words::Outcome;

use super::attempt::{Attempt, Event, Holding, earliest};
use super::headers;
use super::socket::Cork;

/// What became of a committed answer.
#[derive(Debug)]
pub struct Delivery {
    /// How it ended.
    pub end: End,
    /// The client's status.
    pub status: u16,
    /// Bytes of body written.
    pub bytes_out: u64,
    /// From the start of the attempt to the first byte written.
    pub first_byte: Instant,
    /// Tokens that the answer reported.
    pub usage: Usage,
    /// The code that was rewritten, and how often.
    pub rewritten: Option<(&'static str, u64)>,
    /// The id under which the upstream may have stored the answer.
    pub response_id: Option<String>,
    /// A terminal frame was added.
    pub synthesised: bool,
    /// The failure that ended the stream.
    pub failure: Option<Refusal>,
}

/// How a committed answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Whole.
    Whole,
    /// With a failure told in full.
    Failed,
    /// Broken off: the client must not be shown a clean end.
    Truncated,
    /// The client left.
    ClientGone,
}

impl Delivery {
    /// How the request ended, by what its attempt came to at commit.
    pub fn outcome(&self, verdict: Verdict) -> Outcome {
        match (self.end, verdict) {
            (End::ClientGone, _) => Outcome::ClientGone,
            (End::Truncated | End::Failed, _) => Outcome::UpstreamError,
            (End::Whole, Verdict::Admitted) => Outcome::Ok,
            (End::Whole, Verdict::ClientError | Verdict::Policy | Verdict::State) => {
                Outcome::ClientError
            }
            (End::Whole, _) => Outcome::UpstreamError,
        }
    }

    /// What the attempt came to after its commit, where that is something else.
    pub fn corrected(&self) -> Option<Verdict> {
        let failure = self.failure.as_ref().map(|f| f.ruling.verdict);
        match (self.end, failure) {
            (End::Whole, _) => None,
            (End::ClientGone, _) => Some(Verdict::ClientGone),
            (_, Some(Verdict::Capacity)) => Some(Verdict::CapacityAfterCommit),
            (End::Failed | End::Truncated, _) => Some(Verdict::TruncatedAfterCommit),
        }
    }
}

/// What berth adds to the head.
#[derive(Clone, Debug, Default)]
pub struct Additions(Vec<(&'static str, HeaderValue)>);

impl Additions {
    /// A header; what cannot be one is left out.
    pub fn add(&mut self, name: &'static str, value: &str) {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.0.push((name, value));
        }
    }

    /// Writes them into a head.
    ///
    /// # Errors
    ///
    /// None that could be met: names and values are checked.
    pub fn write(&self, head: &mut ResponseHeader) -> pingora::Result<()> {
        for (name, value) in &self.0 {
            head.insert_header(*name, value.clone())?;
        }
        Ok(())
    }
}

/// What may be changed of an answer on its way.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Nothing of its body: a rule says that it passes as it came.
    Nothing,
    /// The codes of failures; and a stream's end is looked after.
    Failures(&'a ClientErrorCode),
}

/// Pieces that come at once are written at once, up to this many bytes. Chosen: pingora's own buffer.
const TOGETHER: usize = 64 * 1024;

/// Delivers a held answer to its end. `None` where there is no head to deliver.
pub async fn deliver(
    mut attempt: Box<Attempt>,
    session: &mut Session,
    change: Change<'_>,
    additions: &Additions,
) -> Option<Delivery> {
    let Holding {
        mut head,
        gate,
        mut decoder,
    } = attempt.release()?;
    let (endpoint, reading) = (
        attempt.purpose().endpoint,
        attempt.purpose().reading.clone(),
    );
    let withheld = attempt.purpose().reading.withheld.clone();
    let frames = gate.reads_frames();
    let mut stream = match change {
        Change::Failures(code) if frames => Stream::events(endpoint, reading, code.clone()),
        Change::Failures(_) | Change::Nothing => Stream::opaque(endpoint, reading),
    };
    let came = gate.held_bytes();
    let mut held = gate.into_held();
    let shorter = held.iter().map(Bytes::len).sum::<usize>() != came;
    if shorter {
        headers::body_changed(&mut head);
    }
    let whole = attempt.ended && !frames;
    let mut rewritten = None;
    let mut usage = Usage::default();
    let mut document_id = None;
    if whole && !held.is_empty() {
        let body = held.concat();
        usage = Usage::of_document(&body);
        document_id = facts::id_of_document(&body);
        let change = match change {
            Change::Failures(code) => rewrite::document(&body, code),
            Change::Nothing => None,
        };
        rewritten = change.as_ref().map(|c| (c.from, c.places as u64));
        if change.is_some() {
            headers::body_changed(&mut head);
        }
        held = vec![change.map_or_else(|| body.into(), |c| c.bytes)];
    }
    let recoded = decoder.is_some();
    headers::to_client(&mut head, recoded);
    let length = whole.then(|| held.iter().map(Bytes::len).sum());
    frame(&mut head, session, length, frames || recoded || shorter).ok()?;
    additions.write(&mut head).ok()?;
    if let (Some((from, _)), true) = (rewritten, whole) {
        head.insert_header("x-berth-rewrote", from).ok()?;
    }

    let status = head.status.as_u16();
    let mut out = Vec::with_capacity(held.len());
    let mut flow = Flow::Continue;
    for piece in held {
        if flow != Flow::EndNow {
            flow = stream.pass(piece, &mut out);
        }
    }
    let mut ending = None;
    if attempt.ended && flow != Flow::EndNow {
        ending = Some(stream.end(&mut out));
    }
    let mut writer = Writer {
        cork: Cork::of(session),
        document_id,
        bytes: 0,
        unwritten: 0,
        first: Instant::now(),
    };
    let mut tasks = vec![HttpTask::Header(head, false)];
    let idle = attempt.times().idle;
    let mut last = Instant::now();
    let mut terminal: Option<Instant> = None;
    let end = loop {
        writer.add(&mut tasks, &mut out);
        match (flow, ending) {
            (_, Some(Ending::Truncated)) => break End::Truncated,
            (Flow::EndNow, _) | (_, Some(Ending::Complete)) => break End::Whole,
            (Flow::AwaitTerminal, None) => {
                terminal.get_or_insert_with(|| Instant::now() + TERMINAL_WAIT);
            }
            (Flow::Continue, None) => {}
        }
        let came = match writer.unwritten < TOGETHER {
            true => attempt.ready().await,
            false => None,
        };
        let event = match came {
            Some(event) => event,
            None => {
                if writer.write(session, &mut tasks).await.is_err() {
                    break End::ClientGone;
                }
                let deadline = earliest([terminal, Some(last + idle)]);
                attempt.next(session, deadline).await
            }
        };
        match event {
            Event::Piece(piece, is_last) => {
                last = Instant::now();
                let piece = match &mut decoder {
                    None => piece,
                    Some(decoder) => match decoder.push(&piece) {
                        Ok(piece) => piece,
                        Err(_) => break End::Truncated,
                    },
                };
                flow = stream.pass(piece, &mut out);
                attempt.ended = is_last;
                if is_last && flow != Flow::EndNow {
                    ending = Some(stream.end(&mut out));
                }
            }
            Event::End(trailers) => {
                attempt.ended = true;
                attempt.trailers = trailers;
                ending = Some(stream.end(&mut out));
            }
            Event::Deadline if terminal.is_some_and(|at| at <= Instant::now()) => {
                stream.give_up_waiting(&mut out);
                flow = Flow::EndNow;
            }
            Event::Deadline if last.elapsed() < idle => {}
            Event::Broken if !stream.is_opaque() => {
                // Broken after the terminal frame, or after an error that only lacked it: the
                // client has everything.
                ending = Some(stream.end(&mut out));
            }
            Event::Broken | Event::Deadline | Event::Head(_) | Event::BodyFault(_) => {
                break End::Truncated;
            }
            // Whoever has read the terminal frame need not wait for the end of the body.
            Event::ClientGone if has_all(&stream) => break End::Whole,
            Event::ClientGone => break End::ClientGone,
            Event::Sent => {}
        }
    };
    let end = match end {
        End::Whole => {
            let last = match attempt.trailers.take() {
                Some(mut trailers) => {
                    for name in headers::telling(&trailers, &withheld) {
                        trailers.remove(&name);
                    }
                    HttpTask::Trailer(Some(trailers))
                }
                None => HttpTask::Done,
            };
            tasks.push(last);
            match writer.write(session, &mut tasks).await {
                Err(_) if !has_all(&stream) => End::ClientGone,
                Ok(_) | Err(_) if stream.failure().is_some() => End::Failed,
                Ok(_) | Err(_) => End::Whole,
            }
        }
        other => match writer.write(session, &mut tasks).await {
            Ok(()) => other,
            Err(_) => End::ClientGone,
        },
    };
    attempt.retire().await;
    Some(writer.delivery(end, status, stream, usage, rewritten))
}

/// Whether the client was given everything that it needs.
fn has_all(stream: &Stream) -> bool {
    !stream.is_opaque() && stream.is_finished()
}

struct Writer {
    cork: Option<Cork>,
    document_id: Option<String>,
    bytes: u64,
    /// Of them, what waits to be written with what came along.
    unwritten: usize,
    first: Instant,
}

impl Writer {
    fn add(&mut self, tasks: &mut Vec<HttpTask>, out: &mut Vec<Bytes>) {
        for piece in out.drain(..) {
            if !piece.is_empty() {
                self.bytes += piece.len() as u64;
                self.unwritten += piece.len();
                tasks.push(HttpTask::Body(Some(piece), false));
            }
        }
    }

    /// Writes what there is, so that it goes out at once: a head with what follows it, an end with what is
    /// before it.
    async fn write(
        &mut self,
        session: &mut Session,
        tasks: &mut Vec<HttpTask>,
    ) -> pingora::Result<()> {
        self.unwritten = 0;
        let with_the_rest = match tasks.as_slice() {
            [.., _, HttpTask::Done | HttpTask::Trailer(_)] => tasks.len() - 1,
            [HttpTask::Header(..), _, ..] => 1,
            _ => 0,
        };
        if with_the_rest > 0
            && let Some(cork) = &self.cork
        {
            let rest = tasks.split_off(with_the_rest);
            let first = std::mem::replace(tasks, rest);
            let _corked = cork.put_in();
            let written = session.write_response_tasks(first).await;
            written.inspect_err(|_| tasks.clear())?;
        }
        if !tasks.is_empty() {
            session.write_response_tasks(std::mem::take(tasks)).await?;
        }
        Ok(())
    }

    fn delivery(
        self,
        end: End,
        status: u16,
        stream: Stream,
        usage: Usage,
        rewritten: Option<(&'static str, u64)>,
    ) -> Delivery {
        let usage = if usage.is_known() {
            usage
        } else {
            stream.usage()
        };
        Delivery {
            end,
            status,
            bytes_out: self.bytes,
            first_byte: self.first,
            usage,
            rewritten: rewritten.or(stream.rewritten()),
            response_id: self
                .document_id
                .or_else(|| stream.response_id().map(str::to_owned)),
            synthesised: stream.synthesised(),
            failure: stream.failure().cloned(),
        }
    }
}

/// Frames an answer's body for this client. A stream's length may change and is never declared; a
/// body without one is chunked, or ends with the connection where the client knows no chunks.
pub fn frame(
    head: &mut ResponseHeader,
    session: &mut Session,
    length: Option<usize>,
    changes: bool,
) -> pingora::Result<()> {
    head.set_version(Version::HTTP_11);
    let bodiless = matches!(head.status.as_u16(), 204 | 304)
        || session.req_header().method == http::Method::HEAD;
    if bodiless {
        if head.status == StatusCode::NO_CONTENT {
            // It has no length either, and HTTP/2 takes one for a broken connection.
            head.remove_header(&header::CONTENT_LENGTH);
            head.remove_header(&header::TRANSFER_ENCODING);
        }
        return Ok(());
    }
    if changes {
        head.remove_header(&header::CONTENT_LENGTH);
    }
    if let Some(length) = length {
        head.remove_header(&header::TRANSFER_ENCODING);
        head.insert_header(header::CONTENT_LENGTH, length)?;
        return Ok(());
    }
    if head.headers.contains_key(header::CONTENT_LENGTH) {
        head.remove_header(&header::TRANSFER_ENCODING);
        return Ok(());
    }
    head.remove_header(&header::TRANSFER_ENCODING);
    if session.as_downstream().is_http2() {
        return Ok(());
    }
    match session.req_header().version {
        Version::HTTP_10 | Version::HTTP_09 => session.set_keepalive(None),
        _ => head.insert_header(header::TRANSFER_ENCODING, "chunked")?,
    }
    Ok(())
}

/// How long an attempt waits for what it is asked to wait for, never longer than a day.
pub fn bounded(time: Duration) -> Duration {
    time.min(Duration::from_secs(24 * 3600))
}
