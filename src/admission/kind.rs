//! The kind of a frame, read off its first bytes.
//!
//! After commit there may be thousands of frames a second, and all but a few are text on its way to a
//! user. Parsing them would be most of berth's work. So this module answers two questions without
//! parsing: may this whole frame matter ([`kind_of`]), and could this unfinished one still become a
//! failure ([`could_be_failure`])? Both err on the side of yes.

use memchr::memmem;

use super::dialect::Endpoint;
use super::sse::{field, lines};
use super::stream::has_usage;

/// Whether a whole frame matters to [`super::stream::Stream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No: it passes unread.
    Plain,
    /// It may name the response.
    Opening,
    /// It may end the stream, fail it, or report usage.
    Telling,
}

/// The kind of a whole frame.
pub fn kind_of(endpoint: Endpoint, frame: &[u8]) -> Kind {
    if endpoint == Endpoint::Chat {
        let telling = memmem::find(frame, b"[DONE]").is_some()
            || memmem::find(frame, b"\"error\"").is_some()
            || memmem::find(frame, b"\"code\"").is_some()
            || memmem::find(frame, b"\"detail\"").is_some()
            || frame.starts_with(b"event:")
            || has_finish_reason(frame)
            || has_usage(frame);
        return if telling { Kind::Telling } else { Kind::Plain };
    }
    let names = Names::of(frame);
    match (names.event, names.kind) {
        (Some(event), Start::Kind(kind)) => kind_of_name(event).max(kind_of_name(kind)),
        (None, Start::Kind(kind)) => kind_of_name(kind),
        (Some(event), Start::Nothing) => kind_of_name(event),
        (None, Start::Nothing) => Kind::Plain,
        (_, Start::Other | Start::Unfinished) => Kind::Telling,
    }
}

/// Whether an unfinished frame could still become a failure.
pub fn could_be_failure(endpoint: Endpoint, start: &[u8]) -> bool {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let comment = |line: &[u8]| line.first() == Some(&b':') || line.is_empty();
    if !start.is_empty() && start.iter().all(|b| matches!(b, b'\r' | b'\n')) {
        return false;
    }
    if endpoint == Endpoint::Chat {
        // A chunk's error may stand behind its choices.
        return !lines(start).all(comment) || start.is_empty();
    }
    let names = Names::of(start);
    let fails = |name: &[u8]| matches!(name, b"error" | b"response.failed");
    match (names.event, names.kind) {
        (Some(event), Start::Kind(kind)) => fails(event) || fails(kind),
        (None, Start::Kind(kind)) => fails(kind),
        (_, Start::Nothing) if lines(start).all(comment) => ends_with_line_end(start),
        (_, Start::Nothing | Start::Other | Start::Unfinished) => true,
    }
}

/// Whether a chunk says that a choice has finished.
pub fn has_finish_reason(frame: &[u8]) -> bool {
    memmem::find_iter(frame, b"\"finish_reason\"").any(|at| {
        let after = frame.get(at + 15..).unwrap_or_default();
        let value = after
            .iter()
            .find(|b| !b.is_ascii_whitespace() && **b != b':');
        value == Some(&b'"')
    })
}

impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Kind) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kind {
    fn cmp(&self, other: &Kind) -> std::cmp::Ordering {
        (*self as u8).cmp(&(*other as u8))
    }
}

fn kind_of_name(name: &[u8]) -> Kind {
    match name {
        b"response.created" | b"response.queued" | b"response.in_progress" => Kind::Opening,
        b"error"
        | b"response.failed"
        | b"response.completed"
        | b"response.incomplete"
        | b"response.cancelled"
        | b"message_start"
        | b"message_delta"
        | b"message_stop" => Kind::Telling,
        _ => Kind::Plain,
    }
}

/// The names at the start of a frame.
struct Names<'a> {
    event: Option<&'a [u8]>,
    kind: Start<'a>,
}

/// What the data begins with.
enum Start<'a> {
    /// There is no data.
    Nothing,
    /// `{"type":"KIND"`.
    Kind(&'a [u8]),
    /// The beginning of that, cut.
    Unfinished,
    /// Something else.
    Other,
}

impl<'a> Names<'a> {
    fn of(frame: &'a [u8]) -> Names<'a> {
        let frame = frame.strip_prefix(b"\xef\xbb\xbf").unwrap_or(frame);
        let mut names = Names {
            event: None,
            kind: Start::Nothing,
        };
        for line in lines(frame) {
            match field(line) {
                Some((b"event", value)) => names.event = Some(value),
                Some((b"data", value)) => {
                    names.kind = start_of(value);
                    break;
                }
                _ => {}
            }
        }
        names
    }
}

fn start_of(data: &[u8]) -> Start<'_> {
    let mut rest = data;
    for token in [&b"{"[..], b"\"type\"", b":", b"\""] {
        rest = rest.trim_ascii_start();
        match rest.strip_prefix(token) {
            Some(after) => rest = after,
            None if token.starts_with(rest) => return Start::Unfinished,
            None => return Start::Other,
        }
    }
    match memchr::memchr2(b'"', b'\\', rest) {
        Some(end) if rest.get(end) == Some(&b'"') => {
            Start::Kind(rest.get(..end).unwrap_or_default())
        }
        Some(_) => Start::Other,
        None => Start::Unfinished,
    }
}

fn ends_with_line_end(start: &[u8]) -> bool {
    start.is_empty() || matches!(start.last(), Some(b'\n' | b'\r'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: Endpoint = Endpoint::Responses;

    #[test]
    fn text_is_plain_and_ends_are_telling() {
        for (frame, expected) in [
            (
                "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\"}\n\n",
                Kind::Plain,
            ),
            (
                "data: {\"type\":\"response.output_text.delta\"}\n\n",
                Kind::Plain,
            ),
            ("data: { \"type\" : \"error\"}\n\n", Kind::Telling),
            ("event: x\ndata: {\"type\":\"error\"}\n\n", Kind::Telling),
            ("event: error\ndata: {\"type\":\"x\"}\n\n", Kind::Telling),
            ("event: response.failed\r\ndata: {}\r\n\r\n", Kind::Telling),
            (
                "data: {\"sequence_number\":1,\"type\":\"error\"}\n\n",
                Kind::Telling,
            ),
            (
                "event: response.created\ndata: {\"type\":\"response.created\"}\n\n",
                Kind::Opening,
            ),
            (": ping\n\n", Kind::Plain),
        ] {
            assert_eq!(kind_of(E, frame.as_bytes()), expected, "{frame:?}");
        }
    }

    #[test]
    fn only_what_could_be_a_failure_waits() {
        for (start, expected) in [
            ("e", true),
            ("event: resp", true),
            (
                "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",",
                false,
            ),
            (
                "event: response.output_text.delta\ndata: {\"type\":\"resp",
                true,
            ),
            (
                "event: response.failed\ndata: {\"type\":\"response.failed\",\"resp",
                true,
            ),
            (
                "data: {\"type\":\"response.output_text.delta\",\"delta\":\"",
                false,
            ),
            ("data: {\"delta\":", true),
            (": ping", false),
            ("\n", false),
        ] {
            assert_eq!(could_be_failure(E, start.as_bytes()), expected, "{start:?}");
        }
        assert!(could_be_failure(Endpoint::Chat, b"data: {\"choices\":[{"));
    }

    #[test]
    fn a_finish_reason_counts_when_it_is_said() {
        assert!(has_finish_reason(br#"{"finish_reason": "stop"}"#));
        assert!(!has_finish_reason(br#"{"finish_reason":null}"#));
    }
}
