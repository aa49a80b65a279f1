//! Which failure means what: a table of rules, first match wins.
//!
//! The built-in table is data in the same form as an operator's own rules, so that `berth rules` can
//! list both and a reader can argue with each line. A rule sees parsed fields and the status only;
//! every condition that is given must hold, and within a list any entry is enough.
//!
//! The order matters in three places. Codes that say whose fault it is come before messages, because
//! a message may quote the request. Capacity comes before rate limit, because vendors send overload
//! codes under 429. A message is matched by its beginning, never anywhere, for the same reason.

use once_cell::sync::Lazy;

use super::dialect::Dialect;
use super::verdict::Verdict;

/// What a rule may look at.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The status that the error states itself, else that of the answer.
    pub status: u16,
    /// The upstream's dialect.
    pub dialect: Dialect,
    /// The error's code.
    pub code: Option<&'a str>,
    /// The error's type.
    pub kind: Option<&'a str>,
    /// The error's message.
    pub message: Option<&'a str>,
    /// A page for people, or a challenge of the edge in front of the upstream.
    pub page: bool,
    /// The answer states that a quota's window is used up, or when it resets.
    pub spent: bool,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name in the audit, metrics and `berth rules`.
    pub name: &'static str,
    /// When it matches.
    pub when: When,
    /// What it then means.
    pub verdict: Verdict,
}

/// The conditions of a rule; an empty list is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// Inclusive ranges of statuses.
    pub status: &'static [(u16, u16)],
    /// Codes or types, compared whole. Vendors put the same word in either.
    pub word: &'static [&'static str],
    /// Beginnings of a message, lower case, white space folded.
    pub message_prefix: &'static [&'static str],
    /// Words of a message, lower case, for where a model's name may stand before them. A message may
    /// quote the request, so a rule that uses them also says how the message begins.
    pub message_contains: &'static [&'static str],
    /// Whole messages, lower case.
    pub message_is: &'static [&'static str],
    /// A page for people.
    pub page: Option<bool>,
    /// A spent quota.
    pub spent: Option<bool>,
}

/// A verdict and the rule that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// What it means.
    pub verdict: Verdict,
    /// By which rule.
    pub rule: &'static str,
}

/// The ruling on a failure. Total: the last rules of the table cover every status.
pub fn rule_on(evidence: &Evidence<'_>) -> Ruling {
    let message = evidence.message.map(folded);
    let found = BUILT_IN
        .iter()
        .find(|rule| rule.when.holds(evidence, message.as_deref()));
    match found {
        Some(rule) => Ruling {
            verdict: rule.verdict,
            rule: rule.name,
        },
        None => Ruling {
            verdict: Verdict::Transient,
            rule: "unknown",
        },
    }
}

impl When {
    fn holds(&self, evidence: &Evidence<'_>, message: Option<&str>) -> bool {
        let status = |(low, high): &(u16, u16)| (*low..=*high).contains(&evidence.status);
        let word = |w: &&str| evidence.code == Some(*w) || evidence.kind == Some(*w);
        let prefix = |p: &&str| message.is_some_and(|m| m.starts_with(*p));
        let contains = |p: &&str| message.is_some_and(|m| m.contains(*p));
        (self.status.is_empty() || self.status.iter().any(status))
            && (self.word.is_empty() || self.word.iter().any(word))
            && (self.message_prefix.is_empty() || self.message_prefix.iter().any(prefix))
            && (self.message_contains.is_empty() || self.message_contains.iter().any(contains))
            && (self.message_is.is_empty() || message.is_some_and(|m| self.message_is.contains(&m)))
            && self.page.is_none_or(|page| page == evidence.page)
            && self.spent.is_none_or(|spent| spent == evidence.spent)
    }
}

/// Lower case, every run of white space one blank: vendors vary both.
fn folded(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for word in message.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&word.to_lowercase());
    }
    out
}

