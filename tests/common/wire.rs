//! Clients: HTTP/1.1 over a raw socket, so that what is asserted is what was sent, and HTTP/2.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::ReadHalf;

use super::within;

/// How an answer ended, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Complete by its own framing.
    Whole,
    /// Its framing says nothing of an end: the connection was closed.
    Close,
    /// Closed or reset before it was complete.
    Broken,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// 0 where no head came.
    pub status: u16,
    /// In the order they came, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Without transfer coding.
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    pub ends: Ends,
    /// The heads of 1xx answers before it.
    pub informational: Vec<u16>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// berth's id of the request.
    pub fn id(&self) -> &str {
        self.header("x-berth-request-id")
            .unwrap_or_else(|| panic!("no request id: {self:?}"))
    }
}

/// A connection of a client.
pub struct Client {
    pub stream: TcpStream,
    /// What came and belongs to no answer yet.
    rest: BytesMut,
}

impl Client {
    pub async fn connect(addr: SocketAddr) -> Client {
        let stream = within(TcpStream::connect(addr)).await.unwrap();
        Client::of(stream)
    }

    /// A client on this connection.
    pub fn of(stream: TcpStream) -> Client {
        stream.set_nodelay(true).unwrap();
        Client {
            stream,
            rest: BytesMut::new(),
        }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.stream.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Sends as much as is taken.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        within(self.stream.write_all(bytes.as_ref())).await
    }

    /// The next answer.
    pub async fn answer(&mut self) -> Answer {
        self.answer_to("POST").await
    }

    /// The next answer, to a request with this method.
    pub async fn answer_to(&mut self, method: &str) -> Answer {
        let mut informational = Vec::new();
        loop {
            let Some(mut answer) = self.head().await else {
                return Answer {
                    status: 0,
                    headers: Vec::new(),
                    body: self.rest.split().to_vec(),
                    trailers: Vec::new(),
                    ends: Ends::Broken,
                    informational,
                };
            };
            if answer.status < 200 {
                informational.push(answer.status);
                continue;
            }
            answer.informational = informational;
            if method != "HEAD" && !matches!(answer.status, 204 | 304) {
                self.body(&mut answer).await;
            }
            return answer;
        }
    }

    /// Reads until these bytes have come, and returns all that came since the last answer.
    pub async fn wait_for(&mut self, needle: &str) -> String {
        loop {
            let text = String::from_utf8_lossy(&self.rest).into_owned();
            if text.contains(needle) {
                return text;
            }
            assert!(self.more().await, "closed before `{needle}` came: {text}");
        }
    }

    /// Whether the connection is closed without another byte.
    pub async fn is_closed(&mut self) -> bool {
        self.rest.is_empty() && !self.more().await
    }

    /// RST.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    async fn more(&mut self) -> bool {
        matches!(within(self.stream.read_buf(&mut self.rest)).await, Ok(1..))
    }

    async fn head(&mut self) -> Option<Answer> {
        let end = loop {
            match memchr::memmem::find(&self.rest, b"\r\n\r\n") {
                Some(at) => break at + 4,
                None if !self.more().await => return None,
                None => {}
            }
        };
        let head = self.rest.split_to(end);
        let mut headers = [httparse::EMPTY_HEADER; 200];
        let mut parsed = httparse::Response::new(&mut headers);
        parsed.parse(&head).unwrap();
        Some(Answer {
            status: parsed.code.unwrap(),
            headers: parsed.headers.iter().map(pair).collect(),
            body: Vec::new(),
            trailers: Vec::new(),
            ends: Ends::Whole,
            informational: Vec::new(),
        })
    }

    async fn body(&mut self, answer: &mut Answer) {
        if answer.header("transfer-encoding") == Some("chunked") {
            assert_eq!(answer.header("content-length"), None);
            answer.ends = self.chunks(answer).await;
            return;
        }
        let length = answer.header("content-length").map(|n| n.parse().unwrap());
        while length.is_none_or(|length: usize| self.rest.len() < length) {
            if !self.more().await {
                answer.body = self.rest.split().to_vec();
                answer.ends = match length {
                    None => Ends::Close,
                    Some(_) => Ends::Broken,
                };
                return;
            }
        }
        answer.body = self.rest.split_to(length.unwrap()).to_vec();
    }

    async fn chunks(&mut self, answer: &mut Answer) -> Ends {
        loop {
            let Some(line) = self.line().await else {
                return Ends::Broken;
            };
            let size = line.split(';').next().unwrap().trim();
            let size = usize::from_str_radix(size, 16)
                .unwrap_or_else(|e| panic!("{e}: chunk size `{line}` in {answer:?}"));
            if size == 0 {
                loop {
                    match self.line().await {
                        None => return Ends::Broken,
                        Some(line) if line.is_empty() => return Ends::Whole,
                        Some(line) => {
                            let (name, value) = line.split_once(':').unwrap();
                            let pair = (name.to_lowercase(), value.trim().to_owned());
                            answer.trailers.push(pair);
                        }
                    }
                }
            }
            while self.rest.len() < size + 2 {
                if !self.more().await {
                    let left = self.rest.split();
                    answer.body.extend_from_slice(&left[..left.len().min(size)]);
                    return Ends::Broken;
                }
            }
            answer.body.extend_from_slice(&self.rest.split_to(size));
            assert_eq!(&self.rest.split_to(2)[..], b"\r\n");
        }
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
}

