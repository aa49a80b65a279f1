//! What a client sees: one request over a plain connection, and its answer read as an SDK reads it.
//!
//! A library would hide what matters here, whether the body ended as HTTP says it must, so the few
//! lines of HTTP/1.1 that one request needs are written out.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::cases::{Case, Dialect};

/// An answer is waited for so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// More than any answer of the simulator.
const MOST_BYTES: usize = 4 << 20;

/// What a client saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The status; 0 where no answer came.
    pub status: u16,
    /// berth's id of the request.
    pub request_id: Option<String>,
    /// Whether it was told when to come again.
    pub retry_after: Option<u64>,
    /// The text of the answer.
    pub text: String,
    /// How many answers were opened: more than one would be a leak.
    pub openings: usize,
    /// The code of a failure, in a stream or as a document.
    pub error: Option<String>,
    /// The answer says that it is whole, and HTTP says so too.
    pub whole: bool,
    /// From the request to the end.
    pub took: Duration,
}

/// Sends the case's request and reads what comes.
pub async fn ask(edge: SocketAddr, case: &Case, dialect: Dialect) -> Seen {
    let path = format!("{}{}", case.prefix(dialect), dialect.path());
    let model = case.model(dialect);
    let body = match dialect {
        Dialect::Responses => json!({"model": model, "stream": case.stream, "input": "Hello?"}),
        Dialect::Chat | Dialect::Messages => json!({
            "model": model,
            "stream": case.stream,
            "max_tokens": 64,
            "messages": [{"role": "user", "content": "Hello?"}],
        }),
    }
    .to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {edge}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let started = Instant::now();
    let bytes = tokio::time::timeout(PATIENCE, exchange(edge, request.as_bytes())).await;
    let bytes = bytes.unwrap_or_else(|_| Ok(Vec::new())).unwrap_or_default();
    let mut seen = read(&bytes, dialect).unwrap_or_default();
    seen.took = started.elapsed();
    seen
}

/// Whether the edge answers.
pub async fn lives(edge: SocketAddr) -> bool {
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {edge}\r\nconnection: close\r\n\r\n");
    let answer = exchange(edge, request.as_bytes()).await;
    answer.is_ok_and(|bytes| bytes.starts_with(b"HTTP/1.1 200 "))
}

/// Everything that comes until the end, also where that is a broken one.
async fn exchange(edge: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut connection = TcpStream::connect(edge).await?;
    connection.write_all(request).await?;
    let mut bytes = Vec::new();
    let mut piece = vec![0; 16 << 10];
    while bytes.len() < MOST_BYTES {
        match connection.read(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(n) => bytes.extend_from_slice(piece.get(..n).unwrap_or_default()),
        }
    }
    Ok(bytes)
}

/// Reads an answer; none where it is not HTTP.
fn read(bytes: &[u8], dialect: Dialect) -> Option<Seen> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(bytes).ok()? else {
        return None;
    };
    let header = |name: &str| {
        let found = head
            .headers
            .iter()
            .find(|h| h.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let rest = bytes.get(length..)?;
    let (body, framed) = match header("content-length") {
        Some(length) => {
            let length: usize = length.parse().ok()?;
            (rest.to_vec(), rest.len() == length)
        }
        None => dechunk(rest),
    };
    let mut seen = Seen {
        status: head.code?,
        request_id: header("x-berth-request-id").map(str::to_owned),
        retry_after: header("retry-after").and_then(|value| value.parse().ok()),
        ..Seen::default()
    };
    let streams = header("content-type").is_some_and(|t| t.starts_with("text/event-stream"));
    let finished = if streams {
        seen.events(&body, dialect)
    } else {
        seen.document(&body, dialect)
    };
    seen.whole = framed && finished;
    Some(seen)
}

/// The body without its chunks, and whether the last one came.
fn dechunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Ok(httparse::Status::Complete((start, size))) = httparse::parse_chunk_size(rest) else {
            return (body, false);
        };
        let Ok(size) = usize::try_from(size) else {
            return (body, false);
        };
        let data = rest.get(start..).unwrap_or_default();
        if size == 0 {
            return (body, data == b"\r\n");
        }
        body.extend_from_slice(data.get(..size).unwrap_or(data));
        rest = data
            .get(size..)
            .and_then(|r| r.get(2..))
            .unwrap_or_default();
    }
}

