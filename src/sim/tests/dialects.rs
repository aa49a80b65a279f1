//! The answers, as the SDKs and Codex read them.

use super::*;
use serde_json::json;

fn joined(answer: &Answer, pointer: &str) -> String {
    let data = answer.data();
    data.iter()
        .filter_map(|each| each.pointer(pointer)?.as_str())
        .collect()
}

#[tokio::test]
async fn a_responses_stream_is_numbered_and_ends_with_all_of_its_output() {
    let sim = one([Step::Admit(Admit {
        deltas: 5,
        rate_limits: true,
        ..Admit::default()
    })]);
    let answer = ask(&sim, "/backend/v1/responses", true).await;
    assert!(answer.headers["x-request-id"].starts_with("req_"));
    let data = answer.data();
    let numbers: Vec<u64> = data
        .iter()
        .filter_map(|each| each["sequence_number"].as_u64())
        .collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(
        numbers.len() + 1,
        data.len(),
        "only codex.rate_limits has no number"
    );
    let last = &data.last().unwrap()["response"];
    assert_eq!(last["status"], "completed");
    assert_eq!(last["model"], "gpt-sim");
    assert_eq!(
        last["output"][0]["content"][0]["text"],
        "Hello from campus-a."
    );
    let deltas: String = data
        .iter()
        .filter(|each| each["type"] == "response.output_text.delta")
        .map(|each| each["delta"].as_str().unwrap())
        .collect();
    assert_eq!(deltas, "Hello from campus-a.");
    let usage = &last["usage"];
    let sum = usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
}

