//! The few fields of an answer that berth reads, borrowed from the bytes they stand in.
//!
//! Answers are large and hostile: a `response.created` may echo a prompt of megabytes. So nothing is
//! built: one flat struct names every key that matters anywhere, each value stays raw until asked
//! for, and everything else is skipped. Prompts and answers are never looked into, which is what
//! keeps a quoted "model is at capacity" from being taken for one.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A JSON object, its interesting values raw.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Object<'a> {
    #[serde(borrow, rename = "type")]
    pub kind: Option<&'a RawValue>,
    #[serde(borrow)]
    pub code: Option<&'a RawValue>,
    #[serde(borrow)]
    pub message: Option<&'a RawValue>,
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
    #[serde(borrow)]
    pub response: Option<&'a RawValue>,
    #[serde(borrow)]
    pub detail: Option<&'a RawValue>,
    #[serde(borrow)]
    pub status: Option<&'a RawValue>,
    #[serde(borrow)]
    pub status_code: Option<&'a RawValue>,
    #[serde(borrow)]
    pub status_details: Option<&'a RawValue>,
    #[serde(borrow)]
    pub resets_at: Option<&'a RawValue>,
    #[serde(borrow)]
    pub resets_in_seconds: Option<&'a RawValue>,
    #[serde(borrow)]
    pub headers: Option<&'a RawValue>,
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub sequence_number: Option<&'a RawValue>,
    #[serde(borrow)]
    pub output: Option<&'a RawValue>,
    #[serde(borrow)]
    pub usage: Option<&'a RawValue>,
    #[serde(borrow)]
    pub item: Option<&'a RawValue>,
    #[serde(borrow)]
    pub part: Option<&'a RawValue>,
    #[serde(borrow)]
    pub content_block: Option<&'a RawValue>,
    #[serde(borrow)]
    pub choices: Option<&'a RawValue>,
}

impl<'a> Object<'a> {
    /// `None` unless `bytes` are one JSON object (nested at most 128 deep, serde_json's own limit).
    pub fn parse(bytes: &'a [u8]) -> Option<Object<'a>> {
        serde_json::from_slice(bytes).ok()
    }

    /// The object that a raw value is.
    pub fn of(value: Option<&'a RawValue>) -> Option<Object<'a>> {
        value.and_then(|raw| Object::parse(raw.get().as_bytes()))
    }

    /// Every place of an error in an answer, the nearest first. Reading and rewriting look at the same
    /// places, or a code that is read would leave unchanged.
    pub fn errors(&self) -> [Option<&'a RawValue>; 5] {
        let response = Object::of(self.response);
        let details = Object::of(self.status_details);
        let deeper = response.as_ref().and_then(|r| Object::of(r.status_details));
        [
            self.error,
            response.and_then(|r| r.error),
            details.and_then(|d| d.error),
            deeper.and_then(|d| d.error),
            self.detail,
        ]
    }

    /// The `type`, where it is a string.
    pub fn kind(&self) -> Option<String> {
        text(self.kind)
    }
}

/// A string, cut to 1,024 bytes: no field that berth reads needs more, and it may end up in a log.
pub fn text(value: Option<&RawValue>) -> Option<String> {
    const LONGEST: usize = 1024;
    let raw = value?.get();
    if !raw.starts_with('"') {
        return None;
    }
    let mut text: String = serde_json::from_str(raw).ok()?;
    let cut = (0..=LONGEST.min(text.len()))
        .rev()
        .find(|i| text.is_char_boundary(*i));
    text.truncate(cut.unwrap_or(0));
    Some(text)
}

/// A finite number, also one written as a string.
pub fn number(value: Option<&RawValue>) -> Option<f64> {
    let raw = value?.get().trim_matches('"');
    raw.parse().ok().filter(|n: &f64| n.is_finite())
}

/// Whether a value is there and says anything: not null, not empty.
pub fn says_something(value: Option<&RawValue>) -> bool {
    value.is_some_and(|raw| {
        let dense: String = raw
            .get()
            .chars()
            .filter(|c| !c.is_whitespace())
            .take(5)
            .collect();
        !matches!(dense.as_str(), "null" | "\"\"" | "[]" | "{}")
    })
}
