//! One request and its answer on one connection to an upstream.
//!
//! pingora brings connections, their pool and the protocols; what is here is the order of things. The
//! request goes up in a future of its own, so that no write is given up half-way, and what the upstream
//! says meanwhile comes out beside it. Once all of it is up the answer is read where it is wanted, with
//! no task and no channel in between.
//!
//! Dropping an exchange ends it at once. Over HTTP/1 the connection ends with it, unless the answer was read
//! to its end and the exchange retires ([`Exchange::retire`]); over HTTP/2 it stays, for it is others' as well.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use http::{HeaderMap, Method, StatusCode, header};
use pingora::connectors::http::Connector;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::HttpTask;
use pingora::protocols::http::client::HttpSession;
use pingora::protocols::http::v1::client::HttpSession as Http1;
use pingora::protocols::http::v2::client::Http2Session as Http2;
use pingora::protocols::http::v2::write_body;
use pingora::upstreams::peer::{ALPN, HttpPeer, Peer};
use pingora::{Error, ErrorType, Result};
use tokio::sync::mpsc;

use super::headers::for_http2;
use super::turns::{Turns, once};

/// How long an upstream may take to let a connection be closed in good form.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

/// What an upstream may have said before it is heard, while its request is still going up.
const UNHEARD: usize = 4;

/// A request that is ready to go.
pub struct Outgoing {
    /// What connects, and keeps connections for the next one.
    pub pool: Arc<Connector>,
    /// To whom.
    pub peer: HttpPeer,
    /// The head, as HTTP/1.1 would have it.
    pub head: Box<RequestHeader>,
    /// Whether a body follows.
    pub has_body: bool,
    /// In which its pieces are sent, where it is large.
    pub turns: Option<Arc<Turns>>,
}

/// What comes from an upstream.
#[derive(Debug)]
pub enum Sign {
    /// It is there, and wants the body. `reused` says that others were served on this connection before.
    Connected {
        /// Not a new connection.
        reused: bool,
    },
    /// A head that is not the answer's yet.
    Informational,
    /// The answer's head.
    Head(Box<ResponseHeader>),
    /// A piece of its body; `true` says that it is the last.
    Piece(Bytes, bool),
    /// The end of the answer, with trailers.
    End(Option<Box<HeaderMap>>),
}

/// A request on its way, and its answer on the way back.
pub struct Exchange {
    stage: Stage,
    /// What came while the request was going up.
    signs: mpsc::Receiver<Sign>,
}

/// Takes the body of a request, piece by piece. None is handed on before the one before it was taken.
pub struct Upload(Option<mpsc::Sender<(Bytes, bool)>>);

impl Upload {
    /// Waits until the next piece can be handed on. An error means that the upstream takes no more.
    pub async fn is_free(&self) -> Result<(), ()> {
        match &self.0 {
            Some(body) => body.reserve().await.map(drop).map_err(drop),
            None => Err(()),
        }
    }

    /// Hands on a piece, after [`Upload::is_free`]; `last` says that nothing follows.
    pub fn hand_on(&mut self, piece: Bytes, last: bool) {
        if let Some(body) = &self.0 {
            // It is free, or nobody takes it any more, which the next question tells.
            let _ = body.try_send((piece, last));
        }
        if last {
            self.0 = None;
        }
    }
}

impl Exchange {
    /// Starts to send. An error in `request` is the first thing that comes of it.
    pub fn start(request: Result<Outgoing>) -> (Exchange, Upload) {
        let has_body = request.as_ref().is_ok_and(|it| it.has_body);
        let (told, signs) = mpsc::channel(UNHEARD);
        let (body, pieces) = match has_body {
            true => Some(mpsc::channel(1)).unzip(),
            false => (None, None),
        };
        let stage = match request {
            Ok(request) => Stage::Sending(Box::pin(send(request, pieces, told))),
            Err(error) => Stage::Broken(Some(error)),
        };
        (Exchange { stage, signs }, Upload(body))
    }

    /// What comes next. Given up half-way it can be asked again; after an error nothing comes.
    ///
    /// # Errors
    ///
    /// The exchange failed.
    pub async fn next(&mut self) -> Result<Sign> {
        loop {
            match &mut self.stage {
                Stage::Sending(up) => tokio::select! {
                    biased;
                    line = up => self.stage = match line {
                        Ok(line) => Stage::Reading(line),
                        Err(error) => Stage::Broken(Some(error)),
                    },
                    Some(sign) = self.signs.recv() => return Ok(sign),
                },
                Stage::Reading(line) => {
                    if let Ok(sign) = self.signs.try_recv() {
                        return Ok(sign);
                    }
                    let read = line.read().await;
                    if read.is_err() {
                        self.stage = Stage::Broken(None);
                    }
                    return read;
                }
                Stage::Broken(error) => {
                    return match self.signs.try_recv() {
                        Ok(sign) => Ok(sign),
                        Err(_) => Err(error.take().unwrap_or_else(over)),
                    };
                }
            }
        }
    }

