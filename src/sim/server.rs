//! Connections: accept, read a request, choose its step, play the answer, note what happened.
//!
//! One task per connection. While an answer is played, the other direction is read as well, which is
//! the only way to see at once that the peer has left. A FIN counts as leaving: no HTTP client in use
//! closes its sending half and goes on reading.

use super::control;
use super::faults;
use super::http::{self, Body, Broken, Head, Memory};
use super::journal::{Choice, Journal, Record};
use super::request;
use super::script::{self, Act, End, Script, script};
use super::step::Step;
use super::streams::{Asked, Endpoint};
use bytes::BytesMut;
use serde_json::json;
use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

/// Binds with a backlog that a load test does not overflow.
pub(super) fn bind(listen: SocketAddr) -> io::Result<TcpListener> {
    let socket = if listen.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(listen)?;
    socket.listen(BACKLOG)
}

/// Serves until the task is aborted; its connections end with it.
pub(super) async fn serve(listener: TcpListener, journal: Arc<Journal>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let memory = Memory::default();
    let mut connections = JoinSet::new();
    loop {
        // Never closed, so this does not fail; at the bound the backlog waits.
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Frees the places of tasks that are over.
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = Connection {
                    stream,
                    buf: BytesMut::new(),
                    open: Open::new(journal.clone()),
                    memory: memory.clone(),
                };
                connections.spawn(async move {
                    connection.run().await;
                    drop(place);
                });
            }
            // Out of file descriptors, or the peer left in the backlog: neither ends the server.
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }
}

struct Connection {
    stream: TcpStream,
    /// What was read and not yet used.
    buf: BytesMut,
    open: Open,
    memory: Memory,
}

/// Counts a connection for as long as it lives, also when its task is aborted.
struct Open {
    journal: Arc<Journal>,
    number: u64,
}

impl Open {
    fn new(journal: Arc<Journal>) -> Open {
        let number = journal.connected();
        Open { journal, number }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.journal.disconnected();
    }
}

/// What a played answer came to.
struct Played {
    bytes_out: u64,
    peer_left: bool,
}

impl Connection {
    async fn run(mut self) {
        // Each write of a script is to be a segment of its own. Not vital, so an error is let be.
        let _ = self.stream.set_nodelay(true);
        loop {
            match self.request().await {
                Ok(true) => {}
                Ok(false) | Err(Broken::Gone) => return,
                Err(Broken::Told(status, why)) => {
                    self.tell(status, why).await;
                    return;
                }
            }
        }
    }

    /// One request and its answer; whether another may follow.
    async fn request(&mut self) -> Result<bool, Broken> {
        let Some(head) = http::read_head(&mut self.stream, &mut self.buf).await? else {
            return Ok(false);
        };
        let since = Instant::now();
        let endpoint = (head.method == "POST")
            .then(|| Endpoint::of(&head.path))
            .flatten();
        let Some(endpoint) = endpoint else {
            return self.other(head, since).await;
        };
        let key = head.key().unwrap_or_default().to_owned();
        // The step is chosen before the body, so that it can be one which does not read it; unless
        // only the body tells which track it is on.
        let early = (!self.journal().needs_model(&key)).then(|| self.journal().take(&key, None));
        let stop_after = match &early {
            Some(Some(Choice {
                played: Step::Early503(how),
                ..
            })) => Some(how.after_body_bytes),
            _ => None,
        };
        let (body, held) = self.body(&head, stop_after).await?;
        let mut asked = Asked {
            endpoint,
            model: "unknown".into(),
            stream: false,
            include_usage: false,
            input_tokens: body.bytes.len() as u64 / 4,
            inputs: 1,
            base64: false,
            credential: String::new(),
            id: self.journal().next_id(),
            now: unix_now(),
        };
        let read = if body.whole {
            request::understand(&head, &body, &mut asked)
        } else {
            Ok(())
        };
        let choice = match early {
            Some(choice) => choice,
            None => self.journal().take(&key, Some(&asked.model)),
        };
        let record = request::record(&head, &body, self.open.number);
        drop(held);
        drop(body);
        let (answer, credential, step, played) = match (choice, read) {
            (None, _) => {
                let answer = script::error(&asked, faults::unknown_key(&asked));
                (answer, None, "unknown_key", "unknown_key")
            }
            (Some(choice), Err(why)) => {
                let answer = script::error(&asked, faults::unreadable(&asked, &why));
                (answer, Some(choice.credential), "unreadable", "unreadable")
            }
            (Some(choice), Ok(())) => {
                asked.credential.clone_from(&choice.credential);
                let answer = script(&choice.played, &asked);
                (
                    answer,
                    Some(choice.credential),
                    choice.step.name(),
                    choice.played.name(),
                )
            }
        };
        let record = Record {
            credential,
            model: Some(asked.model).filter(|model| model != "unknown"),
            stream: asked.stream,
            step: step.into(),
            played: played.into(),
            status: answer.status,
            ..record
        };
        self.play_and_note(answer, record, &head, since).await
    }

