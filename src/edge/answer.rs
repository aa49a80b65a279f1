//! What berth says in its own words.
//!
//! A client must be able to read it like an answer of the upstream: the dialect's own error shape, a
//! code that its SDK retries where a retry makes sense, and a `Retry-After` that says when.

use std::time::Duration;

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use serde_json::json;

use crate::admission::Dialect;
use crate::admission::policy::RetryAfterBounds;

/// An answer of berth's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its JSON body; empty where the client asked for a head only.
    pub body: Bytes,
    /// Seconds.
    pub retry_after: Option<u64>,
    /// The connection ends with it.
    pub close: bool,
}

impl Answer {
    /// Something that the client may ask again: a code and a message.
    pub fn retry(dialect: Dialect, (code, message): (&str, &str), after: Duration) -> Answer {
        let body = error(dialect, 503, message, ("server_error", code));
        Answer {
            retry_after: Some(seconds(after)),
            ..Answer::new(503, body)
        }
    }

    /// A rate limit, with its end.
    pub fn rate_limit(dialect: Dialect, message: &str, after: Duration) -> Answer {
        let words = ("rate_limit_error", "rate_limit_exceeded");
        Answer {
            retry_after: Some(seconds(after)),
            ..Answer::new(429, error(dialect, 429, message, words))
        }
    }

    /// What the client may spend is spent, until then.
    pub fn quota(dialect: Dialect, message: &str, after: Duration) -> Answer {
        let words = ("insufficient_quota", "insufficient_quota");
        Answer {
            retry_after: Some(seconds(after)),
            ..Answer::new(429, error(dialect, 429, message, words))
        }
    }

    /// Something that only the client can change.
    pub fn client_error(dialect: Dialect, status: u16, code: &str, message: &str) -> Answer {
        let words = ("invalid_request_error", code);
        Answer::new(status, error(dialect, status, message, words))
    }

    /// A body that is too large: the connection ends with the answer.
    pub fn too_large(dialect: Dialect, limit: usize) -> Answer {
        let limit = bytesize::ByteSize(limit as u64);
        let message = format!(
            "The request body is larger than the {} that this gateway takes (limits.request_body).",
            limit.display().iec()
        );
        Answer {
            close: true,
            ..Answer::client_error(dialect, 413, "request_too_large", &message)
        }
    }

    /// An empty 200.
    pub fn alive() -> Answer {
        Answer::new(200, Bytes::new())
    }

    /// Its head.
    ///
    /// # Errors
    ///
    /// None that a caller could meet: every value is berth's own.
    pub fn head(&self) -> pingora::Result<ResponseHeader> {
        let mut head = ResponseHeader::build(self.status, Some(6))?;
        if !self.body.is_empty() {
            head.insert_header(header::CONTENT_TYPE, "application/json")?;
        }
        head.insert_header(header::CONTENT_LENGTH, self.body.len())?;
        if self.status == 401 {
            head.insert_header(header::WWW_AUTHENTICATE, "Bearer")?;
        }
        if let Some(after) = self.retry_after {
            head.insert_header(header::RETRY_AFTER, after)?;
        }
        Ok(head)
    }

    fn new(status: u16, body: Bytes) -> Answer {
        Answer {
            status,
            body,
            retry_after: None,
            close: false,
        }
    }
}

/// The `Retry-After` of a 503: where every pair is excluded with a stated end, the earliest of these,
/// else the shortest. Both within the operator's bounds, and spread by up to 20 % so that clients do
/// not come back as one.
pub fn retry_after(earliest: Option<Duration>, bounds: RetryAfterBounds) -> Duration {
    let base = earliest.unwrap_or(bounds.min).clamp(bounds.min, bounds.max);
    base.mul_f64(1.0 + 0.2 * rand::random::<f64>())
        .min(bounds.max.max(bounds.min))
}

fn error(dialect: Dialect, status: u16, message: &str, (kind, code): (&str, &str)) -> Bytes {
    let body = match dialect {
        Dialect::OpenAi => json!({
            "error": { "message": message, "type": kind, "param": null, "code": code }
        }),
        Dialect::Anthropic => {
            let kind = match status {
                400 | 426 => "invalid_request_error",
                401 => "authentication_error",
                404 => "not_found_error",
                413 => "request_too_large",
                429 => "rate_limit_error",
                _ => "api_error",
            };
            json!({ "type": "error", "error": { "type": kind, "message": message } })
        }
    };
    Bytes::from(body.to_string())
}

/// Whole seconds, at least one: HTTP knows no others, and a zero is read as "at once".
fn seconds(after: Duration) -> u64 {
    (after.as_secs_f64().ceil() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: RetryAfterBounds = RetryAfterBounds {
        min: Duration::from_secs(5),
        max: Duration::from_secs(30),
    };

    #[test]
    fn each_dialect_reads_its_own_shape() {
        let openai = Answer::retry(
            Dialect::OpenAi,
            ("server_error", "busy"),
            Duration::from_millis(4200),
        );
        let body: serde_json::Value = serde_json::from_slice(&openai.body).unwrap();
        assert_eq!(body["error"]["code"], "server_error");
        assert_eq!(openai.retry_after, Some(5));
        let anthropic = Answer::retry(Dialect::Anthropic, ("server_error", "busy"), Duration::ZERO);
        let body: serde_json::Value = serde_json::from_slice(&anthropic.body).unwrap();
        assert_eq!(body["type"], "error");
        assert_eq!(body["error"]["type"], "api_error");
        assert_eq!(anthropic.retry_after, Some(1));
    }

    #[test]
    fn a_retry_after_stays_within_its_bounds() {
        for earliest in [
            None,
            Some(Duration::ZERO),
            Some(Duration::from_secs(7)),
            Some(Duration::MAX),
        ] {
            for _ in 0..100 {
                let after = retry_after(earliest, BOUNDS);
                assert!((BOUNDS.min..=BOUNDS.max).contains(&after), "{after:?}");
            }
        }
    }
}
