//! Where a request's body names its model, so that another name can be put there and nothing else.
//!
//! A body is the client's: its spaces, the order of its keys and the way its numbers are written may
//! all matter to somebody. So it is never written anew from a parsed value. The one place is found,
//! and what stands before and after it is copied byte for byte.
//!
//! A body that names its model twice is read differently by different parsers, so it has no such
//! place; nor has one that is not a JSON object, or whose model is not a string. A `model` anywhere
//! deeper is not the request's.

use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The only key that matters; serde refuses an object that has it twice.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    model: &'a RawValue,
}

/// Where the value of the body's `model` stands, its quotes included; `None` where there is no such
/// place, or more than one.
pub fn place(body: &[u8]) -> Option<Range<usize>> {
    let named: Named = serde_json::from_slice(body).ok()?;
    let value = named.model.get();
    if !value.starts_with('"') {
        return None;
    }
    // The value is borrowed from the body, so their addresses differ by its place.
    let start = value.as_ptr().addr().checked_sub(body.as_ptr().addr())?;
    let place = start..start.checked_add(value.len())?;
    (body.get(place.clone())? == value.as_bytes()).then_some(place)
}

/// The same body with the model `name`; `None` where [`place`] finds none.
pub fn renamed(mut body: Vec<u8>, name: &str) -> Option<Vec<u8>> {
    let place = place(&body)?;
    // What splice takes out is what it gives back; it is not needed.
    drop(body.splice(place, serde_json::to_vec(name).ok()?));
    Some(body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_requests_own_model_is_renamed() {
        for (body, expected) in [
            (r#"{"model":"a"}"#, r#"{"model":"gpt-b"}"#),
            (
                " {\r\n\t\"x\" : 1e0 , \"model\"\t: \"a\\u0062\" ,\"y\":-0.0}\n",
                " {\r\n\t\"x\" : 1e0 , \"model\"\t: \"gpt-b\" ,\"y\":-0.0}\n",
            ),
            (
                r#"{"input":[{"model":"a"}],"model":"a","z":{"model":"a"}}"#,
                r#"{"input":[{"model":"a"}],"model":"gpt-b","z":{"model":"a"}}"#,
            ),
            (
                r#"{"text":"\"model\":\"a\"","model":"a"}"#,
                r#"{"text":"\"model\":\"a\"","model":"gpt-b"}"#,
            ),
            // The same key in other letters.
            (r#"{"mod\u0065l":"a"}"#, r#"{"mod\u0065l":"gpt-b"}"#),
        ] {
            let got = renamed(body.into(), "gpt-b").unwrap();
            assert_eq!(String::from_utf8(got).unwrap(), expected);
        }
    }

    #[test]
    fn a_body_with_no_one_place_is_left_alone() {
        for body in [
            "",
            "{",
            "[]",
            "\"model\"",
            "{}",
            r#"{"model":7}"#,
            r#"{"model":null}"#,
            r#"{"model":["a"]}"#,
            r#"{"model":{"model":"a"}}"#,
            r#"{"input":{"model":"a"}}"#,
            r#"{"model":"a","model":"a"}"#,
            r#"{"model":"a","mod\u0065l":"b"}"#,
            r#"{"model":"a"} {"model":"b"}"#,
            r#"{"model":"a""#,
            r#"{"model":"a"#,
        ] {
            assert_eq!(place(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn depth_does_not_matter() {
        let (open, close) = ("[".repeat(50_000), "]".repeat(50_000));
        let body = format!(r#"{{"input":{open}{close},"model":"a"}}"#);
        let expected = format!(r#"{{"input":{open}{close},"model":"b"}}"#);
        assert_eq!(renamed(body.into(), "b").unwrap(), expected.as_bytes());
    }

    /// Values, with `model` among the keys of the objects in them.
    fn value() -> impl Strategy<Value = String> {
        let text = any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap());
        let leaf = prop_oneof![
            text,
            Just("\"model\"".to_owned()),
            Just("null".to_owned()),
            "-?[1-9][0-9]{0,30}(\\.[0-9]{1,5})?([eE][+-]?[0-9])?",
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4)
                    .prop_map(|items| format!("[{}]", items.join(" ,"))),
                prop::collection::vec((key(), inner), 0..4).prop_map(|pairs| object(&pairs)),
            ]
        })
    }

    fn key() -> impl Strategy<Value = String> {
        prop_oneof![Just("model".to_owned()), "[a-z]{1,6}"]
    }

    fn object(pairs: &[(String, String)]) -> String {
        let pairs = pairs
            .iter()
            .map(|(key, value)| format!("\"{key}\"\t:{value}"));
        format!("{{ {}}}", pairs.collect::<Vec<_>>().join("\n, "))
    }

    proptest! {
        #[test]
        fn nothing_but_the_name_changes(
            before in prop::collection::vec(("[a-ln-z][a-z]{0,5}", value()), 0..4),
            after in prop::collection::vec(("[a-ln-z][a-z]{0,5}", value()), 0..4),
            (old, new) in (any::<String>(), any::<String>()),
        ) {
            let old = serde_json::to_string(&old).unwrap();
            let pairs = [before, vec![("model".to_owned(), old.clone())], after].concat();
            let body = object(&pairs);
            let place = place(body.as_bytes()).unwrap();
            prop_assert_eq!(&body[place.clone()], &old);
            let got = String::from_utf8(renamed(body.clone().into(), &new).unwrap()).unwrap();
            prop_assert!(got.starts_with(&body[..place.start]));
            prop_assert!(got.ends_with(&body[place.end..]));
            let middle = &got[place.start..got.len() - (body.len() - place.end)];
            prop_assert_eq!(serde_json::from_str::<String>(middle).unwrap(), new);
        }

        #[test]
        fn a_second_model_is_refused_wherever_it_stands(
            pairs in prop::collection::vec((key(), value()), 0..5),
        ) {
            let body = object(&pairs);
            let models = pairs.iter().filter(|(key, _)| key == "model");
            let is_one = models.clone().count() == 1 && models.clone().all(|(_, v)| v.starts_with('"'));
            prop_assert_eq!(place(body.as_bytes()).is_some(), is_one);
        }

        #[test]
        fn garbage_has_no_place_and_does_no_harm(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = renamed(body, "b");
        }
    }
}
