//! HTTP/1.1 as bytes on a socket: heads, and bodies by the piece.
//!
//! It reads strictly and repairs nothing: a body that ends before its framing says so is an error,
//! since a broken end is what several cases are about.

use std::io;

use tokio::io::AsyncReadExt as _;
use tokio::net::tcp::OwnedReadHalf;

use super::exchange::values;

/// The largest head that the runner accepts: far above every case, small enough to end a runaway.
const HEAD_LIMIT: usize = 1 << 20;

/// Bytes asked for at once: a `Vec` without room to spare would be filled by 64.
const READ_SIZE: usize = 64 * 1024;

/// The reading side of a connection, with what was read ahead.
pub struct Wire {
    pub stream: OwnedReadHalf,
    pub buffer: Vec<u8>,
}

/// A parsed head.
#[derive(Clone, Debug)]
pub struct Head {
    pub text: String,
    /// The request line or the status line.
    pub first: String,
    pub headers: Vec<(String, String)>,
}

/// What is left of a body.
#[derive(Debug)]
pub enum Body {
    Length(usize),
    Chunk(Chunk),
    UntilClose,
    Done,
}

#[derive(Debug)]
pub enum Chunk {
    Size,
    Data(usize),
    DataEnd,
    Trailer,
}

impl Head {
    fn parse(bytes: &[u8]) -> Head {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default().to_owned();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        Head {
            text,
            first,
            headers,
        }
    }

    /// The status of an answer; 0 where the line is no status line.
    pub fn status(&self) -> u16 {
        self.first
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or(0)
    }

    /// The body that follows. `answer`: without any framing it lasts until the close.
    pub fn body(&self, answer: bool) -> Body {
        let coded = values(&self.headers, "transfer-encoding");
        if coded
            .iter()
            .any(|value| value.to_lowercase().contains("chunked"))
        {
            return Body::Chunk(Chunk::Size);
        }
        match values(&self.headers, "content-length")
            .first()
            .map(|value| value.parse())
        {
            Some(Ok(0)) => Body::Done,
            Some(Ok(length)) => Body::Length(length),
            Some(Err(_)) => Body::UntilClose,
            None if answer => Body::UntilClose,
            None => Body::Done,
        }
    }
}

impl Wire {
    pub fn new(stream: OwnedReadHalf) -> Wire {
        Wire {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Reads more; an end of the stream is an error here.
    pub async fn fill(&mut self) -> io::Result<()> {
        self.buffer.reserve(READ_SIZE);
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// The next head.
    pub async fn head(&mut self) -> io::Result<Head> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                return Ok(Head::parse(&head));
            }
            if self.buffer.len() > HEAD_LIMIT {
                return Err(io::Error::other("a head without an end"));
            }
            self.fill().await?;
        }
    }

    /// The next piece of a body; `None` at its proper end.
    pub async fn piece(&mut self, body: &mut Body) -> io::Result<Option<Vec<u8>>> {
        loop {
            match body {
                Body::Done => return Ok(None),
                Body::Length(0) => *body = Body::Done,
                Body::Length(left) => {
                    let piece = self.some(*left).await?;
                    *left -= piece.len();
                    return Ok(Some(piece));
                }
                Body::UntilClose => {
                    self.buffer.reserve(READ_SIZE);
                    if self.buffer.is_empty() && self.stream.read_buf(&mut self.buffer).await? == 0
                    {
                        *body = Body::Done;
                        continue;
                    }
                    return Ok(Some(std::mem::take(&mut self.buffer)));
                }
                Body::Chunk(Chunk::Size) => {
                    let line = self.line().await?;
                    let size = line.split(';').next().unwrap_or_default().trim();
                    let size = usize::from_str_radix(size, 16)
                        .map_err(|_| io::Error::other(format!("no chunk size: {line:?}")))?;
                    *body = Body::Chunk(match size {
                        0 => Chunk::Trailer,
                        _ => Chunk::Data(size),
                    });
                }
                Body::Chunk(Chunk::Data(0)) => *body = Body::Chunk(Chunk::DataEnd),
                Body::Chunk(Chunk::Data(left)) => {
                    let piece = self.some(*left).await?;
                    *left -= piece.len();
                    return Ok(Some(piece));
                }
                Body::Chunk(Chunk::DataEnd) => {
                    self.line().await?;
                    *body = Body::Chunk(Chunk::Size);
                }
                Body::Chunk(Chunk::Trailer) => {
                    if self.line().await?.is_empty() {
                        *body = Body::Done;
                    }
                }
            }
        }
    }

    async fn some(&mut self, most: usize) -> io::Result<Vec<u8>> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        let most = most.min(self.buffer.len());
        Ok(self.buffer.drain(..most).collect())
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.buffer.len() > HEAD_LIMIT {
                return Err(io::Error::other("a line without an end"));
            }
            self.fill().await?;
        }
    }
}

pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(haystack, needle)
}

/// One frame of an event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub event: String,
    pub data: String,
    /// The frame's bytes, with the empty line that ends it.
    pub raw: Vec<u8>,
    /// Where it ends in the stream.
    pub end: usize,
}

/// The complete frames of an event stream. The naive reading: the whole text at once.
pub fn frames(stream: &[u8]) -> Vec<Frame> {
    let text = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let skipped = stream.len() - text.len();
    let (mut frames, mut start, mut at) = (Vec::new(), 0, 0);
    let (mut event, mut data): (String, Vec<String>) = Default::default();
    while at < text.len() {
        let length = text[at..].iter().position(|b| matches!(b, b'\r' | b'\n'));
        let Some(length) = length else { break };
        let line = String::from_utf8_lossy(&text[at..at + length]).into_owned();
        at += length;
        at += if text[at..].starts_with(b"\r\n") {
            2
        } else {
            1
        };
        if line.is_empty() {
            let raw = text[start..at].to_vec();
            let (event, data) = (
                std::mem::take(&mut event),
                std::mem::take(&mut data).join("\n"),
            );
            frames.push(Frame {
                event: named(event, &data),
                data,
                raw,
                end: at + skipped,
            });
            start = at;
        } else if let Some((field, value)) = line.split_once(':') {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => event = value.to_owned(),
                "data" => data.push(value.to_owned()),
                _ => {}
            }
        }
    }
    frames
}

/// A frame without an event line is named by the `type` in its data.
pub fn named(event: String, data: &str) -> String {
    if !event.is_empty() {
        return event;
    }
    let json: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
    json["type"].as_str().unwrap_or_default().to_owned()
}
