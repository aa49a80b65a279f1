//! The refusals that are one JSON document with a status: what they say in each dialect.
//!
//! Texts, codes and header names are those seen in public reports, so that a classifier which passes
//! here has met the real words.

use super::step::{Quota, RateLimit, Refuse, Shape, State};
use super::streams::{Asked, Endpoint, Fault};
use serde_json::{Value, json};
use std::time::Duration;

/// An error document, its status and the headers that belong to it.
pub(super) struct ErrorAnswer {
    pub status: u16,
    pub body: Value,
    pub headers: Vec<(String, String)>,
}

/// The overload that a `refuse` step states, in whatever shape.
pub(super) fn overload(asked: &Asked, refuse: &Refuse) -> Fault {
    let (kind, code, message) = match refuse.shape {
        _ if asked.endpoint.is_anthropic() => ("overloaded_error", None, "Overloaded"),
        Shape::Http400 => ("invalid_request_error", None, AT_CAPACITY),
        Shape::Http429 => (
            "service_unavailable_error",
            Some("model_at_capacity"),
            AT_CAPACITY,
        ),
        Shape::Http529 => ("overloaded_error", None, "Overloaded"),
        Shape::Sse
        | Shape::SseBareError
        | Shape::SseFirst
        | Shape::Http500
        | Shape::Http503
        | Shape::Json200 => (
            "service_unavailable_error",
            Some("server_is_overloaded"),
            OVERLOADED,
        ),
    };
    let mut fault = Fault {
        kind: kind.into(),
        code: code.map(String::from),
        message: refuse.message.clone().unwrap_or_else(|| message.into()),
    };
    if let Some(code) = &refuse.code {
        // Anthropic's errors have no code; its place is the type.
        if asked.endpoint.is_anthropic() && !code.is_empty() {
            fault.kind.clone_from(code);
        }
        fault.code = Some(code.clone()).filter(|code| !code.is_empty());
    }
    fault
}

/// The overload of `refuse_after_output`.
pub(super) fn late_overload(
    asked: &Asked,
    code: &Option<String>,
    message: &Option<String>,
) -> Fault {
    let refuse = Refuse {
        code: code.clone(),
        message: message.clone(),
        ..Refuse::default()
    };
    overload(asked, &refuse)
}

/// The status of a `refuse` step's shape; a shape that is a stream has 200.
pub(super) fn status_of(shape: Shape) -> u16 {
    match shape {
        Shape::Sse | Shape::SseBareError | Shape::SseFirst | Shape::Json200 => 200,
        Shape::Http400 => 400,
        Shape::Http429 => 429,
        Shape::Http500 => 500,
        Shape::Http503 => 503,
        Shape::Http529 => 529,
    }
}

/// A `retry-after` header in whole seconds, rounded up: a client must not be told to come early.
pub(super) fn retry_after(span: Option<Duration>) -> Vec<(String, String)> {
    let header = |span| ("retry-after".to_owned(), whole_seconds(span).to_string());
    span.map(header).into_iter().collect()
}

pub(super) fn rate_limit(asked: &Asked, rate_limit: &RateLimit) -> ErrorAnswer {
    let hint = match rate_limit.retry_after {
        Some(span) => format!(" Please try again in {}s.", span.as_secs_f64()),
        None => String::new(),
    };
    let model = &asked.model;
    let mut answer = answer(
        asked,
        429,
        (
            "rate_limit_error",
            Some("rate_limit_exceeded"),
            &format!("Rate limit reached for {model}.{hint}"),
        ),
        (
            "rate_limit_error",
            &format!("This request would exceed your rate limit.{hint}"),
        ),
    );
    answer.headers = retry_after(rate_limit.retry_after);
    answer
}

pub(super) fn quota(asked: &Asked, quota: &Quota) -> ErrorAnswer {
    let seconds = whole_seconds(quota.resets_in);
    let resets_at = asked.now + seconds;
    if asked.endpoint.is_anthropic() {
        let message = "You have reached your usage limit";
        let mut answer = answer(asked, 429, ("", None, ""), ("rate_limit_error", message));
        answer.headers = vec![
            (
                "anthropic-ratelimit-unified-status".into(),
                "rejected".into(),
            ),
            (
                "anthropic-ratelimit-unified-reset".into(),
                resets_at.to_string(),
            ),
        ];
        return answer;
    }
    ErrorAnswer {
        status: 429,
        body: json!({"error": {
            "type": "usage_limit_reached",
            "message": "The usage limit has been reached",
            "plan_type": "plus",
            "resets_at": resets_at,
            "resets_in_seconds": seconds,
        }}),
        headers: vec![
            ("x-codex-active-limit".into(), "codex".into()),
            ("x-codex-primary-used-percent".into(), "100".into()),
            (
                "x-codex-primary-reset-after-seconds".into(),
                seconds.to_string(),
            ),
        ],
    }
}

