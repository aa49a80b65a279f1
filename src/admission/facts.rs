//! What an upstream's error says, whatever form it comes in.
//!
//! The fields looked at, and no others: `error.{code,type,message,status_code}`, `response.error.*`,
//! `response.status_details.error.*`, `detail` (a string, or an object with a code), top-level `code`
//! and `message`. Free text is looked at only where the body is not JSON.

use serde_json::value::RawValue;

use super::json::{Object, number, says_something, text};
use super::withheld::Withheld;

/// The parsed facts of a failure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The error's code, where it is a string.
    pub code: Option<String>,
    /// The error's type.
    pub kind: Option<String>,
    /// The error's message; at most 1,024 bytes.
    pub message: Option<String>,
    /// The message is all there was: text, or a page.
    pub is_text: bool,
    /// An HTTP status that the error itself states.
    pub status: Option<u16>,
    /// When a quota resets, seconds since 1970 by the upstream's clock.
    pub resets_at: Option<f64>,
    /// In how many seconds a quota resets.
    pub resets_in: Option<f64>,
    /// `headers.retry-after` inside the error.
    pub retry_after: Option<String>,
}

impl Facts {
    /// The facts in a JSON object.
    pub fn of(object: &Object<'_>) -> Facts {
        let mut facts = Facts::default();
        for error in object.errors() {
            facts.add(error);
        }
        // A flat error: its `type` names the event, not the error.
        if facts.says_nothing() {
            facts.add_object(object);
            facts.kind = facts.kind.filter(|kind| kind != "error");
        }
        facts
    }

    /// The facts in a body that is not JSON: its text.
    pub fn of_text(body: &[u8]) -> Facts {
        let start = body.get(..1024).unwrap_or(body);
        Facts {
            message: Some(String::from_utf8_lossy(start).into_owned()),
            is_text: true,
            ..Facts::default()
        }
    }

    /// The facts of an error answer's body.
    pub fn of_error_body(body: &[u8]) -> Facts {
        match Object::parse(body) {
            Some(object) => Facts::of(&object),
            None => Facts::of_text(body),
        }
    }

    /// The facts of a body under a 2xx, if it reports a failure.
    pub fn of_failed_document(body: &[u8]) -> Option<Facts> {
        let object = Object::parse(body)?;
        let failed = |object: &Object<'_>| {
            text(object.status).is_some_and(|status| status == "failed")
                || says_something(object.error)
        };
        let flat = object.kind().is_some_and(|kind| kind == "error");
        let detail = Object::of(object.detail).is_some_and(|detail| text(detail.code).is_some());
        let response = Object::of(object.response).is_some_and(|response| failed(&response));
        (failed(&object) || flat || detail || response).then(|| Facts::of(&object))
    }

    /// Takes out what the upstream must not say.
    pub(super) fn withhold(&mut self, withheld: &Withheld) {
        for said in [&mut self.code, &mut self.kind, &mut self.message] {
            *said = said.take().map(|text| withheld.text(text));
        }
    }

    fn says_nothing(&self) -> bool {
        self.code.is_none()
            && self.kind.is_none()
            && self.message.is_none()
            && self.status.is_none()
    }

    /// Takes from `error` what is not known yet.
    fn add(&mut self, error: Option<&RawValue>) {
        match Object::of(error) {
            Some(object) => self.add_object(&object),
            None => {
                if self.message.is_none() {
                    self.message = text(error);
                }
            }
        }
    }

    fn add_object(&mut self, error: &Object<'_>) {
        let status = |value| {
            number(value)
                .filter(|n| (100.0..600.0).contains(n))
                .map(|n| n as u16)
        };
        self.code = self.code.take().or_else(|| text(error.code));
        self.kind = self.kind.take().or_else(|| text(error.kind));
        self.message = self.message.take().or_else(|| text(error.message));
        self.status = self
            .status
            .or_else(|| status(error.status_code))
            .or_else(|| status(error.code))
            .or_else(|| status(error.status));
        self.resets_at = self.resets_at.or_else(|| number(error.resets_at));
        self.resets_in = self.resets_in.or_else(|| number(error.resets_in_seconds));
        if self.retry_after.is_none() {
            self.retry_after = error.headers.and_then(|raw| header(raw, "retry-after"));
        }
    }
}

/// The `id` of a document.
pub fn id_of_document(body: &[u8]) -> Option<String> {
    Object::parse(body).and_then(|object| text(object.id))
}

/// A header inside an error's `headers` object, its value a string or a number.
fn header(headers: &RawValue, name: &str) -> Option<String> {
    let map: std::collections::HashMap<String, &RawValue> =
        serde_json::from_str(headers.get()).ok()?;
    let (_, value) = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
    text(Some(value)).or_else(|| number(Some(value)).map(|n| n.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(json: &str) -> Facts {
        Facts::of_error_body(json.as_bytes())
    }

    #[test]
    fn every_place_of_a_code_is_read() {
        for json in [
            r#"{"error":{"code":"busy"}}"#,
            r#"{"response":{"error":{"code":"busy"}}}"#,
            r#"{"response":{"status_details":{"error":{"code":"busy"}}}}"#,
            r#"{"status_details":{"error":{"code":"busy"}}}"#,
            r#"{"detail":{"code":"busy"}}"#,
            r#"{"code":"busy"}"#,
            r#"{"type":"error","code":"busy","message":"x"}"#,
        ] {
            assert_eq!(facts(json).code.as_deref(), Some("busy"), "{json}");
        }
        assert_eq!(facts(r#"{"detail":"no"}"#).message.as_deref(), Some("no"));
        assert_eq!(facts(r#"{"error":"no"}"#).message.as_deref(), Some("no"));
        assert_eq!(facts("no seat").message.as_deref(), Some("no seat"));
    }

    #[test]
    fn a_numeric_code_is_a_status() {
        let facts = facts(r#"{"error":{"code":502,"message":"gone"}}"#);
        assert_eq!((facts.code, facts.status), (None, Some(502)));
    }

    #[test]
    fn prompts_and_answers_are_not_looked_into() {
        let json = r#"{"status":"completed","error":null,"output":[{"text":"error"}],
            "instructions":"Selected model is at capacity"}"#;
        assert_eq!(Facts::of_failed_document(json.as_bytes()), None);
        assert!(Facts::of_failed_document(br#"{"status":"failed"}"#).is_some());
        assert!(Facts::of_failed_document(br#"{"error":{"code":"x"}}"#).is_some());
    }

    #[test]
    fn a_reset_is_found_in_each_form() {
        assert_eq!(
            facts(r#"{"error":{"resets_in_seconds":7}}"#).resets_in,
            Some(7.0)
        );
        assert_eq!(
            facts(r#"{"error":{"resets_at":"7.5"}}"#).resets_at,
            Some(7.5)
        );
        let inside = facts(r#"{"error":{"code":"x","headers":{"Retry-After":3}}}"#);
        assert_eq!(inside.retry_after.as_deref(), Some("3"));
    }
}
