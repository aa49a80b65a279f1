//! The scripted upstream: one listener for all credentials, which it tells apart by their
//! Authorization value.
//!
//! It reads the whole request, finds the first unused entry of the case's `upstream` list for that
//! credential and that request of the client, and plays it: each write is one write to the socket,
//! without Nagle, at its time. It never answers what is not scripted; such a request is recorded,
//! gets a 418, and fails the case.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};

use super::exchange::{Received, values};
use super::format::{Attempt, Case, Response};
use super::http1::{Head, Wire};
use super::script::{self, Step};
use super::socket;

/// The longest that an upstream holds a connection open: far above every case's own limit.
const HOLD: Duration = Duration::from_secs(60);

/// How long a closed side is read on, so that the kernel does not turn FIN into RST.
const LINGER: Duration = Duration::from_secs(5);

pub struct Player {
    pub address: SocketAddr,
    stage: Arc<Stage>,
    accepting: tokio::task::JoinHandle<()>,
}

struct Stage {
    credentials: Vec<(String, String)>,
    script: Vec<(Attempt, Vec<Step>)>,
    used: Mutex<Vec<usize>>,
    seen: Mutex<Vec<Received>>,
    /// The request of the client that is under way; 0 is the staging.
    current: AtomicUsize,
    /// Answers to what comes before the case.
    warm: Mutex<Option<Response>>,
    expected_body: Vec<u8>,
}

