//! The closed sets of words in the audit and in metric labels.
//!
//! A label that anybody can invent is an unbounded number of time series, and a word that is spelt
//! twice drifts apart: once derived by serde for the audit, once written by hand for the metrics.
//! So each set is written once, as pairs of variant and word, and both outputs take the word from
//! there. Plain strings were refused: a misspelt reason would compile.

use serde::{Serialize, Serializer};

/// An enum whose variants each have one word: the enum, `ALL`, `as_str` and `Serialize`.
macro_rules! closed_set {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident => $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every member, in the order written here.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// Its word in the audit and in metrics.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }
    };
}

closed_set! {
    /// How a client's request ended.
    Outcome {
        /// The client has its whole answer.
        Ok => "ok",
        /// Every credential that was asked refused.
        RefusedAll => "refused_all",
        /// No credential could be asked.
        NoneAvailable => "none_available",
        /// The upstream failed, before or after output.
        UpstreamError => "upstream_error",
        /// The request itself was at fault.
        ClientError => "client_error",
        /// The client left.
        ClientGone => "client_gone",
        /// No answer in time.
        Timeout => "timeout",
        /// The client's own limit.
        Limited => "limited",
        /// The client did not prove who it is.
        Unauthorized => "unauthorized",
    }
}

closed_set! {
    /// What came of a handover to a fresh process.
    Handover {
        /// It serves.
        Ok => "ok",
        /// It does not, and nothing changed.
        Failed => "failed",
    }
}

closed_set! {
    /// Why a connection was turned away before its first request.
    TurnedAway {
        /// `limits.connections`.
        Connections => "connections",
        /// `limits.connections_per_address`.
        ConnectionsPerAddress => "connections_per_address",
        /// Its TLS handshake failed, or took too long.
        Handshake => "handshake",
    }
}

closed_set! {
    /// Why an attempt's answer was let through to the client.
    CommitReason {
        /// A frame that is not neutral.
        Output => "output",
        /// The whole answer was held, and judged good.
        Complete => "complete",
        /// `admission.hold.max_bytes` was reached.
        HoldLimit => "hold_limit",
        /// `admission.hold.max_time` or `request_max_time` was reached.
        HoldTimeout => "hold_timeout",
        /// The answer cannot be read: an encoding or a type that berth does not know.
        Opaque => "opaque",
        /// Nothing was held: mode `observe` or `off`, memory short, or an endpoint that is passed on.
        NotHeld => "not_held",
        /// An error that another credential would repeat, or the last one there is.
        ErrorPassedOn => "error_passed_on",
    }
}

closed_set! {
    /// Why a request that was refused was not tried elsewhere.
    Blocked {
        /// It continues an answer that one credential keeps.
        PreviousResponseId => "previous_response_id",
        /// It carries content that one realm can read.
        EncryptedContent => "encrypted_content",
        /// Its body was not kept.
        BodyNotReplayable => "body_not_replayable",
        /// The client has had output.
        OutputStarted => "output_started",
        /// `admission.max_attempts`.
        MaxAttempts => "max_attempts",
        /// `admission.retry_budget`.
        RetryBudget => "retry_budget",
        /// `admission.hold.request_max_time`.
        RequestTime => "request_time",
        /// The endpoint is not one that may be asked twice.
        NotRepeatable => "not_repeatable",
        /// It was sent, and its answer comes in one piece after all the work.
        SentNonStream => "sent_non_stream",
        /// Every credential that could serve it was tried.
        NothingLeft => "nothing_left",
    }
}

closed_set! {
    /// What was done after an attempt's verdict.
    Then {
        /// Another credential was asked.
        FailOver => "fail_over",
        /// A fallback model was asked.
        FallBack => "fall_back",
        /// The answer went to the client.
        Commit => "commit",
        /// berth answered in its own words.
        Answer => "answer",
        /// Nobody was there to answer.
        GiveUp => "give_up",
        /// A fresh connection to the same credential.
        RetryFresh => "retry_fresh",
    }
}

closed_set! {
    /// How the client asked.
    Transport {
        /// HTTP/1.1 or HTTP/2.
        Http => "http",
        /// A WebSocket.
        WebSocket => "websocket",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_set_has_a_word_twice() {
        fn distinct<T: Copy>(all: &[T], word: fn(T) -> &'static str) -> usize {
            let words: std::collections::BTreeSet<_> = all.iter().map(|m| word(*m)).collect();
            assert_eq!(words.len(), all.len(), "{words:?}");
            words.len()
        }
        assert_eq!(distinct(Outcome::ALL, Outcome::as_str), 9);
        assert_eq!(distinct(CommitReason::ALL, CommitReason::as_str), 7);
        assert_eq!(distinct(Blocked::ALL, Blocked::as_str), 10);
        assert_eq!(distinct(Then::ALL, Then::as_str), 6);
        assert_eq!(distinct(Transport::ALL, Transport::as_str), 2);
    }
}