pub(super) fn auth(asked: &Asked) -> ErrorAnswer {
    answer(
        asked,
        401,
        (
            "invalid_request_error",
            Some("token_invalidated"),
            "Your authentication token has been invalidated. Please try signing in again.",
        ),
        ("authentication_error", "invalid x-api-key"),
    )
}

/// A key that the program does not know.
pub(super) fn unknown_key(asked: &Asked) -> ErrorAnswer {
    answer(
        asked,
        401,
        (
            "invalid_request_error",
            Some("invalid_api_key"),
            "Incorrect API key provided.",
        ),
        ("authentication_error", "invalid x-api-key"),
    )
}

/// A request body that cannot be read.
pub(super) fn unreadable(asked: &Asked, why: &str) -> ErrorAnswer {
    let message = format!("We could not parse the body of your request: {why}.");
    answer(
        asked,
        400,
        ("invalid_request_error", None, &message),
        ("invalid_request_error", &message),
    )
}

pub(super) fn deactivated(asked: &Asked) -> ErrorAnswer {
    let mut answer = answer(
        asked,
        402,
        ("", None, ""),
        ("billing_error", "This organization has been disabled."),
    );
    if !asked.endpoint.is_anthropic() {
        answer.body = json!({"detail": {
            "code": "deactivated_workspace",
            "message": "Workspace is deactivated",
        }});
    }
    answer
}

pub(super) fn unsupported(asked: &Asked) -> ErrorAnswer {
    let model = &asked.model;
    let missing = format!("The model `{model}` does not exist or you do not have access to it.");
    let mut answer = answer(
        asked,
        404,
        ("invalid_request_error", Some("model_not_found"), &missing),
        ("not_found_error", &format!("model: {model}")),
    );
    if asked.endpoint == Endpoint::Responses {
        let detail = format!("The '{model}' model is not supported when using this account.");
        answer.status = 400;
        answer.body = json!({"detail": detail});
    }
    answer
}

pub(super) fn forbidden(asked: &Asked) -> ErrorAnswer {
    let message = "Your API key does not have permission to use the specified resource.";
    answer(
        asked,
        403,
        ("forbidden", None, "Forbidden"),
        ("permission_error", message),
    )
}

pub(super) fn policy(asked: &Asked) -> ErrorAnswer {
    let mut answer = answer(
        asked,
        403,
        (
            "invalid_request_error",
            Some("cyber_policy"),
            "This request was blocked.",
        ),
        (
            "invalid_request_error",
            "Output blocked by content filtering policy",
        ),
    );
    if asked.endpoint.is_anthropic() {
        answer.status = 400;
    }
    answer
}

pub(super) fn client_error(asked: &Asked) -> ErrorAnswer {
    answer(
        asked,
        400,
        (
            "invalid_request_error",
            Some("context_length_exceeded"),
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
        ),
        (
            "invalid_request_error",
            "prompt is too long: 250000 tokens > 200000 maximum",
        ),
    )
}

pub(super) fn state(asked: &Asked, state: &State) -> ErrorAnswer {
    let message = match state.code.as_str() {
        "previous_response_not_found" => "Previous response with id 'resp_sim' not found.",
        "invalid_encrypted_content" => "The encrypted content could not be verified.",
        _ => "The state that this request names is not known here.",
    };
    answer(
        asked,
        400,
        ("invalid_request_error", Some(&state.code), message),
        (
            "invalid_request_error",
            "messages.1.content.0: Invalid `signature` in `thinking` block",
        ),
    )
}

/// The edge's page; real ones carry the header as well as the script.
pub(super) const CHALLENGE: &str = "<!DOCTYPE html><html><head><title>Just a moment...</title></head><body>\
<script src=\"/cdn-cgi/challenge-platform/h/b/orchestrate/chl_page/v1\"></script>Enable JavaScript.</body></html>";

/// A page that has nothing to do with the API.
pub(super) const PORTAL: &str = "<!DOCTYPE html><html><head><title>Sign in to the network</title></head>\
<body>Accept the terms of use to continue.</body></html>";

const AT_CAPACITY: &str = "Selected model is at capacity. Please try a different model.";
const OVERLOADED: &str = "Our servers are currently overloaded. Please try again later.";

/// The same error in both dialects: `(type, code, message)` and `(type, message)`.
fn answer(
    asked: &Asked,
    status: u16,
    openai: (&str, Option<&str>, &str),
    anthropic: (&str, &str),
) -> ErrorAnswer {
    let (kind, code, message) = if asked.endpoint.is_anthropic() {
        (anthropic.0, None, anthropic.1)
    } else {
        openai
    };
    let fault = Fault {
        kind: kind.into(),
        code: code.map(String::from),
        message: message.into(),
    };
    ErrorAnswer {
        status,
        body: asked.error_document(&fault),
        headers: Vec::new(),
    }
}

fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}
