//! What happened to one request, and whether that is as stated.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::cases::{Case, Dialect, Expect, RetryAfter, Sees, letter};
use super::client::Seen;
use super::stage::Stage;

/// The audit line is waited for so long; it is written after the client has its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What happened to one request.
#[derive(Clone, Debug)]
pub struct Story {
    /// In which dialect.
    pub dialect: Dialect,
    /// What the client saw.
    pub seen: Seen,
    /// What berth wrote down.
    pub audit: Line,
    /// What is not as stated; nothing where all is.
    pub differs: Vec<String>,
}

/// An audit line, as far as it is told here.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Line {
    request_id: String,
    /// Attempt by attempt.
    pub attempts: Vec<Attempt>,
}

/// One attempt of an audit line.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Attempt {
    /// The credential.
    pub credential: String,
    /// What it came to.
    pub verdict: String,
    /// Where a refusal was written.
    pub shape: Option<String>,
    /// What was done then.
    pub then: String,
}

/// Finds the audit line of what was seen, and compares both with what the case states.
///
/// # Errors
///
/// The audit log cannot be read.
pub async fn tell(
    stage: &Stage,
    case: &Case,
    dialect: Dialect,
    seen: Seen,
) -> Result<Story, String> {
    let audit = match &seen.request_id {
        Some(id) => line(&stage.audit(), id).await?,
        None => None,
    };
    let audit = audit.unwrap_or_default();
    let ids: Vec<String> = (0..case.expect.tried)
        .map(|n| case.credential(dialect, n))
        .collect();
    let differs = differences(&case.expect, dialect, &ids, &seen, &audit);
    Ok(Story {
        dialect,
        seen,
        audit,
        differs,
    })
}

/// What is not as stated. `ids` are the credentials that should have been tried, in order.
pub fn differences(
    expect: &Expect,
    dialect: Dialect,
    ids: &[String],
    seen: &Seen,
    audit: &Line,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            found.push(what);
        }
    };
    let tried: Vec<&str> = audit
        .attempts
        .iter()
        .map(|a| a.credential.as_str())
        .collect();
    must(tried == ids, format!("tried {tried:?}, not {ids:?}"));
    if let Some(first) = audit.attempts.first() {
        let (verdict, shape) = (first.verdict.as_str(), first.shape.as_deref());
        must(
            (verdict, shape) == (expect.verdict, expect.shape),
            format!(
                "read as {verdict} {shape:?}, not as {} {:?}",
                expect.verdict, expect.shape
            ),
        );
    }
    let took = seen.took.as_millis();
    must(
        seen.took >= expect.at_least,
        format!("over after {took} ms, too soon"),
    );
    let (status, error) = (seen.status, seen.error.as_deref());
    let last = ids.last().map(String::as_str).unwrap_or_default();
    let whole_text = format!("Hello from {last}.");
    match expect.client {
        Sees::Answer => {
            must(status == 200, format!("status {status}, not 200"));
            must(
                error.is_none(),
                format!("the client saw the error {error:?}"),
            );
            must(
                seen.openings == 1,
                format!("{} answers were opened", seen.openings),
            );
            must(
                seen.text == whole_text,
                format!("the text is {:?}", seen.text),
            );
            must(seen.whole, "the answer does not end whole".to_owned());
        }
        Sees::Error(wanted, codes, retry_after) => {
            let right = wanted.map_or(status >= 400, |wanted| wanted == status);
            must(right, format!("status {status}, not {wanted:?}"));
            let code = codes.of(dialect);
            must(error == Some(code), format!("error {error:?}, not {code}"));
            let said = match seen.retry_after {
                Some(_) => RetryAfter::Said,
                None => RetryAfter::NotSaid,
            };
            must(
                said == retry_after,
                format!("retry-after is {:?}", seen.retry_after),
            );
            must(seen.text.is_empty(), format!("the text is {:?}", seen.text));
            must(seen.whole, "the error does not end whole".to_owned());
        }
        Sees::Broken => {
            must(status == 200, format!("status {status}, not 200"));
            let begun = !seen.text.is_empty() && whole_text.starts_with(&seen.text);
            must(begun, format!("the text is {:?}", seen.text));
            must(
                !seen.whole,
                "a cut answer ends as if it were whole".to_owned(),
            );
        }
        Sees::Failure(codes) => {
            must(status == 200, format!("status {status}, not 200"));
            must(!seen.text.is_empty(), "no output came".to_owned());
            let code = codes.of(dialect);
            must(
                error == Some(code),
                format!("failed with {error:?}, not {code}"),
            );
        }
    }
    found
}

impl Story {
    /// What berth read and did, in a few words.
    pub fn did(&self) -> String {
        let Some(first) = self.audit.attempts.first() else {
            return "no audit line".to_owned();
        };
        let then = match first.then.as_str() {
            "fail_over" => "the next",
            "commit" if first.verdict.ends_with("_after_commit") => "the client",
            "commit" => "passed on",
            other => other,
        };
        let read = match first.verdict.as_str() {
            "truncated_after_commit" => "truncated",
            "capacity_after_commit" => "capacity",
            "model_unsupported" => "unsupported",
            other => other,
        };
        format!("{}: {then}", read.replace('_', " "))
    }

    /// The credentials that were tried, by their letters.
    pub fn tried(&self) -> String {
        let letters = self.audit.attempts.iter().enumerate();
        let letters: Vec<String> = letters.map(|(n, _)| letter(n).to_string()).collect();
        letters.join(" > ")
    }

    /// What the client saw, in a few words.
    pub fn saw(&self) -> String {
        let Seen {
            status,
            retry_after,
            text,
            error,
            whole,
            ..
        } = &self.seen;
        match (status, error) {
            (0, _) => "no answer".to_owned(),
            (_, Some(code)) if !text.is_empty() => format!("{status}, output, {code}"),
            (_, Some(code)) => match retry_after {
                Some(_) => format!("{status} {code}, Retry-After"),
                None => format!("{status} {code}"),
            },
            (_, None) if *whole => {
                let from = self.audit.attempts.len().saturating_sub(1);
                format!("{status}, the answer of {}", letter(from))
            }
            (_, None) => format!("{status}, output, a broken end"),
        }
    }
}

/// The audit line with this id, once it is written; none where it does not come.
async fn line(path: &Path, id: &str) -> Result<Option<Line>, String> {
    let find = async {
        loop {
            let text = tokio::fs::read_to_string(path)
                .await
                .map_err(|e| format!("{}: {e}", path.display()))?;
            let mut lines = text
                .lines()
                .filter_map(|l| serde_json::from_str::<Line>(l).ok());
            if let Some(line) = lines.find(|line| line.request_id == id) {
                return Ok(line);
            }
            // The file has no other reader to tell, so it is looked at again.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, find).await {
        Ok(found) => found.map(Some),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests;
