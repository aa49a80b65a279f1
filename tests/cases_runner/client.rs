//! The client over HTTP/1.1, by hand: the header lines of the case in their order, the body at the
//! pace that the proxy takes it, and the ways in which a client leaves.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

use super::exchange::{Answer, Ending, values};
use super::format::{Act, Action, Request};
use super::http1::{Wire, find, frames};
use super::socket;

/// How long the client waits for anything: longer than the slowest case (12 s), so that a hang is
/// told apart from slowness.
pub const PATIENCE: Duration = Duration::from_secs(25);

/// How long a connection is watched for its close.
const CLOSE_WATCH: Duration = Duration::from_secs(2);

/// A connection to the proxy.
pub struct Connection {
    wire: Wire,
    write: OwnedWriteHalf,
    used: bool,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Connection, String> {
        let stream = TcpStream::connect(address)
            .await
            .map_err(|e| format!("connect: {e}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let (read, write) = stream.into_split();
        Ok(Connection {
            wire: Wire::new(read),
            write,
            used: false,
        })
    }

    fn leave(self, act: Act) {
        if act == Act::Reset {
            // Where it fails the end is a FIN: the client is gone either way.
            let _ = self.write.as_ref().set_zero_linger();
            self.write.forget();
        }
    }
}

/// The request as bytes, head and body.
pub fn head(request: &Request, body: &[u8]) -> Vec<u8> {
    if let Some(raw) = &request.raw {
        return raw.clone().into_bytes();
    }
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.path);
    for line in &request.headers {
        head.push_str(line);
        head.push_str("\r\n");
    }
    let framed = request
        .headers
        .iter()
        .any(|line| line.starts_with("content-length:"));
    if !framed && !body.is_empty() {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    head.push_str(request.pipelined.as_deref().unwrap_or_default());
    head.into_bytes()
}

/// Sends one request and reads its answer. The connection comes back while it can be used again.
pub async fn send(
    mut connection: Connection,
    request: &Request,
    body: &[u8],
    watch_close: bool,
) -> (Answer, Option<Connection>) {
    let mut answer = Answer::awaited(Instant::now());
    answer.reused = connection.used;
    connection.used = true;
    let timer = request
        .actions
        .iter()
        .find_map(|action| Some((action.at_ms?, action.act)));
    let due = timer.map_or(PATIENCE, |(ms, _)| Duration::from_millis(ms));
    let ending = {
        let run = exchange(&mut connection, request, body, &mut answer);
        tokio::time::timeout(due, run).await
    };
    match ending {
        Ok(Next::Leave(act)) => {
            connection.leave(act);
            (answer.finish(Ending::Left), None)
        }
        Err(_) => match timer {
            Some((_, act)) => {
                connection.leave(act);
                (answer.finish(Ending::Left), None)
            }
            None => (answer.finish(Ending::Hung), None),
        },
        Ok(Next::Broken(why)) => (answer.finish(Ending::Broken(why)), None),
        Ok(Next::Complete) => {
            let mut answer = answer.finish(Ending::Clean);
            if !watch_close {
                return (answer, Some(connection));
            }
            let gone = async { while connection.wire.fill().await.is_ok() {} };
            answer.closed = Some(tokio::time::timeout(CLOSE_WATCH, gone).await.is_ok());
            // What came after the answer is for the judge of requests that were smuggled in.
            answer.body.extend_from_slice(&connection.wire.buffer);
            (answer, None)
        }
    }
}

enum Next {
    Complete,
    Broken(String),
    Leave(Act),
}

async fn exchange(
    connection: &mut Connection,
    request: &Request,
    body: &[u8],
    answer: &mut Answer,
) -> Next {
    let Connection { wire, write, .. } = connection;
    if write.write_all(&head(request, body)).await.is_err() {
        return Next::Broken("closed while the head was sent".into());
    }
    if let Some(ms) = request.wait_for_100_ms {
        let wait = async {
            while find(&wire.buffer, b"\r\n\r\n").is_none() && wire.fill().await.is_ok() {}
        };
        // Without a 100 in time the body is sent anyway, as clients do.
        let _ = tokio::time::timeout(Duration::from_millis(ms), wait).await;
        if wire.buffer.starts_with(b"HTTP/1.1 1") {
            if let Ok(head) = wire.head().await {
                answer.interim.push((head.status(), Instant::now()));
            }
        } else if !wire.buffer.is_empty() {
            answer.sent = Instant::now();
            return read(wire, request, answer).await;
        }
    }
    let stop = request
        .actions
        .iter()
        .find_map(|a| Some((a.after_body_bytes?, a.act)));
    if let Some((bytes, act)) = stop {
        let _ = write.write_all(body.get(..bytes).unwrap_or(body)).await;
        let _ = write.flush().await;
        return Next::Leave(act);
    }
    let body = if request.raw.is_some() { &[] } else { body };
    // Read while writing: the proxy may answer before it has taken the whole body.
    let mut sent = None;
    let sending = async {
        // A proxy that has answered may close before the end; the answer tells.
        let _ = write.write_all(body).await;
        sent = Some(Instant::now());
        std::future::pending::<Next>().await
    };
    let next = tokio::select! {
        next = read(wire, request, answer) => next,
        next = sending => next,
    };
    answer.sent = sent.unwrap_or_else(Instant::now);
    if request.pipelined.is_some() {
        let second = tokio::time::timeout(CLOSE_WATCH, wire.head()).await;
        answer.second = second.ok().and_then(Result::ok).map(|head| head.status());
    }
    if answer.status == 101 {
        return match socket::talk(wire, write, request, answer).await {
            Some(action) => Next::Leave(action.act),
            None => Next::Complete,
        };
    }
    next
}

async fn read(wire: &mut Wire, request: &Request, answer: &mut Answer) -> Next {
    let head = loop {
        match wire.head().await {
            Ok(head) if (100..200).contains(&head.status()) && head.status() != 101 => {
                answer.interim.push((head.status(), Instant::now()));
            }
            Ok(head) => break head,
            Err(e) => return Next::Broken(format!("no head: {e}")),
        }
    };
    answer.status = head.status();
    answer.head = head.text.clone();
    answer.headers = head.headers.clone();
    if request.method == "HEAD" || matches!(answer.status, 101 | 204 | 304) {
        return Next::Complete;
    }
    let mut body = head.body(true);
    loop {
        match wire.piece(&mut body).await {
            Ok(Some(piece)) => answer.push(&piece),
            Ok(None) => return Next::Complete,
            Err(e) => return Next::Broken(format!("in the body: {e}")),
        }
        if let Some(act) = request
            .actions
            .iter()
            .find_map(|action| due(action, &answer.body))
        {
            return Next::Leave(act);
        }
    }
}

/// Whether `after_event` of an action has come: `second output_text.delta`.
pub fn due(action: &Action, body: &[u8]) -> Option<Act> {
    let (nth, event) = action.after_event.as_ref()?.split_once(' ')?;
    let nth = match nth {
        "first" => 1,
        "second" => 2,
        _ => 3,
    };
    let seen = frames(body)
        .iter()
        .filter(|frame| frame.event.ends_with(event))
        .count();
    (seen >= nth).then_some(action.act)
}

/// Whether the answer allows another request on its connection.
pub fn reusable(answer: &Answer) -> bool {
    answer.ending == Ending::Clean
        && !values(&answer.headers, "connection")
            .iter()
            .any(|v| v.eq_ignore_ascii_case("close"))
}
