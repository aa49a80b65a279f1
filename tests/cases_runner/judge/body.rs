//! The body of an answer against the attempt it came from.

use std::io::Read as _;

use serde_json::Value;

use super::{Evidence, Findings};
use crate::cases_runner::exchange::{Answer, excerpt, values};
use crate::cases_runner::format::BodyExpect;
use crate::cases_runner::http1::{Frame, find, frames};
use crate::cases_runner::script;

const ASPECT: &str = "body";

/// Codes that a client takes for final, and that never reach it.
const FINAL: [&str; 2] = ["server_is_overloaded", "slow_down"];

pub fn judge(
    expect: &BodyExpect,
    answer: &Answer,
    evidence: &Evidence<'_>,
    findings: &mut Findings,
) {
    let coding = values(&answer.headers, "content-encoding");
    let got = match decoded(&answer.body, coding.first().copied()) {
        Ok(got) => got,
        Err(e) => {
            findings.check(false, ASPECT, "the coding that the head names", e);
            answer.body.clone()
        }
    };
    let scripted = |n: usize| attempt_body(evidence, n);
    if let Some(n) = expect.same_as_attempt {
        match scripted(n) {
            Ok(expected) => {
                let told = || difference(&expected, &got);
                let fine = got == expected;
                let wanted = format!("the bytes of attempt {n}");
                findings.check(
                    fine,
                    ASPECT,
                    &wanted,
                    if fine { String::new() } else { told() },
                );
            }
            Err(e) => findings.check(false, ASPECT, "a scripted attempt", e),
        }
    }
    if let Some(sentence) = &expect.frames_equal {
        // Both sentences mean the same: codes replaced, all else unchanged.
        match (sentence.starts_with("attempt 1 "), scripted(1)) {
            (true, Ok(expected)) => same_frames(&frames(&expected), &frames(&got), findings),
            _ => findings.unknown(ASPECT, sentence),
        }
    }
    if let Some(exact) = &expect.exact {
        findings.check(
            got == exact.as_bytes(),
            ASPECT,
            &format!("{exact:?}"),
            excerpt(&got, 300),
        );
    }
    for text in &expect.must_contain {
        let found = find(&got, text.as_bytes()).is_some();
        findings.check(
            found,
            ASPECT,
            &format!("contains `{text}`"),
            excerpt(&got, 600),
        );
    }
    for text in &expect.must_not_contain {
        let found = find(&got, text.as_bytes()).is_some();
        findings.check(
            !found,
            ASPECT,
            &format!("does not contain `{text}`"),
            excerpt(&got, 600),
        );
    }
    fields(
        &serde_json::from_slice(&got).unwrap_or_default(),
        &expect.json,
        &got,
        findings,
    );
    let seen = frames(&got);
    for (event, expected) in &expect.count {
        let wanted = expected.as_u64().unwrap_or(1);
        let count = seen.iter().filter(|frame| frame.event == *event).count() as u64;
        let told = format!("{count} in {}", excerpt(&got, 600));
        findings.check(
            count == wanted,
            ASPECT,
            &format!("{wanted} x {event}"),
            told,
        );
    }
    match (expect.order.as_deref(), scripted(1)) {
        (None, _) => {}
        (Some("attempt 1 output frames first, unchanged"), Ok(expected)) => {
            let output = frames(&expected)
                .into_iter()
                .take_while(|frame| frame.event != "error");
            let output: Vec<u8> = output.flat_map(|frame| frame.raw).collect();
            let told = difference(&output, got.get(..output.len()).unwrap_or(&got));
            findings.check(got.starts_with(&output), ASPECT, "the output first", told);
        }
        (Some(sentence), _) => findings.unknown(ASPECT, sentence),
    }
    if !expect.synthesised_failed.is_empty() {
        let last = seen.last();
        let failed = last.filter(|frame| frame.event == "response.failed");
        let told = format!("{:?}", last.map(|frame| &frame.event));
        findings.check(failed.is_some(), ASPECT, "response.failed at the end", told);
        let data = failed.map_or("", |frame| frame.data.as_str());
        let json = serde_json::from_str(data).unwrap_or_default();
        fields(&json, &expect.synthesised_failed, data.as_bytes(), findings);
    }
}

/// The body of an attempt as scripted, content coding undone.
pub fn attempt_body(evidence: &Evidence<'_>, n: usize) -> Result<Vec<u8>, String> {
    let entry = evidence
        .case
        .upstream
        .iter()
        .find(|entry| entry.attempt == n);
    let entry = entry.ok_or(format!("attempt {n} is not scripted"))?;
    let head = entry.response.head.as_deref().unwrap_or_default();
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix("content-encoding: "));
    decoded(&script::body(&entry.response)?, line)
}

/// Undoes a content coding; an unknown one stays as it is.
pub fn decoded(body: &[u8], coding: Option<&str>) -> Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    let read = match coding {
        Some("gzip") => flate2::read::MultiGzDecoder::new(body).read_to_end(&mut plain),
        Some("br") => brotli_decompressor::Decompressor::new(body, 4096).read_to_end(&mut plain),
        Some("zstd") => zstd::stream::read::Decoder::new(body)
            .and_then(|mut decoder| decoder.read_to_end(&mut plain)),
        _ => return Ok(body.to_vec()),
    };
    read.map(|_| plain)
        .map_err(|e| format!("not decodable as {coding:?}: {e}"))
}

/// Dotted paths: `error.code`.
fn fields<'a>(
    json: &Value,
    expected: impl IntoIterator<Item = (&'a String, &'a Value)>,
    text: &[u8],
    findings: &mut Findings,
) {
    for (path, value) in expected {
        let got = path.split('.').fold(json, |at, key| &at[key]);
        let told = format!("{got} in {}", excerpt(text, 600));
        findings.check(got == value, ASPECT, &format!("{path} = {value}"), told);
    }
}

fn same_frames(expected: &[Frame], got: &[Frame], findings: &mut Findings) {
    let told = format!("{} frames, not {}", got.len(), expected.len());
    findings.check(
        got.len() == expected.len(),
        ASPECT,
        "the frames of attempt 1",
        told,
    );
    for (n, (expected, got)) in expected.iter().zip(got).enumerate() {
        let json = |data: &str| serde_json::from_str::<Value>(data).unwrap_or_default();
        let mut wanted = json(&expected.data);
        // By value only where a code is replaced; every other frame is the same bytes.
        let same = if rewritten(&mut wanted) {
            expected.event == got.event && wanted == json(&got.data)
        } else {
            expected.raw == got.raw
        };
        let frame = format!("frame {n}: {}", excerpt(&expected.raw, 400));
        findings.check(same, ASPECT, &frame, excerpt(&got.raw, 400));
    }
}

/// Replaces the codes that a client takes for final; whether there was one.
fn rewritten(data: &mut Value) -> bool {
    let mut met = false;
    for path in ["/error/code", "/response/error/code"] {
        if let Some(code) = data.pointer_mut(path)
            && FINAL.iter().any(|known| *code == **known)
        {
            *code = "server_error".into();
            met = true;
        }
    }
    met
}

fn difference(expected: &[u8], got: &[u8]) -> String {
    let at = expected.iter().zip(got).take_while(|(a, b)| a == b).count();
    format!(
        "{} bytes, not {}; different from offset {at}: {:?}",
        got.len(),
        expected.len(),
        excerpt(got.get(at..).unwrap_or_default(), 300)
    )
}
