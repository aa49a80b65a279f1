//! What reached the upstream: how many requests, with which credential, in which state.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::{Evidence, Findings};
use crate::cases_runner::exchange::{Ending, Received, values};
use crate::cases_runner::format::Attempt;

const ASPECT: &str = "attempts";

pub fn judge(evidence: &Evidence<'_>, findings: &mut Findings) {
    let case = evidence.case;
    count(&case.expect.attempts, &evidence.seen, findings);
    for received in &evidence.seen {
        let line = received.head.lines().next().unwrap_or_default();
        match received.script.and_then(|n| case.upstream.get(n)) {
            Some(entry) => request(entry, received, evidence, findings),
            None => findings.check(
                false,
                ASPECT,
                "only the attempts of the case",
                format!("credential {:?} got `{line}`", received.label),
            ),
        }
    }
    for seen in case.expect.upstream_seen.iter().flatten() {
        if let Some(never) = &seen.never {
            let found = evidence
                .seen
                .iter()
                .any(|received| received.head.contains(never));
            let sentence = never.starts_with("the pipelined bytes");
            findings.check(
                !found || sentence,
                "upstream_seen",
                never,
                "it was seen".into(),
            );
        }
        if let Some(within) = &seen.closed_by_balancer {
            closed(seen.attempt.unwrap_or(1), within, evidence, findings);
        }
    }
}

fn count(expected: &Value, seen: &[Received], findings: &mut Findings) {
    let total = seen.len() as u64;
    let got = || {
        let labels = seen.iter().map(|r| r.label.as_deref().unwrap_or("?"));
        format!("{total} ({})", labels.collect::<Vec<_>>().join(", "))
    };
    let number = |key: &str| expected[key].as_u64();
    let fine = match expected {
        Value::Null => true,
        Value::Number(_) => expected.as_u64() == Some(total),
        _ if expected["one_of"].is_array() => super::allows(&expected["one_of"], total as u16),
        _ => {
            let mut each: BTreeMap<usize, u64> = BTreeMap::new();
            for received in seen {
                *each.entry(received.request).or_default() += 1;
            }
            let per = number("per_request_max").unwrap_or(u64::MAX);
            let later = number("later_request_max").unwrap_or(u64::MAX);
            total <= number("max").unwrap_or(u64::MAX)
                && total >= number("min").unwrap_or(0)
                && each.values().all(|count| *count <= per)
                && each
                    .iter()
                    .all(|(request, count)| *request < 2 || *count <= later)
        }
    };
    findings.check(fine, ASPECT, &expected.to_string(), got());
}

/// What the entry says about the request and its connection.
fn request(entry: &Attempt, got: &Received, evidence: &Evidence<'_>, findings: &mut Findings) {
    let aspect = "expect_request";
    match entry.connection.as_deref() {
        Some("reused") => {
            let told = "a new one: the case was not staged".to_owned();
            findings.check(got.reused, "connection", "reused", told);
        }
        Some("new") => findings.check(!got.reused, "connection", "new", "a reused one".into()),
        Some(other) => findings.unknown("connection", other),
        None => {}
    }
    for (name, expected) in &entry.expect_request {
        let told = format!("attempt {}, {name}: {expected}", entry.attempt);
        if name == "body" {
            let known = expected.contains("client");
            let got_body = format!("{:?}, {} bytes", got.body_same, got.body_len);
            findings.check(
                known && got.body_same == Some(true),
                aspect,
                &told,
                got_body,
            );
            continue;
        }
        let sent = values(&got.headers, name);
        let fine = match expected.as_str() {
            "absent" | "absent or A's" => sent.is_empty(),
            "absent, or upstream 100 is consumed"
            | "identity, or absent; if the balancer keeps gzip it must decode" => true,
            "exactly once, credential A" => sent.len() == 1 && got.label.as_deref() == Some("A"),
            value => sent == [value],
        };
        findings.check(fine, aspect, &told, format!("{sent:?}"));
    }
    let whole = matches!(got.body_same, Some(true));
    let left = evidence
        .answers
        .iter()
        .any(|answer| answer.ending == Ending::Left);
    if !evidence.case.websocket() && !left {
        let told = format!("{:?}, {} bytes", got.body_same, got.body_len);
        findings.check(whole, aspect, "the body as the client sent it", told);
    }
}

/// `within 300 ms of the client close`.
fn closed(attempt: usize, within: &str, evidence: &Evidence<'_>, findings: &mut Findings) {
    let ms = within
        .split_whitespace()
        .find_map(|word| word.parse::<u64>().ok());
    let seen = evidence.seen.iter().find(|received| {
        let entry = received.script.and_then(|n| evidence.case.upstream.get(n));
        entry.is_some_and(|entry| entry.attempt == attempt)
    });
    let (Some(ms), Some(answer)) = (ms, evidence.answers.first()) else {
        return findings.unknown("upstream_seen", within);
    };
    let after = seen
        .and_then(|received| received.closed_by_proxy)
        .map(|closed| closed.saturating_duration_since(answer.ended));
    let fine = after.is_some_and(|after| after <= Duration::from_millis(ms));
    findings.check(
        fine,
        "upstream_seen",
        within,
        format!("closed after {after:?}"),
    );
}
