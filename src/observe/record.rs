//! The story of one client request, as plain data.
//!
//! The edge fills a [`Record`] while it serves and hands it over once, at the end. Audit, metrics
//! and counts all read this one value, so they cannot tell different stories, and a model's name
//! is known to be real or made up before it becomes a label. Counting at each event was refused:
//! it would put a dozen calls into the hot path, each of them a chance to disagree with the audit.
//!
//! Nothing that was said can be in here: no prompt, no answer, no secret, no sentence of an
//! upstream. Names that come from outside have types of their own ([`super::safe`]); the other
//! names are the operator's or berth's.
//!
//! The audit line has exactly the fields of the contract, all of them always: `null` is an answer
//! too, and a field that is sometimes absent breaks the script that reads it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

use super::ids::{RequestId, SessionHash};
use super::safe::{MethodName, SafeCode, SafePath, SafeText, UpstreamRequestId};
use super::trace::Trace;
use super::words::{Blocked, CommitReason, Outcome, Then, Transport};
use crate::admission::{Dialect, Shape, Verdict};
use crate::pool::CredentialId;

/// One client request, from its head to its end.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// When it came.
    #[serde(serialize_with = "rfc3339")]
    pub ts: SystemTime,
    /// Its id, as the client was told.
    pub request_id: RequestId,
    /// The trace that the client says it belongs to: its id.
    #[serde(rename = "trace_id")]
    pub trace: Option<Trace>,
    /// Who asked, as the configuration calls them.
    pub client: Option<Arc<str>>,
    /// The prefix of its route, if it has one.
    pub route: Option<Arc<str>>,
    /// Its method.
    pub method: MethodName,
    /// Its path, without the query.
    pub path: SafePath,
    /// The model it asked for, if any.
    pub model: Option<SafeText>,
    /// The session it belongs to.
    pub session: Option<SessionHash>,
    /// How it asked.
    pub transport: Transport,
    /// Every attempt upstream, in order.
    pub attempts: Vec<AttemptRecord>,
    /// Why the answer was let through.
    pub commit_reason: Option<CommitReason>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it was not tried elsewhere.
    pub blocked: Option<Blocked>,
    /// The error code that the client got in place of another.
    pub rewrote: Option<Rewrote>,
    /// The status that the client got.
    pub status: Option<u16>,
    /// Bytes of body that the client got.
    pub bytes_out: u64,
    /// What the answer says it used.
    pub usage: Option<Usage>,
    /// Milliseconds from its head to its end.
    pub ms_total: u64,
    /// From its head to the first output; for the metrics only.
    #[serde(skip)]
    pub first_output: Option<Duration>,
    /// A terminal frame was made up, in this dialect; for the metrics only.
    #[serde(skip)]
    pub terminal_synthesised: Option<Dialect>,
}

/// One attempt upstream.
#[derive(Clone, Debug, Serialize)]
pub struct AttemptRecord {
    /// Whose secret was used.
    pub credential: CredentialName,
    /// The model asked for, if any: the client's, or a configured fallback.
    pub model: Option<SafeText>,
    /// What it came to.
    #[serde(serialize_with = "verdict")]
    pub verdict: Verdict,
    /// Where a refusal was written.
    #[serde(serialize_with = "shape")]
    pub shape: Option<Shape>,
    /// The upstream's status, if a head came.
    pub status: Option<u16>,
    /// The upstream's error code.
    pub code: Option<SafeCode>,
    /// The rule that decided, by name.
    pub rule: Option<Arc<str>>,
    /// From the head of the client's request to this one sent; for traces only.
    #[serde(skip)]
    pub sent_after: Duration,
    /// Milliseconds from the request sent to the verdict.
    pub ms_to_verdict: Option<u64>,
    /// Frames held when the verdict came.
    pub held_frames: u32,
    /// Bytes held when the verdict came.
    pub held_bytes: u64,
    /// Whether its answer went to the client.
    pub committed: bool,
    /// The upstream's own id of it.
    pub upstream_request_id: Option<UpstreamRequestId>,
    /// The upstream may have done the work of an earlier attempt too.
    pub possible_duplicate: bool,
    /// What was done next.
    pub then: Then,
}

