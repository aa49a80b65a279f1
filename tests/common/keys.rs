//! Clients with keys, and an upstream that must never hear one.

use std::fmt::Write as _;
use std::sync::Arc;

use super::upstream::{Conn, LAST_CHUNK, Raw, STREAM_HEAD, answer, chunk};
use super::wire::{Answer, body, post};
use super::{Berth, with_upstream};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

/// What every test's keys look like: `berth client add` makes such.
pub fn key(id: &str) -> String {
    let hex: String = Sha256::digest(id)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("berth-{hex}")
}

pub fn digest(key: &str) -> String {
    Sha256::digest(key)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// A list of clients: names, and more of what is written of them.
pub fn list(clients: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (id, more) in clients {
        let digest = digest(&key(id));
        writeln!(text, "- {{id: {id}, key_sha256: \"{digest}\"{more}}}").unwrap();
    }
    text
}

pub fn section(clients: &[(&str, &str)]) -> String {
    format!("clients:\n{}", list(clients))
}

const COMPLETED: &str = r#"{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":7,"output_tokens":5}}"#;
const MESSAGE: &str = r#"{"id":"msg_1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":7,"output_tokens":5}}"#;
const DELTA: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n";
const END: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"status\":\"completed\"}}\n\n";

/// An upstream that answers documents at once, and streams when it is told to end one. It must never
/// hear a key of a client.
pub async fn upstream(ends: Arc<Semaphore>) -> Raw {
    Raw::start(move |mut conn: Conn| {
        let ends = ends.clone();
        async move {
            while let Some(heard) = conn.request().await {
                let all = format!("{heard:?} {}", String::from_utf8_lossy(&heard.body));
                assert!(!all.contains("berth-"), "a client's key came here: {all}");
                assert_eq!(heard.credential(), "a");
                let json = "content-type: application/json\r\n";
                let done = match heard.target.as_str() {
                    "/v1/messages" => conn.send(answer(200, json, MESSAGE)).await,
                    _ if !all.contains("\"stream\":true") => {
                        conn.send(answer(200, json, COMPLETED)).await
                    }
                    _ => {
                        conn.send(STREAM_HEAD).await;
                        conn.send(chunk(DELTA.as_bytes())).await;
                        ends.acquire().await.unwrap().forget();
                        conn.send(chunk(END.as_bytes())).await;
                        conn.send(LAST_CHUNK).await
                    }
                };
                if !done {
                    return;
                }
            }
        }
    })
    .await
}

/// What a dialect is asked.
#[derive(Clone, Copy, Debug)]
pub enum Speaks {
    OpenAi,
    Anthropic,
}

impl Speaks {
    pub const ALL: [Speaks; 2] = [Speaks::OpenAi, Speaks::Anthropic];

    pub fn config(self, upstream: &Raw, more: &str) -> String {
        let dialect = match self {
            Speaks::OpenAi => "openai",
            Speaks::Anthropic => "anthropic",
        };
        let up = format!("base_url: \"{}\", dialect: {dialect}", upstream.url());
        with_upstream(&up, "a", more)
    }

    pub fn path(self) -> &'static str {
        match self {
            Speaks::OpenAi => "/v1/responses",
            Speaks::Anthropic => "/v1/messages",
        }
    }

    pub fn request(self, headers: &str) -> Vec<u8> {
        post(self.path(), headers, body(self.path(), false))
    }

    /// The kind and the message of an error in the dialect's own shape.
    pub fn error(self, answer: &Answer) -> (String, String) {
        let json = answer.json();
        let error = &json["error"];
        let kind = match self {
            Speaks::OpenAi => {
                assert!(
                    error["type"].is_string() && error["param"].is_null(),
                    "{json}"
                );
                &error["code"]
            }
            Speaks::Anthropic => {
                assert_eq!(json["type"], "error");
                &error["type"]
            }
        };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(kind), text(&error["message"]))
    }
}

pub fn bearer(id: &str) -> String {
    format!("authorization: Bearer {}\r\n", key(id))
}

pub async fn start(speaks: Speaks, more: &str) -> (Berth, Raw, Arc<Semaphore>) {
    let ends = Arc::new(Semaphore::new(0));
    let upstream = upstream(ends.clone()).await;
    let berth = Berth::start(&speaks.config(&upstream, more)).await;
    (berth, upstream, ends)
}
