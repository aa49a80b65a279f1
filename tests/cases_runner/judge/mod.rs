//! Compares what was seen with what the case expects.
//!
//! The cases' assertions are partly sentences. Each sentence is in a closed list here: one that the
//! list does not know is a problem of its own, so that a new case cannot pass by being unread. A
//! sentence without a counterpart in the outside contract is `skipped`: counted and printed.

mod answers;
mod attempts;
mod audit;
mod body;
mod exclusions;
mod metrics;
mod socket;

use std::time::Instant;

use serde_json::Value;

use super::exchange::{Answer, Received};
use super::format::Case;

pub use metrics::Samples;

/// Everything that was seen of one run.
pub struct Evidence<'a> {
    pub case: &'a Case,
    pub answers: Vec<Answer>,
    pub seen: Vec<Received>,
    /// What the proxy itself says; a proxy without an admin listener has none.
    pub books: Option<Books>,
}

/// berth's own account of the run.
pub struct Books {
    pub before: Samples,
    pub after: Samples,
    pub audit: Vec<Value>,
    pub audit_text: String,
    pub status: Value,
    pub status_at: Instant,
    /// Everything that the process wrote, and its metrics.
    pub logs: String,
    /// Resident memory before the case, and its peak so far.
    pub memory: Option<(u64, u64)>,
}

/// One difference.
#[derive(Clone, Debug)]
pub struct Problem {
    pub aspect: &'static str,
    pub expected: String,
    pub got: String,
}

/// The differences, and the assertions that have no counterpart outside.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    pub problems: Vec<Problem>,
    pub skipped: Vec<String>,
}

impl Findings {
    pub fn check(&mut self, fine: bool, aspect: &'static str, expected: &str, got: String) {
        if !fine {
            self.problems.push(Problem {
                aspect,
                expected: expected.to_owned(),
                got,
            });
        }
    }

    pub fn skip(&mut self, what: impl Into<String>) {
        self.skipped.push(what.into());
    }

    /// A sentence that no list knows.
    pub fn unknown(&mut self, aspect: &'static str, sentence: &str) {
        self.check(false, aspect, sentence, UNKNOWN.to_owned());
    }
}

const UNKNOWN: &str = "the runner does not know this assertion";

/// The sentences of a case that no list knows, found by judging a run in which nothing happened.
pub fn unknown_sentences(case: &Case) -> Result<Vec<String>, String> {
    let now = Instant::now();
    let requests = case.requests()?.requests;
    let evidence = Evidence {
        case,
        answers: requests.iter().map(|_| Answer::awaited(now)).collect(),
        seen: Vec::new(),
        books: Some(Books {
            before: Samples::default(),
            after: Samples::default(),
            audit: requests.iter().map(|_| serde_json::json!({})).collect(),
            audit_text: String::new(),
            status: serde_json::json!({ "pairs": [] }),
            status_at: now,
            logs: String::new(),
            memory: None,
        }),
    };
    let problems = judge(&evidence).problems.into_iter();
    let unknown = problems.filter(|problem| problem.got == UNKNOWN);
    Ok(unknown
        .map(|problem| format!("{}: {}", problem.aspect, problem.expected))
        .collect())
}

pub fn judge(evidence: &Evidence<'_>) -> Findings {
    let mut findings = Findings::default();
    attempts::judge(evidence, &mut findings);
    answers::judge(evidence, &mut findings);
    for session in evidence.case.expect.affinity.keys() {
        // Where a session is at home is seen in where its requests go, which is judged.
        findings.skip(format!("affinity: {session}"));
    }
    if let Some(books) = &evidence.books {
        metrics::judge(evidence.case, books, &mut findings);
        audit::judge(evidence.case, books, &mut findings);
        exclusions::judge(evidence, books, &mut findings);
        logs(evidence.case, books, &mut findings);
    }
    findings
}

/// The shortest piece of a secret that counts as the secret.
const PIECE: usize = 20;

fn logs(case: &Case, books: &Books, findings: &mut Findings) {
    let text = &books.logs;
    let panicked = text.lines().find(|line| line.contains("panicked"));
    findings.check(
        panicked.is_none(),
        "logs",
        "no panic",
        panicked.unwrap_or("").to_owned(),
    );
    let mut never: Vec<String> = Vec::new();
    for sentence in case
        .expect
        .logs
        .iter()
        .flat_map(|logs| &logs.never_anywhere)
    {
        if sentence == "other 20+ character pieces of these" {
            for credential in &case.setup.credentials {
                let secret = credential
                    .upstream_auth
                    .trim_start_matches("Bearer ")
                    .as_bytes();
                never.extend(
                    secret
                        .windows(PIECE)
                        .map(|w| String::from_utf8_lossy(w).into()),
                );
            }
        } else {
            never.push(sentence.clone());
        }
    }
    for secret in never {
        let line = text.lines().find(|line| line.contains(&secret));
        let got = line.map_or(String::new(), |line| line.chars().take(300).collect());
        findings.check(line.is_none(), "logs", &format!("never `{secret}`"), got);
    }
}

/// `one_of [400, 501]`, a number, or a list of numbers.
pub fn allows(expected: &Value, got: u16) -> bool {
    match expected {
        Value::Null => true,
        Value::Array(list) => list.iter().any(|one| allows(one, got)),
        Value::String(text) => text
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|number| number.parse::<u16>().ok())
            .any(|number| number == got),
        number => number.as_u64() == Some(u64::from(got)),
    }
}
