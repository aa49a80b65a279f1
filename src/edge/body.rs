//! A client's request body, kept whole for a second attempt where that is allowed.
//!
//! Agents send 100 KiB to 40 MiB, and pingora's own replay buffer ends at 64 KiB. So the body is read
//! here, in one piece of memory, within three bounds: `limits.request_body` (413), `limits.replay_body`
//! and the memory budget of all requests. Beyond the latter two nothing is refused: the rest is
//! streamed as it comes, and the request gets one attempt.

use std::io::Read;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::header;
use pingora::ErrorType;
use pingora::proxy::Session;
use tokio::time::timeout_at;

use crate::admission::coding::Coding;
use crate::admission::model;
use crate::admission::share::Client;
use crate::pool::{MemoryBudget, Reservation};

use super::pace::Pace;
use super::request::READ_ASIDE;
use super::spec::Limits;
use super::turns::{LARGE, Turns};

/// What a streamed body is looked into for its model, bytes. Chosen: agents put it first.
const STREAMED_START: usize = 64 * 1024;

/// A body is handed on in pieces of this size, so that an early answer is read between two of them.
const PIECE: usize = 64 * 1024;

/// A request body, as far as it has been read.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    rest: Rest,
    /// How it came so far, where some of it is still to come.
    pace: Option<Pace>,
    /// Freed with the body.
    _memory: Option<Reservation>,
}

/// What has not been read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing: the body is whole.
    Nothing,
    /// It comes from the client, up to this many bytes.
    Streamed(usize),
}

/// A body that cannot be had.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// Larger than `limits.request_body`.
    TooLarge,
    /// The client left.
    ClientGone,
    /// The client stopped sending.
    TooSlow,
    /// Its framing is broken.
    Malformed,
}

impl Body {
    /// Reads the body of `session`'s request, which is `client`'s and has room in `memory`.
    ///
    /// # Errors
    ///
    /// See [`BodyFault`].
    pub async fn read(
        session: &mut Session,
        limits: &Limits,
        (memory, client): (&MemoryBudget, Client),
        turns: &Turns,
    ) -> Result<Body, BodyFault> {
        let declared = declared_length(session);
        if declared.is_some_and(|length| length > limits.request_body) {
            return Err(BodyFault::TooLarge);
        }
        if session.is_body_empty() {
            return Ok(Body::whole(Bytes::new(), None));
        }
        if expects_continue(session) {
            session
                .write_continue_response()
                .await
                .map_err(|_| BodyFault::ClientGone)?;
        }
        let keep = match declared {
            Some(length) if length > limits.replay_body => STREAMED_START,
            _ => limits.replay_body,
        };
        let mut reservation = memory.reservation(client);
        let mut bytes = BytesMut::with_capacity(declared.unwrap_or(0).min(PIECE));
        let mut pace = Pace::new(limits.client_timeout, Instant::now());
        loop {
            let next = next_piece(session, &mut pace);
            let piece = match bytes.len() > LARGE {
                true => turns.piece(next).await?,
                false => next.await?,
            };
            let Some(piece) = piece else { break };
            if bytes.len() + piece.len() > limits.request_body {
                return Err(BodyFault::TooLarge);
            }
            let room = reservation.grow(piece.len(), Instant::now()).is_ok();
            grow(&mut bytes, piece.len(), declared);
            bytes.extend_from_slice(&piece);
            if !room || bytes.len() > keep {
                let left = limits.request_body - bytes.len();
                return Ok(Body {
                    bytes: bytes.freeze(),
                    rest: Rest::Streamed(left),
                    pace: Some(pace),
                    _memory: Some(reservation),
                });
            }
        }
        Ok(Body::whole(bytes.freeze(), Some(reservation)))
    }

    /// What has been read: all of it, or its beginning.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Whether it can be sent a second time.
    pub fn is_whole(&self) -> bool {
        self.rest == Rest::Nothing
    }

    /// The same body with the model `name` and nothing else changed, in plain form; `None` where it
    /// cannot be had: the body has no one place for it, or is packed in a way that cannot be read, or
    /// is more than `most` bytes or than `reservation` has room for.
    pub async fn renamed(
        &self,
        coding: Option<Coding>,
        name: &str,
        most: usize,
        mut reservation: Reservation,
    ) -> Option<Body> {
        let (bytes, name, coding) = (self.bytes.clone(), name.to_owned(), coding?);
        let is_short = bytes.len() <= READ_ASIDE && coding == Coding::Identity;
        let rename = move || {
            let plain = unpacked(&bytes, coding, most, &mut reservation)?;
            let renamed = model::renamed(plain, &name)?;
            Some(Body::whole(renamed.into(), Some(reservation)))
        };
        match is_short {
            true => rename(),
            false => tokio::task::spawn_blocking(rename).await.ok()?,
        }
    }

