//! Variants that the cases only describe in a note: here they get their bytes and expectations.

use serde_json::{Value, json};

use super::config;

/// An event stream with the least that is an answer.
fn healthy(uses: usize) -> Value {
    let bytes = [
        (
            "response.created",
            r#""response":{"id":"resp_b1","status":"in_progress","output":[]}"#,
        ),
        (
            "response.output_text.delta",
            r#""item_id":"m","output_index":0,"content_index":0,"delta":"OK""#,
        ),
        (
            "response.completed",
            r#""response":{"id":"resp_b1","status":"completed","output":[]}"#,
        ),
    ]
    .map(|(kind, rest)| format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{rest}}}\n\n"))
    .concat();
    json!([{
        "attempt": 1,
        "credential": "A",
        "nth_on_credential": format!("1..{uses}"),
        "response": {
            "head": "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
            "framing": "chunked",
            "writes": [{ "at_ms": 0, "bytes": bytes }],
            "end": { "how": "fin" },
        },
    }])
}

/// Fills in the variants that are a name and a note.
pub fn complete(case: &mut Value) {
    let name = format!("{}/{}", text(&case["id"]), text(&case["variant"]));
    match name.as_str() {
        // 20 children at once of a root that lives on A, which takes 8: the others spill to B, and
        // nobody is turned away. The answers take a while, so that all 20 are there together.
        "AFF-01/fan_out_20" => {
            let (root, child) = (case["client"][0].clone(), case["client"][1].clone());
            case["client"] = json!({ "before": [root], "parallel": 20, "request": child });
            let credential = |label: &str, most: u64| {
                json!({
                    "id": config::id(label), "upstream": "player", "realm": "one",
                    "secret": { "env": config::secret_env(label) }, "max_in_flight": most,
                })
            };
            case["setup"]["top"]["credentials"] = json!([credential("A", 8), credential("B", 0)]);
            case["upstream"] = healthy(21);
            case["upstream"][0]["credential"] = json!("A or B");
            case["upstream"][0]["response"]["writes"][0]["at_ms"] = json!(1_000);
            case["expect"] = json!({
                "attempts": 21,
                "client": { "each": { "status": 200, "body": { "same_as_attempt": 1 } } },
                "cooldown": [],
                "metrics": [
                    "attempt{credential=A,model=gpt-5.6-sol,outcome=ok} +9",
                    "attempt{credential=B,model=gpt-5.6-sol,outcome=ok} +12",
                    "failover{} +0",
                ],
            });
        }
        // 20 parallel requests of 40 MiB with a budget of 256 MiB: all succeed on a healthy A.
        "BIG-03/global_budget" => {
            let mut request = case["client"].clone();
            request["body_gen"]["total_bytes"] = json!(40 << 20);
            case["client"] = json!({ "parallel": 20, "request": request });
            case["setup"]["top"]["limits"]["memory"] = json!("256MiB");
            case["upstream"] = healthy(20);
            case["expect"] = json!({
                "attempts": 20,
                "client": { "each": { "status": 200, "body": { "same_as_attempt": 1 } } },
                "cooldown": [],
                "metrics": ["failover{} +0", "process RSS growth < 400 MiB"],
            });
        }
        // An extended CONNECT: a clean refusal at once, never a hang.
        "WS-07/h2_extended_connect" => {
            let client = case["client"].as_object_mut().into_iter();
            client.for_each(|client| {
                client.remove("pipelined");
            });
            case["client"]["http"] = json!("HTTP/2");
            case["client"]["method"] = json!("CONNECT");
            let headers = case["client"]["headers"].as_array_mut().into_iter();
            headers.for_each(|lines| {
                let hop = |line: &Value| {
                    text(line).starts_with("connection:") || text(line).starts_with("upgrade:")
                };
                lines.retain(|line| !hop(line));
            });
            case["upstream"] = json!([]);
            case["expect"] = json!({
                "attempts": 0,
                "client": {
                    "status": "one_of [0, 400, 403, 404, 405, 426, 501]",
                    "timing": "within 200 ms (or within the configured wait, if one is set)",
                },
                "cooldown": [],
            });
        }
        // A small body that expands to 1 GiB: bounded, 413 or forwarded with its model unknown.
        "CMP-04/decompression_bomb" => {
            case["client"]
                .as_object_mut()
                .map(|client| client.remove("body_b64"));
            let headers = case["client"]["headers"].as_array_mut().into_iter();
            headers.for_each(|lines| {
                lines.retain(|line| !text(line).starts_with("content-length"));
            });
            case["client"]["body_gen"] = json!({ "kind": "zstd_bomb", "model": "", "stream": true,
                "total_bytes": 1 << 30, "seed": 1 });
            case["upstream"] = healthy(1);
            case["expect"] = json!({
                "attempts": { "one_of": [0, 1] },
                "client": { "one_of": [
                    { "status": 200, "body": { "same_as_attempt": 1 } }, { "status": 413 },
                ] },
                "cooldown": [],
                "metrics": ["process RSS growth < 64 MiB"],
            });
        }
        _ => {}
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
