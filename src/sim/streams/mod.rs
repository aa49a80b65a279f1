//! What an AI API says, as values: the frames of a stream, and the same answer as one document.
//!
//! A `Voice` knows one endpoint's words and keeps the little that a stream must remember (its
//! sequence number). It knows nothing of HTTP, time or sockets: `script` frames and paces it.

mod chat;
mod document;
mod messages;
mod responses;

use super::step::Call;
use bytes::Bytes;
use serde_json::{Value, json};

/// The endpoints that take a step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Responses,
    Chat,
    Messages,
    CountTokens,
    Embeddings,
}

/// What a request asked for, and the facts that its answer states.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub endpoint: Endpoint,
    pub model: String,
    pub stream: bool,
    /// Chat only: whether the stream ends with a usage chunk.
    pub include_usage: bool,
    pub input_tokens: u64,
    /// Embeddings only: how many inputs, and whether base64 was asked for.
    pub inputs: usize,
    pub base64: bool,
    /// The name of the credential that answers.
    pub credential: String,
    /// Unique in this upstream, and the same in every run with the same seed.
    pub id: String,
    /// Seconds since 1970.
    pub now: u64,
}

/// An error as an API states it.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub kind: String,
    pub code: Option<String>,
    pub message: String,
}

/// How a stream says that it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// All frames that real upstreams send.
    Whole,
    /// Without the terminal frame, where the dialect has one.
    BareError,
    /// The terminal frame alone, where the dialect has one.
    TerminalOnly,
}

/// One endpoint's words.
pub(super) trait Voice {
    /// `count` frames that announce work and are no output.
    fn lifecycle(&mut self, count: u32, rate_limits: bool) -> Vec<Bytes>;
    /// The frames that open the output; none of them carries any.
    fn open(&mut self) -> Vec<Bytes>;
    /// One piece of output.
    fn delta(&mut self, piece: &str) -> Bytes;
    /// The frames that close the output, `whole` being all of it.
    fn close(&mut self, whole: &str) -> Vec<Bytes>;
    /// The end that tells a client that nothing is missing.
    fn terminal(&mut self, whole: &str) -> Vec<Bytes>;
    /// The failure; `so_far` is the output already sent.
    fn failure(&mut self, fault: &Fault, how: Failure, so_far: &str) -> Vec<Bytes>;
    /// A frame that only keeps the connection busy.
    fn keepalive(&self) -> Bytes;
    /// The whole answer as one document.
    fn document(&self, whole: &str) -> Value;
    /// The failure as one document under a 200, `so_far` as above.
    fn failed_document(&self, fault: &Fault, so_far: &str) -> Value;
}

/// The voice for a request; with a `call` its output is a tool call.
pub(super) fn voice(asked: &Asked, call: Option<&Call>) -> Box<dyn Voice> {
    let (asked, call) = (asked.clone(), call.cloned());
    match asked.endpoint {
        Endpoint::Responses => Box::new(responses::Responses::new(asked, call)),
        Endpoint::Chat => Box::new(chat::Chat::new(asked, call)),
        Endpoint::Messages => Box::new(messages::Messages::new(asked, call)),
        Endpoint::CountTokens | Endpoint::Embeddings => Box::new(document::Document::new(asked)),
    }
}

impl Endpoint {
    /// The endpoint of a `POST`, whatever stands before its name.
    pub fn of(path: &str) -> Option<Endpoint> {
        const ENDS: [(&str, Endpoint); 6] = [
            ("/responses", Endpoint::Responses),
            ("/responses/compact", Endpoint::Responses),
            ("/chat/completions", Endpoint::Chat),
            ("/messages/count_tokens", Endpoint::CountTokens),
            ("/messages", Endpoint::Messages),
            ("/embeddings", Endpoint::Embeddings),
        ];
        let found = ENDS.iter().find(|(end, _)| path.ends_with(end));
        found.map(|(_, endpoint)| *endpoint)
    }

    /// Whether it belongs to Anthropic's API.
    pub fn is_anthropic(self) -> bool {
        matches!(self, Endpoint::Messages | Endpoint::CountTokens)
    }

    /// Whether it can answer with a stream.
    pub fn can_stream(self) -> bool {
        matches!(
            self,
            Endpoint::Responses | Endpoint::Chat | Endpoint::Messages
        )
    }
}

impl Asked {
    /// The error as a document of the endpoint's API.
    pub fn error_document(&self, fault: &Fault) -> Value {
        if self.endpoint.is_anthropic() {
            let id = format!("req_{}", self.id);
            json!({"type": "error", "error": fault.anthropic(), "request_id": id})
        } else {
            json!({"error": fault.openai()})
        }
    }
}

impl Fault {
    fn openai(&self) -> Value {
        json!({"message": self.message, "type": self.kind, "param": null, "code": self.code})
    }

    fn anthropic(&self) -> Value {
        json!({"type": self.kind, "message": self.message})
    }
}

/// A frame with an event name, which is also the `type` of its data. The type comes first, as real
/// upstreams send it: a reader may look at the beginning of a frame that is still incomplete.
fn event(name: &str, mut body: Value) -> Bytes {
    if let Some(fields) = body.as_object_mut() {
        fields.remove("type");
    }
    let rest = body.to_string();
    let rest = rest.trim_start_matches('{');
    let comma = if rest == "}" { "" } else { "," };
    Bytes::from(format!(
        "event: {name}\ndata: {{\"type\":\"{name}\"{comma}{rest}\n\n"
    ))
}

/// A frame without one.
fn data(data: &Value) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}

/// Tokens of a text, by the usual rule of thumb of four bytes each.
fn tokens(text: &str) -> u64 {
    (text.len() as u64).div_ceil(4)
}
