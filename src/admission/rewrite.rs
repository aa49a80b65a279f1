//! The one place where an error code is changed on its way to a client.
//!
//! The problem: the Codex client takes `server_is_overloaded` and `slow_down` as final and ends the
//! user's task, wherever it reads them. The promise: with [`ClientErrorCode::Replace`] neither leaves
//! berth as a code or a type, in JSON, in a stream or in a socket; the message, the order of keys and
//! every other byte stay as they came. The edit is made in the bytes, at the place where the value
//! stands, so that nothing has to be written anew.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::json::{Object, text};
use super::policy::ClientErrorCode;
use super::sse;

/// The codes that end a client's task.
const FATAL: [&str; 2] = ["server_is_overloaded", "slow_down"];

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// The bytes to send instead.
    pub bytes: Bytes,
    /// The code that stood there; where several did, the first.
    pub from: &'static str,
    /// In how many places.
    pub places: usize,
}

/// Rewrites a JSON document; `None` where nothing is to be changed.
pub fn document(bytes: &[u8], code: &ClientErrorCode) -> Option<Rewritten> {
    let ClientErrorCode::Replace(code) = code else {
        return None;
    };
    let object = Object::parse(bytes)?;
    let mut found = Found::default();
    for error in object.errors() {
        if let Some(error) = Object::of(error) {
            found.look_at(bytes, &error);
        }
    }
    found.look_at(bytes, &object);
    found.apply(bytes, code)
}

/// Rewrites a whole frame of an event stream; `None` where nothing is to be changed.
pub fn frame(frame: &[u8], code: &ClientErrorCode) -> Option<Rewritten> {
    let mut data = Vec::new();
    for line in sse::lines(frame) {
        if let Some((b"data", value)) = sse::field(line) {
            data.push(value);
        }
    }
    if let [only] = data.as_slice() {
        let change = document(only, code)?;
        let start = offset(frame, only)?;
        let mut bytes = frame.get(..start)?.to_vec();
        bytes.extend_from_slice(&change.bytes);
        bytes.extend_from_slice(frame.get(start + only.len()..)?);
        return Some(Rewritten {
            bytes: bytes.into(),
            ..change
        });
    }
    // JSON spread over several lines: a code never spans two of them, so each line that holds a
    // value to change is edited where it stands.
    let change = document(&data.join(&b'\n'), code)?;
    let new_data = change.bytes.split(|b| *b == b'\n');
    let mut bytes = Vec::with_capacity(frame.len());
    let mut rest = frame;
    for (old, new) in data.iter().zip(new_data) {
        let start = offset(rest, old)?;
        bytes.extend_from_slice(rest.get(..start)?);
        bytes.extend_from_slice(new);
        rest = rest.get(start + old.len()..)?;
    }
    bytes.extend_from_slice(rest);
    Some(Rewritten {
        bytes: bytes.into(),
        ..change
    })
}

/// Whether a code is one of those that are rewritten.
pub fn is_fatal(code: &str) -> Option<&'static str> {
    FATAL.into_iter().find(|fatal| *fatal == code)
}

#[derive(Default)]
struct Found {
    /// Where a value stands, quotes included.
    places: Vec<(usize, usize)>,
    from: Option<&'static str>,
}

impl Found {
    fn look_at(&mut self, bytes: &[u8], error: &Object<'_>) {
        for value in [error.code, error.kind].into_iter().flatten() {
            self.look_at_value(bytes, value);
        }
    }

    fn look_at_value(&mut self, bytes: &[u8], value: &RawValue) {
        let Some(fatal) = text(Some(value)).and_then(|v| is_fatal(&v)) else {
            return;
        };
        if let Some(start) = offset(bytes, value.get().as_bytes()) {
            self.places.push((start, value.get().len()));
            self.from = self.from.or(Some(fatal));
        }
    }

    fn apply(mut self, bytes: &[u8], code: &str) -> Option<Rewritten> {
        self.places.sort_unstable();
        self.places.dedup();
        let mut out = Vec::with_capacity(bytes.len() + code.len());
        let mut at = 0;
        for (start, length) in &self.places {
            out.extend_from_slice(bytes.get(at..*start)?);
            out.push(b'"');
            out.extend_from_slice(code.as_bytes());
            out.push(b'"');
            at = start + length;
        }
        out.extend_from_slice(bytes.get(at..)?);
        Some(Rewritten {
            bytes: out.into(),
            from: self.from?,
            places: self.places.len(),
        })
    }
}

/// Where `part`, a slice of `whole`, begins in it.
fn offset(whole: &[u8], part: &[u8]) -> Option<usize> {
    let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    (start + part.len() <= whole.len()).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replace() -> ClientErrorCode {
        ClientErrorCode::Replace("server_error".into())
    }

    #[test]
    fn only_the_codes_change() {
        let json = r#"{ "error" : {"code": "server_is_overloaded", "message":"Retry (server_is_overloaded).","type":"x"} }"#;
        let change = document(json.as_bytes(), &replace()).unwrap();
        let expected = r#"{ "error" : {"code": "server_error", "message":"Retry (server_is_overloaded).","type":"x"} }"#;
        assert_eq!(change.bytes, expected);
        assert_eq!((change.from, change.places), ("server_is_overloaded", 1));
    }

    #[test]
    fn every_place_of_a_code_is_found() {
        for json in [
            r#"{"error":{"code":"slow_down"}}"#,
            r#"{"error":{"type":"slow_down"}}"#,
            r#"{"response":{"error":{"code":"slow_down"}}}"#,
            r#"{"response":{"status_details":{"error":{"code":"slow_down"}}}}"#,
            r#"{"detail":{"code":"slow_down"}}"#,
            r#"{"type":"error","code":"slow_down"}"#,
            r#"{"error":{"code":"slow\u005fdown"}}"#,
        ] {
            let change = document(json.as_bytes(), &replace()).unwrap();
            let text = std::str::from_utf8(&change.bytes).unwrap();
            assert!(text.contains("\"server_error\""), "{json}");
            assert!(!text.contains("slow"), "{json}");
        }
    }

    #[test]
    fn prompts_and_messages_are_left_alone() {
        for json in [
            r#"{"error":{"message":"slow_down"}}"#,
            r#"{"response":{"instructions":"slow_down","output":[{"code":"slow_down"}]}}"#,
            r#"{"error":null}"#,
            "not json",
        ] {
            assert_eq!(document(json.as_bytes(), &replace()), None, "{json}");
        }
        let busy = r#"{"error":{"code":"slow_down"}}"#;
        assert_eq!(document(busy.as_bytes(), &ClientErrorCode::Keep), None);
    }

    #[test]
    fn a_frame_keeps_its_form() {
        for (frame_in, expected) in [
            (
                "event: error\r\ndata:{\"code\":\"slow_down\"}\r\n\r\n",
                "event: error\r\ndata:{\"code\":\"server_error\"}\r\n\r\n",
            ),
            (
                "data: {\ndata:  \"error\": {\ndata:   \"code\": \"slow_down\"\ndata: } }\n\n",
                "data: {\ndata:  \"error\": {\ndata:   \"code\": \"server_error\"\ndata: } }\n\n",
            ),
        ] {
            let change = frame(frame_in.as_bytes(), &replace()).unwrap();
            assert_eq!(change.bytes, expected);
        }
        assert_eq!(frame(b": slow_down\n\n", &replace()), None);
    }
}