impl Drop for Player {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Player {
    pub async fn start(case: &Case, expected_body: Vec<u8>) -> Result<Player, String> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(|e| e.to_string())?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let script = case
            .upstream
            .iter()
            .map(|attempt| Ok((attempt.clone(), script::steps(&attempt.response)?)))
            .collect::<Result<Vec<_>, String>>()?;
        let credentials = case.setup.credentials.iter();
        let stage = Arc::new(Stage {
            credentials: credentials
                .map(|c| (c.name.clone(), c.upstream_auth.clone()))
                .collect(),
            used: Mutex::new(vec![0; script.len()]),
            script,
            seen: Mutex::default(),
            current: AtomicUsize::new(0),
            warm: Mutex::default(),
            expected_body,
        });
        let shared = stage.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(shared.clone(), stream));
            }
        });
        Ok(Player {
            address,
            stage,
            accepting,
        })
    }

    /// From now on, requests are caused by the client's request `number`.
    pub fn request(&self, number: usize) {
        self.stage.current.store(number, Ordering::SeqCst);
    }

    /// How requests of the staging are answered.
    pub fn warm(&self, answer: Response) {
        *lock(&self.stage.warm) = Some(answer);
    }

    /// What the case caused, staging left out.
    pub fn seen(&self) -> Vec<Received> {
        lock(&self.stage.seen)
            .iter()
            .filter(|r| r.request > 0)
            .cloned()
            .collect()
    }

    /// The credential of the staging's last request.
    pub fn last_staged(&self) -> Option<String> {
        let seen = lock(&self.stage.seen);
        let staged = seen.iter().rev().find(|r| r.request == 0);
        staged.and_then(|r| r.label.clone())
    }

    /// What the staging caused.
    pub fn staged(&self) -> usize {
        lock(&self.stage.seen)
            .iter()
            .filter(|r| r.request == 0)
            .count()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Stage {
    fn note(&self, at: usize, change: impl FnOnce(&mut Received)) {
        if let Some(received) = lock(&self.seen).get_mut(at) {
            change(received);
        }
    }

    /// The entry to play.
    fn choose(&self, label: Option<&str>, request: usize) -> Option<usize> {
        let label = label?;
        let mut used = lock(&self.used);
        let found = self
            .script
            .iter()
            .zip(used.iter())
            .position(|((entry, _), used)| {
                let many = entry.nth_on_credential.is_some() || entry.every_credential;
                let named = entry.credential == "*"
                    || entry.credential.split(" or ").any(|name| name == label);
                named && *used < uses(entry) && (many || entry.for_request.unwrap_or(1) == request)
            })?;
        used[found] += 1;
        Some(found)
    }
}

/// How often an entry may be played: `nth_on_credential: 1..20` is twenty times.
fn uses(entry: &Attempt) -> usize {
    if entry.every_credential {
        return usize::MAX;
    }
    let range = entry
        .nth_on_credential
        .as_deref()
        .and_then(|range| range.split_once(".."));
    range.and_then(|(_, last)| last.parse().ok()).unwrap_or(1)
}

async fn serve(stage: Arc<Stage>, stream: TcpStream) {
    // Cannot fail on a fresh socket in a way that the case would not notice by its timing.
    let _ = stream.set_nodelay(true);
    let (read, mut write) = stream.into_split();
    let mut wire = Wire::new(read);
    let mut reused = false;
    while let Ok(head) = wire.head().await {
        let at = arrived(&stage, &head, reused);
        if values(&head.headers, "expect")
            .iter()
            .any(|v| v.eq_ignore_ascii_case("100-continue"))
        {
            let _ = write.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await;
        }
        if read_body(&stage, &mut wire, &head, at).await.is_err() {
            stage.note(at, |r| r.closed_by_proxy = Some(Instant::now()));
            return;
        }
        let (request, script) = {
            let seen = lock(&stage.seen);
            (seen[at].request, seen[at].script)
        };
        let staged = if request == 0 {
            lock(&stage.warm).clone()
        } else {
            None
        };
        let (response, steps) = match (staged, script.and_then(|n| stage.script.get(n))) {
            (Some(warm), _) => {
                let steps = script::steps(&warm).unwrap_or_default();
                (warm, steps)
            }
            (None, Some((entry, steps))) => (entry.response.clone(), steps.clone()),
            (None, None) => {
                let _ = write
                    .write_all(b"HTTP/1.1 418 Unscripted\r\ncontent-length: 0\r\n\r\n")
                    .await;
                return;
            }
        };
        let mut play = Play {
            stage: &stage,
            at,
            start: Instant::now(),
            wire: &mut wire,
        };
        if response.ws_frames.is_some() {
            // Whatever it returns, the connection is over.
            let _ = play.socket(&response, &head, &mut write).await;
            finish(play, write, response.end.how == "rst").await;
            return;
        }
        if play.answer(&response, &steps, &mut write).await.is_none() {
            let reset = response.end.how == "rst";
            finish(play, write, reset).await;
            return;
        }
        reused = true;
    }
}

fn arrived(stage: &Stage, head: &Head, reused: bool) -> usize {
    let sent = values(&head.headers, "authorization");
    let label = match sent.as_slice() {
        [one] => stage
            .credentials
            .iter()
            .find(|(_, auth)| auth == one)
            .map(|(name, _)| name),
        _ => None,
    };
    let request = stage.current.load(Ordering::SeqCst);
    let script = if request == 0 {
        None
    } else {
        stage.choose(label.map(String::as_str), request)
    };
    let mut seen = lock(&stage.seen);
    seen.push(Received {
        request,
        label: label.cloned(),
        script,
        head: head.text.clone(),
        headers: head.headers.clone(),
        body_len: 0,
        body_same: None,
        reused,
        written: Vec::new(),
        closed_by_proxy: None,
    });
    seen.len() - 1
}

async fn read_body(stage: &Stage, wire: &mut Wire, head: &Head, at: usize) -> std::io::Result<()> {
    let (mut body, mut length, mut same) = (head.body(false), 0, true);
    while let Some(piece) = wire.piece(&mut body).await? {
        let expected = stage.expected_body.get(length..length + piece.len());
        same &= expected == Some(piece.as_slice());
        length += piece.len();
        stage.note(at, |r| r.body_len = length);
    }
    let same = same && length == stage.expected_body.len();
    stage.note(at, |r| r.body_same = Some(same));
    Ok(())
}

struct Play<'a> {
    stage: &'a Stage,
    at: usize,
    start: Instant,
    wire: &'a mut Wire,
}

