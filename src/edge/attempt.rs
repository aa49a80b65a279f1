//! One attempt: one request to one credential.
//!
//! ```text
//!   unsent ── connected ──▶ sent ── head ──▶ held ── commit ──▶ committed
//!     │                      │               │
//!     └──────── broken ──────┴──── broken, refused, expired ──▶ dropped
//! ```
//!
//! The exchange with the upstream is polled here, in the client's own task: dropping it ends the attempt
//! at once, connection and all, which is what a refusal, a client that left and a limit have in common.
//! [`Attempt::hold`] decides; `delivery` takes over from there. An attempt that has been committed is
//! consumed, so failing over after output does not compile.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use tokio::time::Sleep;

use crate::admission::Endpoint;
use crate::admission::coding::Decoder;
use crate::admission::gate::{CommitReason, Gate, Refusal, Step, TERMINAL_WAIT};
use crate::admission::rules::Reading;
use crate::admission::share::Client;
use crate::pool::{MemoryBudget, Reservation};

use super::body::{BodyFault, Next, Source};
use super::exchange::{Exchange, Outgoing, Sign, Upload};
use super::head::{self, Head};
use super::headers;
use super::report::Report;

/// How long a piece of a request's body may wait for the upstream, or for the client that streams it.
/// Chosen: who moves not a byte for a minute is gone.
const STALLED: Duration = Duration::from_secs(60);

/// What an attempt is for.
#[derive(Clone, Debug)]
pub struct Purpose {
    /// The request's endpoint.
    pub endpoint: Endpoint,
    /// By what its answer is read.
    pub reading: Reading,
    /// The request asks for a stream.
    pub streamed: bool,
    /// The request was a HEAD.
    pub head_only: bool,
    /// `hold.max_bytes`.
    pub max_bytes: usize,
    /// Held bytes of all requests.
    pub memory: MemoryBudget,
    /// Whose they are.
    pub client: Client,
}

/// The times of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Request sent to head.
    pub head: Duration,
    /// Request sent to commit; `None` where silence is waited out.
    pub hold: Option<Duration>,
    /// The end of the whole request.
    pub request: Option<Instant>,
    /// Between two bytes after commit.
    pub idle: Duration,
}

/// How the hold ended.
#[derive(Debug)]
pub enum Held {
    /// The answer is one.
    Ready(CommitReason),
    /// It is not.
    Refused(Box<Refusal>),
    /// The network failed.
    Broken,
    /// Time is over; the attempt may still be committed if a head is there.
    Expired,
    /// The client left.
    ClientGone,
    /// The client's body is more than it may be.
    BodyFault(BodyFault),
}

/// What an attempt is doing.
pub(super) enum Event {
    /// The last byte of the request has been handed on: times begin to count.
    Sent,
    /// The answer's head.
    Head(Box<ResponseHeader>),
    /// A piece of its body; `true` says that it is the last.
    Piece(Bytes, bool),
    /// The end of the answer, with trailers.
    End(Option<Box<HeaderMap>>),
    /// The network failed.
    Broken,
    /// The client left.
    ClientGone,
    /// The client's body is more than it may be.
    BodyFault(BodyFault),
    /// The deadline passed.
    Deadline,
}

/// A request on its way to one credential.
pub struct Attempt {
    exchange: Exchange,
    upload: Upload,
    /// The upstream is there to take a body: not a byte of it is handed on before.
    wants_body: bool,
    source: Source,
    timer: Pin<Box<Sleep>>,
    purpose: Purpose,
    times: Times,
    started: Instant,
    /// When the last piece of the body was handed on.
    progressed: Instant,
    sent: Option<Instant>,
    report: Report,
    held: Option<Holding>,
    /// The held bytes' share of the memory.
    share: Option<Reservation>,
    /// The upstream ended the answer, cleanly.
    pub(super) ended: bool,
    pub(super) trailers: Option<Box<HeaderMap>>,
}

/// An answer whose head has come.
pub(super) struct Holding {
    pub head: Box<ResponseHeader>,
    pub gate: Gate,
    pub decoder: Option<Decoder>,
}

impl Attempt {
    /// Starts an attempt, in a place of its own: it is handed on several times, and the futures that do so
    /// would each keep room for it.
    pub fn start(
        request: pingora::Result<Outgoing>,
        source: Source,
        purpose: Purpose,
        times: Times,
    ) -> Box<Attempt> {
        let has_body = request.as_ref().is_ok_and(|it| it.has_body);
        let (exchange, upload) = Exchange::start(request);
        let started = Instant::now();
        Box::new(Attempt {
            exchange,
            upload,
            wants_body: false,
            source,
            timer: Box::pin(tokio::time::sleep(Duration::from_secs(3600))),
            times,
            started,
            progressed: started,
            sent: (!has_body).then_some(started),
            report: Report::default(),
            held: None,
            share: Some(purpose.memory.reservation(purpose.client)),
            purpose,
            ended: false,
            trailers: None,
        })
    }

