//! What a request means: the few fields of its body that an answer depends on, the model list that a
//! `GET` asks for, and what the log says of it.

use super::faults::ErrorAnswer;
use super::http::{Body, Head};
use super::journal::Record;
use super::script::{self, Script};
use super::streams::{Asked, Endpoint, Fault};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    io::{self, Read},
    time::SystemTime,
};

/// Takes from the body what the answer depends on.
pub(super) fn understand(head: &Head, body: &Body, asked: &mut Asked) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Wanted {
        model: Option<String>,
        stream: Option<bool>,
        stream_options: Option<StreamOptions>,
        encoding_format: Option<String>,
    }
    #[derive(Deserialize)]
    struct StreamOptions {
        include_usage: Option<bool>,
    }
    let wanted: Wanted = match head.header("content-encoding") {
        None | Some("identity") => serde_json::from_slice(&body.bytes),
        Some("gzip") => {
            let plain = flate2::read::GzDecoder::new(body.bytes.as_slice());
            serde_json::from_reader(io::BufReader::new(plain.take(MAX_PLAIN)))
        }
        Some("zstd") => {
            let plain = zstd::stream::read::Decoder::new(body.bytes.as_slice());
            let plain = plain.map_err(|_| "it is not zstd")?;
            serde_json::from_reader(io::BufReader::new(plain.take(MAX_PLAIN)))
        }
        Some(other) => return Err(format!("content-encoding `{other}` is not known here")),
    }
    .map_err(|why| format!("not the JSON that is expected here, line {}", why.line()))?;
    asked.model = wanted.model.unwrap_or_else(|| "unknown".into());
    asked.stream = wanted.stream == Some(true)
        && asked.endpoint.can_stream()
        && !head.path.ends_with("/compact");
    asked.include_usage = wanted
        .stream_options
        .and_then(|options| options.include_usage)
        == Some(true);
    asked.base64 = wanted.encoding_format.as_deref() == Some("base64");
    if asked.endpoint == Endpoint::Embeddings {
        #[derive(Deserialize)]
        struct Inputs {
            input: Value,
        }
        let inputs = serde_json::from_slice::<Inputs>(&body.bytes);
        if let Ok(Inputs {
            input: Value::Array(inputs),
        }) = inputs
        {
            // A list of numbers is one input, in tokens.
            let tokens = inputs.first().is_some_and(Value::is_number);
            asked.inputs = if tokens {
                1
            } else {
                inputs.len().min(MAX_INPUTS)
            };
        }
    }
    Ok(())
}

/// The model list, or the model of it that is wanted.
pub(super) fn models(models: &[String], asked: &Asked, wanted: &str) -> Script {
    let anthropic = asked.endpoint.is_anthropic();
    let one = |id: &String| {
        if anthropic {
            json!({"type": "model", "id": id, "display_name": id, "created_at": "2026-01-01T00:00:00Z"})
        } else {
            json!({"id": id, "object": "model", "created": 1_767_225_600, "owned_by": "sim"})
        }
    };
    let body = if !wanted.is_empty() {
        match models.iter().find(|id| *id == wanted) {
            Some(id) => one(id),
            None => return told(asked, 404, "no such model"),
        }
    } else {
        let data: Vec<Value> = models.iter().map(one).collect();
        if anthropic {
            json!({"data": data, "has_more": false, "first_id": models.first(), "last_id": models.last()})
        } else {
            // `models` is where Codex looks; empty, it falls back to what it knows.
            json!({"object": "list", "data": data, "models": []})
        }
    };
    script::error(
        asked,
        ErrorAnswer {
            status: 200,
            body,
            headers: Vec::new(),
        },
    )
}

/// The model that a `GET` of the model list names, empty for the list itself.
pub(super) fn models_path(head: &Head) -> Option<&str> {
    if head.method != "GET" {
        return None;
    }
    if head.path.ends_with("/models") {
        return Some("");
    }
    head.path.split_once("/models/").map(|(_, model)| model)
}

/// An error that no step brought about.
pub(super) fn told(asked: &Asked, status: u16, why: &str) -> Script {
    let fault = Fault {
        kind: if status == 404 {
            "not_found_error"
        } else {
            "invalid_request_error"
        }
        .into(),
        code: None,
        message: why.into(),
    };
    let body = asked.error_document(&fault);
    script::error(
        asked,
        ErrorAnswer {
            status,
            body,
            headers: Vec::new(),
        },
    )
}

/// What the log says of a request before it is answered.
pub(super) fn record(head: &Head, body: &Body, connection: u64) -> Record {
    let shown = |(name, value): &(String, String)| {
        let secret = SECRET_HEADERS
            .iter()
            .any(|each| name.eq_ignore_ascii_case(each));
        let value = if secret { "<redacted>" } else { value };
        (name.clone(), value.to_owned())
    };
    let mut sha256 = String::with_capacity(64);
    for byte in body.sha256 {
        // Writing to a String cannot fail.
        let _ = write!(sha256, "{byte:02x}");
    }
    Record {
        time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        connection,
        method: head.method.clone(),
        path: head.path.clone(),
        body_bytes: body.bytes.len() as u64,
        body_sha256: sha256,
        headers: head.headers.iter().map(shown).collect(),
        ..Record::default()
    }
}

/// Headers whose values stay out of the log. The key is there by its credential's name.
const SECRET_HEADERS: [&str; 5] = [
    "authorization",
    "x-api-key",
    "api-key",
    "cookie",
    "proxy-authorization",
];
/// Bytes of a decompressed body. Chosen: the same as of a plain one.
const MAX_PLAIN: u64 = 128 << 20;
const MAX_INPUTS: usize = 2048;
