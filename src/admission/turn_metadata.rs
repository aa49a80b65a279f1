//! The `x-codex-turn-metadata` header: a JSON object in which the Codex client names its thread.
//!
//! The direct headers say the same as a rule; where a program between has dropped them, this is what
//! is left. It is the client's: only two short strings are read, whatever stands around them, and what
//! is not an object names nobody.

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

use super::ask::ShortText;

/// The longest header that is read, bytes. Chosen: sixteen times what the client sends.
const LONGEST: usize = 16 * 1024;

/// Who sends a request, in the client's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnMetadata {
    /// Its thread.
    pub thread_id: Option<String>,
    /// The thread that started it, where it is a subagent's.
    pub parent_thread_id: Option<String>,
}

impl TurnMetadata {
    /// Reads a header's value; what stands before the first mistake counts.
    pub fn of(value: &[u8]) -> TurnMetadata {
        let mut metadata = TurnMetadata::default();
        if value.len() <= LONGEST {
            let mut reader = serde_json::Deserializer::from_slice(value);
            let _ = reader.deserialize_map(Capture(&mut metadata));
        }
        metadata
    }
}

struct Capture<'a>(&'a mut TurnMetadata);

impl<'de> Visitor<'de> for Capture<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(ShortText(key)) = map.next_key()? {
            match key.as_deref() {
                Some("thread_id") => self.0.thread_id = map.next_value::<ShortText>()?.0,
                Some("parent_thread_id") => {
                    self.0.parent_thread_id = map.next_value::<ShortText>()?.0;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<String>, Option<String>) {
        let found = TurnMetadata::of(text.as_bytes());
        (found.thread_id, found.parent_thread_id)
    }

    #[test]
    fn the_reviewers_own_header_names_its_thread_and_its_parent() {
        // As Codex 0.171.0 sends it, ids replaced.
        let header = r#"{"installation_id":"i","session_id":"root","thread_id":"child","agent_name":"/root","turn_id":"t","window_id":"child:0","window_number":0,"context_window_id":"c","request_kind":"turn","history_initialization":"new","parent_thread_id":"root","parent_turn_id":"p","root_turn_id":"p","subagent_kind":"guardian","thread_source":"guardian_review","sandbox":"seccomp","auto_review_enabled":false,"turn_started_at_unix_ms":1795977784663,"model":"codex-auto-review"}"#;
        assert_eq!(read(header), (Some("child".into()), Some("root".into())));
    }

    #[test]
    fn what_is_odd_names_nobody_and_what_stands_before_it_counts() {
        let deep = format!(
            r#"{{"x":{}1{}}}"#,
            r#"{"y":"#.repeat(5_000),
            "}".repeat(5_000)
        );
        let long = format!(r#"{{"x":"{}","thread_id":"t"}}"#, "x".repeat(LONGEST));
        let name = format!(r#"{{"thread_id":"{}"}}"#, "x".repeat(513));
        for text in ["", "7", "[]", "null", "{", "{]", &deep, &long, &name] {
            assert_eq!(read(text), (None, None), "{text:.40}");
        }
        let cut = r#"{"parent_thread_id":"root","thread_id":7,"workspaces":{"#;
        assert_eq!(read(cut), (None, Some("root".into())));
    }
}