impl Play<'_> {
    /// Plays one answer. `None`: the connection is over.
    async fn answer(
        &mut self,
        response: &Response,
        steps: &[Step],
        write: &mut OwnedWriteHalf,
    ) -> Option<()> {
        if let Some(head) = &response.head {
            self.wait(Duration::from_millis(response.head_at_ms))
                .await?;
            write.write_all(&script::head(head)).await.ok()?;
        }
        let chunked = response.framing.as_deref() == Some("chunked");
        for step in steps {
            self.wait(step.at).await?;
            write.write_all(&framed(&step.bytes, chunked)).await.ok()?;
            self.stage.note(self.at, |r| r.written.push(Instant::now()));
        }
        let end = response.end.at_ms.map(Duration::from_millis);
        match response.end.how.as_str() {
            "hold" => {
                self.wait(end.unwrap_or(HOLD)).await?;
                None
            }
            "fin_no_last_chunk" | "rst" => {
                self.wait(end.unwrap_or_default()).await?;
                None
            }
            how => {
                self.wait(end.unwrap_or_default()).await?;
                if chunked {
                    write.write_all(b"0\r\n\r\n").await.ok()?;
                }
                (how == "keepalive").then_some(())
            }
        }
    }

    /// Plays the socket behind a 101: its times count from the client's first message.
    async fn socket(
        &mut self,
        response: &Response,
        request: &Head,
        write: &mut OwnedWriteHalf,
    ) -> Option<()> {
        let key = values(&request.headers, "sec-websocket-key")
            .first()
            .copied()?;
        let scripted = response.head.as_deref()?.trim_end().split("\r\n");
        let kept = scripted.filter(|line| !line.starts_with("sec-websocket-accept"));
        let head = kept.collect::<Vec<_>>().join("\r\n");
        let accept = socket::accept(key);
        let head = format!("{head}\r\nsec-websocket-accept: {accept}\r\n\r\n");
        write.write_all(head.as_bytes()).await.ok()?;
        let Ok(message) = socket::read(self.wire).await else {
            self.gone();
            return None;
        };
        self.stage
            .note(self.at, |r| r.body_len = message.payload.len());
        self.start = Instant::now();
        for step in script::socket_steps(response).ok()? {
            self.wait(step.at).await?;
            write
                .write_all(&socket::text(&step.bytes, false))
                .await
                .ok()?;
            self.stage.note(self.at, |r| r.written.push(Instant::now()));
        }
        match response.end.how.split(' ').collect::<Vec<_>>().as_slice() {
            ["close", code, ..] => {
                let code = code.parse().unwrap_or(1000);
                write.write_all(&socket::close(code, false)).await.ok()
            }
            ["hold"] => self.wait(HOLD).await,
            _ => Some(()),
        }
    }

    /// Waits for a time of the script; `None` where the proxy closes the connection before.
    async fn wait(&mut self, until: Duration) -> Option<()> {
        let due = tokio::time::Instant::from_std(self.start + until);
        loop {
            tokio::select! {
                biased;
                read = self.wire.fill() => if read.is_err() {
                    self.gone();
                    return None;
                },
                () = tokio::time::sleep_until(due) => return Some(()),
            }
        }
    }

    fn gone(&self) {
        self.stage.note(self.at, |r| {
            r.closed_by_proxy.get_or_insert_with(Instant::now);
        });
    }
}

fn framed(bytes: &[u8], chunked: bool) -> Vec<u8> {
    if !chunked || bytes.is_empty() {
        return bytes.to_vec();
    }
    let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
    framed.extend_from_slice(bytes);
    framed.extend_from_slice(b"\r\n");
    framed
}

/// Ends a connection: by RST at once, or by FIN, reading on until the other side closes as well.
async fn finish(play: Play<'_>, mut write: OwnedWriteHalf, reset: bool) {
    if reset {
        // Without it the end is a FIN, and the case that wants a reset fails by its result.
        let _ = write.as_ref().set_zero_linger();
        write.forget();
        return;
    }
    let _ = write.shutdown().await;
    let _ = tokio::time::timeout(LINGER, async { while play.wire.fill().await.is_ok() {} }).await;
    play.gone();
}
