//! What a frame of a stream means for the gate.
//!
//! A **closed list** of frames is neutral: they open a stream and promise nothing. A short list is
//! failure. Everything else is output, also what berth has never seen: an unknown event may be the
//! trace of a tool that has already acted, and a request must not be repeated after that.

use serde_json::value::RawValue;

use super::dialect::Endpoint;
use super::facts::Facts;
use super::json::{Object, number, says_something, text};
use super::sse::Event;

/// What a frame means.
#[derive(Debug, PartialEq)]
pub enum Meaning {
    /// Nothing yet.
    Neutral,
    /// An answer has begun.
    Output,
    /// An error that its own terminal frame should follow (Responses).
    Error(Facts),
    /// A failure that ends the stream. `output` says that it reports output of its own.
    Failed {
        /// What it says.
        facts: Facts,
        /// Output was made and paid for.
        output: bool,
    },
}

/// The meaning of an event in a stream of `endpoint`.
pub fn meaning(endpoint: Endpoint, event: &Event<'_>) -> Meaning {
    let data = event.data.as_deref().unwrap_or_default();
    if data.iter().all(u8::is_ascii_whitespace) {
        return Meaning::Neutral;
    }
    let name = event.name.and_then(|n| std::str::from_utf8(n).ok());
    let Some(object) = Object::parse(data) else {
        return match name {
            Some("error" | "response.failed") => failed(Facts::of_text(data)),
            _ => Meaning::Output,
        };
    };
    let kind = object.kind();
    // Whichever of the two says that it failed is believed.
    let fails = |name: &&str| matches!(*name, "error" | "response.failed");
    match name.filter(fails).or(kind.as_deref()).or(name) {
        Some("error") if endpoint == Endpoint::Responses => Meaning::Error(Facts::of(&object)),
        Some("error") => failed(Facts::of(&object)),
        Some("response.failed") => Meaning::Failed {
            facts: Facts::of(&object),
            output: reports_output(&object),
        },
        Some(kind) if is_terminal(kind) && response_failed(&object) => Meaning::Failed {
            facts: Facts::of(&object),
            output: reports_output(&object),
        },
        Some(
            "response.created"
            | "response.queued"
            | "response.in_progress"
            | "keepalive"
            | "ping"
            | "message_start",
        ) => Meaning::Neutral,
        Some(kind) if kind.starts_with("codex.") || kind.starts_with("responsesapi.") => {
            Meaning::Neutral
        }
        Some("response.output_item.added") => neutral_if(item_is_empty(object.item)),
        Some("response.content_part.added" | "response.reasoning_summary_part.added") => {
            neutral_if(part_is_empty(object.part))
        }
        Some("content_block_start") => neutral_if(block_is_empty(object.content_block)),
        Some(kind) if kind != "message" => Meaning::Output,
        // A chat chunk has no type of its own.
        _ if object.choices.is_none() && reports_failure(&object) => failed(Facts::of(&object)),
        _ if says_something(object.error) => failed(Facts::of(&object)),
        _ => neutral_if(choices_are_empty(object.choices)),
    }
}

/// The event types that end a stream of Responses or Messages.
pub fn is_terminal(kind: &str) -> bool {
    matches!(
        kind,
        "response.completed"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled"
            | "message_stop"
    )
}

fn failed(facts: Facts) -> Meaning {
    Meaning::Failed {
        facts,
        output: false,
    }
}

fn neutral_if(empty: bool) -> Meaning {
    if empty {
        Meaning::Neutral
    } else {
        Meaning::Output
    }
}

fn reports_failure(object: &Object<'_>) -> bool {
    says_something(object.error)
        || says_something(object.detail)
        || text(object.code).is_some_and(|code| !code.is_empty())
        || number(object.code).is_some_and(|code| code >= 400.0)
}

/// Whether a terminal event carries a response that has failed, whatever the event is called.
fn response_failed(object: &Object<'_>) -> bool {
    Object::of(object.response).is_some_and(|response| {
        says_something(response.error) || text(response.status).is_some_and(|s| s == "failed")
    })
}

