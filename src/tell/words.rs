//! The audit's words, as sentences for people.
//!
//! Each is a total function on the word's own type, so that a new verdict or reason does not compile
//! before it has a sentence. A word that this program does not know (the log of a newer one) is shown
//! as it stands.

use super::line::Attempt;
use crate::admission::{Shape, Verdict};
use crate::observe::words::{Blocked, CommitReason, Outcome, Then};

/// What an attempt came to.
pub fn verdict(word: &str) -> String {
    known(&Verdict::ALL, Verdict::as_str, of_verdict, word)
}

/// The same for a whole attempt: a client may leave before there is a verdict, or while it reads.
pub fn attempt(attempt: &Attempt<'_>) -> String {
    let left = &*attempt.verdict == Verdict::ClientGone.as_str();
    match left && attempt.was_admitted() {
        true => "it was admitted; the client left before the answer's end".to_owned(),
        false => verdict(&attempt.verdict),
    }
}

/// Whether an attempt with this verdict got its answer.
pub fn is_good(word: &str) -> bool {
    word == Verdict::Admitted.as_str()
}

/// Where a refusal was written.
pub fn shape(word: &str) -> String {
    known(&Shape::ALL, Shape::as_str, of_shape, word)
}

/// What was done after an attempt's verdict.
pub fn then(word: &str) -> String {
    known(Then::ALL, Then::as_str, of_then, word)
}

/// Why a request that was refused was not tried elsewhere.
pub fn blocked(word: &str) -> String {
    known(Blocked::ALL, Blocked::as_str, of_blocked, word)
}

/// Why the answer was let through.
pub fn commit_reason(word: &str) -> String {
    known(CommitReason::ALL, CommitReason::as_str, of_reason, word)
}

/// Why an attempt with this verdict is never followed by another; `None` where it may be, or where
/// there is nothing to try again.
pub fn final_verdict(word: &str) -> Option<&'static str> {
    match member(&Verdict::ALL, Verdict::as_str, word)? {
        Verdict::ClientError | Verdict::Policy => {
            Some("another credential would have said the same")
        }
        Verdict::State => Some("another credential would not have that state either"),
        Verdict::Admitted
        | Verdict::Capacity
        | Verdict::RateLimit
        | Verdict::Quota
        | Verdict::Auth
        | Verdict::Deactivated
        | Verdict::ModelUnsupported
        | Verdict::Forbidden
        | Verdict::Challenge
        | Verdict::Transient
        | Verdict::Transport
        | Verdict::Timeout
        | Verdict::TruncatedAfterCommit
        | Verdict::CapacityAfterCommit
        | Verdict::ClientGone => None,
    }
}

/// How the request ended.
pub fn outcome(word: &str) -> String {
    known(Outcome::ALL, Outcome::as_str, of_outcome, word)
}

/// The member of a closed set that has this word.
pub fn member<T: Copy>(all: &[T], name: fn(T) -> &'static str, word: &str) -> Option<T> {
    all.iter().copied().find(|member| name(*member) == word)
}

fn known<T: Copy>(
    all: &[T],
    name: fn(T) -> &'static str,
    sentence: fn(T) -> &'static str,
    word: &str,
) -> String {
    match member(all, name, word) {
        Some(member) => sentence(member).to_owned(),
        None => format!("`{word}` (this berth does not know the word)"),
    }
}

fn of_verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Admitted => "it was admitted",
        Verdict::Capacity => "no seat: the upstream had no room for it",
        Verdict::RateLimit => "a rate limit of this credential with this model",
        Verdict::Quota => "this credential's allowance is spent",
        Verdict::Auth => "this credential's secret is not accepted",
        Verdict::Deactivated => "the account behind this credential is deactivated",
        Verdict::ModelUnsupported => "this credential does not serve the model",
        Verdict::ClientError => "the request itself is at fault",
        Verdict::Policy => "the vendor's content policy forbids it",
        Verdict::State => "it refers to state that this credential does not have",
        Verdict::Forbidden => "this credential may not do this",
        Verdict::Challenge => "the edge in front of the upstream asked for a browser",
        Verdict::Transient => "a fault of the upstream, which says nothing about the credential",
        Verdict::Transport => "the network failed before there was an answer",
        Verdict::Timeout => "no answer in time",
        Verdict::TruncatedAfterCommit => "it was admitted; the answer broke off after output",
        Verdict::CapacityAfterCommit => "it was admitted; after output the upstream had no room",
        Verdict::ClientGone => "the client left before there was a verdict",
    }
}

