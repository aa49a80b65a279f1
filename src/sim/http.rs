//! The reading half of HTTP/1.1, as much as a simulated upstream needs.
//!
//! Written by hand, since a library that answers for us would also correct us: it would send the
//! `100 Continue` when it likes, and read a body that a fault wants to leave unread. Heads are parsed
//! by `httparse`. Every buffer is bounded, and nothing that arrives can panic.

use bytes::{Buf, BytesMut};
use sha2::{Digest, Sha256};
use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// A request's head.
#[derive(Debug)]
pub(super) struct Head {
    pub method: String,
    /// Without the query.
    pub path: String,
    /// In the order and the case in which they came.
    pub headers: Vec<(String, String)>,
    pub framing: Framing,
}

/// How the request's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    None,
    Length(u64),
    Chunked,
}

/// A request's body, as far as it was read.
pub(super) struct Body {
    /// Without transfer coding.
    pub bytes: Vec<u8>,
    pub sha256: [u8; 32],
    /// Whether all of it was read.
    pub whole: bool,
}

/// Why a request could not be read.
#[derive(Debug)]
pub(super) enum Broken {
    /// The peer left.
    Gone,
    /// The peer has to be told, with this status.
    Told(u16, &'static str),
}

impl Head {
    /// The first value of a header, `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(each, _)| each.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Whether a header lists a token.
    pub fn lists(&self, name: &str, token: &str) -> bool {
        let is_listed = |value: &str| {
            value
                .split(',')
                .any(|each| each.trim().eq_ignore_ascii_case(token))
        };
        self.header(name).is_some_and(is_listed)
    }

    /// The key that the request carries.
    pub fn key(&self) -> Option<&str> {
        let bearer = self.header("authorization").and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
        });
        bearer
            .or_else(|| self.header("x-api-key"))
            .or_else(|| self.header("api-key"))
    }
}

/// The next request's head; `None` when the peer closed between two requests.
pub(super) async fn read_head(
    stream: &mut TcpStream,
    buf: &mut BytesMut,
) -> Result<Option<Head>, Broken> {
    loop {
        match parse_head(buf)? {
            Some((head, length)) => {
                buf.advance(length);
                return Ok(Some(head));
            }
            None if buf.len() >= MAX_HEAD => {
                return Err(Broken::Told(431, "the request head exceeds 64 KiB"));
            }
            None => {}
        }
        if fill(stream, buf).await? == 0 {
            return if buf.is_empty() {
                Ok(None)
            } else {
                Err(Broken::Gone)
            };
        }
    }
}

/// The body, or with `stop_after` at least that much of it. Says `100 Continue` where the client waits
/// for it and the body is wanted.
pub(super) async fn read_body(
    stream: &mut TcpStream,
    buf: &mut BytesMut,
    head: &Head,
    stop_after: Option<u64>,
    memory: &Memory,
) -> Result<(Body, Held), Broken> {
    let mut reader = BodyReader {
        left: match head.framing {
            Framing::Length(length) => length,
            Framing::None | Framing::Chunked => 0,
        },
        chunked: head.framing == Framing::Chunked,
        ended: matches!(head.framing, Framing::None | Framing::Length(0)),
        between_chunks: false,
    };
    if reader.left > MAX_BODY {
        return Err(TOO_LARGE);
    }
    let enough = |read: usize| stop_after.is_some_and(|wanted| read as u64 >= wanted);
    if head.lists("expect", "100-continue") && !reader.ended && !enough(0) && buf.is_empty() {
        let sent = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await;
        sent.map_err(|_| Broken::Gone)?;
    }
    let mut bytes = Vec::new();
    let mut held = Held {
        memory: memory.clone(),
        bytes: 0,
    };
    let mut digest = Sha256::new();
    while !reader.ended && !enough(bytes.len()) {
        match reader.next(buf)? {
            0 if reader.ended => break,
            0 => {
                if fill(stream, buf).await? == 0 {
                    return Err(Broken::Gone);
                }
            }
            length => {
                if bytes.len() + length > MAX_BODY as usize {
                    return Err(TOO_LARGE);
                }
                held.grow(length as u64)?;
                let piece = buf.split_to(length);
                digest.update(&piece);
                bytes.extend_from_slice(&piece);
            }
        }
    }
    let body = Body {
        bytes,
        sha256: digest.finalize().into(),
        whole: reader.ended,
    };
    Ok((body, held))
}

/// What all bodies that are in memory at the same time may take together.
#[derive(Clone, Default)]
pub(super) struct Memory(std::sync::Arc<AtomicU64>);

/// A body's part of it, given back on drop.
pub(super) struct Held {
    memory: Memory,
    bytes: u64,
}

