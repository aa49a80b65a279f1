//! What an attempt came to, and everything that follows from it.
//!
//! Each column of the policy's table is one total function on [`Verdict`], without a catch-all arm:
//! a new verdict does not compile until it has been decided in every column. The whole matrix is
//! printed by a test and compared with a golden file, so that a change of policy is seen as one.

use std::time::Duration;

/// What one attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Output, or a complete answer, came.
    Admitted,
    /// No seat.
    Capacity,
    /// Too many requests or tokens for this pair.
    RateLimit,
    /// The credential's allowance is spent.
    Quota,
    /// The credential's secret is not accepted.
    Auth,
    /// The account behind the credential is deactivated.
    Deactivated,
    /// The credential does not serve this model.
    ModelUnsupported,
    /// The request itself is at fault.
    ClientError,
    /// The vendor's content policy.
    Policy,
    /// State that lives elsewhere: a stored response, encrypted content.
    State,
    /// This credential may not do this.
    Forbidden,
    /// A challenge page of the edge in front of the upstream.
    Challenge,
    /// A fault of the upstream that says nothing about the credential.
    Transient,
    /// No answer for a reason of the network.
    Transport,
    /// No answer in time.
    Timeout,
    /// The stream broke off after output.
    TruncatedAfterCommit,
    /// A refusal for want of capacity after output.
    CapacityAfterCommit,
    /// The client left.
    ClientGone,
}

/// Where a refusal was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shape {
    /// Status 400, or another 4xx that is not listed.
    Http400,
    /// Status 429.
    Http429,
    /// Status 500, or another 5xx that is not listed.
    Http500,
    /// Status 503.
    Http503,
    /// Status 529.
    Http529,
    /// A JSON document under a 2xx.
    Json200,
    /// An event of a stream under a 2xx.
    Sse,
    /// A message of a WebSocket.
    WebSocket,
    /// Something other than 101 in answer to an upgrade.
    Handshake,
}

/// What a pair (credential, model) is, for status and metrics: exactly one of these at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PairState {
    /// Takes requests.
    Ready,
    /// Goes last for a while.
    Cooling,
    /// Goes last until its probes bring it back.
    Shunned,
    /// Being probed.
    Probing,
    /// Excluded: rate limit.
    Limited,
    /// Excluded: quota.
    Spent,
    /// Excluded: authorisation, deactivated, forbidden, challenge.
    Rejected,
    /// Excluded: the model is not served.
    Unsupported,
    /// Excluded: three failures of the network in a row.
    Unreachable,
    /// Excluded by an operator for a time.
    HeldOut,
    /// Excluded by an operator until enabled.
    Drained,
}

/// What an exclusion covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The credential with this model.
    Pair,
    /// The credential with every model.
    Credential,
}

/// What a verdict excludes, and for how long where the answer itself does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldOut {
    /// Nothing is excluded.
    Nothing,
    /// Until the time that the answer states, `default` where it states none.
    Stated {
        /// What is excluded.
        scope: Scope,
        /// What it is called meanwhile.
        state: PairState,
        /// Where nothing is stated.
        default: Duration,
    },
    /// `first`, doubled after each refused probe to at most `max`; one probe each time.
    Doubling {
        /// What is excluded.
        scope: Scope,
        /// What it is called meanwhile.
        state: PairState,
        /// The first time.
        first: Duration,
        /// The longest time.
        max: Duration,
    },
}

/// Whether another credential may be asked before output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Yes, within the budgets.
    Yes,
    /// Once in a request.
    Once,
    /// No: another credential would say the same, or nobody is there to hear it.
    No,
}

impl Verdict {
    /// Every verdict, in the order of the policy's table.
    pub const ALL: [Verdict; 18] = [
        Verdict::Admitted,
        Verdict::Capacity,
        Verdict::RateLimit,
        Verdict::Quota,
        Verdict::Auth,
        Verdict::Deactivated,
        Verdict::ModelUnsupported,
        Verdict::ClientError,
        Verdict::Policy,
        Verdict::State,
        Verdict::Forbidden,
        Verdict::Challenge,
        Verdict::Transient,
        Verdict::Transport,
        Verdict::Timeout,
        Verdict::TruncatedAfterCommit,
        Verdict::CapacityAfterCommit,
        Verdict::ClientGone,
    ];

