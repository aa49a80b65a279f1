//! How long a refusal says it will last, in all the forms that upstreams use.
//!
//! The most precise statement wins: a reset in the body, then `retry-after-ms`, `retry-after`, the
//! rate-limit reset headers, the "try again in 1.5s" of the message. An absolute time is turned into
//! a remaining one at once, against the answer's own `Date`: the upstream's clock may be months off,
//! and ours only matters as a difference. Nothing here trusts a value: negative or unreadable ones say
//! nothing, absurd ones are cut to thirty days.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::facts::Facts;
use super::verdict::Verdict;

/// No stated time is believed beyond this.
pub const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// A time that a refusal states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stated {
    /// Remaining, from the answer on.
    pub after: Duration,
    /// Which form stated it.
    pub basis: &'static str,
}

/// The basis of a time that the answer gives as the end of its limit.
pub const BY_RESET: &str = "upstream_reset";
/// The basis of a time that the answer gives for the next try.
pub const BY_RETRY_AFTER: &str = "retry_after";

/// What a refusal states. `headers` are those of the refusal's own head: pass `None` for a failure
/// inside a 200, whose headers are a snapshot from before it. `now` serves where the answer has no
/// `Date`.
pub fn stated(
    verdict: Verdict,
    facts: &Facts,
    headers: Option<&HeaderMap>,
    now: SystemTime,
) -> Option<Stated> {
    let reset = |after| Stated {
        after,
        basis: BY_RESET,
    };
    let hint = |after| Stated {
        after,
        basis: BY_RETRY_AFTER,
    };
    let clock = headers.and_then(date).unwrap_or(now);
    let body = facts
        .resets_in
        .and_then(seconds)
        .or_else(|| facts.resets_at.and_then(|at| until(epoch(at)?, clock)));
    if let Some(after) = body {
        return Some(reset(after));
    }
    if verdict == Verdict::Quota
        && let Some(after) = headers.and_then(|h| spent_window(h).or(unified_reset(h, clock)))
    {
        return Some(reset(after));
    }
    headers
        .and_then(|h| retry_after(h, clock))
        .or_else(|| facts.retry_after.as_deref().and_then(|v| delay(v, clock)))
        .or_else(|| headers.and_then(|h| rate_limit_reset(h, clock)))
        .or_else(|| facts.message.as_deref().and_then(try_again_in))
        .map(hint)
}

/// Whether a head says that a window of a quota is used up.
pub fn says_spent(headers: &HeaderMap) -> bool {
    spent_window(headers).is_some() || unified_is_spent(headers)
}

/// Anthropic's subscriptions have one allowance; "rejected" says that it is used up.
fn unified_is_spent(headers: &HeaderMap) -> bool {
    headers
        .get("anthropic-ratelimit-unified-status")
        .is_some_and(|status| status == "rejected")
}

/// When that allowance comes back: a Unix time in seconds.
fn unified_reset(headers: &HeaderMap, clock: SystemTime) -> Option<Duration> {
    if !unified_is_spent(headers) {
        return None;
    }
    let reset = headers.get("anthropic-ratelimit-unified-reset")?;
    until(epoch(reset.to_str().ok()?.trim().parse().ok()?)?, clock)
}

/// `retry-after-ms`, else the longest `retry-after`.
fn retry_after(headers: &HeaderMap, clock: SystemTime) -> Option<Duration> {
    let longest = |name: &str, read: &dyn Fn(&str) -> Option<Duration>| {
        let values = headers.get_all(name).into_iter();
        values.filter_map(|v| read(v.to_str().ok()?)).max()
    };
    longest("retry-after-ms", &|v| {
        seconds(v.trim().parse::<f64>().ok()? / 1000.0)
    })
    .or_else(|| longest("retry-after", &|v| delay(v, clock)))
}

/// Seconds, or an HTTP date.
fn delay(value: &str, clock: SystemTime) -> Option<Duration> {
    let value = value.trim();
    match value.parse::<f64>() {
        Ok(number) => seconds(number),
        Err(_) => until(httpdate::parse_http_date(value).ok()?, clock),
    }
}

/// The reset of a `x-codex-*` window that is used up: the longest of several.
fn spent_window(headers: &HeaderMap) -> Option<Duration> {
    let number =
        |name: String| -> Option<f64> { headers.get(name)?.to_str().ok()?.trim().parse().ok() };
    ["primary", "secondary"]
        .into_iter()
        .filter(|w| number(format!("x-codex-{w}-used-percent")).is_some_and(|used| used >= 100.0))
        .filter_map(|w| seconds(number(format!("x-codex-{w}-reset-after-seconds"))?))
        .max()
}

/// The longest of the reset headers whose remainder is used up, or of all where none says so.
fn rate_limit_reset(headers: &HeaderMap, clock: SystemTime) -> Option<Duration> {
    let mut spent = None;
    let mut any = None;
    for (name, value) in headers {
        let name = name.as_str();
        let limit = name
            .strip_prefix("x-ratelimit-reset-")
            .map(|what| format!("x-ratelimit-remaining-{what}"))
            .or_else(|| {
                let what = name
                    .strip_prefix("anthropic-ratelimit-")?
                    .strip_suffix("-reset")?;
                Some(format!("anthropic-ratelimit-{what}-remaining"))
            });
        let (Some(remaining), Ok(value)) = (limit, value.to_str()) else {
            continue;
        };
        let reset = humane(value).or_else(|| {
            let at = humantime::parse_rfc3339(value.trim()).ok()?;
            until(at, clock)
        });
        let used_up = headers.get(remaining).is_some_and(|left| left == "0");
        any = any.max(reset);
        if used_up {
            spent = spent.max(reset);
        }
    }
    spent.or(any)
}

