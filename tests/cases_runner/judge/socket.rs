//! What came over a WebSocket after the 101.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Evidence, Findings, allows};
use crate::cases_runner::exchange::{Answer, SocketSeen};
use crate::cases_runner::script;

const ASPECT: &str = "websocket";

/// What stands for a connection that broke without a close frame (RFC 6455, 7.1.5).
const ABNORMAL: u16 = 1006;

pub fn judge(expect: &Value, answer: &Answer, at: &Evidence<'_>, findings: &mut Findings) {
    let nothing = SocketSeen::default();
    let seen = answer.socket.as_ref().unwrap_or(&nothing);
    for (key, value) in expect.as_object().into_iter().flatten() {
        match key.as_str() {
            "frames_same_as_attempt" => {
                let n = value.as_u64().unwrap_or(1) as usize;
                let entry = at.case.upstream.iter().find(|entry| entry.attempt == n);
                let steps = entry.map(|entry| script::socket_steps(&entry.response));
                let expected: Vec<String> = match steps {
                    Some(Ok(steps)) => steps.into_iter().map(|step| lossy(step.bytes)).collect(),
                    _ => return findings.unknown(ASPECT, "the messages of an attempt"),
                };
                let wanted = format!("the messages of attempt {n}");
                let told = format!("{:#?}", seen.texts);
                findings.check(seen.texts == expected, ASPECT, &wanted, told);
            }
            "close" => {
                let code = seen.close.unwrap_or(ABNORMAL);
                findings.check(
                    allows(value, code),
                    ASPECT,
                    &format!("close {value}"),
                    code.to_string(),
                );
            }
            "frames"
                if value == "one response.failed text frame, response.error.code server_error" =>
            {
                let failed = |text: &String| {
                    let json: Value = serde_json::from_str(text).unwrap_or_default();
                    json["type"] == "response.failed"
                        && json["response"]["error"]["code"] == "server_error"
                };
                let fine = matches!(seen.texts.as_slice(), [one] if failed(one));
                findings.check(
                    fine,
                    ASPECT,
                    "one response.failed",
                    format!("{:?}", seen.texts),
                );
            }
            _ => findings.unknown(ASPECT, &format!("{key}: {value}")),
        }
    }
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A sentence of `never` about sockets; `None`: it is not one.
pub fn never(sentence: &str, answer: &Answer, at: &Evidence<'_>) -> Option<bool> {
    let seen = answer.socket.as_ref();
    let texts = || seen.iter().flat_map(|seen| &seen.texts);
    Some(match sentence {
        "server_is_overloaded on the wire" => texts().any(|t| t.contains("server_is_overloaded")),
        "silence > 1000 ms" => {
            let word: Option<Instant> = seen.and_then(|seen| seen.first.or(seen.over));
            word.is_none_or(|word| {
                word.saturating_duration_since(answer.sent) > Duration::from_millis(1_000)
            })
        }
        // The upstream closes after it has the whole message: so it must have got it.
        "close caused by a balancer frame limit below 64 MiB" => {
            let sent = at.case.client["ws_send"][0]["total_bytes"].as_u64();
            let got = at.seen.first().map(|received| received.body_len as u64);
            sent != got
        }
        _ => return None,
    })
}