/// A credential's name, as it is written in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialName(pub CredentialId);

impl Serialize for CredentialName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.as_str())
    }
}

/// An error code that was turned into another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rewrote {
    /// The upstream's.
    pub from: SafeCode,
    /// The client's.
    pub to: SafeCode,
    /// In how many places; for the metrics only.
    #[serde(skip)]
    pub times: u64,
}

/// Tokens, as the answer counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Of the request, those read from a cache included.
    pub input: u64,
    /// Of `input`: read from a cache.
    pub cached: u64,
    /// Of the answer, reasoning included.
    pub output: u64,
    /// Of `output`: reasoning.
    pub reasoning: u64,
}

impl AttemptRecord {
    /// Leaves out what an upstream said where `is_secret` finds what it was sent as one.
    pub fn withhold(&mut self, is_secret: impl Fn(&[u8]) -> bool) {
        self.code = self.code.take().map(|it| it.without(&is_secret));
        let id = self.upstream_request_id.take();
        self.upstream_request_id = id.and_then(|it| it.without(&is_secret));
    }

    /// Whether the upstream had a seat for it. A client that left while it read an answer had been
    /// let in: nothing is known against that answer, or its verdict would be another.
    pub fn was_admitted(&self) -> bool {
        self.verdict.was_admitted() || (self.verdict == Verdict::ClientGone && self.committed)
    }
}

