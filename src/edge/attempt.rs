//! One attempt: one request to one credential, as a subrequest of the client's.
//!
//! ```text
//!   unsent ── connected ──▶ sent ── head ──▶ held ── commit ──▶ committed
//!     │                      │               │
//!     └──────── broken ──────┴──── broken, refused, expired ──▶ dropped
//! ```
//!
//! The attempt's pingora phases run inside a future that is polled here, in the client's own task:
//! dropping it ends the attempt at once, connection and all, which is what a refusal, a client that
//! left and a limit have in common. [`Attempt::hold`] decides; `delivery` takes over from there. An
//! attempt that has been committed is consumed, so failing over after output does not compile.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use pingora::http::ResponseHeader;
use pingora::protocols::http::HttpTask;
use pingora::proxy::Session;
use pingora::proxy::subrequest::{BodyMode, Ctx as SubrequestCtx};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;

use crate::admission::Endpoint;
use crate::admission::coding::Decoder;
use crate::admission::gate::{CommitReason, Gate, Refusal, Step, TERMINAL_WAIT};
use crate::admission::rules::Reading;
use crate::admission::share::Client;
use crate::pool::{MemoryBudget, Reservation};

use super::body::{BodyFault, Next, Source};
use super::head::{self, Head};
use super::headers::{self, Framing};
use super::task::{Report, Task};

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
    run: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    tasks: mpsc::Receiver<HttpTask>,
    /// Kept to the end: without it the subrequest takes its client for gone.
    body: mpsc::Sender<HttpTask>,
    /// The upstream takes no more of the body.
    refused_body: bool,
    /// Resolves when the upstream is there to take a body: not a byte of it is handed on before.
    wanted: Option<oneshot::Receiver<()>>,
    source: Source,
    timer: Pin<Box<Sleep>>,
    purpose: Purpose,
    times: Times,
    started: Instant,
    /// When the last piece of the body was handed on.
    progressed: Instant,
    sent: Option<Instant>,
    report: Arc<Report>,
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
    /// Starts an attempt; `None` where pingora gives no spawner, which it always does.
    pub fn start(
        session: &Session,
        task: Task,
        source: Source,
        purpose: Purpose,
        times: Times,
    ) -> Option<Attempt> {
        let spawner = session.subrequest_spawner.as_ref()?;
        let report = task.report.clone();
        let mode = match task.framing {
            Framing::Empty => BodyMode::NoBody,
            Framing::Length(_) | Framing::AsCame => BodyMode::ExpectBody,
        };
        let ctx = SubrequestCtx::builder()
            .body_mode(mode)
            .user_ctx(Box::new(Some(task)))
            .build();
        let (prepared, handle) = spawner.create_subrequest(session.as_downstream(), ctx);
        let started = Instant::now();
        Some(Attempt {
            run: Some(Box::pin(prepared.run())),
            tasks: handle.rx,
            body: handle.tx,
            refused_body: mode == BodyMode::NoBody,
            wanted: Some(handle.subreq_wants_body),
            source,
            timer: Box::pin(tokio::time::sleep(Duration::from_secs(3600))),
            times,
            started,
            progressed: started,
            sent: (mode == BodyMode::NoBody).then_some(started),
            report,
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
                // An answer before there is a connection is pingora's own, not the upstream's.
                Event::Head(_) if !self.report.was_connected() => return Held::Broken,
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

    /// What the phases told.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Everything held of a refused answer, with its head, to be passed on as it came.
    pub fn into_refused(self) -> Option<(Box<ResponseHeader>, Vec<Bytes>)> {
        self.held.map(|held| (held.head, held.gate.into_held()))
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

    /// The attempt is over. Where its answer has been read to the end, pingora is let finish, so that
    /// the connection can be used again.
    pub async fn retire(mut self) {
        let Some(mut run) = self.run.take().filter(|_| self.ended) else {
            return;
        };
        let done = poll_fn(|context| Poll::Ready(run.as_mut().poll(context).is_ready())).await;
        if !done {
            // Something is still going up: it ends by itself, or within this time.
            let rest = async move {
                let _ = tokio::time::timeout(Duration::from_secs(1), run).await;
                drop(self);
            };
            tokio::spawn(rest);
        }
    }

    /// Its times.
    pub(super) fn times(&self) -> Times {
        self.times
    }

    /// Replaces the time of the hold.
    pub fn set_hold(&mut self, hold: Option<Duration>) {
        self.times.hold = hold;
    }

    /// Waits for the next event, while the request body goes up and the client is watched.
    pub(super) async fn next(&mut self, session: &mut Session, deadline: Option<Instant>) -> Event {
        loop {
            if let Some(deadline) = deadline {
                let deadline = tokio::time::Instant::from_std(deadline);
                if self.timer.deadline() != deadline {
                    self.timer.as_mut().reset(deadline);
                }
            }
            let feeding = !self.refused_body && self.wanted.is_none() && !self.source.is_done();
            let from_client = feeding && self.source.wants_client();
            tokio::select! {
                biased;
                task = self.tasks.recv() => match task {
                    Some(HttpTask::Header(head, _)) if head.status.is_informational() => {}
                    Some(HttpTask::Header(head, _)) => return Event::Head(head),
                    Some(HttpTask::Body(piece, last) | HttpTask::UpgradedBody(piece, last)) => {
                        let piece = piece.unwrap_or_default();
                        if !piece.is_empty() || last {
                            return Event::Piece(piece, last);
                        }
                    }
                    Some(HttpTask::Trailer(trailers)) => return Event::End(trailers),
                    Some(HttpTask::Done) => return Event::End(None),
                    Some(HttpTask::Failed(_)) => return Event::Broken,
                    None => {
                        // The phases may still be about to say why.
                        if let Some(run) = self.run.take() {
                            run.await;
                        }
                        return Event::Broken;
                    }
                },
                () = run(&mut self.run), if self.run.is_some() => self.run = None,
                () = wanted(&mut self.wanted), if self.wanted.is_some() => self.wanted = None,
                permit = self.body.reserve(), if feeding && !from_client => match permit {
                    Ok(permit) => {
                        if let Next::Piece(piece, last) = self.source.next() {
                            permit.send(HttpTask::Body(Some(piece), last));
                            self.progressed = Instant::now();
                            if last {
                                self.sent = Some(self.progressed);
                                return Event::Sent;
                            }
                        }
                    }
                    Err(_) => self.refused_body = true,
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
                () = self.timer.as_mut(), if deadline.is_some() => return Event::Deadline,
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

async fn run(run: &mut Option<Pin<Box<dyn Future<Output = ()> + Send>>>) {
    match run {
        Some(run) => run.as_mut().await,
        None => std::future::pending().await,
    }
}

async fn wanted(wanted: &mut Option<oneshot::Receiver<()>>) {
    if let Some(wanted) = wanted {
        // An error means that nobody will ask: the attempt ends, or needs no body.
        let _ = wanted.await;
    }
}
