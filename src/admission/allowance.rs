//! What is left of an allowance, as the upstream's own headers tell it.
//!
//! An operator wants to see that an account has used 93 % of its week before it is refused. Nothing is
//! decided by these numbers: they are a snapshot from before the answer, some count one model and some
//! the account, and a vendor may change them any day. What excludes a credential is a refusal that says
//! so ([`super::retry_after`]).
//!
//! A closed list of meters is read, so whatever an upstream sends, there are at most [`Meter::ALL`] of
//! them, of numbers only. What is not a number, or makes no sense as one, says nothing.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::retry_after::{date, epoch, humane, seconds, until};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Meter {
    /// The shorter window of a Codex account.
    CodexPrimary,
    /// Its longer window.
    CodexSecondary,
    /// Requests in a vendor's own time, often a minute.
    Requests,
    /// Tokens, likewise.
    Tokens,
    /// Tokens of requests, likewise.
    InputTokens,
    /// Tokens of answers, likewise.
    OutputTokens,
    /// An Anthropic subscription's five hours.
    FiveHours,
    /// Its seven days.
    SevenDays,
}

/// One meter, as an answer showed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// What is counted.
    pub meter: Meter,
    /// 0 to 100.
    pub used_percent: Option<f64>,
    /// How many there are in all.
    pub limit: Option<u64>,
    /// How many are left.
    pub remaining: Option<u64>,
    /// Length of the window.
    pub window: Option<Duration>,
    /// From the answer until it begins anew.
    pub resets_in: Option<Duration>,
}

impl Meter {
    /// Every meter, in the order in which they are shown.
    pub const ALL: [Meter; 8] = [
        Meter::CodexPrimary,
        Meter::CodexSecondary,
        Meter::FiveHours,
        Meter::SevenDays,
        Meter::Requests,
        Meter::Tokens,
        Meter::InputTokens,
        Meter::OutputTokens,
    ];

    /// Its name in `/status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Meter::CodexPrimary => "codex_primary",
            Meter::CodexSecondary => "codex_secondary",
            Meter::Requests => "requests",
            Meter::Tokens => "tokens",
            Meter::InputTokens => "input_tokens",
            Meter::OutputTokens => "output_tokens",
            Meter::FiveHours => "five_hours",
            Meter::SevenDays => "seven_days",
        }
    }

    fn read(self, head: &Head) -> Option<Reading> {
        match self {
            Meter::CodexPrimary => self.codex(head, "primary"),
            Meter::CodexSecondary => self.codex(head, "secondary"),
            Meter::FiveHours => self.unified(head, "5h", 5),
            Meter::SevenDays => self.unified(head, "7d", 7 * 24),
            Meter::Requests => self.counted(head, "requests"),
            Meter::Tokens => self.counted(head, "tokens"),
            Meter::InputTokens => self.counted(head, "input-tokens"),
            Meter::OutputTokens => self.counted(head, "output-tokens"),
        }
    }

    fn codex(self, head: &Head, window: &str) -> Option<Reading> {
        let of = |what: &str| format!("x-codex-{window}-{what}");
        let used = head.number(&of("used-percent"))?;
        let after = head.number(&of("reset-after-seconds")).and_then(seconds);
        let at = || {
            let at = head.number(&of("reset-at"));
            head.until_epoch(at.or_else(|| head.number(&of("resets-at")))?)
        };
        let minutes = head.number(&of("window-minutes"));
        Some(Reading {
            meter: self,
            used_percent: Some(used.min(100.0)),
            limit: None,
            remaining: None,
            window: minutes.and_then(|minutes| seconds(minutes * 60.0)),
            resets_in: after.or_else(at),
        })
    }

    fn unified(self, head: &Head, window: &str, hours: u64) -> Option<Reading> {
        let of = |what: &str| format!("anthropic-ratelimit-unified-{window}-{what}");
        let used = head.number(&of("utilization"))?;
        Some(Reading {
            meter: self,
            used_percent: Some((used * 100.0).min(100.0)),
            limit: None,
            remaining: None,
            window: Some(Duration::from_secs(hours * 3_600)),
            resets_in: head
                .number(&of("reset"))
                .and_then(|at| head.until_epoch(at)),
        })
    }

    fn counted(self, head: &Head, what: &str) -> Option<Reading> {
        let either = |part: &str| {
            let openai = head.text(&format!("x-ratelimit-{part}-{what}"));
            openai.or_else(|| head.text(&format!("anthropic-ratelimit-{what}-{part}")))
        };
        let remaining: u64 = either("remaining")?.parse().ok()?;
        let limit: Option<u64> = either("limit").and_then(|limit| limit.parse().ok());
        let share = |limit: u64| 100.0 * (1.0 - remaining.min(limit) as f64 / limit as f64);
        Some(Reading {
            meter: self,
            used_percent: limit.filter(|limit| *limit > 0).map(share),
            limit,
            remaining: Some(remaining),
            window: None,
            resets_in: either("reset").and_then(|reset| head.reset(reset)),
        })
    }
}

/// Every meter that a head shows. `now` serves where it has no `Date`.
pub fn readings(headers: &HeaderMap, now: SystemTime) -> Vec<Reading> {
    let shows = |name: &http::HeaderName| PREFIXES.iter().any(|p| name.as_str().starts_with(p));
    if !headers.keys().any(shows) {
        return Vec::new();
    }
    let clock = date(headers).unwrap_or(now);
    let head = Head { headers, clock };
    Meter::ALL.iter().filter_map(|it| it.read(&head)).collect()
}

struct Head<'h> {
    headers: &'h HeaderMap,
    clock: SystemTime,
}

