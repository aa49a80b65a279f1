//! The numbers and switches of the admission policy, as values that are correct by type.
//!
//! `config` builds these from the operator's YAML; nothing here reads a file or a clock. A field's
//! default and its origin stand in `docs/configuration.md`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::rules::Rules;

/// What berth does with what it learns about an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Hold, fail over and rewrite.
    Enforce,
    /// Classify, count and audit; the answer itself takes the ordinary path.
    Observe,
    /// A plain proxy: choose a credential, nothing else.
    Off,
}

/// Everything under `admission:` in the configuration.
#[derive(Clone, Debug)]
pub struct Policy {
    /// See [`Mode`].
    pub mode: Mode,
    /// Upstream attempts for one client request, all kinds together.
    pub max_attempts: NonZeroU32,
    /// Bounds second and later attempts per route.
    pub retry_budget: RetryBudget,
    /// How much and how long an opening may be held.
    pub hold: HoldLimits,
    /// What the first expiry of `hold.max_time` does.
    pub on_hold_timeout: OnHoldTimeout,
    /// The score's arithmetic.
    pub score: ScoreMarks,
    /// How long a pair cools.
    pub cooldown: Cooldown,
    /// How a shunned pair comes back.
    pub probe: Probe,
    /// When a model counts as full.
    pub full: Full,
    /// The waiting room.
    pub wait: Wait,
    /// Bounds of the `Retry-After` that berth states itself.
    pub retry_after: RetryAfterBounds,
    /// What an overload code becomes on its way to the client.
    pub client_error_code: ClientErrorCode,
    /// Which failure means what.
    pub rules: Arc<Rules>,
}

impl Default for Policy {
    /// What holds where the configuration says nothing.
    fn default() -> Policy {
        const FEW: fn(u32) -> NonZeroU32 = |count| NonZeroU32::MIN.saturating_add(count - 1);
        let secs = Duration::from_secs;
        Policy {
            mode: Mode::Enforce,
            max_attempts: FEW(3),
            retry_budget: RetryBudget {
                ratio: 1.0,
                min_per_second: 10,
            },
            hold: HoldLimits {
                max_bytes: 4 << 20,
                max_time: secs(120),
                request_max_time: secs(240),
            },
            on_hold_timeout: OnHoldTimeout::FailOver,
            score: ScoreMarks {
                refused: 10.0,
                admitted: 1.0,
                cool_at: 18.0,
                shun_at: 36.0,
                ceiling: 60.0,
                half_life: secs(15 * 60),
                episode: secs(5 * 60),
            },
            cooldown: Cooldown {
                base: secs(5),
                max: secs(20),
            },
            probe: Probe {
                first: secs(60),
                max: secs(300),
                admissions: FEW(5),
            },
            full: Full {
                sessions: FEW(3),
                within: secs(10),
            },
            wait: Wait {
                max_time: secs(15),
                max_waiting: 100,
            },
            retry_after: RetryAfterBounds {
                min: secs(5),
                max: secs(30),
            },
            client_error_code: ClientErrorCode::Replace("server_error".to_owned()),
            rules: Arc::default(),
        }
    }
}

/// `ratio` of first attempts over ten seconds, or `min_per_second`, whichever is more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryBudget {
    /// Later attempts allowed per first attempt; finite and not negative.
    pub ratio: f64,
    /// Later attempts per second that are always allowed.
    pub min_per_second: u32,
}

/// Bounds of the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldLimits {
    /// Held bytes of one attempt; beyond it the attempt commits.
    pub max_bytes: usize,
    /// Time of one attempt, from the request sent, head included.
    pub max_time: Duration,
    /// Time of one client request over all its attempts.
    pub request_max_time: Duration,
}

/// What happens when `hold.max_time` runs out for the first time in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHoldTimeout {
    /// Try one other credential, then commit on the second expiry.
    FailOver,
    /// Commit at once.
    Commit,
}

/// The score of a pair (credential, model).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreMarks {
    /// Added by a newcomer refused here and admitted elsewhere.
    pub refused: f64,
    /// Taken off by a newcomer admitted.
    pub admitted: f64,
    /// Excess from which a pair cools.
    pub cool_at: f64,
    /// Excess from which a pair is shunned.
    pub shun_at: f64,
    /// No score exceeds it.
    pub ceiling: f64,
    /// Time in which a score halves by itself.
    pub half_life: Duration,
    /// A session counts once per pair in this time.
    pub episode: Duration,
}

/// How long a pair cools: `base`, doubled from halfway to the shun mark on, at most `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cooldown {
    /// First cooling.
    pub base: Duration,
    /// Longest cooling.
    pub max: Duration,
}

/// How a shunned pair is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Wait before the first probe.
    pub first: Duration,
    /// Longest wait between probes.
    pub max: Duration,
    /// Admissions in a row that make the pair ready.
    pub admissions: NonZeroU32,
}

/// When a model is full: so many sessions refused everywhere, each within `within` of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Different sessions.
    pub sessions: NonZeroU32,
    /// Longest gap between two of them.
    pub within: Duration,
}

/// The waiting room before a 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Longest wait; zero answers at once.
    pub max_time: Duration,
    /// Requests that may wait at once.
    pub max_waiting: usize,
}

/// Bounds of berth's own `Retry-After`; `min <= max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfterBounds {
    /// Shortest.
    pub min: Duration,
    /// Longest.
    pub max: Duration,
}

/// What `server_is_overloaded` and `slow_down` become for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientErrorCode {
    /// Left as they came.
    Keep,
    /// Replaced by this code, `[a-z0-9_]{1,64}`.
    Replace(String),
}
