//! OpenAI Chat Completions: unnamed chunks, then `[DONE]`.

use super::{Asked, Failure, Fault, Voice, data, tokens};
use crate::sim::step::Call;
use bytes::Bytes;
use serde_json::{Value, json};

pub(super) struct Chat {
    asked: Asked,
    call: Option<Call>,
}

impl Chat {
    pub(super) fn new(asked: Asked, call: Option<Call>) -> Chat {
        Chat { asked, call }
    }

    fn envelope(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": format!("chatcmpl-{}", self.asked.id),
            "object": object,
            "created": self.asked.now,
            "model": self.asked.model,
            "system_fingerprint": "fp_sim",
            "choices": choices,
        })
    }

    fn chunk(&self, delta: Value, finish: Value) -> Value {
        let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish});
        let mut chunk = self.envelope("chat.completion.chunk", json!([choice]));
        if self.asked.include_usage {
            insert(&mut chunk, "usage", Value::Null);
        }
        chunk
    }

    fn usage(&self, whole: &str) -> Value {
        let (prompt, completion) = (self.asked.input_tokens, tokens(whole));
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        })
    }

    fn finish_reason(&self) -> &'static str {
        if self.call.is_some() {
            "tool_calls"
        } else {
            "stop"
        }
    }

    fn call_id(&self) -> String {
        format!("call_{}", self.asked.id)
    }
}

impl Voice for Chat {
    fn lifecycle(&mut self, count: u32, _rate_limits: bool) -> Vec<Bytes> {
        let role = json!({"role": "assistant", "content": "", "refusal": null});
        let first = data(&self.chunk(role, Value::Null));
        let rest = std::iter::repeat_n(self.keepalive(), count.saturating_sub(1) as usize);
        (count > 0)
            .then_some(first)
            .into_iter()
            .chain(rest)
            .collect()
    }

    fn open(&mut self) -> Vec<Bytes> {
        // The chunk that names a tool call is output, the role chunk is not; a text needs no other.
        let Some(call) = &self.call else {
            return Vec::new();
        };
        let function = json!({"name": call.name, "arguments": ""});
        let call =
            json!({"index": 0, "id": self.call_id(), "type": "function", "function": function});
        vec![data(
            &self.chunk(json!({"tool_calls": [call]}), Value::Null),
        )]
    }

    fn delta(&mut self, piece: &str) -> Bytes {
        let delta = match self.call {
            Some(_) => json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}),
            None => json!({"content": piece}),
        };
        data(&self.chunk(delta, Value::Null))
    }

    fn close(&mut self, whole: &str) -> Vec<Bytes> {
        let finish = self.chunk(json!({}), self.finish_reason().into());
        let mut frames = vec![data(&finish)];
        if self.asked.include_usage {
            let mut usage = self.envelope("chat.completion.chunk", json!([]));
            insert(&mut usage, "usage", self.usage(whole));
            frames.push(data(&usage));
        }
        frames
    }

    fn terminal(&mut self, _whole: &str) -> Vec<Bytes> {
        vec![Bytes::from_static(b"data: [DONE]\n\n")]
    }

    fn failure(&mut self, fault: &Fault, _how: Failure, _so_far: &str) -> Vec<Bytes> {
        vec![data(&json!({"error": fault.openai()}))]
    }

    fn keepalive(&self) -> Bytes {
        Bytes::from_static(b": keepalive\n\n")
    }

    fn document(&self, whole: &str) -> Value {
        let message = match &self.call {
            Some(call) => json!({
                "role": "assistant",
                "content": null,
                "refusal": null,
                "tool_calls": [{
                    "id": self.call_id(),
                    "type": "function",
                    "function": {"name": call.name, "arguments": whole},
                }],
            }),
            None => {
                json!({"role": "assistant", "content": whole, "refusal": null, "annotations": []})
            }
        };
        let finish = self.finish_reason();
        let choice =
            json!({"index": 0, "message": message, "logprobs": null, "finish_reason": finish});
        let mut answer = self.envelope("chat.completion", json!([choice]));
        insert(&mut answer, "usage", self.usage(whole));
        answer
    }

    fn failed_document(&self, fault: &Fault, _so_far: &str) -> Value {
        json!({"error": fault.openai()})
    }
}

fn insert(object: &mut Value, key: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(key.to_owned(), value);
    }
}
