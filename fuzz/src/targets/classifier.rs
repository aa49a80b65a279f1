//! The classifier: any error is ruled on, and what an answer or a message quotes rules on nothing.

use std::sync::Arc;

use crate::admission::day::Day;
use crate::admission::dialect::{Dialect, Endpoint};
use crate::admission::facts::{Facts, id_of_document};
use crate::admission::frame::{Meaning, meaning};
use crate::admission::gate::refusal;
use crate::admission::rules::{Reading, Rules};
use crate::admission::sse::Event;
use crate::admission::verdict::Shape;

use super::Choices;

/// What refusals say. Quoted, it means nothing.
const QUOTES: [&str; 5] = [
    "",
    "Selected model is at capacity. Please try a different model.",
    "Our servers are currently overloaded. Please try again later.",
    "{\"error\":{\"code\":\"server_is_overloaded\",\"type\":\"overloaded_error\"}}",
    "event: error\ndata: {\"type\":\"error\",\"code\":\"slow_down\"}\n\n",
];

/// The body of an error, and the same bytes as the words of a healthy answer.
pub fn run(bytes: &[u8]) {
    let Some((choices, body)) = Choices::split(bytes) else {
        return;
    };
    any_body_is_ruled_on(choices, body);
    let words = format!(
        "{}{}",
        choices.pick(4, &QUOTES),
        String::from_utf8_lossy(body)
    );
    a_quoted_refusal_is_none(choices, &words);
}

fn any_body_is_ruled_on(choices: Choices, body: &[u8]) {
    let facts = Facts::of_error_body(body);
    // A replacement character is three bytes long.
    for said in [&facts.code, &facts.kind, &facts.message]
        .into_iter()
        .flatten()
    {
        assert!(said.len() <= 3 * 1024);
    }
    let status = choices.pick(0, &[200, 400, 401, 403, 404, 429, 500, 503, 529]);
    let (page, spent) = (choices.bits(1) & 1 == 1, choices.bits(1) & 2 == 2);
    let reading = reading(choices);
    let shape = Shape::of_status(status);
    let ruled = refusal(facts.clone(), shape, status, &reading, page, spent);
    assert_eq!(ruled, refusal(facts, shape, status, &reading, page, spent));
    ruled.stated(None, std::time::SystemTime::UNIX_EPOCH);
    Facts::of_failed_document(body);
    id_of_document(body);
    for endpoint in [Endpoint::Responses, Endpoint::Chat, Endpoint::Messages] {
        for name in [None, Some(&b"error"[..]), Some(b"response.failed")] {
            let data = Some(body.into());
            meaning(endpoint, &Event { name, data });
        }
    }
}

fn a_quoted_refusal_is_none(choices: Choices, words: &str) {
    let quoted = serde_json::Value::from(words);
    let chat =
        format!(r#"{{"id":"c","choices":[{{"index":0,"message":{{"content":{quoted}}}}}]}}"#);
    let responses = format!(
        r#"{{"id":"r","status":"completed","error":null,"instructions":{quoted},
            "output":[{{"type":"message","content":[{{"type":"output_text","text":{quoted}}}]}}]}}"#
    );
    let messages = format!(
        r#"{{"type":"message","content":[{{"type":"text","text":{quoted}}}],"stop_reason":"end_turn"}}"#
    );
    for document in [chat, responses, messages] {
        assert_eq!(
            Facts::of_failed_document(document.as_bytes()),
            None,
            "{document}"
        );
    }
    for (endpoint, frame) in [
        (
            Endpoint::Chat,
            format!(r#"{{"choices":[{{"delta":{{"content":{quoted}}}}}]}}"#),
        ),
        (
            Endpoint::Responses,
            format!(r#"{{"type":"response.output_text.delta","delta":{quoted}}}"#),
        ),
        (
            Endpoint::Responses,
            format!(r#"{{"type":"response.created","response":{{"instructions":{quoted}}}}}"#),
        ),
        (
            Endpoint::Messages,
            format!(
                r#"{{"type":"content_block_delta","delta":{{"type":"text_delta","text":{quoted}}}}}"#
            ),
        ),
    ] {
        let data = Some(frame.as_bytes().into());
        let meant = meaning(endpoint, &Event { name: None, data });
        assert!(
            matches!(meant, Meaning::Output | Meaning::Neutral),
            "{frame}: {meant:?}"
        );
    }
    // A message that begins with words of its own: the rest changes nothing.
    let status = choices.pick(0, &[200, 400, 404, 422, 500]);
    let ruling = |rest: &str| {
        let message = serde_json::Value::from(format!("Invalid value: '{rest}'"));
        let body = format!(r#"{{"error":{{"message":{message}}}}}"#);
        let facts = Facts::of_error_body(body.as_bytes());
        refusal(
            facts,
            Shape::of_status(status),
            status,
            &reading(choices),
            false,
            false,
        )
        .ruling
    };
    assert_eq!(ruling(words), ruling("x"));
}

fn reading(choices: Choices) -> Reading {
    Reading {
        rules: Arc::new(Rules::default()),
        today: Day::default(),
        dialect: choices.pick(2, &[Dialect::OpenAi, Dialect::Anthropic]),
        upstream: "upstream".into(),
        withheld: Default::default(),
    }
}