    /// Its name in metrics and in the audit.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Admitted => "admitted",
            Verdict::Capacity => "capacity",
            Verdict::RateLimit => "rate_limit",
            Verdict::Quota => "quota",
            Verdict::Auth => "auth",
            Verdict::Deactivated => "deactivated",
            Verdict::ModelUnsupported => "model_unsupported",
            Verdict::ClientError => "client_error",
            Verdict::Policy => "policy",
            Verdict::State => "state",
            Verdict::Forbidden => "forbidden",
            Verdict::Challenge => "challenge",
            Verdict::Transient => "transient",
            Verdict::Transport => "transport",
            Verdict::Timeout => "timeout",
            Verdict::TruncatedAfterCommit => "truncated_after_commit",
            Verdict::CapacityAfterCommit => "capacity_after_commit",
            Verdict::ClientGone => "client_gone",
        }
    }

    /// What it excludes. The times are the policy's (docs/policy.md).
    pub fn hold_out(self) -> HoldOut {
        const AUTH_FIRST: Duration = Duration::from_secs(60);
        const AUTH_MAX: Duration = Duration::from_secs(30 * 60);
        let stated = |scope, state, secs| HoldOut::Stated {
            scope,
            state,
            default: Duration::from_secs(secs),
        };
        let doubling = HoldOut::Doubling {
            scope: Scope::Credential,
            state: PairState::Rejected,
            first: AUTH_FIRST,
            max: AUTH_MAX,
        };
        match self {
            Verdict::RateLimit => stated(Scope::Pair, PairState::Limited, 5),
            Verdict::Quota => stated(Scope::Credential, PairState::Spent, 600),
            Verdict::Auth | Verdict::Deactivated => doubling,
            Verdict::ModelUnsupported => stated(Scope::Pair, PairState::Unsupported, 30 * 60),
            Verdict::Forbidden => stated(Scope::Pair, PairState::Rejected, 60),
            Verdict::Challenge => stated(Scope::Credential, PairState::Rejected, 10),
            Verdict::Admitted
            | Verdict::Capacity
            | Verdict::ClientError
            | Verdict::Policy
            | Verdict::State
            | Verdict::Transient
            | Verdict::Transport
            | Verdict::Timeout
            | Verdict::TruncatedAfterCommit
            | Verdict::CapacityAfterCommit
            | Verdict::ClientGone => HoldOut::Nothing,
        }
    }

    /// Whether another credential may be asked.
    pub fn switch(self) -> Switch {
        match self {
            Verdict::Capacity
            | Verdict::RateLimit
            | Verdict::Quota
            | Verdict::Auth
            | Verdict::Deactivated
            | Verdict::ModelUnsupported
            | Verdict::Forbidden
            | Verdict::Challenge
            | Verdict::Transient
            | Verdict::Transport => Switch::Yes,
            Verdict::Timeout => Switch::Once,
            Verdict::Admitted
            | Verdict::ClientError
            | Verdict::Policy
            | Verdict::State
            | Verdict::TruncatedAfterCommit
            | Verdict::CapacityAfterCommit
            | Verdict::ClientGone => Switch::No,
        }
    }

    /// Whether it moves a pair's score. Health is scored on admission failures only.
    pub fn moves_score(self) -> bool {
        match self {
            Verdict::Admitted | Verdict::Capacity => true,
            Verdict::RateLimit
            | Verdict::Quota
            | Verdict::Auth
            | Verdict::Deactivated
            | Verdict::ModelUnsupported
            | Verdict::ClientError
            | Verdict::Policy
            | Verdict::State
            | Verdict::Forbidden
            | Verdict::Challenge
            | Verdict::Transient
            | Verdict::Transport
            | Verdict::Timeout
            | Verdict::TruncatedAfterCommit
            | Verdict::CapacityAfterCommit
            | Verdict::ClientGone => false,
        }
    }

    /// Whether it counts towards *unreachable*: a failure of the network without an answer.
    pub fn counts_as_unreachable(self) -> bool {
        match self {
            Verdict::Transport | Verdict::Timeout => true,
            Verdict::Admitted
            | Verdict::Capacity
            | Verdict::RateLimit
            | Verdict::Quota
            | Verdict::Auth
            | Verdict::Deactivated
            | Verdict::ModelUnsupported
            | Verdict::ClientError
            | Verdict::Policy
            | Verdict::State
            | Verdict::Forbidden
            | Verdict::Challenge
            | Verdict::Transient
            | Verdict::TruncatedAfterCommit
            | Verdict::CapacityAfterCommit
            | Verdict::ClientGone => false,
        }
    }

    /// Whether the upstream itself answered just now. After output has come, a broken stream is no new
    /// answer: the admission before it was one.
    pub fn is_answer(self) -> bool {
        match self {
            Verdict::Admitted
            | Verdict::Capacity
            | Verdict::RateLimit
            | Verdict::Quota
            | Verdict::Auth
            | Verdict::Deactivated
            | Verdict::ModelUnsupported
            | Verdict::ClientError
            | Verdict::Policy
            | Verdict::State
            | Verdict::Forbidden
            | Verdict::Challenge
            | Verdict::Transient
            | Verdict::CapacityAfterCommit => true,
            Verdict::Transport
            | Verdict::Timeout
            | Verdict::TruncatedAfterCommit
            | Verdict::ClientGone => false,
        }
    }

    /// Whether the upstream took the request, whatever came of it later.
    pub fn was_admitted(self) -> bool {
        match self {
            Verdict::Admitted | Verdict::TruncatedAfterCommit | Verdict::CapacityAfterCommit => {
                true
            }
            Verdict::Capacity
            | Verdict::RateLimit
            | Verdict::Quota
            | Verdict::Auth
            | Verdict::Deactivated
            | Verdict::ModelUnsupported
            | Verdict::ClientError
            | Verdict::Policy
            | Verdict::State
            | Verdict::Forbidden
            | Verdict::Challenge
            | Verdict::Transient
            | Verdict::Transport
            | Verdict::Timeout
            | Verdict::ClientGone => false,
        }
    }

    /// Whether a request whose own model came to this, everywhere it was asked, may be tried with a
    /// fallback model: it is not to be had now, be it refused, silent or out of reach.
    pub fn asks_another_model(self) -> bool {
        match self {
            Verdict::Capacity
            | Verdict::RateLimit
            | Verdict::Quota
            | Verdict::Auth
            | Verdict::Deactivated
            | Verdict::ModelUnsupported
            | Verdict::Forbidden
            | Verdict::Challenge
            | Verdict::Transient
            | Verdict::Transport
            | Verdict::Timeout => true,
            Verdict::Admitted
            | Verdict::ClientError
            | Verdict::Policy
            | Verdict::State
            | Verdict::TruncatedAfterCommit
            | Verdict::CapacityAfterCommit
            | Verdict::ClientGone => false,
        }
    }

    /// What the client is told when nothing is left to try, and how this ranks among several
    /// different refusals: the lowest rank is the most retryable one, and is answered.
    pub fn telling(self) -> (u8, Telling) {
        match self {
            Verdict::Capacity => (0, Telling::Retry(Words::Upstream)),
            Verdict::Transient => (1, Telling::Retry(Words::Upstream)),
            Verdict::Transport => (2, Telling::Retry(Words::Ours)),
            Verdict::Timeout => (3, Telling::Retry(Words::Ours)),
            Verdict::RateLimit => (4, Telling::RateLimit),
            Verdict::Quota => (5, Telling::AsItCame),
            Verdict::Auth | Verdict::Deactivated | Verdict::Forbidden | Verdict::Challenge => {
                (6, Telling::Retry(Words::Ours))
            }
            Verdict::ModelUnsupported => (7, Telling::AsItCame),
            Verdict::State => (8, Telling::AsItCame),
            Verdict::ClientError | Verdict::Policy => (9, Telling::AsItCame),
            Verdict::Admitted
            | Verdict::TruncatedAfterCommit
            | Verdict::CapacityAfterCommit
            | Verdict::ClientGone => (10, Telling::AsItCame),
        }
    }
}