/// The built-in table.
pub static BUILT_IN: Lazy<Vec<Rule>> = Lazy::new(|| {
    let rule = |name, verdict, when| Rule {
        name,
        when,
        verdict,
    };
    let words = |word| When {
        word,
        ..When::default()
    };
    let status = |status| When {
        status,
        ..When::default()
    };
    let says = |message_prefix| When {
        message_prefix,
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
            status(&[(402, 402)]),
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
        rule("unauthorized", Verdict::Auth, status(&[(401, 401)])),
        rule(
            "request",
            Verdict::ClientError,
            words(&[
                "context_length_exceeded",
                "invalid_prompt",
                "request_too_large",
            ]),
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
                "flex_unavailable",
                "policy_capacity_unavailable",
            ]),
        ),
        rule("overloaded", Verdict::Capacity, status(&[(529, 529)])),
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
                message_is: &["overloaded", "overloaded."],
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
                status: &[(400, 400), (404, 404)],
                message_prefix: &["the ", "this model ", "model "],
                message_contains: &[
                    "model is not supported",
                    "model not found",
                    "does not exist or you do not have access",
                ],
                ..When::default()
            },
        ),
        // Anthropic's "model: NAME", which has no code either.
        rule(
            "unsupported_not_found",
            Verdict::ModelUnsupported,
            When {
                status: &[(404, 404)],
                word: &["not_found_error"],
                message_prefix: &["model:"],
                ..When::default()
            },
        ),
        rule(
            "spent_window",
            Verdict::Quota,
            When {
                status: &[(429, 429)],
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
            status(&[(429, 429)]),
        ),
        rule(
            "challenge",
            Verdict::Challenge,
            When {
                status: &[(403, 403)],
                page: Some(true),
                ..When::default()
            },
        ),
        rule("forbidden", Verdict::Forbidden, status(&[(403, 403)])),
        rule(
            "permission",
            Verdict::Forbidden,
            words(&["permission_error"]),
        ),
        rule(
            "page_instead_of_answer",
            Verdict::Transient,
            When {
                status: &[(200, 299)],
                page: Some(true),
                ..When::default()
            },
        ),
        rule(
            "server_error",
            Verdict::Transient,
            status(&[(408, 408), (500, 599)]),
        ),
        rule("client_error", Verdict::ClientError, status(&[(300, 499)])),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(status: u16, code: &str, kind: &str, message: &str) -> Verdict {
        let some = |s| (!str::is_empty(s)).then_some(s);
        rule_on(&Evidence {
            status,
            dialect: Dialect::OpenAi,
            code: some(code),
            kind: some(kind),
            message: some(message),
            page: false,
            spent: false,
        })
        .verdict
    }

    #[test]
    fn each_kind_of_refusal_gets_its_verdict() {
        let at_capacity = "Selected model is at capacity. Please try a different model.";
        for (status, code, kind, message, expected) in [
            (
                400,
                "",
                "invalid_request_error",
                at_capacity,
                Verdict::Capacity,
            ),
            (200, "server_error", "", at_capacity, Verdict::Capacity),
            (
                200,
                "",
                "",
                "Our servers are currently\u{2028}overloaded.",
                Verdict::Capacity,
            ),
            (429, "slow_down", "", "", Verdict::Capacity),
            (529, "", "", "", Verdict::Capacity),
            (200, "", "overloaded_error", "Overloaded", Verdict::Capacity),
            (429, "", "", "", Verdict::RateLimit),
            (200, "rate_limit_exceeded", "", "", Verdict::RateLimit),
            (429, "", "usage_limit_reached", "", Verdict::Quota),
            (401, "", "", "", Verdict::Auth),
            (402, "", "", "", Verdict::Deactivated),
            (404, "model_not_found", "", "", Verdict::ModelUnsupported),
            (
                404,
                "",
                "not_found_error",
                "model: claude-x",
                Verdict::ModelUnsupported,
            ),
            (
                400,
                "",
                "",
                "The 'gpt-5' model is not supported when using a plan",
                Verdict::ModelUnsupported,
            ),
            (
                400,
                "",
                "",
                "Unsupported parameter: max_output_tokens",
                Verdict::ClientError,
            ),
            (
                400,
                "context_length_exceeded",
                "",
                at_capacity,
                Verdict::ClientError,
            ),
            (
                404,
                "",
                "not_found_error",
                "model: claude-x",
                Verdict::ModelUnsupported,
            ),
            (
                404,
                "",
                "not_found_error",
                "Not found",
                Verdict::ClientError,
            ),
            (403, "cyber_policy", "", "", Verdict::Policy),
            (
                400,
                "",
                "invalid_request_error",
                "Output blocked by content filtering policy",
                Verdict::Policy,
            ),
            (403, "", "forbidden", "Forbidden", Verdict::Forbidden),
            (400, "invalid_encrypted_content", "", "", Verdict::State),
            (408, "", "", "", Verdict::Transient),
            (503, "", "", "upstream connect error", Verdict::Transient),
            (200, "invalid_value", "", "", Verdict::ClientError),
            (200, "whatever", "", "", Verdict::Transient),
        ] {
            let found = verdict(status, code, kind, message);
            assert_eq!(found, expected, "{status} {code} {kind} {message}");
        }
    }

    #[test]
    fn a_message_that_quotes_a_refusal_is_none() {
        for quoting in [
            "Invalid value: 'Selected model is at capacity'",
            "Unknown parameter: 'model not found'.",
            "Overloaded function names are not allowed.",
        ] {
            assert_eq!(
                verdict(400, "", "", quoting),
                Verdict::ClientError,
                "{quoting}"
            );
        }
        assert_eq!(verdict(400, "", "", "Overloaded"), Verdict::Capacity);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = BUILT_IN.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), BUILT_IN.len());
    }
}
