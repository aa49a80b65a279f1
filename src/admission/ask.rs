//! What a request asks for, as far as berth must know it to choose a credential.
//!
//! The body may be 64 MiB and is the client's: nothing of it is kept but a few bounded fields, nothing
//! is changed, and a body that is not JSON is simply one without a model.

use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::coding::Coding;

/// The longest model name that berth knows by name, bytes. Chosen: twice the longest in use.
pub const LONGEST_MODEL: usize = 128;

/// What is decoded of a compressed request to find its fields, bytes. Chosen: half as
/// much again as the largest request that agents have been seen to send.
const LARGEST_DECODED: u64 = 64 * 1024 * 1024;

/// What a request asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The model, where one is named in at most [`LONGEST_MODEL`] printable bytes.
    pub model: Option<String>,
    /// It names a model twice, or with a key that some parsers take for `model`: which one the upstream reads
    /// is not known.
    pub is_ambiguous: bool,
    /// A stream is asked for.
    pub stream: bool,
    /// The request goes on from a stored response.
    pub previous_response_id: Option<String>,
    /// Its input carries encrypted content.
    pub encrypted_content: bool,
    /// The body's name for its session.
    pub prompt_cache_key: Option<String>,
    /// It was read to its end: nothing that comes later says otherwise.
    pub whole: bool,
}

impl Ask {
    /// Reads a request's body, or the beginning of one: what stands before the first mistake, or
    /// before the end, counts. What cannot be read asks for nothing.
    pub fn of(body: &[u8], coding: Option<Coding>) -> Ask {
        let mut ask = Ask::default();
        match coding {
            Some(Coding::Identity) => ask.read(&mut serde_json::Deserializer::from_slice(body)),
            Some(coding) => {
                if let Ok(reader) = coding.reader(body) {
                    let reader = std::io::BufReader::new(reader.take(LARGEST_DECODED));
                    ask.read(&mut serde_json::Deserializer::from_reader(reader));
                }
            }
            None => {}
        }
        ask
    }

    fn read<'de, D: Deserializer<'de>>(&mut self, deserializer: D) {
        // A mistake ends the reading; what was read before it stays.
        self.whole = deserializer.deserialize_map(Capture(self)).is_ok();
    }
}

/// Whether a name is one that berth will repeat in a metric or a log. Words that stand for no model
/// there are none.
pub fn is_model_name(name: &str) -> bool {
    (1..=LONGEST_MODEL).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_graphic())
        && !matches!(name, "*" | "none" | "other")
}

/// Writes down each field as it passes.
struct Capture<'a>(&'a mut Ask);

impl<'de> Visitor<'de> for Capture<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let ask = self.0;
        let mut is_named = false;
        while let Some(ShortText(key)) = map.next_key()? {
            if key
                .as_deref()
                .is_some_and(|key| key.eq_ignore_ascii_case("model"))
            {
                ask.is_ambiguous |= is_named || key.as_deref() != Some("model");
                is_named = true;
            }
            match key.as_deref() {
                Some("model") => {
                    let ShortText(model) = map.next_value()?;
                    ask.model = model.filter(|name| is_model_name(name));
                }
                Some("stream") => ask.stream = map.next_value::<Truth>()?.0,
                Some("previous_response_id") => {
                    ask.previous_response_id = map.next_value::<ShortText>()?.0;
                }
                Some("input") => ask.encrypted_content = map.next_value::<Encrypted>()?.0,
                Some("prompt_cache_key") => {
                    ask.prompt_cache_key = map.next_value::<ShortText>()?.0;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// A string of at most 512 bytes; anything else counts as absent.
#[derive(Default)]
pub(super) struct ShortText(pub Option<String>);

/// `true`; anything else is not.
#[derive(Default)]
struct Truth(bool);

/// Whether an item of a list carries `encrypted_content`.
#[derive(Default)]
struct Encrypted(bool);

/// Visits any JSON value, of which only some kinds say something.
struct Lenient;

enum Value {
    Text(String),
    Bool(bool),
    Holds(bool),
    Other,
}

impl<'de> Deserialize<'de> for ShortText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(ShortText(match deserializer.deserialize_any(Lenient)? {
            Value::Text(text) => Some(text),
            _ => None,
        }))
    }
}

impl<'de> Deserialize<'de> for Truth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = deserializer.deserialize_any(Lenient)?;
        Ok(Truth(matches!(value, Value::Bool(true))))
    }
}

impl<'de> Deserialize<'de> for Encrypted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = deserializer.deserialize_any(Lenient)?;
        Ok(Encrypted(matches!(value, Value::Holds(true))))
    }
}