impl Record {
    /// The audit line, without its end.
    pub fn to_line(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Whether a fallback model was asked.
    pub fn fell_back(&self) -> bool {
        let other = |attempt: &AttemptRecord| attempt.model != self.model;
        self.attempts.iter().any(other)
    }

    /// The model that answered, or the one asked for.
    pub fn answered_model(&self) -> Option<&SafeText> {
        let last = self
            .attempts
            .last()
            .and_then(|attempt| attempt.model.as_ref());
        last.or(self.model.as_ref())
    }
}

fn verdict<S: Serializer>(verdict: &Verdict, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(verdict.as_str())
}

fn shape<S: Serializer>(shape: &Option<Shape>, to: S) -> Result<S::Ok, S::Error> {
    shape.map(Shape::as_str).serialize(to)
}

/// With zone (`Z`). A clock outside 1970 to 9999 is told as 1970: the formatter panics before it
/// and fails after it.
fn rfc3339<S: Serializer>(ts: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    let mut text = String::with_capacity(24);
    if write!(
        text,
        "{}",
        humantime::format_rfc3339_millis((*ts).max(UNIX_EPOCH))
    )
    .is_err()
    {
        text = "1970-01-01T00:00:00.000Z".to_owned();
    }
    to.serialize_str(&text)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::observe::ids::SessionKey;
    use crate::observe::trace::tests::trace;
    use proptest::prelude::*;

    /// A refusal on `campus-a`, then an answer from `campus-b`.
    pub(crate) fn failed_over() -> Record {
        let model = Some(SafeText::new("gpt-5.6-sol"));
        let refused = AttemptRecord {
            credential: CredentialName(CredentialId::new("campus-a").unwrap()),
            model: model.clone(),
            verdict: Verdict::Capacity,
            shape: Some(Shape::Sse),
            status: Some(200),
            code: Some(SafeCode::new("server_is_overloaded")),
            rule: Some("openai-overloaded".into()),
            sent_after: Duration::from_millis(50),
            ms_to_verdict: Some(1_200),
            held_frames: 3,
            held_bytes: 512,
            committed: false,
            upstream_request_id: UpstreamRequestId::new(b"req_1"),
            possible_duplicate: false,
            then: Then::FailOver,
        };
        let admitted = AttemptRecord {
            credential: CredentialName(CredentialId::new("campus-b").unwrap()),
            verdict: Verdict::Admitted,
            shape: None,
            code: None,
            rule: None,
            sent_after: Duration::from_millis(1_250),
            ms_to_verdict: Some(800),
            held_frames: 2,
            held_bytes: 300,
            committed: true,
            upstream_request_id: UpstreamRequestId::new(b"req_2"),
            then: Then::Commit,
            ..refused.clone()
        };
        Record {
            ts: UNIX_EPOCH + Duration::from_millis(1_775_044_800_123),
            request_id: RequestId::parse("br-01kn4h0000abcdefghjkmnpqrs").unwrap(),
            trace: trace(),
            client: Some("lab-7".into()),
            route: Some("/v1".into()),
            method: MethodName::new(&http::Method::POST),
            path: SafePath::new("/v1/responses?x=1"),
            model,
            session: Some(SessionKey::from_bytes([0; 32]).hash("s-1")),
            transport: Transport::Http,
            attempts: vec![refused, admitted],
            commit_reason: Some(CommitReason::Output),
            outcome: Outcome::Ok,
            blocked: None,
            rewrote: None,
            status: Some(200),
            bytes_out: 4_096,
            usage: Some(Usage {
                input: 100,
                cached: 20,
                output: 50,
                reasoning: 30,
            }),
            ms_total: 5_000,
            first_output: Some(Duration::from_millis(2_050)),
            terminal_synthesised: None,
        }
    }

    #[test]
    fn an_audit_line_is_as_promised() {
        let golden = include_str!("../../tests/golden/audit_line.json");
        assert_eq!(failed_over().to_line().unwrap() + "\n", golden);
    }

    #[test]
    fn a_clock_out_of_range_still_makes_a_line() {
        let far = Duration::from_secs(300_000_000_000);
        for ts in [UNIX_EPOCH - Duration::from_secs(5), UNIX_EPOCH + far] {
            let line = Record {
                ts,
                ..failed_over()
            }
            .to_line()
            .unwrap();
            assert!(
                line.starts_with(r#"{"ts":"1970-01-01T00:00:00.000Z""#),
                "{line}"
            );
        }
    }

    /// Secrets in the forms that keys and tokens have.
    fn secret() -> impl Strategy<Value = String> {
        prop_oneof![
            "sk-[A-Za-z0-9_-]{20,60}",
            "sk-ant-api03-[A-Za-z0-9_-]{20,60}",
            "Bearer [A-Za-z0-9._-]{16,40}",
            "eyJ[A-Za-z0-9_-]{20,40}\\.[A-Za-z0-9_-]{20,40}",
            "[a-z][0-9][A-Za-z0-9]{30,40}",
            "AKIA[A-Z0-9]{16}",
        ]
    }

    proptest! {
        #[test]
        fn no_planted_secret_survives_in_an_audit_line(
            secret in secret(),
            before in "[ -~]{0,20}[ /:,=]|",
            after in "[ /:,=][ -~]{0,20}|",
        ) {
            let planted = format!("{before}{secret}{after}");
            let mut record = failed_over();
            record.model = Some(SafeText::new(&planted));
            record.path = SafePath::new(&format!("/v1/{planted}?key={secret}"));
            record.session = Some(SessionKey::random().hash(&secret));
            record.rewrote = Some(Rewrote { from: SafeCode::new(&planted), to: SafeCode::new(&secret), times: 1 });
            // A bare run of letters and digits is what a real request id looks like.
            let like_an_id = secret.bytes().all(|b| b.is_ascii_alphanumeric()) && !secret.starts_with("AKIA");
            for attempt in &mut record.attempts {
                attempt.model = Some(SafeText::new(&planted));
                attempt.code = Some(SafeCode::new(&secret));
                if !like_an_id {
                    attempt.upstream_request_id = UpstreamRequestId::new(planted.as_bytes());
                }
            }
            let line = record.to_line().unwrap();
            prop_assert!(!line.contains(&secret), "{line}");
        }

        #[test]
        fn a_line_is_one_line_of_json_whatever_was_sent(model in any::<String>(), path in any::<String>()) {
            let mut record = failed_over();
            record.model = Some(SafeText::new(&model));
            record.path = SafePath::new(&path);
            let line = record.to_line().unwrap();
            prop_assert!(line.is_ascii() && line.bytes().all(|b| b >= b' '));
            prop_assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok());
        }
    }
}
