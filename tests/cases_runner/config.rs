//! The configuration of berth for a case: the defaults of the cases' format, the semantic names of
//! `setup.config` mapped to the real ones, and `route`, `admission` and `top` merged over them.
//!
//! It is written as JSON, which is YAML, so that nothing needs quoting.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::format::Case;
use super::variants::deep;

/// The environment variable with the admin token.
pub const TOKEN_ENV: &str = "CASE_ADMIN_TOKEN";

/// Addresses that the configuration names.
pub struct Addresses {
    pub listener: SocketAddr,
    pub admin: SocketAddr,
    pub player: SocketAddr,
    /// Nobody listens here.
    pub refused: SocketAddr,
}

/// The environment variable with the secret of a credential.
pub fn secret_env(label: &str) -> String {
    format!("CASE_SECRET_{label}")
}

/// The id of a credential: the case's label in lower case.
pub fn id(label: &str) -> String {
    label.to_lowercase()
}

pub fn build(case: &Case, body_len: usize, at: &Addresses, dir: &Path) -> Result<Value, String> {
    let semantic = &case.setup.config;
    let requests = case.requests()?.requests;
    let anthropic = requests
        .iter()
        .any(|request| request.path.starts_with("/v1/messages"));
    let ms = |value: u64| json!(format!("{value}ms"));
    let hold_ms = semantic.bootstrap_max_ms.unwrap_or(5_000);
    let upstream = |address: SocketAddr| {
        json!({
            "base_url": format!("http://{address}/v1"),
            "auth": "bearer",
            "dialect": if anthropic { "anthropic" } else { "openai" },
            "http2": "never",
            "connect_timeout": "2s",
            "header_timeout": ms(semantic.header_timeout_ms.unwrap_or(2_000)),
            "non_stream_timeout": ms(semantic.non_stream_timeout_ms.unwrap_or(30_000)),
            "idle_timeout": "300s",
        })
    };
    let refused = |label: &str| {
        case.upstream.iter().any(|attempt| {
            attempt.credential == label && attempt.response.connect.as_deref() == Some("refused")
        })
    };
    let mut upstreams = json!({ "player": upstream(at.player) });
    let mut credentials = Vec::new();
    for label in &case.setup.pick_order {
        if refused(label) {
            upstreams["refused"] = upstream(at.refused);
        }
        credentials.push(json!({
            "id": id(label),
            "upstream": if refused(label) { "refused" } else { "player" },
            "secret": { "env": secret_env(label) },
            "realm": case.setup.realms.get(label).map_or("one", String::as_str),
        }));
    }
    let mut route = json!({
        "path_prefix": "/v1",
        "credentials": case.setup.pick_order.iter().map(|label| id(label)).collect::<Vec<_>>(),
        "balance": "fill_first",
        "affinity": { "enabled": case.group == "affinity" },
        "websocket": if case.websocket() { "proxy" } else { "refuse" },
    });
    deep(&mut route, &Value::Object(case.setup.route.clone()));
    let mut admission = json!({
        "max_attempts": semantic.max_attempts.unwrap_or(3),
        "retry_budget": { "ratio": 100.0, "min_per_second": 1000 },
        "hold": {
            "max_bytes": bytes(semantic.bootstrap_max_bytes.unwrap_or(4 << 20)),
            "max_time": ms(hold_ms),
            // Room for one switch on the time limit.
            "request_max_time": ms((2 * hold_ms + 1_000).max(8_000)),
        },
        "wait": { "max_time": "0s" },
    });
    deep(&mut admission, &Value::Object(case.setup.admission.clone()));
    let replay = semantic.replay_max_bytes.unwrap_or(64 << 20);
    let mut config = json!({
        "listeners": [{ "address": at.listener.to_string() }],
        "process": { "threads": 2, "runtime_dir": dir.join("run") },
        "admin": { "address": at.admin.to_string(), "token": { "env": TOKEN_ENV } },
        "upstreams": upstreams,
        "credentials": credentials,
        "routes": [route],
        "admission": admission,
        "limits": {
            "replay_body": bytes(replay),
            "request_body": bytes(replay.max(body_len as u64 + (1 << 20))),
        },
        "disclose": true,
        "audit": { "path": dir.join("audit.jsonl") },
    });
    deep(&mut config, &Value::Object(case.setup.top.clone()));
    Ok(config)
}

/// A size in the configuration's form.
fn bytes(size: u64) -> Value {
    json!(format!("{}KiB", size.div_ceil(1024)))
}
