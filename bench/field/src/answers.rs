//! The bytes that clients send and that the upstream answers.

/// Bytes of a short stream, the same as in the first trial of Pingora's subrequests.
pub const SHORT: usize = 214;
/// Bytes of an event.
pub const EVENT: usize = 200;

/// Which endpoint is spoken: its path, its request and its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/responses`.
    Responses,
    /// `/v1/chat/completions`, which every gateway knows.
    Chat,
}

impl Dialect {
    /// The path of a request.
    pub fn path(self) -> &'static str {
        match self {
            Dialect::Responses => "/v1/responses",
            Dialect::Chat => "/v1/chat/completions",
        }
    }

    /// A request's body up to what fills it, and from there on.
    pub fn around(self, model: &str) -> (String, &'static str) {
        match self {
            Dialect::Responses => (
                format!(r#"{{"model":"{model}","stream":true,"input":""#),
                r#""}"#,
            ),
            Dialect::Chat => (
                format!(
                    r#"{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":""#
                ),
                r#""}]}"#,
            ),
        }
    }

    /// A whole short stream.
    pub fn short(self) -> Vec<Vec<u8>> {
        match self {
            Dialect::Responses => {
                let (opening, end) = (opening(), end());
                let room = SHORT - opening.len() - end.len() - delta("").len();
                vec![opening, delta(&"x".repeat(room)), end]
            }
            Dialect::Chat => {
                let chunk = |delta: &str, finish: &str| {
                    let head =
                        r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m""#;
                    format!(
                        "data: {head},\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
                    )
                    .into_bytes()
                };
                vec![
                    chunk(r#"{"role":"assistant","content":""}"#, "null"),
                    chunk(r#"{"content":"word"}"#, "null"),
                    chunk("{}", r#""stop""#),
                    b"data: [DONE]\n\n".to_vec(),
                ]
            }
        }
    }
}

/// The frame that opens a stream and promises nothing.
pub fn opening() -> Vec<u8> {
    frame(r#"{"type":"response.created","response":{"id":"r1"}}"#)
}

/// The frame that ends it.
pub fn end() -> Vec<u8> {
    frame(r#"{"type":"response.completed","response":{"id":"r1"}}"#)
}

/// An event of [`EVENT`] bytes that carries the time at which it was written.
pub fn event(stamp: u64) -> Vec<u8> {
    let room = EVENT - delta("").len();
    delta(&format!(
        "{STAMP}{stamp:018}{}",
        "x".repeat(room - 18 - STAMP.len())
    ))
}

/// Marks a time in an event.
const STAMP: &str = "at=";

/// The times that some bytes of a stream carry.
pub fn stamps(mut bytes: &[u8], mut take: impl FnMut(u64)) {
    while let Some(at) = super::wire::find(bytes, STAMP.as_bytes()) {
        bytes = &bytes[at + STAMP.len()..];
        let digits = bytes.get(..18).and_then(|it| std::str::from_utf8(it).ok());
        if let Some(stamp) = digits.and_then(|it| it.parse().ok()) {
            take(stamp);
        }
    }
}

/// The refusal inside a stream that has opened with 200.
pub fn refusal() -> Vec<u8> {
    frame(
        r#"{"type":"response.failed","response":{"id":"r1","status":"failed","error":{"code":"server_is_overloaded","message":"Selected model is at capacity. Please try a different model."}}}"#,
    )
}

/// The head of a stream.
pub fn head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        .to_vec()
}

/// Appends `frame` as a chunk.
pub fn chunk(out: &mut Vec<u8>, frame: &[u8]) {
    out.extend_from_slice(format!("{:x}\r\n", frame.len()).as_bytes());
    out.extend_from_slice(frame);
    out.extend_from_slice(b"\r\n");
}

/// The chunk after the last.
pub const LAST: &[u8] = b"0\r\n\r\n";

fn delta(text: &str) -> Vec<u8> {
    frame(&format!(
        r#"{{"type":"response.output_text.delta","delta":"{text}"}}"#
    ))
}

fn frame(data: &str) -> Vec<u8> {
    format!("data: {data}\n\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_what_the_document_says() {
        assert_eq!(Dialect::Responses.short().concat().len(), SHORT);
        assert_eq!(event(7).len(), EVENT);
        let mut seen = Vec::new();
        stamps(&[event(7), event(8)].concat(), |at| seen.push(at));
        assert_eq!(seen, [7, 8]);
    }
}