impl<'de> Visitor<'de> for Lenient {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(if text.len() <= 512 {
            Value::Text(text.to_owned())
        } else {
            Value::Other
        })
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut holds = false;
        while let Some(Encrypted(item)) = seq.next_element()? {
            holds |= item;
        }
        Ok(Value::Holds(holds))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut holds = false;
        while let Some(ShortText(key)) = map.next_key()? {
            match key.as_deref() {
                Some("encrypted_content") => {
                    holds |= map.next_value::<Option<IgnoredAny>>()?.is_some();
                }
                // The parts of a message, and of what a tool gave.
                Some("content" | "output") => holds |= map.next_value::<Encrypted>()?.0,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::Holds(holds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(json: &str) -> Ask {
        Ask::of(json.as_bytes(), Some(Coding::Identity))
    }

    #[test]
    fn the_fields_are_found_wherever_they_stand() {
        let found = ask(r#"{"input":[{"role":"user","content":"\"model\":\"no\""},
                {"type":"reasoning","encrypted_content":"gAAA"}],
                "stream":true,"prompt_cache_key":"k","previous_response_id":"resp_1","model":"gpt-a"}"#);
        let expected = Ask {
            whole: true,
            model: Some("gpt-a".into()),
            is_ambiguous: false,
            stream: true,
            previous_response_id: Some("resp_1".into()),
            encrypted_content: true,
            prompt_cache_key: Some("k".into()),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_model_that_parsers_may_read_differently_is_ambiguous() {
        for (json, expected) in [
            (r#"{"model":"a","input":{"model":"b"}}"#, false),
            (r#"{"model":"a","models":["b"]}"#, false),
            (r#"{"model":"b","model":"a"}"#, true),
            (r#"{"Model":"b","model":"a"}"#, true),
            (r#"{"model":"a","MODEL":"b"}"#, true),
            (r#"{"mode\u006c":"b","model":"a"}"#, true),
        ] {
            assert_eq!(ask(json).is_ambiguous, expected, "{json}");
        }
    }

    #[test]
    fn encrypted_content_is_found_in_the_parts_of_an_item() {
        for (input, expected) in [
            (
                r#"[{"content":[{"type":"encrypted_content","encrypted_content":"gAAA"}]}]"#,
                true,
            ),
            (
                r#"[7,{"type":"function_call_output","output":[{"encrypted_content":"gAAA"}]}]"#,
                true,
            ),
            (
                r#"[{"content":"encrypted_content","output":[{"encrypted_content":null}]}]"#,
                false,
            ),
            (r#"[{"arguments":{"encrypted_content":"gAAA"}}]"#, false),
        ] {
            let found = ask(&format!(r#"{{"input":{input},"model":"gpt-a"}}"#));
            assert_eq!(found.encrypted_content, expected, "{input}");
            assert_eq!(found.model.as_deref(), Some("gpt-a"));
        }
    }

    #[test]
    fn odd_values_ask_for_nothing() {
        for json in [
            "",
            "not json",
            "[]",
            "{",
            r#"{"model":7,"stream":"true","input":"text","previous_response_id":null}"#,
            r#"{"model":"","input":[{"encrypted_content":null}, 7, [true]]}"#,
            "{\"model\":\"a b\"}",
            "{\"model\":\"*\"}",
        ] {
            let whole = json.ends_with('}');
            assert_eq!(
                ask(json),
                Ask {
                    whole,
                    ..Ask::default()
                },
                "{json}"
            );
        }
        let long = format!(r#"{{"model":"{}"}}"#, "x".repeat(LONGEST_MODEL + 1));
        assert_eq!(ask(&long).model, None);
    }

    #[test]
    fn a_body_that_goes_on_where_it_is_not_read_is_not_whole() {
        for json in [r#"{"model":"a","#, r#"{"model":"a" "model":"b"}"#] {
            let read = ask(json);
            assert_eq!(
                (read.model.as_deref(), read.whole),
                (Some("a"), false),
                "{json}"
            );
        }
        // However deep it nests, what comes last counts.
        let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let read = ask(&format!(r#"{{"model":"a","x":{nested},"model":"b"}}"#));
        assert_eq!((read.model.as_deref(), read.whole), (Some("b"), true));
    }

    #[test]
    fn a_compressed_body_is_read() {
        let json = br#"{"model":"gpt-a","stream":true}"#;
        let packed = zstd::stream::encode_all(&json[..], 1).unwrap();
        assert_eq!(
            Ask::of(&packed, Some(Coding::Zstd)).model.as_deref(),
            Some("gpt-a")
        );
        assert_eq!(Ask::of(&packed, None), Ask::default());
    }

    #[test]
    fn the_beginning_of_a_body_is_enough() {
        let found = ask(r#"{"model":"gpt-a","input":[{"role":"user","con"#);
        assert_eq!(found.model.as_deref(), Some("gpt-a"));
    }

    #[test]
    fn a_bomb_costs_no_memory() {
        let mut bomb = br#"{"model":"a","input":""#.to_vec();
        bomb.resize(LARGEST_DECODED as usize + 1, b'x');
        let packed = zstd::stream::encode_all(&bomb[..], 1).unwrap();
        drop(bomb);
        let found = Ask::of(&packed, Some(Coding::Zstd));
        assert_eq!(found.model.as_deref(), Some("a"));
    }
}