/// The time in "Please try again in 1.5s."
fn try_again_in(message: &str) -> Option<Duration> {
    let lower = message.to_ascii_lowercase();
    let (_, after) = lower.split_once("try again in ")?;
    let end = after
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
        .unwrap_or(after.len());
    let token = after.get(..end)?.trim_end_matches('.');
    humane(token).or_else(|| {
        // "7 seconds", "2 minutes"
        let unit = after.get(end..)?.trim_start();
        let scale = match unit {
            u if u.starts_with("second") => 1.0,
            u if u.starts_with("minute") => 60.0,
            u if u.starts_with("hour") => 3600.0,
            _ => return None,
        };
        seconds(token.parse::<f64>().ok()? * scale)
    })
}

/// `1s`, `6m0s`, `120ms`, `1h2m3.5s`: at least one number, each with a unit.
pub(super) fn humane(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, after) = rest.split_at(digits);
        let units = [
            ("ms", 0.001),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3600.0),
            ("d", 86_400.0),
        ];
        let (unit, scale) = units.iter().find(|(unit, _)| after.starts_with(unit))?;
        total += number.parse::<f64>().ok()? * scale;
        rest = after.get(unit.len()..)?;
    }
    seconds(total)
}

pub(super) fn date(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get("date")?.to_str().ok()?).ok()
}

pub(super) fn epoch(at: f64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(at).ok()?)
}

/// From `clock` until `at`, nothing if that is past.
pub(super) fn until(at: SystemTime, clock: SystemTime) -> Option<Duration> {
    Some(at.duration_since(clock).unwrap_or_default().min(LONGEST))
}

/// A length of time; `None` for a negative one.
pub(super) fn seconds(number: f64) -> Option<Duration> {
    if number.is_nan() || number < 0.0 {
        return None;
    }
    Some(Duration::from_secs_f64(number.min(LONGEST.as_secs_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn head(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        headers
    }

    fn wait(verdict: Verdict, lines: &[(&str, &str)], body: &str) -> Option<f64> {
        let facts = Facts::of_error_body(body.as_bytes());
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        stated(verdict, &facts, Some(&head(lines)), now).map(|s| s.after.as_secs_f64())
    }

    #[test]
    fn every_form_of_a_rate_limit_is_read() {
        let limit = |lines: &[(&str, &str)]| wait(Verdict::RateLimit, lines, "{}");
        assert_eq!(limit(&[("retry-after", "7")]), Some(7.0));
        assert_eq!(limit(&[("retry-after", "1.5")]), Some(1.5));
        assert_eq!(limit(&[("retry-after", "0")]), Some(0.0));
        assert_eq!(limit(&[("retry-after", "-5")]), None);
        assert_eq!(limit(&[("retry-after", "soon")]), None);
        assert_eq!(
            limit(&[("retry-after", "2"), ("retry-after", "9")]),
            Some(9.0)
        );
        assert_eq!(
            limit(&[("retry-after", "30"), ("retry-after-ms", "2500")]),
            Some(2.5)
        );
        let month = LONGEST.as_secs_f64();
        assert_eq!(
            limit(&[("retry-after", "99999999999999999999")]),
            Some(month)
        );
        let dated = [
            ("date", "Thu, 01 Jan 2026 00:00:00 GMT"),
            ("retry-after", "Thu, 01 Jan 2026 00:00:07 GMT"),
        ];
        assert_eq!(limit(&dated), Some(7.0));
        assert_eq!(
            limit(&[("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")]),
            Some(0.0)
        );
        assert_eq!(limit(&[("x-ratelimit-reset-tokens", "6m0s")]), Some(360.0));
        let two = [
            ("x-ratelimit-reset-tokens", "6m0s"),
            ("x-ratelimit-reset-requests", "120ms"),
            ("x-ratelimit-remaining-requests", "0"),
        ];
        assert_eq!(limit(&two), Some(0.12));
    }

    #[test]
    fn a_message_states_a_time_too() {
        for (message, expected) in [
            ("Rate limit reached. Please try again in 1.5s.", Some(1.5)),
            ("Please try again in 20ms. Visit x", Some(0.02)),
            ("try again in 6m0s", Some(360.0)),
            ("Try again in 7 seconds.", Some(7.0)),
            ("try again in a while", None),
        ] {
            let body = format!(r#"{{"error":{{"message":"{message}"}}}}"#);
            assert_eq!(wait(Verdict::RateLimit, &[], &body), expected, "{message}");
        }
    }

    #[test]
    fn a_quota_resets_when_it_says() {
        let body = r#"{"error":{"type":"usage_limit_reached","resets_in_seconds":471285}}"#;
        assert_eq!(wait(Verdict::Quota, &[], body), Some(471_285.0));
        let at = r#"{"error":{"resets_at":1800000060}}"#;
        assert_eq!(wait(Verdict::Quota, &[], at), Some(60.0));
        let window = [
            ("x-codex-primary-used-percent", "100"),
            ("x-codex-primary-reset-after-seconds", "90"),
        ];
        assert_eq!(wait(Verdict::Quota, &window, "{}"), Some(90.0));
        let mut unified = [
            ("anthropic-ratelimit-unified-status", "rejected"),
            ("anthropic-ratelimit-unified-reset", "1800000030"),
        ];
        assert!(says_spent(&head(&unified)));
        assert_eq!(wait(Verdict::Quota, &unified, "{}"), Some(30.0));
        unified[0].1 = "allowed";
        assert!(!says_spent(&head(&unified)));
        assert_eq!(wait(Verdict::Quota, &unified, "{}"), None);
    }

    #[test]
    fn headers_of_a_200_are_no_evidence() {
        let facts = Facts::default();
        assert_eq!(
            stated(Verdict::RateLimit, &facts, None, SystemTime::UNIX_EPOCH),
            None
        );
    }
}
