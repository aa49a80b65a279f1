//! From the words of a case to bytes and times: the writes of an upstream, the body of a client.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::format::{BodyGen, Request, Response, Write};

/// One write: when, counted from the complete request, and what, before any framing.
#[derive(Clone, Debug)]
pub struct Step {
    pub at: Duration,
    pub bytes: Vec<u8>,
}

/// The writes of an answer, generators expanded.
pub fn steps(response: &Response) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    for write in &response.writes {
        expand(write, &mut steps)?;
    }
    Ok(steps)
}

/// The body that an answer carries, before transfer coding.
pub fn body(response: &Response) -> Result<Vec<u8>, String> {
    Ok(steps(response)?
        .into_iter()
        .flat_map(|step| step.bytes)
        .collect())
}

fn expand(write: &Write, steps: &mut Vec<Step>) -> Result<(), String> {
    let at = |ms: u64| Duration::from_millis(ms);
    let text = || write.bytes.clone().unwrap_or_default().into_bytes();
    match write.r#gen.as_deref() {
        None => {
            let bytes = match &write.b64 {
                Some(coded) => decode(coded)?,
                None => text(),
            };
            steps.push(Step {
                at: at(write.at_ms),
                bytes,
            });
        }
        Some("every") => {
            let every = write.every_ms.ok_or("`every` needs every_ms")?.max(1);
            let mut ms = write.from_ms.unwrap_or(every);
            while ms <= write.until_ms.ok_or("`every` needs until_ms")? {
                steps.push(Step {
                    at: at(ms),
                    bytes: text(),
                });
                ms += every;
            }
        }
        Some("repeat") => {
            let total = write.total_bytes.ok_or("`repeat` needs total_bytes")?;
            let mut whole = write.prefix.clone().unwrap_or_default().into_bytes();
            let unit = write
                .unit
                .clone()
                .ok_or("`repeat` needs a unit")?
                .into_bytes();
            whole.extend(unit.iter().cycle().take(total.saturating_sub(whole.len())));
            let size = write.write_size.unwrap_or(total).max(1);
            for (n, piece) in whole.chunks(size).enumerate() {
                let ms = write.at_ms + n as u64 * write.gap_ms.unwrap_or(0);
                steps.push(Step {
                    at: at(ms),
                    bytes: piece.to_vec(),
                });
            }
        }
        Some(other) => return Err(format!("no generator `{other}`")),
    }
    Ok(())
}

/// The head of an answer; dates that a case cannot know are filled in.
pub fn head(head: &str) -> Vec<u8> {
    let now = SystemTime::now();
    head.replace("{http_date_now}", &httpdate::fmt_http_date(now))
        .replace(
            "{http_date_now_plus_7s}",
            &httpdate::fmt_http_date(now + Duration::from_secs(7)),
        )
        .into_bytes()
}

/// A message that the client sends over a socket: a text, or `response_create_padded`.
pub fn message(message: &serde_json::Value) -> Result<Vec<u8>, String> {
    if let Some(text) = message.as_str() {
        return Ok(text.as_bytes().to_vec());
    }
    if message["gen"] != "response_create_padded" {
        return Err(format!("no generator for {message}"));
    }
    let total = message["total_bytes"].as_u64().unwrap_or(0) as usize;
    let (before, after) = (
        r#"{"type":"response.create","model":"gpt-5.6-sol","stream":true,"input":[{"role":"user","content":""#,
        r#""}]}"#,
    );
    let pad = total
        .checked_sub(before.len() + after.len())
        .ok_or("total_bytes is too small")?;
    Ok([before.as_bytes(), &vec![b'x'; pad], after.as_bytes()].concat())
}

/// The messages of an upstream's socket, as steps.
pub fn socket_steps(response: &Response) -> Result<Vec<Step>, String> {
    let frames = response.ws_frames.iter().flatten();
    frames
        .map(|frame| {
            let text = frame["text"]
                .as_str()
                .ok_or("a socket message has a text")?;
            let at = Duration::from_millis(frame["at_ms"].as_u64().unwrap_or(0));
            Ok(Step {
                at,
                bytes: text.as_bytes().to_vec(),
            })
        })
        .collect()
}

/// The body that the client sends.
pub fn request_body(request: &Request) -> Result<Vec<u8>, String> {
    if let Some(spec) = &request.body_gen {
        return padded(spec);
    }
    if let Some(coded) = &request.body_b64 {
        return decode(coded);
    }
    Ok(request.body.clone().unwrap_or_default().into_bytes())
}

fn decode(coded: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(coded).map_err(|e| format!("base64: {e}"))
}

/// A request whose prompt is padded so that the body has exactly `total_bytes`.
fn padded(spec: &BodyGen) -> Result<Vec<u8>, String> {
    match spec.kind.as_str() {
        "json_padded" => {}
        "zstd_bomb" => return bomb(spec.total_bytes),
        other => return Err(format!("no body generator `{other}`")),
    }
    let (model, stream) = (&spec.model, spec.stream);
    let (before, after) = if spec.model_last {
        (
            format!("{{\"stream\":{stream},\"input\":[{{\"role\":\"user\",\"content\":\""),
            format!("\"}}],\"model\":\"{model}\"}}"),
        )
    } else {
        let input = "\"input\":[{\"role\":\"user\",\"content\":\"";
        (
            format!("{{\"model\":\"{model}\",\"stream\":{stream},{input}"),
            "\"}]}".to_owned(),
        )
    };
    let pad = spec
        .total_bytes
        .checked_sub(before.len() + after.len())
        .ok_or("total_bytes is smaller than the request around the padding")?;
    let mut body = Vec::with_capacity(spec.total_bytes);
    body.extend(before.into_bytes());
    // xorshift: deterministic, ASCII, and not one long run that a coding would swallow.
    let mut state = spec.seed.max(1);
    for _ in 0..pad {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        body.push(b'a' + (state % 26) as u8);
    }
    body.extend(after.into_bytes());
    Ok(body)
}

/// Zeros in zstd: a small body that expands to `total` bytes.
fn bomb(total: usize) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| e.to_string();
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).map_err(failed)?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..total >> 20 {
        std::io::Write::write_all(&mut encoder, &zeros).map_err(failed)?;
    }
    encoder.finish().map_err(failed)
}