    /// The body from its start, to be sent.
    pub fn source(&self) -> Source {
        Source {
            bytes: self.bytes.clone(),
            rest: self.rest,
            pace: self.pace,
            ended: false,
        }
    }

    fn whole(bytes: Bytes, memory: Option<Reservation>) -> Body {
        Body {
            bytes,
            rest: Rest::Nothing,
            pace: None,
            _memory: memory,
        }
    }
}

/// A body on its way to an upstream.
#[derive(Debug)]
pub struct Source {
    bytes: Bytes,
    rest: Rest,
    pace: Option<Pace>,
    ended: bool,
}

/// What comes next of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// This piece; `true` says that it is the last.
    Piece(Bytes, bool),
    /// A piece that the client has still to send.
    FromClient,
    /// Nothing: the end has been handed on.
    Nothing,
}

impl Source {
    /// What comes next; a piece counts as handed on.
    pub fn next(&mut self) -> Next {
        if self.ended {
            return Next::Nothing;
        }
        if self.bytes.is_empty() && self.rest != Rest::Nothing {
            return Next::FromClient;
        }
        let piece = self.bytes.split_to(PIECE.min(self.bytes.len()));
        self.ended = self.bytes.is_empty() && self.rest == Rest::Nothing;
        Next::Piece(piece, self.ended)
    }

    /// Whether everything has been handed on.
    pub fn is_done(&self) -> bool {
        self.ended
    }

    /// Whether all of it has come from the client.
    pub fn has_come(&self) -> bool {
        self.rest == Rest::Nothing
    }

    /// Whether the next piece has to come from the client.
    pub fn wants_client(&self) -> bool {
        !self.ended && self.bytes.is_empty() && self.rest != Rest::Nothing
    }

    /// When the client must have sent more; it is asked for nothing where there is no such time.
    pub fn until(&self) -> Option<Instant> {
        self.pace.as_ref().map(Pace::until)
    }

    /// The client sent a piece, or its end.
    ///
    /// # Errors
    ///
    /// More than `limits.request_body`.
    pub fn feed(&mut self, piece: Option<Bytes>) -> Result<(), BodyFault> {
        match (piece, self.rest) {
            (Some(piece), Rest::Streamed(left)) => {
                let left = left.checked_sub(piece.len()).ok_or(BodyFault::TooLarge)?;
                self.rest = Rest::Streamed(left);
                if let Some(pace) = &mut self.pace {
                    pace.came(piece.len(), Instant::now());
                }
                self.bytes = piece;
            }
            (None, _) => self.rest = Rest::Nothing,
            (Some(_), Rest::Nothing) => {}
        }
        Ok(())
    }
}

/// The length that a request declares, if it declares one that can be read.
pub fn declared_length(session: &Session) -> Option<usize> {
    let value = session.req_header().headers.get(header::CONTENT_LENGTH)?;
    value.to_str().ok()?.trim().parse().ok()
}

/// The next piece of the body, if it comes in time.
pub async fn next_piece(
    session: &mut Session,
    pace: &mut Pace,
) -> Result<Option<Bytes>, BodyFault> {
    let read = session.as_downstream_mut().read_request_body();
    let read = timeout_at(pace.until().into(), read)
        .await
        .map_err(|_| BodyFault::TooSlow)?;
    if let Ok(Some(piece)) = &read {
        pace.came(piece.len(), Instant::now());
    }
    read.map_err(|e| match e.etype() {
        ErrorType::ReadTimedout => BodyFault::TooSlow,
        ErrorType::InvalidHTTPHeader | ErrorType::InvalidH2 => BodyFault::Malformed,
        _ if e.to_string().contains("chunk") => BodyFault::Malformed,
        _ => BodyFault::ClientGone,
    })
}