#[tokio::test]
async fn a_tool_call_is_spoken_in_every_dialect() {
    let call = Call {
        name: "exec_command".into(),
        arguments: r#"{"cmd":"echo hi"}"#.into(),
    };
    let sim = one([Step::Admit(Admit {
        call: Some(call),
        ..Admit::default()
    })]);
    let streamed = ask(&sim, "/v1/responses", true).await;
    let data = streamed.data();
    let item = &data.last().unwrap()["response"]["output"][0];
    assert_eq!(item["type"], "function_call");
    assert_eq!(item["name"], "exec_command");
    assert_eq!(item["arguments"], r#"{"cmd":"echo hi"}"#);
    assert_eq!(joined(&streamed, "/delta"), r#"{"cmd":"echo hi"}"#);

    let streamed = ask(&sim, "/v1/chat/completions", true).await;
    let arguments = joined(
        &streamed,
        "/choices/0/delta/tool_calls/0/function/arguments",
    );
    assert_eq!(arguments, r#"{"cmd":"echo hi"}"#);
    let whole = ask(&sim, "/v1/chat/completions", false).await.json();
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");

    let streamed = ask(&sim, "/v1/messages", true).await;
    assert_eq!(
        joined(&streamed, "/delta/partial_json"),
        r#"{"cmd":"echo hi"}"#
    );
    let whole = ask(&sim, "/v1/messages", false).await.json();
    assert_eq!(whole["content"][0]["input"], json!({"cmd": "echo hi"}));
    assert_eq!(whole["stop_reason"], "tool_use");
}

#[tokio::test]
async fn a_chat_stream_ends_with_usage_if_asked_and_done() {
    let sim = one([]);
    let plain = ask(&sim, "/v1/chat/completions", true).await;
    assert_eq!(
        joined(&plain, "/choices/0/delta/content"),
        "Hello from campus-a."
    );
    assert!(
        plain
            .data()
            .iter()
            .all(|chunk| chunk.get("usage").is_none())
    );
    let mut peer = Peer::connect(&sim).await;
    let body =
        r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}"#;
    peer.send(&request("POST", "/v1/chat/completions", "sk-a", body))
        .await;
    let answer = peer.answer().await;
    let data = answer.data();
    assert_eq!(data.last().unwrap()["choices"], json!([]));
    assert!(data.last().unwrap()["usage"]["total_tokens"].is_u64());
    assert_eq!(data[data.len() - 2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer.frames().last().unwrap(), "data: [DONE]");
}

#[tokio::test]
async fn a_messages_stream_has_the_frames_that_its_sdk_counts_on() {
    let sim = one([]);
    let answer = ask(&sim, "/v1/messages", true).await;
    assert!(answer.headers["request-id"].starts_with("req_"));
    assert_eq!(
        answer.events(),
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    assert_eq!(joined(&answer, "/delta/text"), "Hello from campus-a.");
    let whole = ask(&sim, "/v1/messages", false).await.json();
    assert_eq!(whole["content"][0]["text"], "Hello from campus-a.");
}

#[tokio::test]
async fn anthropic_errors_have_their_own_shape() {
    let sim = one([
        Step::refuse(Shape::Http529),
        Step::RateLimit(Default::default()),
    ]);
    for kind in ["overloaded_error", "rate_limit_error"] {
        let error = ask(&sim, "/v1/messages", true).await.json();
        assert_eq!(error["type"], "error");
        assert_eq!(error["error"]["type"], kind);
    }
}

#[tokio::test]
async fn the_text_has_the_length_and_the_pieces_asked_for() {
    let admit = Admit {
        deltas: 100,
        bytes: 100_000,
        ..Admit::default()
    };
    let many = Admit {
        deltas: 500,
        ..Admit::default()
    };
    let none = Admit {
        deltas: 0,
        ..Admit::default()
    };
    let sim = one([Step::Admit(admit), Step::Admit(many), Step::Admit(none)]);
    for (pieces, length) in [(100, 100_000), (500, 500), (0, 0)] {
        let answer = ask(&sim, "/v1/messages", true).await;
        let deltas = answer
            .events()
            .iter()
            .filter(|name| *name == "content_block_delta")
            .count();
        assert_eq!(deltas, pieces);
        assert_eq!(joined(&answer, "/delta/text").len(), length);
    }
}

#[tokio::test]
async fn embeddings_come_as_numbers_or_in_base64() {
    let sim = one([]);
    let mut peer = Peer::connect(&sim).await;
    let body = r#"{"model":"m","input":["a","b"],"encoding_format":"base64"}"#;
    peer.send(&request("POST", "/v1/embeddings", "sk-a", body))
        .await;
    let answer = peer.answer().await.json();
    assert_eq!(answer["data"].as_array().unwrap().len(), 2);
    assert_eq!(answer["data"][1]["embedding"], "AAAAPwAAgL4AAAA+AABAPw==");
    peer.send(&request(
        "POST",
        "/v1/embeddings",
        "sk-a",
        r#"{"model":"m","input":[1,2,3]}"#,
    ))
    .await;
    let answer = peer.answer().await.json();
    assert_eq!(
        answer["data"],
        json!([{"object": "embedding", "index": 0, "embedding": [0.5, -0.25, 0.125, 0.75]}])
    );
    peer.send(&request(
        "POST",
        "/v1/messages/count_tokens",
        "sk-a",
        &super::body(false),
    ))
    .await;
    assert!(peer.answer().await.json()["input_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn the_model_list_is_there_for_known_keys_and_takes_no_step() {
    let sim = one([Step::Auth]);
    let list = get(&sim, "/v1/models").await.json();
    assert_eq!(list["data"][0]["id"], "gpt-sim");
    assert_eq!(list["models"], json!([]), "Codex reads this one");
    assert_eq!(
        get(&sim, "/v1/models/claude-sim").await.json()["id"],
        "claude-sim"
    );
    assert_eq!(get(&sim, "/v1/models/none").await.status, Some(404));
    let mut peer = Peer::connect(&sim).await;
    peer.send("GET /v1/models HTTP/1.1\r\nhost: sim\r\nx-api-key: sk-a\r\nanthropic-version: 2023-06-01\r\n\r\n").await;
    let list = peer.answer().await.json();
    assert_eq!(list["data"][0]["type"], "model");
    assert_eq!(list["has_more"], false);
    peer.send(&request("GET", "/v1/models", "sk-nobody", ""))
        .await;
    assert_eq!(peer.answer().await.status, Some(401));
    let steps: Vec<String> = sim.log().into_iter().map(|each| each.step).collect();
    assert_eq!(
        steps,
        ["models", "models", "models", "models", "unknown_key"]
    );
}

#[tokio::test]
async fn a_compressed_request_is_read() {
    let sim = one([]);
    let plain = body(true);
    let zstd = zstd::encode_all(plain.as_bytes(), 1).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, plain.as_bytes()).unwrap();
    for (coding, bytes) in [("zstd", zstd), ("gzip", gzip.finish().unwrap())] {
        let mut peer = Peer::connect(&sim).await;
        let head = format!(
            "POST /v1/responses HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer sk-a\r\n\
             content-encoding: {coding}\r\ncontent-length: {}\r\n\r\n",
            bytes.len()
        );
        peer.send(&[head.as_bytes(), &bytes].concat()).await;
        assert_eq!(
            peer.answer().await.events().last().unwrap(),
            "response.completed",
            "{coding}"
        );
        let record = sim.log().pop().unwrap();
        assert_eq!(record.model.as_deref(), Some("gpt-sim"));
        assert_eq!(record.body_bytes, bytes.len() as u64, "as it came");
    }
}

#[tokio::test]
async fn a_websocket_is_turned_to_http() {
    let sim = one([]);
    let mut peer = Peer::connect(&sim).await;
    peer.send("GET /v1/responses HTTP/1.1\r\nhost: sim\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n").await;
    assert_eq!(peer.answer().await.status, Some(426));
}
