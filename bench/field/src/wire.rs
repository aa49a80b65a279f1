//! HTTP/1.1 as far as a load generator and a fake upstream need it, over blocking sockets.
//!
//! Blocking, with a thread for each connection, because the clock is the point: a thread that the
//! kernel wakes knows the time to some tens of microseconds, a runtime's timer wheel to a
//! millisecond. Both ends are ours and on loopback, so what is not HTTP is an error and nothing more.

use std::io::{Error, ErrorKind, Read, Result, Write};

/// Room for one read. Chosen: a short answer and its head fit many times.
const BUFFER: usize = 64 * 1024;

/// A connection that speaks HTTP/1.1.
pub struct Wire<S> {
    stream: S,
    buffer: Vec<u8>,
    at: usize,
    filled: usize,
}

/// What the head of a message says.
pub struct Head {
    /// 0 for a request.
    pub status: u16,
    /// How its body ends.
    pub framing: Framing,
    /// The other side closes after this message.
    pub closes: bool,
    /// The client waits to be told to go on.
    pub expects: bool,
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// After so many bytes.
    Length(u64),
    /// With a chunk of none.
    Chunked,
    /// With the connection.
    Close,
}

impl<S: Read + Write> Wire<S> {
    /// A connection, of which nothing has been read.
    pub fn new(stream: S) -> Wire<S> {
        Wire {
            stream,
            buffer: vec![0; 4096],
            at: 0,
            filled: 0,
        }
    }

    /// Makes room for large bodies.
    pub fn widen(&mut self) {
        self.buffer.resize(BUFFER, 0);
    }

    /// Sends all of it.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads the next head; `None` where the other side closed before its first byte.
    pub fn head(&mut self) -> Result<Option<Head>> {
        let mut searched = 0;
        let length = loop {
            let have = &self.buffer[self.at..self.filled];
            match find(&have[searched..], b"\r\n\r\n") {
                Some(found) => break searched + found + 4,
                None => searched = have.len().saturating_sub(3),
            }
            if !self.fill()? {
                return match self.filled - self.at {
                    0 => Ok(None),
                    _ => Err(ErrorKind::UnexpectedEof.into()),
                };
            }
        };
        let head = read_head(&self.buffer[self.at..self.at + length])?;
        self.at += length;
        Ok(Some(head))
    }

    /// Reads a body to its end, piece by piece.
    pub fn body(&mut self, framing: Framing, mut take: impl FnMut(&[u8])) -> Result<()> {
        match framing {
            Framing::Length(length) => self.exactly(length, &mut take),
            Framing::Chunked => loop {
                let line = self.line()?;
                let size = line.split(|b| *b == b';').next().unwrap_or_default();
                let size = std::str::from_utf8(size).ok();
                let size = size.and_then(|size| u64::from_str_radix(size.trim(), 16).ok());
                let size = size.ok_or_else(|| garbage("a chunk without a size"))?;
                if size == 0 {
                    while !self.line()?.is_empty() {}
                    return Ok(());
                }
                self.exactly(size, &mut take)?;
                if !self.line()?.is_empty() {
                    return Err(garbage("a chunk longer than it says"));
                }
            },
            Framing::Close => loop {
                take(&self.buffer[self.at..self.filled]);
                self.at = self.filled;
                if !self.fill()? {
                    return Ok(());
                }
            },
        }
    }

    fn exactly(&mut self, mut length: u64, take: &mut impl FnMut(&[u8])) -> Result<()> {
        while length > 0 {
            if self.at == self.filled && !self.fill()? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let have = (self.filled - self.at).min(usize::try_from(length).unwrap_or(usize::MAX));
            take(&self.buffer[self.at..self.at + have]);
            self.at += have;
            length -= have as u64;
        }
        Ok(())
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        loop {
            let have = &self.buffer[self.at..self.filled];
            if let Some(end) = find(have, b"\r\n") {
                let line = have[..end].to_vec();
                self.at += end + 2;
                return Ok(line);
            }
            if !self.fill()? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads more behind what is not taken yet; `false` at the end.
    fn fill(&mut self) -> Result<bool> {
        if self.at == self.filled {
            (self.at, self.filled) = (0, 0);
        } else if self.filled == self.buffer.len() {
            self.buffer.copy_within(self.at..self.filled, 0);
            (self.at, self.filled) = (0, self.filled - self.at);
            if self.filled == self.buffer.len() {
                return Err(garbage("a head or line without an end"));
            }
        }
        let read = self.stream.read(&mut self.buffer[self.filled..])?;
        self.filled += read;
        Ok(read > 0)
    }
}

/// Where `what` begins in `bytes`.
pub fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, what)
}

fn read_head(head: &[u8]) -> Result<Head> {
    let head = std::str::from_utf8(head).map_err(|_| garbage("a head that is not text"))?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = match first.strip_prefix("HTTP/1.") {
        Some(rest) => rest.get(2..5).and_then(|code| code.parse().ok()),
        None => Some(0),
    };
    let status = status.ok_or_else(|| garbage("a status line without a status"))?;
    let mut head = Head {
        status,
        framing: match status {
            0 | 204 | 304 => Framing::Length(0),
            _ => Framing::Close,
        },
        closes: false,
        expects: false,
    };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let length = value
                .parse()
                .map_err(|_| garbage("a length that is none"))?;
            head.framing = Framing::Length(length);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            head.framing = Framing::Chunked;
        } else if name.eq_ignore_ascii_case("connection") {
            head.closes = value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("expect") {
            head.expects = true;
        }
    }
    head.closes |= head.framing == Framing::Close;
    Ok(head)
}

fn garbage(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}