    /// What has come already, if anything has.
    pub async fn ready(&mut self) -> Option<Result<Sign>> {
        match once(pin!(self.next())).await {
            Poll::Ready(sign) => Some(sign),
            Poll::Pending => None,
        }
    }

    /// Gives the connection back to those that come after, where nothing of this exchange is left on it.
    /// One that may not be kept is closed, which nobody waits for.
    pub async fn retire(self) {
        let Stage::Reading(mut line) = self.stage else {
            return;
        };
        if !line.is_over || line.broken.is_some() {
            return;
        }
        let mut released = Box::pin(async move { line.release().await });
        if once(released.as_mut()).await.is_pending() {
            tokio::spawn(tokio::time::timeout(CLOSED_WITHIN, released));
        }
    }
}

enum Stage {
    Sending(Pin<Box<dyn Future<Output = Result<Box<Line>>> + Send>>),
    Reading(Box<Line>),
    /// What was wrong, until it is told.
    Broken(Option<Box<Error>>),
}

/// A connection while a request is on it.
struct Line {
    /// There until it is released.
    session: Option<HttpSession>,
    pool: Arc<Connector>,
    peer: Box<HttpPeer>,
    turns: Option<Arc<Turns>>,
    /// The answer has been read to its end.
    is_over: bool,
    /// The request could not be sent to its end. The answer may be there all the same.
    broken: Option<Box<Error>>,
}

/// Connects and sends. `told` hears what the upstream says until everything is sent.
async fn send(
    request: Outgoing,
    pieces: Option<mpsc::Receiver<(Bytes, bool)>>,
    told: mpsc::Sender<Sign>,
) -> Result<Box<Line>> {
    let Outgoing {
        pool,
        peer,
        head,
        turns,
        ..
    } = request;
    let peer = Box::new(peer);
    // In a box: what it takes to connect is not needed for the rest of the request.
    let connected = Box::pin(pool.get_http_session(&*peer)).await;
    let (session, reused) = connected.map_err(|e| e.into_up())?;
    let _ = told.send(Sign::Connected { reused }).await;
    let mut line = Box::new(Line {
        session: Some(session),
        pool,
        peer,
        turns,
        is_over: false,
        broken: None,
    });
    let writer = match &mut line.session {
        Some(HttpSession::H1(http1)) => {
            http1.write_timeout = line.peer.options.write_timeout;
            http1.write_request_header(head).await.map_err(whose)?;
            None
        }
        Some(HttpSession::H2(http2)) => {
            let head = for_http2(*head, line.peer.is_tls()).map_err(|e| e.into_down())?;
            let ends = pieces.is_none();
            http2
                .write_request_header(Box::new(head), ends)
                .map_err(whose)?;
            http2.take_request_body_writer()
        }
        Some(HttpSession::Custom(())) | None => return Err(over()),
    };
    if let Some(pieces) = pieces {
        let sent = match writer {
            None => line.send_http1(pieces, &told).await?,
            Some(writer) => line.send_http2(writer, pieces, &told).await?,
        };
        line.broken = sent.err();
    }
    Ok(line)
}

impl Line {
    /// Sends the body over HTTP/1. The outer error is a failure to read, the inner one to write: an
    /// upstream that takes no more of a body may have said why.
    async fn send_http1(
        &mut self,
        mut pieces: mpsc::Receiver<(Bytes, bool)>,
        told: &mpsc::Sender<Sign>,
    ) -> Result<Result<()>> {
        loop {
            let (piece, last) = tokio::select! {
                piece = pieces.recv() => piece.ok_or_else(over)?,
                sign = self.read(), if !self.is_over => {
                    let sign = sign?;
                    if matches!(sign, Sign::Head(_)) {
                        // From here on this may wait for the client of the answer, and a turn must not.
                        self.turns = None;
                    }
                    let _ = told.send(sign).await;
                    continue;
                }
            };
            let Some(HttpSession::H1(http1)) = &mut self.session else {
                return Err(over());
            };
            let write = write_http1(http1, &piece, last);
            let written = match &self.turns {
                Some(turns) => turns.piece(write).await,
                None => write.await,
            };
            if last || written.is_err() {
                return Ok(written);
            }
        }
    }

    /// The same over HTTP/2, where reading need not wait for writing, and writing takes no turns: it hands pieces to
    /// the connection, which has a window for them.
    async fn send_http2(
        &mut self,
        mut writer: SendStream<Bytes>,
        mut pieces: mpsc::Receiver<(Bytes, bool)>,
        told: &mpsc::Sender<Sign>,
    ) -> Result<Result<()>> {
        let timeout = self.peer.options.write_timeout;
        let mut up = pin!(async {
            loop {
                let (piece, last) = pieces.recv().await.ok_or_else(over)?;
                write_body(&mut writer, piece, last, timeout).await?;
                if last {
                    return Ok(());
                }
            }
        });
        loop {
            tokio::select! {
                sent = &mut up => return Ok(sent),
                sign = self.read(), if !self.is_over => {
                    let _ = told.send(sign?).await;
                }
            }
        }
    }