impl Head<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?.to_str().ok()?.trim();
        (value.len() <= MAX_VALUE).then_some(value)
    }

    /// A number that counts something: finite, and not below 0.
    fn number(&self, name: &str) -> Option<f64> {
        let number: f64 = self.text(name)?.parse().ok()?;
        (number.is_finite() && number >= 0.0).then_some(number)
    }

    fn until_epoch(&self, at: f64) -> Option<Duration> {
        until(epoch(at)?, self.clock)
    }

    /// `6m0s`, seconds, seconds since 1970, or RFC 3339: each vendor has its own.
    fn reset(&self, value: &str) -> Option<Duration> {
        match value.parse::<f64>() {
            Ok(at) if at >= AN_EPOCH => self.until_epoch(at),
            Ok(number) => seconds(number),
            Err(_) => humane(value).or_else(|| {
                let at = humantime::parse_rfc3339(value).ok()?;
                until(at, self.clock)
            }),
        }
    }
}

/// How the names of all these headers begin.
const PREFIXES: [&str; 3] = ["x-codex-", "x-ratelimit-", "anthropic-ratelimit-"];
/// Bytes; the longest form is a time with its zone, 35.
const MAX_VALUE: usize = 64;
/// As seconds this is 31 years: no window is so long, so it is a date.
const AN_EPOCH: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    fn read(lines: &[(&str, &str)]) -> Vec<Reading> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        readings(&headers, now)
    }

    fn secs(time: Option<Duration>) -> Option<u64> {
        time.map(|time| time.as_secs())
    }

    #[test]
    fn both_windows_of_a_codex_account_are_read() {
        let all = read(&[
            ("x-codex-primary-used-percent", "42.5"),
            ("x-codex-primary-window-minutes", "300"),
            ("x-codex-primary-reset-after-seconds", "3600"),
            ("x-codex-secondary-used-percent", "104"),
            ("x-codex-secondary-resets-at", "1800000060"),
        ]);
        let [five_hours, week] = all[..] else {
            panic!("{all:?}")
        };
        assert_eq!(five_hours.meter, Meter::CodexPrimary);
        assert_eq!(five_hours.used_percent, Some(42.5));
        assert_eq!(secs(five_hours.window), Some(18_000));
        assert_eq!(secs(five_hours.resets_in), Some(3_600));
        assert_eq!(
            (week.used_percent, secs(week.resets_in)),
            (Some(100.0), Some(60))
        );
    }

    #[test]
    fn counts_of_both_vendors_are_read() {
        let all = read(&[
            ("x-ratelimit-limit-requests", "200"),
            ("x-ratelimit-remaining-requests", "50"),
            ("x-ratelimit-reset-requests", "6m0s"),
            ("anthropic-ratelimit-input-tokens-limit", "1000"),
            ("anthropic-ratelimit-input-tokens-remaining", "1000"),
            (
                "anthropic-ratelimit-input-tokens-reset",
                "2027-01-15T08:00:30Z",
            ),
        ]);
        let [requests, tokens] = all[..] else {
            panic!("{all:?}")
        };
        assert_eq!(
            (requests.used_percent, requests.limit),
            (Some(75.0), Some(200))
        );
        assert_eq!(secs(requests.resets_in), Some(360));
        assert_eq!(tokens.meter, Meter::InputTokens);
        assert_eq!(
            (tokens.used_percent, secs(tokens.resets_in)),
            (Some(0.0), Some(30))
        );
    }

    #[test]
    fn a_subscription_says_its_share() {
        let all = read(&[
            ("anthropic-ratelimit-unified-7d-utilization", "0.07"),
            ("anthropic-ratelimit-unified-7d-reset", "1800003600"),
        ]);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].used_percent.map(f64::round), Some(7.0));
        assert_eq!(secs(all[0].resets_in), Some(3_600));
    }

    #[test]
    fn what_makes_no_sense_says_nothing() {
        let mut count = 0;
        for value in [
            "",
            "-1",
            "NaN",
            "inf",
            "1e999",
            "soon",
            "\u{ff}",
            &"9".repeat(65),
        ] {
            assert_eq!(
                read(&[("x-codex-primary-used-percent", value)]),
                [],
                "{value}"
            );
            assert_eq!(
                read(&[("x-ratelimit-remaining-tokens", value)]),
                [],
                "{value}"
            );
            count += 1;
        }
        assert_eq!(count, 8);
        let no_limit = read(&[
            ("x-ratelimit-remaining-tokens", "5"),
            ("x-ratelimit-limit-tokens", "0"),
        ]);
        assert_eq!(no_limit[0].used_percent, None);
        assert_eq!(read(&[("x-codex-turn-state", "50")]), []);
    }

    proptest! {
        #[test]
        fn whatever_is_sent_a_reading_is_a_share_and_a_bounded_time(
            values in proptest::collection::vec("[0-9a-zTZ:.+-]{0,30}", 6),
        ) {
            let names = [
                "x-codex-primary-used-percent", "x-codex-primary-reset-after-seconds",
                "x-codex-primary-resets-at", "x-ratelimit-remaining-tokens",
                "x-ratelimit-limit-tokens", "x-ratelimit-reset-tokens",
            ];
            let lines: Vec<_> = names.into_iter().zip(values.iter().map(String::as_str)).collect();
            for reading in read(&lines) {
                prop_assert!(reading.used_percent.is_none_or(|used| (0.0..=100.0).contains(&used)));
                prop_assert!(reading.resets_in.is_none_or(|time| time <= super::super::retry_after::LONGEST));
            }
        }
    }
}
