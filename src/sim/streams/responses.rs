//! OpenAI Responses: numbered, named events from `response.created` to `response.completed`.

use super::{Asked, Failure, Fault, Voice, event, tokens};
use crate::sim::step::Call;
use bytes::Bytes;
use serde_json::{Value, json};

pub(super) struct Responses {
    asked: Asked,
    call: Option<Call>,
    sequence: u64,
}

impl Responses {
    pub(super) fn new(asked: Asked, call: Option<Call>) -> Responses {
        Responses {
            asked,
            call,
            sequence: 0,
        }
    }

    /// A frame with the next sequence number.
    fn frame(&mut self, name: &str, mut body: Value) -> Bytes {
        if let Some(fields) = body.as_object_mut() {
            fields.insert("sequence_number".into(), self.sequence.into());
        }
        self.sequence += 1;
        event(name, body)
    }

    fn response(&self, status: &str, output: Value, error: Value, usage: Value) -> Value {
        json!({
            "id": format!("resp_{}", self.asked.id),
            "object": "response",
            "created_at": self.asked.now,
            "status": status,
            "background": false,
            "error": error,
            "incomplete_details": null,
            "instructions": null,
            "max_output_tokens": null,
            "metadata": {},
            "model": self.asked.model,
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null},
            "store": false,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": usage,
            "user": null,
        })
    }

    fn usage(&self, whole: &str) -> Value {
        let (input, output) = (self.asked.input_tokens, tokens(whole));
        json!({
            "input_tokens": input,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input + output,
        })
    }

    fn in_progress(&self) -> Value {
        self.response("in_progress", json!([]), Value::Null, Value::Null)
    }

    fn completed(&self, whole: &str) -> Value {
        let output = json!([self.item("completed", whole)]);
        self.response("completed", output, Value::Null, self.usage(whole))
    }

    fn failed(&self, fault: &Fault, so_far: &str) -> Value {
        let error = json!({"code": fault.code, "message": fault.message});
        let (output, usage) = if so_far.is_empty() {
            (json!([]), Value::Null)
        } else {
            let item = self.item("incomplete", so_far);
            (json!([item]), self.usage(so_far))
        };
        self.response("failed", output, error, usage)
    }

    fn item_id(&self) -> String {
        let prefix = if self.call.is_some() { "fc" } else { "msg" };
        format!("{prefix}_{}", self.asked.id)
    }

    /// The one output item; without output it is the empty item that opens it.
    fn item(&self, status: &str, whole: &str) -> Value {
        let id = self.item_id();
        match &self.call {
            Some(call) => json!({
                "id": id,
                "type": "function_call",
                "status": status,
                "call_id": format!("call_{}", self.asked.id),
                "name": call.name,
                "arguments": whole,
            }),
            None => {
                let content = if whole.is_empty() {
                    json!([])
                } else {
                    json!([part(whole)])
                };
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
        }
    }
}

impl Voice for Responses {
    fn lifecycle(&mut self, count: u32, rate_limits: bool) -> Vec<Bytes> {
        let mut frames = Vec::new();
        for n in 0..count {
            frames.push(match n {
                0 => self.frame("response.created", json!({"response": self.in_progress()})),
                1 => self.frame(
                    "response.in_progress",
                    json!({"response": self.in_progress()}),
                ),
                _ => self.keepalive(),
            });
            if n == 1 && rate_limits {
                frames.push(event("codex.rate_limits", rate_limits_of(self.asked.now)));
            }
        }
        frames
    }

    fn open(&mut self) -> Vec<Bytes> {
        let item = self.item("in_progress", "");
        let mut frames = vec![self.frame(
            "response.output_item.added",
            json!({"output_index": 0, "item": item}),
        )];
        if self.call.is_none() {
            let id = self.item_id();
            frames.push(self.frame(
                "response.content_part.added",
                json!({"item_id": id, "output_index": 0, "content_index": 0, "part": part("")}),
            ));
        }
        frames
    }

    fn delta(&mut self, piece: &str) -> Bytes {
        let id = self.item_id();
        match self.call {
            Some(_) => self.frame(
                "response.function_call_arguments.delta",
                json!({"item_id": id, "output_index": 0, "delta": piece}),
            ),
            None => self.frame(
                "response.output_text.delta",
                json!({"item_id": id, "output_index": 0, "content_index": 0, "delta": piece, "logprobs": []}),
            ),
        }
    }

    fn close(&mut self, whole: &str) -> Vec<Bytes> {
        let (id, item) = (self.item_id(), self.item("completed", whole));
        let mut frames = match &self.call {
            Some(call) => {
                let name = call.name.clone();
                vec![self.frame(
                    "response.function_call_arguments.done",
                    json!({"item_id": id, "output_index": 0, "name": name, "arguments": whole}),
                )]
            }
            None => vec![
                self.frame(
                    "response.output_text.done",
                    json!({"item_id": id, "output_index": 0, "content_index": 0, "text": whole, "logprobs": []}),
                ),
                self.frame(
                    "response.content_part.done",
                    json!({"item_id": id, "output_index": 0, "content_index": 0, "part": part(whole)}),
                ),
            ],
        };
        frames.push(self.frame(
            "response.output_item.done",
            json!({"output_index": 0, "item": item}),
        ));
        frames
    }

    fn terminal(&mut self, whole: &str) -> Vec<Bytes> {
        let response = self.completed(whole);
        vec![self.frame("response.completed", json!({"response": response}))]
    }

    fn failure(&mut self, fault: &Fault, how: Failure, so_far: &str) -> Vec<Bytes> {
        let mut frames = Vec::new();
        if how != Failure::TerminalOnly {
            frames.push(self.frame("error", json!({"error": fault.openai()})));
        }
        if how != Failure::BareError {
            let response = self.failed(fault, so_far);
            frames.push(self.frame("response.failed", json!({"response": response})));
        }
        frames
    }

    fn keepalive(&self) -> Bytes {
        event("keepalive", json!({}))
    }

    fn document(&self, whole: &str) -> Value {
        self.completed(whole)
    }

    fn failed_document(&self, fault: &Fault, so_far: &str) -> Value {
        self.failed(fault, so_far)
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn rate_limits_of(now: u64) -> Value {
    json!({
        "plan_type": "plus",
        "rate_limits": {
            "allowed": true,
            "limit_reached": false,
            "primary": {"used_percent": 12, "window_minutes": 300, "reset_at": now + 3600},
        },
    })
}