impl Held {
    fn grow(&mut self, more: u64) -> Result<(), Broken> {
        self.bytes += more;
        let total = self.memory.0.fetch_add(more, Ordering::Relaxed) + more;
        if total > MAX_BODIES {
            return Err(Broken::Told(
                503,
                "bodies of more than 2 GiB are being read at once",
            ));
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Takes a body out of the bytes that arrive.
struct BodyReader {
    /// Bytes of the body, or of the chunk, that are still to come.
    left: u64,
    chunked: bool,
    ended: bool,
    /// Whether the line end after a chunk's data is still to come.
    between_chunks: bool,
}

impl BodyReader {
    /// How many bytes at the front of `buf` are data; framing before them is taken away. 0 asks for
    /// more, or says that the body has ended.
    fn next(&mut self, buf: &mut BytesMut) -> Result<usize, Broken> {
        if self.chunked && self.left == 0 && !self.read_chunk_head(buf)? {
            return Ok(0);
        }
        let length = (buf.len() as u64).min(self.left);
        self.left -= length;
        if self.left == 0 && length > 0 {
            self.between_chunks = self.chunked;
            self.ended = !self.chunked;
        }
        Ok(length as usize)
    }

    /// Whether a chunk's data follows.
    fn read_chunk_head(&mut self, buf: &mut BytesMut) -> Result<bool, Broken> {
        if self.between_chunks {
            match buf.get(..2) {
                Some(b"\r\n") => buf.advance(2),
                Some(_) => return Err(BAD_CHUNK),
                None => return Ok(false),
            }
            self.between_chunks = false;
        }
        match httparse::parse_chunk_size(buf) {
            Ok(httparse::Status::Complete((line, 0))) => {
                // Trailers are dropped; their end is an empty line.
                let rest = buf.get(line..).unwrap_or_default();
                let end = if rest.starts_with(b"\r\n") {
                    Some(2)
                } else {
                    memchr::memmem::find(rest, b"\r\n\r\n").map(|at| at + 4)
                };
                match end {
                    Some(end) => {
                        buf.advance(line + end);
                        self.ended = true;
                        Ok(false)
                    }
                    None if rest.len() > MAX_HEAD => Err(BAD_CHUNK),
                    None => Ok(false),
                }
            }
            Ok(httparse::Status::Complete((_, size))) if size > MAX_BODY => Err(TOO_LARGE),
            Ok(httparse::Status::Complete((line, size))) => {
                buf.advance(line);
                self.left = size;
                Ok(true)
            }
            Ok(httparse::Status::Partial) if buf.len() <= MAX_CHUNK_LINE => Ok(false),
            Ok(httparse::Status::Partial) | Err(_) => Err(BAD_CHUNK),
        }
    }
}

/// Reads what has come; 0 at the end.
async fn fill(stream: &mut TcpStream, buf: &mut BytesMut) -> Result<usize, Broken> {
    buf.reserve(READ_SIZE);
    let read: io::Result<usize> = match timeout(MAX_IDLE, stream.read_buf(buf)).await {
        Ok(read) => read,
        Err(_) => return Err(Broken::Gone),
    };
    read.map_err(|_| Broken::Gone)
}

fn parse_head(buf: &[u8]) -> Result<Option<(Head, usize)>, Broken> {
    let mut slots = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut slots);
    let length = match request.parse(buf) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Broken::Told(431, "more than 128 request headers"));
        }
        Err(_) => return Err(Broken::Told(400, "this is no HTTP/1.1 request")),
    };
    if request.version != Some(1) {
        return Err(Broken::Told(505, "only HTTP/1.1 is spoken here"));
    }
    let target = request.path.unwrap_or("/");
    let target = target.strip_prefix("http://").map_or(target, |rest| {
        rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/")
    });
    let path = target.split(['?', '#']).next().unwrap_or("/").to_owned();
    let headers = request
        .headers
        .iter()
        .map(|each| {
            (
                each.name.to_owned(),
                String::from_utf8_lossy(each.value).into_owned(),
            )
        })
        .collect();
    let mut head = Head {
        method: request.method.unwrap_or_default().to_owned(),
        path,
        headers,
        framing: Framing::None,
    };
    head.framing = framing_of(&head)?;
    Ok(Some((head, length)))
}

fn framing_of(head: &Head) -> Result<Framing, Broken> {
    let mut lengths = head
        .headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map(|(_, value)| value.trim());
    let length = lengths.next();
    if lengths.any(|other| Some(other) != length) {
        return Err(Broken::Told(400, "two different content-lengths"));
    }
    match (head.header("transfer-encoding"), length) {
        (Some(_), Some(_)) => Err(Broken::Told(400, "content-length beside transfer-encoding")),
        (Some(coding), None) if coding.trim().eq_ignore_ascii_case("chunked") => {
            Ok(Framing::Chunked)
        }
        (Some(_), None) => Err(Broken::Told(501, "no transfer-encoding but chunked")),
        (None, Some(length)) if length.bytes().all(|byte| byte.is_ascii_digit()) => length
            .parse()
            .map(Framing::Length)
            .map_err(|_| Broken::Told(400, "a content-length that is no number")),
        (None, Some(_)) => Err(Broken::Told(400, "a content-length that is no number")),
        (None, None) => Ok(Framing::None),
    }
}

const TOO_LARGE: Broken = Broken::Told(413, "the body exceeds 128 MiB");
const BAD_CHUNK: Broken = Broken::Told(400, "a chunk that is not framed as one");
/// Bytes of a request head. Chosen: what berth itself allows by default.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 128;
/// Bytes of a request body. Chosen: twice what berth accepts by default.
const MAX_BODY: u64 = 128 << 20;
/// Bytes of all bodies at once. Chosen: sixteen of the largest.
const MAX_BODIES: u64 = 2 << 30;
/// Bytes of a chunk's size line, extensions included.
const MAX_CHUNK_LINE: usize = 1 << 10;
const READ_SIZE: usize = 16 << 10;
/// How long a connection may be silent where a request is expected. Chosen: longer than any client
/// keeps a connection, so that it is not the simulator that closes first.
const MAX_IDLE: Duration = Duration::from_secs(900);

#[cfg(test)]
#[path = "tests/reading.rs"]
mod tests;
