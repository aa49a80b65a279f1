//! What was seen on both sides of the proxy, as recorded: the input of the judges.

use std::time::Instant;

/// One request as the upstream received it.
#[derive(Clone, Debug)]
pub struct Received {
    /// Which of the client's requests was under way; 0 is the staging before the case.
    pub request: usize,
    /// The credential, told by the Authorization value; `None`: none of the case's.
    pub label: Option<String>,
    /// The place in the case's `upstream` list that was played; `None`: not scripted.
    pub script: Option<usize>,
    pub head: String,
    pub headers: Vec<(String, String)>,
    pub body_len: usize,
    /// Whether the body was what the client sent; `None` while it is not complete.
    pub body_same: Option<bool>,
    /// Whether the connection had served a request before.
    pub reused: bool,
    /// When each write was handed to the kernel.
    pub written: Vec<Instant>,
    pub closed_by_proxy: Option<Instant>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Framed and complete.
    Clean,
    /// Cut short: reset, or closed inside the body.
    Broken(String),
    /// The client itself went away, as the case wants.
    Left,
    /// Nothing more came until the runner's patience ended.
    Hung,
}

/// One answer as the client received it.
#[derive(Clone, Debug)]
pub struct Answer {
    pub started: Instant,
    /// When the last byte of the request was sent.
    pub sent: Instant,
    pub interim: Vec<(u16, Instant)>,
    pub status: u16,
    /// The head as it came; of HTTP/2, written as lines.
    pub head: String,
    pub headers: Vec<(String, String)>,
    /// After undoing the transfer coding.
    pub body: Vec<u8>,
    /// The offset in `body` that was reached, and when.
    pub pieces: Vec<(Instant, usize)>,
    pub ended: Instant,
    pub ending: Ending,
    /// Whether the connection had served a request before.
    pub reused: bool,
    /// Whether the proxy closed the connection after the answer; `None`: not watched.
    pub closed: Option<bool>,
    pub http2: bool,
    /// What came after a 101.
    pub socket: Option<SocketSeen>,
    /// The answer to a request that was pipelined behind this one; `None`: closed without one.
    pub second: Option<u16>,
}

/// A WebSocket as the client saw it.
#[derive(Clone, Debug, Default)]
pub struct SocketSeen {
    pub texts: Vec<String>,
    pub first: Option<Instant>,
    pub over: Option<Instant>,
    /// The code of the close frame; `None`: the connection broke without one.
    pub close: Option<u16>,
}

impl Answer {
    /// An answer of which nothing has been received yet.
    pub fn awaited(started: Instant) -> Answer {
        Answer {
            started,
            sent: started,
            interim: Vec::new(),
            status: 0,
            head: String::new(),
            headers: Vec::new(),
            body: Vec::new(),
            pieces: Vec::new(),
            ended: started,
            ending: Ending::Hung,
            reused: false,
            closed: None,
            http2: false,
            socket: None,
            second: None,
        }
    }

    pub fn push(&mut self, piece: &[u8]) {
        self.body.extend_from_slice(piece);
        self.pieces.push((Instant::now(), self.body.len()));
    }

    pub fn finish(mut self, ending: Ending) -> Answer {
        self.ended = Instant::now();
        self.ending = ending;
        self
    }

    /// When the byte at `offset` had been received.
    pub fn received(&self, offset: usize) -> Option<Instant> {
        self.pieces
            .iter()
            .find(|(_, end)| *end > offset)
            .map(|(at, _)| *at)
    }

    /// The exchange for people, cut.
    pub fn show(&self) -> String {
        let mut text = format!("< {}", self.head.trim_end().replace('\n', "\n< "));
        text.push_str(&format!("\n{}", excerpt(&self.body, 1500)));
        if let Some(socket) = &self.socket {
            let texts = socket.texts.join("\n");
            text.push_str(&format!(
                "{}\nclose {:?}",
                excerpt(texts.as_bytes(), 1500),
                socket.close
            ));
        }
        text.push_str(&format!(
            "\n= {:?} after {} ms, {} bytes of body",
            self.ending,
            self.ended.duration_since(self.started).as_millis(),
            self.body.len()
        ));
        text
    }
}

/// At most `limit` bytes, readable.
pub fn excerpt(bytes: &[u8], limit: usize) -> String {
    let shown = String::from_utf8_lossy(bytes.get(..limit).unwrap_or(bytes));
    match bytes.len().checked_sub(limit) {
        Some(more) if more > 0 => format!("{shown}... ({more} bytes more)"),
        _ => shown.into_owned(),
    }
}

/// The values of a header, in order.
pub fn values<'a>(headers: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    headers
        .iter()
        .filter(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
        .collect()
}