    /// Holds the answer until it proves to be one. May be called again after [`Held::Expired`], with
    /// another `times.hold`.
    pub async fn hold(&mut self, session: &mut Session) -> Held {
        let mut terminal = None;
        loop {
            let deadline = earliest([terminal, self.deadline()]);
            let step = match self.next(session, deadline).await {
                Event::Sent => Step::Hold,
                Event::Head(head) => self.open(head),
                Event::Piece(piece, last) => {
                    let step = self.take(&piece);
                    match step {
                        Step::Hold | Step::AwaitTerminal if last => self.end(),
                        step => {
                            self.ended |= last;
                            step
                        }
                    }
                }
                Event::End(trailers) => {
                    self.trailers = trailers;
                    self.end()
                }
                Event::Broken => return self.broken(),
                Event::ClientGone => return Held::ClientGone,
                Event::BodyFault(fault) => return Held::BodyFault(fault),
                Event::Deadline if terminal.is_some() => match &mut self.held {
                    Some(held) => held.gate.give_up_waiting(),
                    None => Step::Hold,
                },
                // The body may have gone on meanwhile.
                Event::Deadline if self.deadline().is_some_and(|at| at > Instant::now()) => {
                    Step::Hold
                }
                Event::Deadline => return Held::Expired,
            };
            match step {
                Step::Hold => {}
                Step::AwaitTerminal => {
                    terminal.get_or_insert_with(|| Instant::now() + TERMINAL_WAIT);
                }
                Step::Commit(reason) => return Held::Ready(reason),
                Step::Refuse(refusal) => return Held::Refused(refusal),
            }
        }
    }

    /// When the request had been handed on.
    pub fn sent(&self) -> Instant {
        self.sent.unwrap_or(self.started)
    }

    /// The answer's head, once it is there.
    pub fn head(&self) -> Option<&ResponseHeader> {
        self.held.as_ref().map(|held| &*held.head)
    }

    /// Frames and bytes held.
    pub fn holding(&self) -> (usize, usize) {
        let gate = self.held.as_ref().map(|held| &held.gate);
        gate.map_or((0, 0), |gate| (gate.held_frames(), gate.held_bytes()))
    }

    /// What became of its connection.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Everything held of a refused answer, with its head, to be passed on as it came.
    pub fn take_refused(&mut self) -> Option<(Box<ResponseHeader>, Vec<Bytes>)> {
        let held = self.held.take();
        held.map(|held| (held.head, held.gate.into_held()))
    }

    /// What it is for.
    pub(super) fn purpose(&self) -> &Purpose {
        &self.purpose
    }

    /// Takes what is held, to be let go: its share of the memory is free for others.
    pub(super) fn release(&mut self) -> Option<Holding> {
        self.share = None;
        self.held.take()
    }

    /// The attempt is over. Where its answer has been read to the end, the connection can be used again.
    pub async fn retire(self: Box<Self>) {
        self.exchange.retire().await;
    }

    /// Its times.
    pub(super) fn times(&self) -> Times {
        self.times
    }

    /// Replaces the time of the hold.
    pub fn set_hold(&mut self, hold: Option<Duration>) {
        self.times.hold = hold;
    }

    /// What has come already, if anything: it can go into the same write as what came before it.
    pub(super) async fn ready(&mut self) -> Option<Event> {
        if self.feeds() {
            return None;
        }
        let sign = self.exchange.ready().await?;
        self.event(sign)
    }

    /// Waits for the next event, while the request body goes up and the client is watched.
    pub(super) async fn next(&mut self, session: &mut Session, deadline: Option<Instant>) -> Event {
        loop {
            // Most deadlines move on with each piece: the timer is not set anew for that, but once it is
            // over.
            let deadline = deadline.map(tokio::time::Instant::from_std);
            let late = |at| self.timer.deadline() > at || self.timer.is_elapsed();
            if let Some(at) = deadline.filter(|at| late(*at)) {
                self.timer.as_mut().reset(at);
            }
            let feeds = self.feeds();
            let from_client = feeds && self.source.wants_client();
            tokio::select! {
                biased;
                sign = self.exchange.next() => {
                    if let Some(event) = self.event(sign) {
                        return event;
                    }
                    // Signs that mean nothing may come without an end.
                    if deadline.is_some_and(|at| at <= tokio::time::Instant::now()) {
                        return Event::Deadline;
                    }
                }
                free = self.upload.is_free(), if feeds && !from_client => match free {
                    Ok(()) => {
                        if let Next::Piece(piece, last) = self.source.next() {
                            self.upload.hand_on(piece, last);
                            self.progressed = Instant::now();
                            if last {
                                self.sent = Some(self.progressed);
                                return Event::Sent;
                            }
                            // A large body goes up beside others.
                            tokio::task::yield_now().await;
                        }
                    }
                    Err(()) => self.wants_body = false,
                },
                // While a body is still to come, its bytes are not taken for a next request.
                piece = within(
                    self.source.until().filter(|_| from_client),
                    session.downstream_session.read_body_or_idle(!from_client),
                ), if from_client || self.source.has_come() => {
                    let Some(piece) = piece else {
                        return Event::BodyFault(BodyFault::TooSlow);
                    };
                    match piece {
                        Ok(piece) if from_client => {
                            // Asked once more at its end, pingora would wait for the client to leave.
                            let done = piece.is_some() && session.is_body_done();
                            let fed = self.source.feed(piece);
                            let fed = fed.and_then(|()| if done { self.source.feed(None) } else { Ok(()) });
                            if let Err(fault) = fed {
                                return Event::BodyFault(fault);
                            }
                        }
                        Ok(_) | Err(_) => return Event::ClientGone,
                    }
                },
                () = self.timer.as_mut(), if deadline.is_some() => {
                    if deadline.is_some_and(|at| at <= self.timer.deadline()) {
                        return Event::Deadline;
                    }
                }
            }
        }
    }