fn reports_output(object: &Object<'_>) -> bool {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct Usage<'a> {
        #[serde(borrow)]
        output_tokens: Option<&'a RawValue>,
    }
    let Some(response) = Object::of(object.response) else {
        return false;
    };
    let usage: Option<Usage<'_>> = response
        .usage
        .and_then(|raw| serde_json::from_str(raw.get()).ok());
    let tokens = usage.and_then(|usage| number(usage.output_tokens));
    says_something(response.output) || tokens.is_some_and(|n| n > 0.0)
}

/// Types of items that have had no effect while they are empty, with the keys that must be.
fn item_is_empty(item: Option<&RawValue>) -> bool {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct Item<'a> {
        #[serde(rename = "type")]
        kind: String,
        #[serde(borrow)]
        content: Option<&'a RawValue>,
        #[serde(borrow)]
        summary: Option<&'a RawValue>,
        #[serde(borrow)]
        encrypted_content: Option<&'a RawValue>,
        #[serde(borrow)]
        arguments: Option<&'a RawValue>,
        #[serde(borrow)]
        input: Option<&'a RawValue>,
    }
    let Some(item) = parse::<Item<'_>>(item) else {
        return false;
    };
    matches!(
        item.kind.as_str(),
        "message" | "reasoning" | "function_call" | "custom_tool_call"
    ) && ![
        item.content,
        item.summary,
        item.encrypted_content,
        item.arguments,
        item.input,
    ]
    .into_iter()
    .any(says_something)
}

fn part_is_empty(part: Option<&RawValue>) -> bool {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct Part<'a> {
        #[serde(rename = "type")]
        kind: String,
        #[serde(borrow)]
        text: Option<&'a RawValue>,
        #[serde(borrow)]
        refusal: Option<&'a RawValue>,
        #[serde(borrow)]
        annotations: Option<&'a RawValue>,
    }
    let Some(part) = parse::<Part<'_>>(part) else {
        return false;
    };
    matches!(
        part.kind.as_str(),
        "output_text" | "text" | "refusal" | "summary_text" | "reasoning_text"
    ) && ![part.text, part.refusal, part.annotations]
        .into_iter()
        .any(says_something)
}

fn block_is_empty(block: Option<&RawValue>) -> bool {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct Block<'a> {
        #[serde(rename = "type")]
        kind: String,
        #[serde(borrow)]
        text: Option<&'a RawValue>,
        #[serde(borrow)]
        thinking: Option<&'a RawValue>,
        #[serde(borrow)]
        signature: Option<&'a RawValue>,
        #[serde(borrow)]
        input: Option<&'a RawValue>,
    }
    let Some(block) = parse::<Block<'_>>(block) else {
        return false;
    };
    matches!(block.kind.as_str(), "text" | "thinking" | "tool_use")
        && ![block.text, block.thinking, block.signature, block.input]
            .into_iter()
            .any(says_something)
}

/// Whether there is at least one choice, and each has a role and nothing else yet.
fn choices_are_empty(choices: Option<&RawValue>) -> bool {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct Choice<'a> {
        #[serde(borrow)]
        delta: std::collections::HashMap<String, &'a RawValue>,
        #[serde(borrow)]
        finish_reason: Option<&'a RawValue>,
        #[serde(borrow)]
        text: Option<&'a RawValue>,
    }
    let Some(choices) = parse::<Vec<Choice<'_>>>(choices) else {
        return false;
    };
    let only_a_role = |choice: &Choice<'_>| {
        choice.delta.contains_key("role")
            && !says_something(choice.finish_reason)
            && !says_something(choice.text)
            && choice
                .delta
                .iter()
                .all(|(key, value)| key == "role" || !says_something(Some(value)))
    };
    !choices.is_empty() && choices.iter().all(only_a_role)
}