fn of_shape(shape: Shape) -> &'static str {
    match shape {
        Shape::Http400 | Shape::Http429 | Shape::Http500 | Shape::Http503 | Shape::Http529 => {
            "said by its status"
        }
        Shape::Json200 => "said in a document under a 2xx",
        Shape::Sse => "said in an event of the stream",
        Shape::WebSocket => "said in a message of the WebSocket",
        Shape::Handshake => "said in answer to the upgrade",
    }
}

fn of_then(then: Then) -> &'static str {
    match then {
        Then::FailOver => "another credential was asked; of this answer the client saw nothing",
        Then::FallBack => "a fallback model was asked; of this answer the client saw nothing",
        Then::Commit => "this answer went to the client",
        Then::Answer => "the client got an answer of berth's own",
        Then::GiveUp => "nobody was there to answer",
        Then::RetryFresh => "the same credential was asked on a fresh connection",
    }
}

fn of_blocked(blocked: Blocked) -> &'static str {
    match blocked {
        Blocked::PreviousResponseId => {
            "it continues a response (`previous_response_id`) that only this credential keeps"
        }
        Blocked::EncryptedContent => {
            "it carries encrypted content that no other realm could have read"
        }
        Blocked::BodyNotReplayable => {
            "its body was not kept: larger than `limits.replay_body`, or memory was short"
        }
        Blocked::OutputStarted => "output had begun, and after the first word there is no way back",
        Blocked::MaxAttempts => "it had all its attempts (`admission.max_attempts`)",
        Blocked::RetryBudget => {
            "the route's retries were used up (`admission.retry_budget`): more would have fed an outage"
        }
        Blocked::RequestTime => "its time was over (`admission.hold.request_max_time`)",
        Blocked::NotRepeatable => "its endpoint is not one that may be asked twice",
        Blocked::SentNonStream => {
            "it was sent and asks for an answer in one piece, which may have been on its way"
        }
        Blocked::NothingLeft => "every credential that could serve it had been asked",
    }
}

fn of_reason(reason: CommitReason) -> &'static str {
    match reason {
        CommitReason::Output => "output began",
        CommitReason::Complete => "the whole answer was there, and it was good",
        CommitReason::HoldLimit => "no more bytes may be held (`admission.hold.max_bytes`)",
        CommitReason::HoldTimeout => "the time to hold it was over (`admission.hold`)",
        CommitReason::Opaque => "it is in a form that berth cannot read",
        CommitReason::NotHeld => {
            "nothing was held: mode `observe` or `off`, memory short, or an endpoint that is passed on"
        }
        CommitReason::ErrorPassedOn => {
            "the error was passed on: another credential would repeat it, or none was left"
        }
    }
}

fn of_outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "its whole answer",
        Outcome::RefusedAll => "a refusal: every credential that was asked refused",
        Outcome::NoneAvailable => "a refusal: no credential could be asked",
        Outcome::UpstreamError => "an error: the upstream failed",
        Outcome::ClientError => "an error: the request itself was at fault",
        Outcome::ClientGone => "nothing more: it had left",
        Outcome::Timeout => "an error: there was no answer in time",
        Outcome::Limited => "a refusal: it was over its own limit",
        Outcome::Unauthorized => "a refusal: it did not prove who it is",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_not_known_is_shown() {
        assert_eq!(
            verdict("capacity"),
            "no seat: the upstream had no room for it"
        );
        assert_eq!(verdict("new"), "`new` (this berth does not know the word)");
        let shown = [
            shape("new"),
            then("new"),
            blocked("new"),
            commit_reason("new"),
            outcome("new"),
        ];
        assert!(shown.iter().all(|text| text.contains("`new`")), "{shown:?}");
    }

    #[test]
    fn a_client_that_left_while_it_read_had_been_admitted_and_one_that_left_before_had_not() {
        let said = |committed: bool| {
            let line =
                format!(r#"{{"credential":"a","verdict":"client_gone","committed":{committed}}}"#);
            attempt(&serde_json::from_str(&line).unwrap())
        };
        assert!(said(true).starts_with("it was admitted; the client left"));
        assert_eq!(said(false), "the client left before there was a verdict");
    }
}
