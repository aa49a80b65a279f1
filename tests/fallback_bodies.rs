//! Fallback models and bodies: packed, of no stated length, owned by somebody, or not to be rewritten.

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};

use common::Berth;
use common::fallback::{config, odd_body};
use common::upstream::{Conn, Heard, LAST_CHUNK, Raw, answer, chunk};
use common::wire::{Answer, Client2, post};
use serde_json::Value;

const OVERLOADED: &str = r#"{"error":{"code":"server_is_overloaded","message":"busy"}}"#;

/// An upstream that has no seat for `gpt-a`, packed or not, and writes down what it hears.
async fn picky(heard: Arc<Mutex<Vec<Heard>>>) -> Raw {
    Raw::start(move |mut conn: Conn| {
        let heard = heard.clone();
        async move {
            while let Some(request) = conn.request().await {
                let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
                let other = body["model"] != "gpt-a" && !body.is_null();
                heard.lock().unwrap().push(request);
                let json = "content-type: application/json\r\nopenai-model: gpt-real\r\n";
                let answered = match other {
                    true => answer(200, json, r#"{"id":"r","status":"completed"}"#),
                    false => answer(503, json, OVERLOADED),
                };
                conn.send(answered).await;
            }
        }
    })
    .await
}

fn packed(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "zstd" => return zstd::stream::encode_all(body, 3).unwrap(),
        "gzip" => flate2::write::GzEncoder::new(&mut out, flate2::Compression::fast())
            .write_all(body)
            .unwrap(),
        "deflate" => flate2::write::ZlibEncoder::new(&mut out, flate2::Compression::fast())
            .write_all(body)
            .unwrap(),
        "br" => brotli::CompressorWriter::new(&mut out, 4096, 1, 18)
            .write_all(body)
            .unwrap(),
        _ => out.extend_from_slice(body),
    }
    out
}