    /// Whether a piece of the body is to be handed on.
    fn feeds(&self) -> bool {
        self.wants_body && !self.source.is_done()
    }

    /// What a sign of the upstream means for the attempt; `None` where only what is done next.
    fn event(&mut self, sign: pingora::Result<Sign>) -> Option<Event> {
        match sign {
            Ok(Sign::Connected { reused }) => {
                self.report.connected(reused);
                self.wants_body = true;
                None
            }
            Ok(Sign::Informational) => None,
            Ok(Sign::Head(head)) => Some(Event::Head(head)),
            Ok(Sign::Piece(piece, last)) => Some(Event::Piece(piece, last)),
            Ok(Sign::End(trailers)) => Some(Event::End(trailers)),
            Err(error) => {
                log::debug!(error:? = error.etype(); "an exchange fails");
                self.report.failed(&error);
                Some(Event::Broken)
            }
        }
    }

    /// The end of the wait for what is to come next.
    fn deadline(&self) -> Option<Instant> {
        let Some(sent) = self.sent else {
            // While the body goes up, every piece has its time.
            return earliest([Some(self.progressed + STALLED), self.times.request]);
        };
        let head = self.held.is_none().then(|| sent + self.times.head);
        let hold = self.times.hold.map(|hold| sent + hold);
        earliest([head, earliest([hold, self.times.request])])
    }

    fn open(&mut self, mut head: Box<ResponseHeader>) -> Step {
        headers::withhold(&mut head, &self.purpose.reading.withheld);
        let Head { answer, decoder } = head::read(&head, self.purpose.head_only);
        let Purpose {
            endpoint,
            ref reading,
            streamed,
            max_bytes,
            ..
        } = self.purpose;
        let (gate, step) = Gate::new(endpoint, reading.clone(), answer, streamed, max_bytes);
        self.held = Some(Holding {
            head,
            gate,
            decoder,
        });
        step
    }

    fn take(&mut self, piece: &Bytes) -> Step {
        let Some(held) = &mut self.held else {
            return Step::Hold;
        };
        let decoded = match &mut held.decoder {
            None => Ok(piece.clone()),
            Some(decoder) => decoder.push(piece),
        };
        let room = match &mut self.share {
            Some(share) => share.grow(piece.len(), Instant::now()).is_ok(),
            None => false,
        };
        match decoded {
            Ok(piece) => match held.gate.push(piece) {
                Step::Hold | Step::AwaitTerminal if !room => held.gate.limit_reached(),
                step => step,
            },
            // A body that is not what it says is no answer: judged as far as it could be read.
            Err(_) => held.gate.end(),
        }
    }

    fn end(&mut self) -> Step {
        self.ended = true;
        match &mut self.held {
            Some(held) => held.gate.end(),
            None => Step::Hold,
        }
    }

    /// The network failed while the answer was held. An error that only lacked its end is one.
    fn broken(&mut self) -> Held {
        if let Some(held) = &mut self.held
            && let Step::Refuse(refusal) = held.gate.give_up_waiting()
        {
            return Held::Refused(refusal);
        }
        Held::Broken
    }
}

/// The earliest of some deadlines.
pub(super) fn earliest<const N: usize>(deadlines: [Option<Instant>; N]) -> Option<Instant> {
    deadlines.into_iter().flatten().min()
}

/// What comes of it until then, if there is such a time.
async fn within<F: Future>(until: Option<Instant>, work: F) -> Option<F::Output> {
    match until {
        Some(until) => tokio::time::timeout_at(until.into(), work).await.ok(),
        None => Some(work.await),
    }
}