    /// What the upstream says next. Given up half-way it can be asked again, after an error it cannot.
    async fn read(&mut self) -> Result<Sign> {
        if self.is_over {
            return Err(over());
        }
        let read = match &mut self.session {
            // What could not be written says more than that nothing came.
            Some(HttpSession::H1(http1)) => {
                let read = read_http1(http1).await;
                read.map_err(|error| self.broken.take().unwrap_or(error))
            }
            Some(HttpSession::H2(http2)) => read_http2(http2).await,
            Some(HttpSession::Custom(())) | None => Err(over()),
        };
        let read = read.map_err(|error| {
            let downgrades = matches!(error.etype(), ErrorType::H2Downgrade | ErrorType::InvalidH2);
            if downgrades && self.peer.options.alpn == ALPN::H2H1 {
                self.pool.prefer_h1(&*self.peer);
            }
            error.into_up()
        });
        self.is_over = matches!(&read, Ok(Sign::Piece(_, true) | Sign::End(_)));
        read
    }

    /// Gives the connection back.
    async fn release(&mut self) {
        if let Some(session) = self.session.take() {
            let idle = self.peer.idle_timeout();
            self.pool
                .release_http_session(session, &*self.peer, idle)
                .await;
        }
    }
}

impl Drop for Line {
    /// A connection of HTTP/2 is others' as well: it is given back whatever became of this request.
    fn drop(&mut self) {
        if let Some(HttpSession::H2(_)) = &self.session {
            // For HTTP/2 this never waits.
            let released = pin!(self.release());
            let _ = released.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

async fn write_http1(http1: &mut Http1, piece: &[u8], last: bool) -> Result<()> {
    if !piece.is_empty() {
        http1.write_body(piece).await?;
    }
    if last {
        http1.finish_body().await?;
    }
    Ok(())
}

async fn read_http1(http1: &mut Http1) -> Result<Sign> {
    loop {
        return match http1.read_response_task().await? {
            HttpTask::Header(head, _) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                Error::e_explain(ErrorType::InvalidHTTPHeader, "101 to what asked for none")
            }
            HttpTask::Header(head, _) if head.status.is_informational() => Ok(Sign::Informational),
            HttpTask::Header(head, _) => Ok(Sign::Head(head)),
            HttpTask::Body(piece, last) | HttpTask::UpgradedBody(piece, last) => {
                let piece = piece.unwrap_or_default();
                if piece.is_empty() && !last {
                    continue;
                }
                Ok(Sign::Piece(piece, last))
            }
            HttpTask::Trailer(trailers) => Ok(Sign::End(trailers)),
            HttpTask::Done => Ok(Sign::End(None)),
            HttpTask::Failed(error) => Err(error),
        };
    }
}

async fn read_http2(http2: &mut Http2) -> Result<Sign> {
    let Some(head) = http2.response_header() else {
        http2.read_response_header().await?;
        let head = http2.response_header().cloned().ok_or_else(over)?;
        return Ok(Sign::Head(Box::new(head)));
    };
    // h2 does not notice where a head that promises a body ends the stream.
    let missing = http2.body_bytes_received() == 0 && promises_body(http2, head);
    if missing && http2.check_response_end_or_error()? {
        return Error::e_explain(
            ErrorType::H2Error,
            "the body that the head promises is missing",
        );
    }
    loop {
        match http2.read_response_body().await? {
            None => return Ok(Sign::End(http2.read_trailers().await?.map(Box::new))),
            Some(piece) => {
                // An error that it finds is told with the next one.
                let last = http2.check_response_end_or_error().unwrap_or(false);
                if !piece.is_empty() || last {
                    return Ok(Sign::Piece(piece, last));
                }
            }
        }
    }
}

fn promises_body(http2: &Http2, head: &ResponseHeader) -> bool {
    let asked = http2.request_header().map(|head| &head.method);
    let bodiless = matches!(
        head.status,
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
    );
    let length = head.headers.get(header::CONTENT_LENGTH);
    let promised = length.is_some_and(|length| length.as_bytes().iter().any(|b| *b != b'0'));
    promised && !bodiless && asked != Some(&Method::HEAD)
}

/// A head that cannot be written is the client's fault, everything else the upstream's.
fn whose(error: Box<Error>) -> Box<Error> {
    match error.etype() {
        ErrorType::InvalidHTTPHeader => error.into_down(),
        _ => error.into_up(),
    }
}

fn over() -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "the exchange is over").into_up()
}
