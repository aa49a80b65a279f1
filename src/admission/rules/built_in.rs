//! What berth knows of refusals by itself: a table, first match wins.
//!
//! The order matters in three places. Codes that say whose fault it is come before messages, because
//! a message may quote the request. Capacity comes before rate limit, because vendors send overload
//! codes under 429. A message is matched by its beginning, never anywhere, for the same reason.

use std::ops::RangeInclusive;

use once_cell::sync::Lazy;

use super::{Origin, Rule, When};
use crate::admission::Verdict;

/// The rule of refusals that concern a tier of the request's own choice.
pub const OF_TIER: &str = "capacity_of_tier";

/// The built-in table. Its last rule has no condition.
pub static BUILT_IN: Lazy<Vec<Rule>> = Lazy::new(|| {
    let rule = |name: &str, verdict, when| Rule {
        name: name.into(),
        when,
        verdict,
        hold: None,
        then: None,
        origin: Origin::BuiltIn,
    };
    let words = |word: &[&str]| When {
        word: any(word),
        ..When::default()
    };
    let status = |status: &[RangeInclusive<u16>]| When {
        status: status.to_vec(),
        ..When::default()
    };
    let says = |beginning: &[&str]| When {
        message_prefix: any(beginning),
        ..When::default()
    };
    vec![
        rule(
            "policy",
            Verdict::Policy,
            words(&[
                "cyber_policy",
                "bio_policy",
                "misalignment_policy_violation",
                "content_policy_violation",
                "content_filter",
                "inference_hook_denied",
            ]),
        ),
        // Anthropic has no code for it.
        rule(
            "policy_message",
            Verdict::Policy,
            says(&["output blocked by content filtering policy"]),
        ),
        rule(
            "state",
            Verdict::State,
            words(&["previous_response_not_found", "invalid_encrypted_content"]),
        ),
        rule(
            "quota",
            Verdict::Quota,
            words(&[
                "usage_limit_reached",
                "insufficient_quota",
                "credit_balance_exhausted",
                "organization_spend_limit_exceeded",
                "project_spend_limit_exceeded",
                "usage_not_included",
                "billing_hard_limit_reached",
            ]),
        ),
        rule(
            "quota_message",
            Verdict::Quota,
            says(&["your credit balance is too low"]),
        ),
        rule(
            "deactivated",
            Verdict::Deactivated,
            words(&[
                "deactivated_workspace",
                "account_deactivated",
                "billing_error",
            ]),
        ),
        rule(
            "payment_required",
            Verdict::Deactivated,
            status(&[402..=402]),
        ),
        rule(
            "auth",
            Verdict::Auth,
            words(&[
                "token_invalidated",
                "token_expired",
                "token_revoked",
                "invalid_api_key",
                "authentication_error",
            ]),
        ),
        rule("unauthorized", Verdict::Auth, status(&[401..=401])),
        rule(
            "request",
            Verdict::ClientError,
            words(&[
                "context_length_exceeded",
                "invalid_prompt",
                "request_too_large",
            ]),
        ),
        // For the tier that the request asked for: nothing is said of the seats that others ask for.
        rule(
            OF_TIER,
            Verdict::Capacity,
            words(&["flex_unavailable", "policy_capacity_unavailable"]),
        ),
        rule(
            "capacity",
            Verdict::Capacity,
            words(&[
                "server_is_overloaded",
                "slow_down",
                "model_at_capacity",
                "overloaded_error",
                "overloaded",
                "engine_overloaded",
                "engine_overloaded_error",
            ]),
        ),
        rule("overloaded", Verdict::Capacity, status(&[529..=529])),
        rule(
            "capacity_message",
            Verdict::Capacity,
            says(&[
                "selected model is at capacity",
                "model is at capacity",
                "the model is at capacity",
                "this model is at capacity",
                "our servers are currently overloaded",
                "our servers are overloaded",
                "servers are currently overloaded",
                "the server is currently overloaded",
                "the server is overloaded",
                "the model is currently overloaded",
                "the model is overloaded",
                "that model is currently overloaded",
                "the engine is currently overloaded",
            ]),
        ),
        rule(
            "capacity_word",
            Verdict::Capacity,
            When {
                message_is: any(&["overloaded", "overloaded."]),
                ..When::default()
            },
        ),
        rule(
            "unsupported",
            Verdict::ModelUnsupported,
            words(&[
                "model_not_found",
                "model_not_supported",
                "unsupported_model",
            ]),
        ),
        rule(
            "unsupported_message",
            Verdict::ModelUnsupported,
            When {
                status: vec![400..=400, 404..=404],
                message_prefix: any(&["the ", "this model ", "model "]),
                message_contains: any(&[
                    "model is not supported",
                    "model not found",
                    "does not exist or you do not have access",
                ]),
                ..When::default()
            },
        ),
        // Anthropic's "model: NAME", which has no code either.
        rule(
            "unsupported_not_found",
            Verdict::ModelUnsupported,
            When {
                status: vec![404..=404],
                word: any(&["not_found_error"]),
                message_prefix: any(&["model:"]),
                ..When::default()
            },
        ),
        rule(
            "spent_window",
            Verdict::Quota,
            When {
                status: vec![429..=429],
                spent: Some(true),
                ..When::default()
            },
        ),
        rule(
            "rate_limit",
            Verdict::RateLimit,
            words(&[
                "rate_limit_exceeded",
                "rate_limit_error",
                "rate_limit_reached",
            ]),
        ),
        rule(
            "too_many_requests",
            Verdict::RateLimit,
            status(&[429..=429]),
        ),
        rule(
            "challenge",
            Verdict::Challenge,
            When {
                status: vec![403..=403],
                page: Some(true),
                ..When::default()
            },
        ),
        rule("forbidden", Verdict::Forbidden, status(&[403..=403])),
        rule(
            "permission",
            Verdict::Forbidden,
            words(&["permission_error"]),
        ),
        rule(
            "page_instead_of_answer",
            Verdict::Transient,
            When {
                status: vec![200..=299],
                page: Some(true),
                ..When::default()
            },
        ),
        rule(
            "server_error",
            Verdict::Transient,
            status(&[408..=408, 500..=599]),
        ),
        rule("client_error", Verdict::ClientError, status(&[300..=499])),
        rule(
            "request_in_stream",
            Verdict::ClientError,
            words(&[
                "invalid_request_error",
                "invalid_request",
                "not_found_error",
                "invalid_value",
            ]),
        ),
        rule("error_in_answer", Verdict::Transient, When::default()),
    ]
});

fn any(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