/// A packed body, read piece by piece within its bounds.
fn unpacked(
    bytes: &[u8],
    coding: Coding,
    most: usize,
    reservation: &mut Reservation,
) -> Option<Vec<u8>> {
    let mut reader = coding.reader(bytes).ok()?;
    let mut plain = Vec::with_capacity(bytes.len().min(most));
    let mut piece = vec![0; PIECE];
    loop {
        let length = reader.read(&mut piece).ok()?;
        if length == 0 {
            return Some(plain);
        }
        if plain.len() + length > most {
            return None;
        }
        reservation.grow(length, Instant::now()).ok()?;
        plain.extend_from_slice(piece.get(..length)?);
    }
}

/// Makes room for `more` bytes: doubling, but never beyond what was declared, and once a body is large all that
/// was declared: memory that is not written to costs nothing, and to move a body once more costs as much again.
fn grow(bytes: &mut BytesMut, more: usize, declared: Option<usize>) {
    let needed = bytes.len() + more;
    if needed <= bytes.capacity() {
        return;
    }
    let doubled = (bytes.capacity() * 2).max(needed);
    let goal = match declared.map(|declared| declared.max(needed)) {
        Some(declared) if bytes.len() >= LARGE => declared,
        Some(declared) => doubled.min(declared),
        None => doubled,
    };
    bytes.reserve(goal - bytes.len());
}

fn expects_continue(session: &Session) -> bool {
    let expect = session.req_header().headers.get(header::EXPECT);
    expect.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_handed_on_once_and_whole() {
        for length in [0, 1, PIECE, PIECE + 1, 3 * PIECE] {
            let body = Body::whole(Bytes::from(vec![7; length]), None);
            for _ in 0..2 {
                let (mut source, mut got, mut ends) = (body.source(), 0, 0);
                while let Next::Piece(piece, last) = source.next() {
                    got += piece.len();
                    ends += usize::from(last);
                }
                assert_eq!((got, ends, source.is_done()), (length, 1, true), "{length}");
            }
        }
    }

    #[tokio::test]
    async fn a_renamed_body_stays_within_its_bounds() {
        let json = format!(r#"{{"model":"a","input":"{}"}}"#, "x".repeat(READ_ASIDE));
        let packed = zstd::stream::encode_all(json.as_bytes(), 1).unwrap();
        let client = Client::hashed(1);
        for (coding, bytes) in [
            (Coding::Identity, json.clone().into_bytes()),
            (Coding::Zstd, packed),
        ] {
            let body = Body::whole(bytes.into(), None);
            for (room, most, fits) in [
                (2 * json.len(), json.len(), true),
                (2 * json.len(), json.len() - 1, false),
                (json.len() / 2, json.len(), false),
            ] {
                let memory = MemoryBudget::new(room);
                let reservation = memory.reservation(client);
                let renamed = body.renamed(Some(coding), "b", most, reservation).await;
                assert_eq!(renamed.is_some(), fits, "{coding:?} {room} {most}");
                let bytes = renamed.as_ref().map(|body| body.bytes().len());
                assert_eq!(memory.used(), bytes.unwrap_or_default());
                if let Some(renamed) = renamed {
                    let expected = json.replacen("\"a\"", "\"b\"", 1);
                    assert_eq!(renamed.bytes(), expected.as_bytes());
                    assert!(renamed.is_whole());
                }
                assert_eq!(memory.used(), 0);
            }
            let reservation = MemoryBudget::new(json.len()).reservation(client);
            assert!(
                body.renamed(None, "b", json.len(), reservation)
                    .await
                    .is_none()
            );
        }
    }

    #[test]
    fn a_streamed_body_asks_the_client_and_stops_at_the_limit() {
        let body = Body {
            bytes: Bytes::from_static(b"start"),
            rest: Rest::Streamed(4),
            pace: None,
            _memory: None,
        };
        let mut source = body.source();
        assert_eq!(
            source.next(),
            Next::Piece(Bytes::from_static(b"start"), false)
        );
        assert_eq!(source.next(), Next::FromClient);
        source.feed(Some(Bytes::from_static(b"more"))).unwrap();
        assert_eq!(
            source.next(),
            Next::Piece(Bytes::from_static(b"more"), false)
        );
        assert_eq!(
            source.feed(Some(Bytes::from_static(b"x"))),
            Err(BodyFault::TooLarge)
        );
        source.feed(None).unwrap();
        assert_eq!(source.next(), Next::Piece(Bytes::new(), true));
        assert_eq!(source.next(), Next::Nothing);
    }
}