/// How a refusal is told to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// 503 with `Retry-After`, in these words.
    Retry(Words),
    /// 429 with `Retry-After`.
    RateLimit,
    /// The upstream's own answer.
    AsItCame,
}

/// Whose message a 503 carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// The upstream's.
    Upstream,
    /// berth's.
    Ours,
}

impl Shape {
    /// Every shape, in the order of the contract.
    pub const ALL: [Shape; 9] = [
        Shape::Http400,
        Shape::Http429,
        Shape::Http500,
        Shape::Http503,
        Shape::Http529,
        Shape::Json200,
        Shape::Sse,
        Shape::WebSocket,
        Shape::Handshake,
    ];

    /// The shape of a refusal by status, outside streams and handshakes.
    pub fn of_status(status: u16) -> Shape {
        match status {
            429 => Shape::Http429,
            503 => Shape::Http503,
            529 => Shape::Http529,
            200..=299 => Shape::Json200,
            // What HTTP does not know is not the request's fault either.
            500.. => Shape::Http500,
            _ => Shape::Http400,
        }
    }

    /// Its name in metrics and in the audit.
    pub fn as_str(self) -> &'static str {
        match self {
            Shape::Http400 => "http_400",
            Shape::Http429 => "http_429",
            Shape::Http500 => "http_500",
            Shape::Http503 => "http_503",
            Shape::Http529 => "http_529",
            Shape::Json200 => "json_200",
            Shape::Sse => "sse",
            Shape::WebSocket => "websocket",
            Shape::Handshake => "handshake",
        }
    }
}

impl PairState {
    /// Every state, in the order of the contract.
    pub const ALL: [PairState; 11] = [
        PairState::Ready,
        PairState::Cooling,
        PairState::Shunned,
        PairState::Probing,
        PairState::Limited,
        PairState::Spent,
        PairState::Rejected,
        PairState::Unsupported,
        PairState::Unreachable,
        PairState::HeldOut,
        PairState::Drained,
    ];

    /// Its name in metrics and status.
    pub fn as_str(self) -> &'static str {
        match self {
            PairState::Ready => "ready",
            PairState::Cooling => "cooling",
            PairState::Shunned => "shunned",
            PairState::Probing => "probing",
            PairState::Limited => "limited",
            PairState::Spent => "spent",
            PairState::Rejected => "rejected",
            PairState::Unsupported => "unsupported",
            PairState::Unreachable => "unreachable",
            PairState::HeldOut => "held_out",
            PairState::Drained => "drained",
        }
    }
}

#[cfg(test)]
mod tests;