/// An answer with a length, read from a half.
pub async fn read_answer(mut reading: ReadHalf<'_>) -> Answer {
    let mut got = Vec::new();
    let mut ends = Ends::Whole;
    loop {
        let mut piece = [0; 4096];
        match reading.read(&mut piece).await {
            Ok(length @ 1..) => got.extend_from_slice(&piece[..length]),
            Ok(_) => break,
            Err(_) => {
                ends = Ends::Broken;
                break;
            }
        }
        let text = String::from_utf8_lossy(&got).to_lowercase();
        let Some(at) = text.find("\r\n\r\n") else {
            continue;
        };
        let length = text.split("content-length: ").nth(1).unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        if got.len() >= at + 4 + length {
            break;
        }
    }
    let at = memchr::memmem::find(&got, b"\r\n\r\n").unwrap_or_else(|| {
        panic!("no answer, {ends:?}: {}", String::from_utf8_lossy(&got));
    });
    let head = String::from_utf8(got[..at].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let pair = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_lowercase(), value.to_owned())
    };
    Answer {
        status: status.parse().unwrap(),
        headers: lines.map(pair).collect(),
        body: got[at + 4..].to_vec(),
        trailers: Vec::new(),
        ends,
        informational: Vec::new(),
    }
}

fn pair(header: &httparse::Header) -> (String, String) {
    let value = String::from_utf8_lossy(header.value).into_owned();
    (header.name.to_lowercase(), value)
}

/// A request of a client who knows only berth.
pub fn post(path: &str, more: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: berth\r\ncontent-type: application/json\r\n{more}\
         content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// A request for a stream.
pub fn responses() -> Vec<u8> {
    post("/v1/responses", "", body("/v1/responses", true))
}

/// What an agent asks at an endpoint.
pub fn body(path: &str, stream: bool) -> String {
    let what = match path.rsplit('/').next() {
        Some("responses") => r#""input":"hi""#,
        _ => r#""messages":[{"role":"user","content":"hi"}]"#,
    };
    format!(r#"{{"model":"gpt-sim","stream":{stream},{what}}}"#)
}

/// A request whose body is about so many bytes.
pub fn large_body(bytes: usize) -> Vec<u8> {
    let mut body = br#"{"model":"gpt-sim","stream":true,"input":""#.to_vec();
    let mut state = 1u32;
    while body.len() < bytes {
        // Not compressible and not periodic, so that a piece lost or swapped is seen.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        body.extend_from_slice(format!("{state:08x}").as_bytes());
    }
    body.extend_from_slice(br#""}"#);
    body
}

/// An HTTP/2 connection, by prior knowledge.
pub struct Client2 {
    pub send: SendRequest<Bytes>,
    pub connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl Client2 {
    pub async fn connect(addr: SocketAddr) -> Client2 {
        let stream = within(TcpStream::connect(addr)).await.unwrap();
        let (send, connection) = within(h2::client::handshake(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        Client2 { send, connection }
    }

    /// One request and its answer. `ends` is `Broken` where the stream was reset.
    pub async fn ask(&self, path: &str, more: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let (response, mut sending) = self.start(path, more).await;
        within(async {
            let _ = sending.send_data(body.into(), true);
            collect(response).await
        })
        .await
    }

    /// A request whose body is still to be sent.
    pub async fn start(
        &self,
        path: &str,
        more: &[(&str, &str)],
    ) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        let mut send = within(self.send.clone().ready()).await.unwrap();
        let mut request = Request::post(format!("http://berth{path}"));
        request = request.header("content-type", "application/json");
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        send.send_request(request.body(()).unwrap(), false).unwrap()
    }
}

pub async fn collect(response: h2::client::ResponseFuture) -> Answer {
    let mut answer = Answer {
        status: 0,
        headers: Vec::new(),
        body: Vec::new(),
        trailers: Vec::new(),
        ends: Ends::Broken,
        informational: Vec::new(),
    };
    let Ok(response) = response.await else {
        return answer;
    };
    answer.status = response.status().as_u16();
    answer.headers = pairs(response.headers());
    let mut body = response.into_body();
    while let Some(piece) = body.data().await {
        let Ok(piece) = piece else {
            return answer;
        };
        let _ = body.flow_control().release_capacity(piece.len());
        answer.body.extend_from_slice(&piece);
    }
    match body.trailers().await {
        Ok(trailers) => {
            answer.trailers = trailers.map(|t| pairs(&t)).unwrap_or_default();
            answer.ends = Ends::Whole;
        }
        Err(_) => answer.ends = Ends::Broken,
    }
    answer
}

fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let pairs = headers.iter();
    pairs
        .map(|(name, value)| (name.as_str().to_owned(), text(value)))
        .collect()
}