    /// A request that takes no step: the simulator's own, the model list, or nothing known.
    async fn other(&mut self, head: Head, since: Instant) -> Result<bool, Broken> {
        let (body, held) = self.body(&head, None).await?;
        let own = control::answer(self.journal(), &head.method, &head.path, &body.bytes);
        if let Some(reply) = own {
            let answer = plain(reply.status, reply.kind, &reply.body);
            let played = play(&mut self.stream, &mut self.buf, &answer.acts).await;
            return Ok(!played.peer_left && !head.lists("connection", "close"));
        }
        let name = self.journal().name_of(head.key().unwrap_or_default());
        let record = request::record(&head, &body, self.open.number);
        drop(held);
        let anthropic = head.header("anthropic-version").is_some();
        let asked = Asked {
            endpoint: if anthropic {
                Endpoint::Messages
            } else {
                Endpoint::Responses
            },
            model: String::new(),
            stream: false,
            include_usage: false,
            input_tokens: 0,
            inputs: 0,
            base64: false,
            credential: name.clone().unwrap_or_default(),
            id: self.journal().next_id(),
            now: unix_now(),
        };
        let (step, answer) = match (&name, request::models_path(&head)) {
            (_, None) if head.lists("upgrade", "websocket") => (
                "no_websocket",
                request::told(&asked, 426, "no WebSocket here: use HTTP"),
            ),
            (_, None) => ("not_found", request::told(&asked, 404, "no such endpoint")),
            (None, Some(_)) => (
                "unknown_key",
                script::error(&asked, faults::unknown_key(&asked)),
            ),
            (Some(_), Some(model)) => (
                "models",
                request::models(&self.journal().program().models, &asked, model),
            ),
        };
        let record = Record {
            credential: name,
            step: step.into(),
            played: step.into(),
            status: answer.status,
            ..record
        };
        self.play_and_note(answer, record, &head, since).await
    }

    async fn body(
        &mut self,
        head: &Head,
        stop_after: Option<u64>,
    ) -> Result<(Body, http::Held), Broken> {
        http::read_body(
            &mut self.stream,
            &mut self.buf,
            head,
            stop_after,
            &self.memory,
        )
        .await
    }

    /// Plays an answer, writes the log, ends the connection as the script says.
    async fn play_and_note(
        &mut self,
        answer: Script,
        record: Record,
        head: &Head,
        since: Instant,
    ) -> Result<bool, Broken> {
        let credential = record.credential.clone();
        let n = self.journal().begin(record);
        let played = play(&mut self.stream, &mut self.buf, &answer.acts).await;
        let left = played.peer_left.then(|| since.elapsed());
        if !played.peer_left {
            match answer.end {
                End::KeepAlive => {}
                End::Close => {
                    let _ = self.stream.shutdown().await;
                }
                End::Linger => self.linger().await,
                End::Reset => {
                    let _ = self.stream.set_zero_linger();
                }
            }
        }
        self.journal()
            .end(n, credential.as_deref(), played.bytes_out, left);
        let keep = answer.end == End::KeepAlive && !played.peer_left;
        Ok(keep && !head.lists("connection", "close"))
    }

    /// Closes the sending half, then reads and drops what comes: closing with unread bytes would send
    /// an RST, which may overtake the answer.
    async fn linger(&mut self) {
        let _ = self.stream.shutdown().await;
        let mut waste = vec![0; 64 << 10];
        let drain = async { while let Ok(1..) = self.stream.read(&mut waste).await {} };
        let _ = timeout(LINGER, drain).await;
    }

    /// Answers a request that could not be read, and closes.
    async fn tell(&mut self, status: u16, why: &str) {
        let body =
            json!({"error": {"message": why, "type": "invalid_request_error", "code": null}});
        let answer = plain(status, "application/json", &format!("{body}\n"));
        let played = play(&mut self.stream, &mut self.buf, &answer.acts).await;
        if !played.peer_left {
            self.linger().await;
        }
    }

    fn journal(&self) -> &Journal {
        &self.open.journal
    }
}

/// Writes an answer, and watches for the peer to leave meanwhile.
async fn play(stream: &mut TcpStream, buf: &mut BytesMut, acts: &[Act]) -> Played {
    let (mut incoming, mut outgoing) = stream.split();
    let sent = AtomicU64::new(0);
    let writing = async {
        for act in acts {
            match act {
                Act::Write(bytes) => write(&mut outgoing, bytes, &sent).await?,
                Act::Pause(span) => sleep(*span).await,
                Act::Repeat(bytes, gap) => loop {
                    write(&mut outgoing, bytes, &sent).await?;
                    if !gap.is_zero() {
                        sleep(*gap).await;
                    }
                },
                Act::Silence => std::future::pending().await,
            }
        }
        io::Result::Ok(())
    };
    let leaving = async {
        while buf.len() < MAX_AHEAD {
            if !matches!(incoming.read_buf(buf).await, Ok(1..)) {
                return;
            }
        }
        // So much sent ahead is nobody's HTTP client; its leaving is seen when a write fails.
        std::future::pending().await
    };
    let peer_left = tokio::select! {
        // An answer that is complete is complete, even if the peer leaves in the same moment.
        biased;
        written = writing => written.is_err(),
        () = leaving => true,
    };
    Played {
        bytes_out: sent.load(Ordering::Relaxed),
        peer_left,
    }
}

async fn write(
    outgoing: &mut tokio::net::tcp::WriteHalf<'_>,
    mut bytes: &[u8],
    sent: &AtomicU64,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = outgoing.write(bytes).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        sent.fetch_add(written as u64, Ordering::Relaxed);
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// An answer of the simulator itself.
fn plain(status: u16, kind: &str, body: &str) -> Script {
    let whole = format!(
        "HTTP/1.1 {status} {}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
        script::reason(status),
        body.len(),
    );
    Script {
        status: Some(status),
        acts: vec![Act::Write(whole.into())],
        end: End::KeepAlive,
    }
}

fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

const BACKLOG: u32 = 4096;
/// Connections at once. Chosen: what one process may open by default on a server, with room.
const MAX_CONNECTIONS: usize = 20_000;
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);
/// How long a lingering close reads on. Chosen: a local upload of the largest body fits.
const LINGER: Duration = Duration::from_secs(5);
/// Bytes that a peer may send ahead while its answer is played.
const MAX_AHEAD: usize = 64 << 10;
