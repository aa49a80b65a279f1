//! Anthropic Messages: named events from `message_start` to `message_stop`.

use super::{Asked, Failure, Fault, Voice, event, tokens};
use crate::sim::step::Call;
use bytes::Bytes;
use serde_json::{Value, json};

pub(super) struct Messages {
    asked: Asked,
    call: Option<Call>,
}

impl Messages {
    pub(super) fn new(asked: Asked, call: Option<Call>) -> Messages {
        Messages { asked, call }
    }

    fn message(&self, content: Value, stop_reason: Value, output_tokens: u64) -> Value {
        json!({
            "id": format!("msg_{}", self.asked.id),
            "type": "message",
            "role": "assistant",
            "model": self.asked.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": null,
            "usage": {
                "input_tokens": self.asked.input_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": output_tokens,
            },
        })
    }

    fn stop_reason(&self) -> &'static str {
        if self.call.is_some() {
            "tool_use"
        } else {
            "end_turn"
        }
    }

    fn call_id(&self) -> String {
        format!("toolu_{}", self.asked.id)
    }
}

impl Voice for Messages {
    fn lifecycle(&mut self, count: u32, _rate_limits: bool) -> Vec<Bytes> {
        let message = self.message(json!([]), Value::Null, 0);
        let first = event("message_start", json!({"message": message}));
        let rest = std::iter::repeat_n(self.keepalive(), count.saturating_sub(1) as usize);
        (count > 0)
            .then_some(first)
            .into_iter()
            .chain(rest)
            .collect()
    }

    fn open(&mut self) -> Vec<Bytes> {
        let block = match &self.call {
            Some(call) => {
                json!({"type": "tool_use", "id": self.call_id(), "name": call.name, "input": {}})
            }
            None => json!({"type": "text", "text": ""}),
        };
        let body = json!({"index": 0, "content_block": block});
        vec![event("content_block_start", body)]
    }

    fn delta(&mut self, piece: &str) -> Bytes {
        let delta = match self.call {
            Some(_) => json!({"type": "input_json_delta", "partial_json": piece}),
            None => json!({"type": "text_delta", "text": piece}),
        };
        event("content_block_delta", json!({"index": 0, "delta": delta}))
    }

    fn close(&mut self, whole: &str) -> Vec<Bytes> {
        let stop = json!({"index": 0});
        let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": null});
        let usage = json!({"output_tokens": tokens(whole)});
        vec![
            event("content_block_stop", stop),
            event("message_delta", json!({"delta": delta, "usage": usage})),
        ]
    }

    fn terminal(&mut self, _whole: &str) -> Vec<Bytes> {
        vec![event("message_stop", json!({}))]
    }

    fn failure(&mut self, fault: &Fault, _how: Failure, _so_far: &str) -> Vec<Bytes> {
        vec![event("error", self.asked.error_document(fault))]
    }

    fn keepalive(&self) -> Bytes {
        event("ping", json!({}))
    }

    fn document(&self, whole: &str) -> Value {
        let block = match &self.call {
            Some(call) => {
                // Arguments that are no JSON are the program's wish; they are sent as a string.
                let input = serde_json::from_str(whole).unwrap_or_else(|_| Value::from(whole));
                json!({"type": "tool_use", "id": self.call_id(), "name": call.name, "input": input})
            }
            None => json!({"type": "text", "text": whole, "citations": null}),
        };
        self.message(json!([block]), self.stop_reason().into(), tokens(whole))
    }

    fn failed_document(&self, fault: &Fault, _so_far: &str) -> Value {
        self.asked.error_document(fault)
    }
}
