//! The latest refusals, for a person who asks what is going on right now.
//!
//! The audit log has all of them and needs a shell; the counts have no shapes. So the last
//! [`KEPT`] are kept as `/status` shows them. They are taken from the record at the end of a request,
//! so a refusal is seen once its request has its answer, together with what followed.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::record::{AttemptRecord, Record};

/// The refusals, oldest first.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<VecDeque<RefusalStatus>>);

/// One refusal, as `/status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefusalStatus {
    /// When its verdict was there (RFC 3339).
    pub at: String,
    /// The request, as its client was told.
    pub request_id: String,
    /// The credential's name.
    pub credential: String,
    /// The model asked for.
    pub model: Option<String>,
    /// What it came to.
    pub verdict: Cow<'static, str>,
    /// Where it was written.
    pub shape: Cow<'static, str>,
    /// The upstream's error code, if it is one.
    pub code: Option<String>,
    /// What was done then.
    pub then: Cow<'static, str>,
    /// The credential that was asked next, if one was.
    pub next: Option<String>,
    /// How the request ended.
    pub outcome: Cow<'static, str>,
}

impl Refusals {
    /// Keeps every refusal of a finished request.
    pub fn record(&self, record: &Record) {
        if record.attempts.iter().all(|it| it.shape.is_none()) {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = record.ts;
        for (number, attempt) in record.attempts.iter().enumerate() {
            let took = Duration::from_millis(attempt.ms_to_verdict.unwrap_or_default());
            at = at.checked_add(took).unwrap_or(at);
            let next = record.attempts.get(number + 1);
            if let Some(refusal) = refusal(record, attempt, next, at) {
                if kept.len() == KEPT {
                    kept.pop_front();
                }
                kept.push_back(refusal);
            }
        }
    }

    /// All that are kept, newest first.
    pub fn latest(&self) -> Vec<RefusalStatus> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().cloned().collect()
    }

    /// What another process had kept, newest first; before anything is kept here.
    pub fn import(&self, told: &[RefusalStatus]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(told.iter().take(KEPT).rev().cloned());
    }
}

fn refusal(
    record: &Record,
    attempt: &AttemptRecord,
    next: Option<&AttemptRecord>,
    at: SystemTime,
) -> Option<RefusalStatus> {
    Some(RefusalStatus {
        at: rfc3339(at),
        request_id: record.request_id.to_string(),
        credential: attempt.credential.0.to_string(),
        model: attempt.model.as_ref().map(ToString::to_string),
        verdict: attempt.verdict.as_str().into(),
        shape: attempt.shape?.as_str().into(),
        code: attempt.code.as_ref().map(|code| code.as_str().to_owned()),
        then: attempt.then.as_str().into(),
        next: next.map(|next| next.credential.0.to_string()),
        outcome: record.outcome.as_str().into(),
    })
}

/// The formatter panics before 1970 and fails after 9999: such a clock is told as 1970.
fn rfc3339(at: SystemTime) -> String {
    let within = at
        .duration_since(UNIX_EPOCH)
        .is_ok_and(|age| age < YEAR_9999);
    let at = if within { at } else { UNIX_EPOCH };
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Chosen: what fits on a page, and covers minutes of a bad hour.
const KEPT: usize = 50;
/// Seconds of 8,029 years.
const YEAR_9999: Duration = Duration::from_secs(253_370_764_800);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::record::tests::failed_over;

    #[test]
    fn a_refusal_says_when_where_and_what_followed() {
        let refusals = Refusals::default();
        refusals.record(&failed_over());
        let shown = serde_json::to_value(refusals.latest()).unwrap();
        let expected = serde_json::json!([{
            "at": "2026-04-01T12:00:01Z", "request_id": "br-01kn4h0000abcdefghjkmnpqrs",
            "credential": "campus-a", "model": "gpt-5.6-sol", "verdict": "capacity", "shape": "sse",
            "code": "server_is_overloaded", "then": "fail_over", "next": "campus-b", "outcome": "ok",
        }]);
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_newest_fifty_are_kept_whatever_their_clock_says() {
        let refusals = Refusals::default();
        let mut record = failed_over();
        for day in 0..200 {
            record.ts = UNIX_EPOCH + Duration::from_secs(day * 24 * 3_600);
            refusals.record(&record);
        }
        let latest = refusals.latest();
        assert_eq!(latest.len(), KEPT);
        assert!(latest[0].at > latest[KEPT - 1].at);
        for far in [UNIX_EPOCH - YEAR_9999, UNIX_EPOCH + YEAR_9999 * 2] {
            record.ts = far;
            refusals.record(&record);
            assert_eq!(&refusals.latest()[0].at[..4], "1970");
        }
    }
}
