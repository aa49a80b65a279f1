//! Which language an upstream speaks, and which of its endpoints a request is for.
//!
//! The dialect comes from the configuration, the endpoint from the path. Both are needed before a
//! byte of the answer can be understood: the same event name means different things in different
//! streams, and each stream has its own terminal frame.

/// The API family of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI: Responses, Chat Completions, Completions, Embeddings.
    OpenAi,
    /// Anthropic: Messages.
    Anthropic,
}

impl Dialect {
    /// Its name in the configuration and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Dialect::OpenAi => "openai",
            Dialect::Anthropic => "anthropic",
        }
    }
}

/// The endpoint a request is for, as far as the gate must tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// OpenAI Responses (`responses`, `responses/compact`).
    Responses,
    /// OpenAI Chat Completions and legacy Completions.
    Chat,
    /// Anthropic Messages.
    Messages,
    /// Inference whose answer is one JSON document and has no stream (embeddings, count_tokens).
    Document,
    /// The model list, or one model of it.
    Models,
    /// Anything an operator opened beyond the defaults: passed on, never sent twice.
    Other,
}

impl Endpoint {
    /// The endpoint that a path below a route's prefix names, `sub` without a leading slash.
    pub fn of(method: &str, sub: &str) -> Endpoint {
        match (method, sub) {
            ("POST", "responses" | "responses/compact") => Endpoint::Responses,
            ("POST", "chat/completions" | "completions") => Endpoint::Chat,
            ("POST", "messages") => Endpoint::Messages,
            ("POST", "messages/count_tokens" | "embeddings") => Endpoint::Document,
            ("GET", "models") => Endpoint::Models,
            ("GET", other) => match other.strip_prefix("models/") {
                Some(name) if !name.is_empty() && !name.contains('/') => Endpoint::Models,
                _ => Endpoint::Other,
            },
            _ => Endpoint::Other,
        }
    }

    /// Whether a request for it has to say for which model it is, in its body.
    pub fn names_a_model(self) -> bool {
        match self {
            Endpoint::Responses | Endpoint::Chat | Endpoint::Messages | Endpoint::Document => true,
            Endpoint::Models | Endpoint::Other => false,
        }
    }

    /// Whether the same request may be sent to a second credential.
    pub fn may_be_repeated(self) -> bool {
        !matches!(self, Endpoint::Other)
    }

    /// Whether the route's default `paths` open it.
    pub fn open_by_default(self) -> bool {
        !matches!(self, Endpoint::Other)
    }
}