/// Asks with this coding, and gives the answer and what the upstream heard.
async fn ask_packed(more: &str, coding: &str, body: &[u8]) -> (Answer, Vec<Heard>, Berth) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let upstream = picky(heard.clone()).await;
    let berth = Berth::start(&config(
        &upstream.url(),
        "a",
        "{gpt-a: [gpt-longer-b]}",
        more,
    ))
    .await;
    let headers = format!(
        "content-encoding: {coding}\r\nx-codex-routing-hint: model=gpt-a\r\nx-codex-turn-state: t\r\n"
    );
    let answer = berth
        .ask(post("/v1/responses", &headers, packed(coding, body)))
        .await;
    let heard = heard.lock().unwrap().clone();
    (answer, heard, berth)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_packed_body_goes_up_plain_and_its_head_says_so() {
    for coding in ["identity", "zstd", "gzip", "deflate", "br"] {
        let body = odd_body("/responses", false, "gpt-a");
        let (answer, heard, _berth) = ask_packed("", coding, body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{coding}: {answer:?}");
        assert_eq!(
            answer.header("x-berth-model"),
            Some("gpt-longer-b"),
            "{coding}"
        );
        assert_eq!(answer.header("openai-model"), Some("gpt-real"));
        let [first, second] = &heard[..] else {
            panic!("{coding}: {heard:?}");
        };
        assert_eq!(first.header("content-encoding"), Some(coding));
        assert_eq!(first.header("x-codex-routing-hint"), Some("model=gpt-a"));
        assert_eq!(first.body, packed(coding, body.as_bytes()));
        let expected = odd_body("/responses", false, "gpt-longer-b");
        assert_eq!(String::from_utf8_lossy(&second.body), expected, "{coding}");
        assert_eq!(second.header("content-encoding"), None);
        assert_eq!(second.header("transfer-encoding"), None);
        assert_eq!(
            second.header("content-length"),
            Some(&*expected.len().to_string())
        );
        assert_eq!(
            second.header("x-codex-routing-hint"),
            Some("model=gpt-longer-b")
        );
        assert_eq!(second.header("x-codex-turn-state"), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_no_stated_length_gets_one() {
    let body = odd_body("/responses", false, "gpt-a");
    let expected = odd_body("/responses", false, "gpt-longer-b");
    for http2 in [true, false] {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let upstream = picky(heard.clone()).await;
        let text = config(&upstream.url(), "a", "{gpt-a: [gpt-longer-b]}", "");
        let berth = Berth::start(&text).await;
        let answer = match http2 {
            true => {
                let client = Client2::connect(berth.addr).await;
                client.ask("/v1/responses", &[], body.clone()).await
            }
            false => {
                let mut request = b"POST /v1/responses HTTP/1.1\r\nhost: b\r\n\
                    transfer-encoding: chunked\r\n\r\n"
                    .to_vec();
                request.extend(chunk(body.as_bytes()));
                request.extend_from_slice(LAST_CHUNK);
                berth.ask(request).await
            }
        };
        assert_eq!(
            answer.header("x-berth-model"),
            Some("gpt-longer-b"),
            "{answer:?}"
        );
        let heard = heard.lock().unwrap();
        assert_eq!(heard[1].body, expected.as_bytes());
        assert_eq!(heard[1].header("transfer-encoding"), None);
        let length = expected.len().to_string();
        assert_eq!(heard[1].header("content-length"), Some(&*length));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_cannot_be_rewritten_stays_with_its_model() {
    let large = format!(r#"{{"model":"gpt-a","input":"{}"}}"#, "x".repeat(2 << 20));
    let long = format!(r#"{{"model":"gpt-a","input":"{}"}}"#, "x".repeat(100 << 10));
    let limits = "limits: {request_body: 8MiB, replay_body: 1MiB}\n";
    for (more, coding, body) in [
        (
            "",
            "identity",
            r#"{"model":"gpt-a","stream":true,"model":"gpt-a"}"#,
        ),
        ("", "identity", r#"{"model":"gpt-a","input":"cut"#),
        (
            "",
            "identity",
            r#"{"model":"gpt-a","previous_response_id":"resp_1"}"#,
        ),
        // What it unpacks to is more than is kept of a body.
        (limits, "zstd", &*large),
        // It is streamed.
        (limits, "identity", &*large),
    ] {
        let (answer, heard, berth) = ask_packed(more, coding, body.as_bytes()).await;
        let start = &body[..60.min(body.len())];
        assert_eq!(answer.status, 503, "{start}: {answer:?}");
        assert_eq!(answer.header("x-berth-model"), None);
        assert_eq!(heard.len(), 1, "{start}");
        berth
            .metric_becomes("berth_memory_reserved_bytes", 0.0)
            .await;
    }
    // The same, not too large.
    let (answer, _, berth) = ask_packed(limits, "zstd", long.as_bytes()).await;
    assert_eq!(
        answer.header("x-berth-model"),
        Some("gpt-longer-b"),
        "{answer:?}"
    );
    berth
        .metric_becomes("berth_memory_reserved_bytes", 0.0)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_content_falls_back_within_its_realm_only() {
    for (realm, status) in [("one", 200), ("two", 503)] {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let upstream = picky(heard.clone()).await;
        let text = config(&upstream.url(), "ab", "{gpt-a: [gpt-longer-b]}", "")
            .replace("{env: SK_A}}", "{env: SK_A}, models: [gpt-a], realm: one}")
            .replace(
                "{env: SK_B}}",
                &format!("{{env: SK_B}}, models: [gpt-longer-b], realm: {realm}}}"),
            );
        let berth = Berth::start(&text).await;
        let body = r#"{"model":"gpt-a","input":[{"type":"reasoning","encrypted_content":"x"}]}"#;
        let answer = berth.ask(post("/v1/responses", "", body)).await;
        assert_eq!(answer.status, status, "{realm}: {answer:?}");
        let line = berth.last_audit(1).await;
        assert_eq!(
            line["attempts"].as_array().unwrap().len(),
            if status == 200 { 2 } else { 1 }
        );
    }
}
