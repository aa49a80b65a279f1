//! An upstream whose bytes are written by hand: what a simulated API cannot be told to do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A listener that hands every connection to a function. Dropped, it closes.
pub struct Raw {
    pub addr: SocketAddr,
    accepted: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Raw {
    /// Serves connections with `play`.
    pub async fn start<F, P>(play: P) -> Raw
    where
        P: Fn(Conn) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                connections.spawn(play(Conn {
                    stream,
                    rest: BytesMut::new(),
                }));
            }
        });
        Raw {
            addr,
            accepted,
            serving,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A connection of berth's.
pub struct Conn {
    pub stream: TcpStream,
    rest: BytesMut,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Heard {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Heard {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Which credential it came with: `a` for `sk-a`.
    pub fn credential(&self) -> &str {
        let key = self
            .header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "))
            .or_else(|| self.header("x-api-key"));
        key.and_then(|key| key.strip_prefix("sk-"))
            .unwrap_or_else(|| panic!("no key of a test: {self:?}"))
    }
}

impl Conn {
    /// The next request's head; none where the connection ended.
    pub async fn head(&mut self) -> Option<Heard> {
        let end = loop {
            match memchr::memmem::find(&self.rest, b"\r\n\r\n") {
                Some(at) => break at + 4,
                None if !self.more().await => return None,
                None => {}
            }
        };
        let head = self.rest.split_to(end);
        let mut headers = [httparse::EMPTY_HEADER; 200];
        let mut parsed = httparse::Request::new(&mut headers);
        parsed.parse(&head).unwrap();
        let pair = |header: &httparse::Header| {
            let value = String::from_utf8_lossy(header.value).into_owned();
            (header.name.to_lowercase(), value)
        };
        Some(Heard {
            method: parsed.method.unwrap().to_owned(),
            target: parsed.path.unwrap().to_owned(),
            headers: parsed.headers.iter().map(pair).collect(),
            body: Vec::new(),
        })
    }

    /// The next request, whole.
    pub async fn request(&mut self) -> Option<Heard> {
        let mut heard = self.head().await?;
        if heard.header("transfer-encoding").is_some() {
            loop {
                let size = usize::from_str_radix(&self.line().await?, 16).unwrap();
                heard.body.extend_from_slice(&self.take(size).await?);
                self.take(2).await?;
                if size == 0 {
                    return Some(heard);
                }
            }
        }
        let length = heard
            .header("content-length")
            .map_or(0, |n| n.parse().unwrap());
        heard.body = self.take(length).await?;
        Some(heard)
    }

    /// So many bytes of a body.
    pub async fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.rest.len() < length {
            if !self.more().await {
                return None;
            }
        }
        Some(self.rest.split_to(length).to_vec())
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).await.is_ok()
    }

    /// Waits until berth closes the connection, whatever it sends until then.
    pub async fn until_closed(&mut self) {
        while self.more().await {
            self.rest.clear();
        }
    }

    /// FIN, then what berth still sends is dropped until it closes: unread bytes would make it an RST.
    pub async fn close(mut self) {
        let _ = self.stream.shutdown().await;
        self.until_closed().await;
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.rest, b"\r\n") {
                let line = self.rest.split_to(at + 2);
                return Some(String::from_utf8(line[..at].to_vec()).unwrap());
            }
            if !self.more().await {
                return None;
            }
        }
    }

    async fn more(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.rest).await, Ok(1..))
    }
}

/// A whole answer with a length.
pub fn answer(status: u16, more: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut answer = format!(
        "HTTP/1.1 {status} X\r\n{more}content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(body);
    answer
}

/// One chunk of a body.
pub fn chunk(piece: &[u8]) -> Vec<u8> {
    if piece.is_empty() {
        return Vec::new();
    }
    let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
    chunk.extend_from_slice(piece);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// The end of a chunked body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The head of a stream.
pub const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