fn parse<'a, T: serde::Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(endpoint: Endpoint, data: &str) -> Meaning {
        meaning(
            endpoint,
            &Event {
                name: None,
                data: Some(data.as_bytes().into()),
            },
        )
    }

    #[test]
    fn the_closed_list_is_neutral() {
        let neutral = [
            r#"{"type":"response.created","response":{"instructions":"at capacity"}}"#,
            r#"{"type":"response.queued"}"#,
            r#"{"type":"response.in_progress"}"#,
            r#"{"type":"codex.rate_limits","rate_limits":{"limit_reached":true}}"#,
            r#"{"type":"responsesapi.x"}"#,
            r#"{"type":"keepalive"}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"message_start","message":{"content":[]}}"#,
            r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#,
            r#"{"type":"response.output_item.added","item":{"type":"reasoning","summary": [ ]}}"#,
            r#"{"type":"response.output_item.added","item":{"type":"function_call","name":"x","arguments":""}}"#,
            r#"{"type":"response.output_item.added","item":{"type":"custom_tool_call","input":""}}"#,
            r#"{"type":"response.content_part.added","part":{"type":"output_text","text":"","annotations":[]}}"#,
            r#"{"type":"response.reasoning_summary_part.added","part":{"type":"summary_text","text":""}}"#,
            r#"{"type":"content_block_start","content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_start","content_block":{"type":"tool_use","name":"x","input":{}}}"#,
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant"}}]}"#,
            "",
        ];
        for data in neutral {
            assert_eq!(of(Endpoint::Responses, data), Meaning::Neutral, "{data}");
        }
        assert_eq!(neutral.len(), 19);
    }

    #[test]
    fn everything_else_is_output() {
        for data in [
            r#"{"type":"response.output_text.delta","delta":""}"#,
            r#"{"type":"response.output_item.added","item":{"type":"web_search_call"}}"#,
            r#"{"type":"response.output_item.added","item":{"type":"reasoning","encrypted_content":"g"}}"#,
            r#"{"type":"response.output_item.added","item":{"type":"function_call","arguments":"{}"}}"#,
            r#"{"type":"response.output_item.added"}"#,
            r#"{"type":"content_block_start","content_block":{"type":"server_tool_use","input":{}}}"#,
            r#"{"type":"response.completed"}"#,
            r#"{"type":"response.mcp_list_tools.in_progress"}"#,
            r#"{"choices":[{"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}"#,
            r#"{"choices":[]}"#,
            "[DONE]",
            "not json",
            "{\"type\":",
        ] {
            assert_eq!(of(Endpoint::Responses, data), Meaning::Output, "{data}");
        }
    }

    #[test]
    fn a_failure_is_one_in_each_dialect() {
        let error = r#"{"type":"error","error":{"type":"overloaded_error"}}"#;
        assert!(matches!(of(Endpoint::Responses, error), Meaning::Error(_)));
        assert!(matches!(
            of(Endpoint::Messages, error),
            Meaning::Failed { .. }
        ));
        let chat = r#"{"id":"x","choices":[{"delta":{"content":"a"}}],"error":{"code":502}}"#;
        assert!(matches!(of(Endpoint::Chat, chat), Meaning::Failed { .. }));
        let flat = r#"{"code":"busy","message":"x"}"#;
        assert!(matches!(of(Endpoint::Chat, flat), Meaning::Failed { .. }));
    }

    #[test]
    fn a_failure_that_reports_output_says_so() {
        for (response, expected) in [
            (r#"{"output":[]}"#, false),
            (r#"{"output":[],"usage":{"output_tokens":0}}"#, false),
            (r#"{"output":[{"type":"message"}]}"#, true),
            (r#"{"usage":{"output_tokens":3}}"#, true),
        ] {
            let data = format!(r#"{{"type":"response.failed","response":{response}}}"#);
            let found = of(Endpoint::Responses, &data);
            assert!(
                matches!(found, Meaning::Failed { output, .. } if output == expected),
                "{response}"
            );
        }
    }
}
