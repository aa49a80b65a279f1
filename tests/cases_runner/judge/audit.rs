//! The audit lines: one per client request, in the order in which the requests ended.

use serde_json::Value;

use super::metrics::verdicts;
use super::{Books, Findings};
use crate::cases_runner::config;
use crate::cases_runner::format::Case;

const ASPECT: &str = "audit";

/// Sentences about fields that the contract's audit line does not have.
const WITHOUT_COUNTERPART: [&str; 6] = [
    "request 2: affinity source session-id, subagent=collab_spawn",
    "class=client_payload",
    "class=lifecycle",
    "no state change for A",
    "model taken from response.create",
    "turn 1 kind=prewarm or ok, not empty/failed",
];

pub fn judge(case: &Case, books: &Books, findings: &mut Findings) {
    let Some(expect) = &case.expect.audit else {
        return;
    };
    if !expect.must.is_empty() && books.audit.is_empty() && !silent(&expect.must) {
        let told = "no audit line".to_owned();
        return findings.check(false, ASPECT, &expect.must.join("; "), told);
    }
    for sentence in &expect.must {
        if WITHOUT_COUNTERPART.contains(&sentence.as_str()) {
            findings.skip(format!("audit: {sentence}"));
            continue;
        }
        match met(sentence, books) {
            Some(fine) => {
                let told = || books.audit.iter().map(Value::to_string).collect::<Vec<_>>();
                let told = if fine {
                    String::new()
                } else {
                    told().join("\n")
                };
                findings.check(fine, ASPECT, sentence, told);
            }
            None => findings.unknown(ASPECT, sentence),
        }
    }
}

/// Requests outside every route leave no audit line, and that is what the case says.
fn silent(must: &[String]) -> bool {
    must.iter()
        .all(|sentence| sentence == "no credential selected")
}

fn attempts(line: &Value) -> &[Value] {
    line["attempts"].as_array().map_or(&[], Vec::as_slice)
}

fn met(sentence: &str, books: &Books) -> Option<bool> {
    let lines = &books.audit;
    let last = lines.last().unwrap_or(&Value::Null);
    let any_attempt = |fits: &dyn Fn(&Value) -> bool| attempts(last).iter().any(fits);
    let committed = any_attempt(&|attempt| attempt["committed"] == true);
    let story = sentence.trim_start_matches("one record per attempt, sharing one request id: ");
    if story.contains(" -> ") {
        return Some(lines.iter().any(|line| tells(story, line)));
    }
    if let Some((request, label)) = story.split_once(" chose ") {
        let n: usize = request.strip_prefix("request ")?.parse().ok()?;
        let chosen = &lines.get(n - 1)?["attempts"][0]["credential"];
        return Some(*chosen == *config::id(label));
    }
    if let Some(outcome) = sentence.strip_prefix("outcome=") {
        return Some(last["outcome"] == *outcome);
    }
    if let Some(reason) = sentence.strip_prefix("no_failover_reason=") {
        return Some(last["blocked"] == *reason);
    }
    let code_kept = any_attempt(&|attempt| attempt["code"] == "server_is_overloaded");
    let bytes_out = last["bytes_out"].as_u64().unwrap_or(0) > 0;
    let gone = last["outcome"] == "client_gone";
    let blocked = last["blocked"].as_str().unwrap_or_default();
    Some(match sentence {
        "committed=false on the failed attempt" => attempts(last)
            .first()
            .is_some_and(|attempt| attempt["committed"] != true),
        "committed=true, no_failover_reason=output_started, upstream code server_is_overloaded kept in the record" => {
            committed && code_kept && blocked == "output_started"
        }
        "committed=true, bytes, no terminal event" => committed && bytes_out,
        "original code kept in the record" => code_kept,
        "zero attempts" | "zero attempts, cooldown list with remaining times" => {
            attempts(last).is_empty()
        }
        "no credential selected" => lines.iter().all(|line| attempts(line).is_empty()),
        "three attempts, final decision exhausted" => {
            attempts(last).len() == 3 && last["outcome"] == "refused_all"
        }
        "requests 2..6 show at most one upstream attempt" => {
            lines.iter().skip(1).all(|line| attempts(line).len() <= 1)
        }
        "no credential appears twice in one request" => lines.iter().all(|line| {
            let mut ids: Vec<_> = attempts(line)
                .iter()
                .map(|a| a["credential"].as_str())
                .collect();
            let all = ids.len();
            ids.sort();
            ids.dedup();
            ids.len() == all
        }),
        "model field is gpt-5.6-sol, not unknown" => last["model"] == "gpt-5.6-sol",
        "phase=bootstrap, no further attempt" => gone && !committed && attempts(last).len() == 1,
        "phase=streaming, bytes_sent > 0" => gone && bytes_out,
        "phase=request_body" => gone && !committed,
        "commit_reason=hold_limit" => last["commit_reason"] == "hold_limit",
        "token value is never logged (hash at most)" => !books.audit_text.contains("ts-opaque"),
        _ => return None,
    })
}

/// `A -> capacity, B -> ok`, exactly and in this order; what follows without an arrow is another
/// assertion of the same line.
fn tells(story: &str, line: &Value) -> bool {
    let parts: Vec<&str> = story.split(", ").collect();
    let told: Vec<(&str, &str)> = parts
        .iter()
        .filter_map(|part| part.split_once(" -> "))
        .collect();
    let rest = parts.iter().filter(|part| !part.contains(" -> "));
    let got = attempts(line);
    let same = told.len() == got.len()
        && told.iter().zip(got).all(|((label, outcome), attempt)| {
            let outcome = outcome.trim_end_matches(" (handshake)");
            let verdict = attempt["verdict"].as_str().unwrap_or_default();
            attempt["credential"] == *config::id(label) && verdicts(outcome).contains(&verdict)
        });
    same && rest.into_iter().all(|part| {
        part.strip_prefix("no_failover_reason=")
            .is_some_and(|reason| line["blocked"] == *reason)
    })
}