impl Seen {
    /// Reads a stream; whether it says that it is over.
    fn events(&mut self, body: &[u8], dialect: Dialect) -> bool {
        let mut finished = false;
        for line in String::from_utf8_lossy(body).lines() {
            let Some(data) = line.strip_prefix("data: ") else {
                continue;
            };
            if data == "[DONE]" {
                finished = true;
            }
            if let Ok(event) = serde_json::from_str::<Value>(data) {
                finished |= self.event(&event, dialect);
            }
        }
        finished
    }

    /// Reads one event; whether it ends the stream.
    fn event(&mut self, event: &Value, dialect: Dialect) -> bool {
        let kind = text(event, "/type");
        let (opens, delta) = match dialect {
            Dialect::Responses => (kind == Some("response.created"), "/delta"),
            Dialect::Chat => {
                let role = text(event, "/choices/0/delta/role");
                (role.is_some(), "/choices/0/delta/content")
            }
            Dialect::Messages => (kind == Some("message_start"), "/delta/text"),
        };
        self.openings += usize::from(opens);
        self.text.push_str(text(event, delta).unwrap_or_default());
        self.fails(event);
        matches!(
            kind,
            Some("response.completed" | "response.failed" | "message_stop")
        )
    }

    /// Reads a document; whether it is one.
    fn document(&mut self, body: &[u8], dialect: Dialect) -> bool {
        let Ok(document) = serde_json::from_slice::<Value>(body) else {
            return false;
        };
        let place = match dialect {
            Dialect::Responses => "/output/0/content/0/text",
            Dialect::Chat => "/choices/0/message/content",
            Dialect::Messages => "/content/0/text",
        };
        if let Some(answer) = text(&document, place) {
            self.openings += 1;
            self.text.push_str(answer);
        }
        self.fails(&document);
        true
    }

    fn fails(&mut self, value: &Value) {
        let places = [
            "/error/code",
            "/response/error/code",
            "/detail/code",
            "/error/type",
        ];
        if let Some(code) = places.iter().find_map(|place| text(value, place)) {
            self.error = Some(code.to_owned());
        }
    }
}

fn text<'a>(value: &'a Value, place: &str) -> Option<&'a str> {
    value.pointer(place)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
        transfer-encoding: chunked\r\n\r\n";

    fn chunked(events: &str) -> String {
        format!("{STREAM}{:x}\r\n{events}\r\n0\r\n\r\n", events.len())
    }

    #[test]
    fn an_answer_is_whole_only_with_its_last_chunk_and_its_terminal_frame() {
        let events = "data: {\"type\":\"response.created\"}\n\n\
            data: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n\
            data: {\"type\":\"response.completed\"}\n\n";
        let whole = chunked(events);
        let seen = read(whole.as_bytes(), Dialect::Responses).unwrap();
        assert!(
            seen.whole && seen.text == "Hi" && seen.openings == 1,
            "{seen:?}"
        );
        let mut cuts = 0;
        for end in STREAM.len()..whole.len() {
            let seen = read(&whole.as_bytes()[..end], Dialect::Responses).unwrap();
            assert!(!seen.whole, "cut at byte {end}: {seen:?}");
            cuts += 1;
        }
        assert!(cuts > 100, "{cuts}");
        let short = chunked("data: {\"type\":\"response.created\"}\n\n");
        assert!(!read(short.as_bytes(), Dialect::Responses).unwrap().whole);
    }

    #[test]
    fn an_error_is_called_by_its_code_or_else_its_type() {
        let seen = |body: &str| {
            let answer = format!(
                "HTTP/1.1 503 X\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            read(answer.as_bytes(), Dialect::Chat)
                .unwrap()
                .error
                .unwrap()
        };
        let openai = r#"{"error":{"type":"server_error","code":"busy","message":"m"}}"#;
        assert_eq!(seen(openai), "busy");
        let anthropic = r#"{"type":"error","error":{"type":"api_error","message":"m"}}"#;
        assert_eq!(seen(anthropic), "api_error");
    }
}
