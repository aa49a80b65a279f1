//! What each upstream last said of its allowance, by credential.
//!
//! Told from the heads of answers as they pass, shown in `/status` with its age, and used for nothing
//! else. A meter that an answer does not show keeps what an earlier one said: vendors send some of them
//! with some answers only. Bounded by the configuration: a place for each credential and meter.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use serde::Serialize;

use crate::admission::allowance::{Meter, Reading, readings};
use crate::pool::CredentialId;

/// Every meter of every credential. Times are since any fixed moment, the same in every call.
#[derive(Debug, Default)]
pub struct Allowances(Mutex<BTreeMap<(CredentialId, Meter), (Reading, Duration)>>);

/// One meter, as `/status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AllowanceStatus {
    /// What is counted.
    pub meter: &'static str,
    /// How much of it is used, to a tenth of a percent.
    pub used_percent: Option<f64>,
    /// How many there are in all.
    pub limit: Option<u64>,
    /// How many are left.
    pub remaining: Option<u64>,
    /// Seconds of the window.
    pub window_s: Option<u64>,
    /// Seconds until it begins anew; 0 where that is past, and the rest out of date.
    pub resets_in_s: Option<u64>,
    /// Seconds since the upstream said so.
    pub age_s: u64,
}

impl Allowances {
    /// An answer of `credential` has this head.
    pub fn heard(&self, credential: &CredentialId, headers: &HeaderMap, now: Duration) {
        let told = readings(headers, SystemTime::now());
        if told.is_empty() {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for reading in told {
            known.insert((credential.clone(), reading.meter), (reading, now));
        }
    }

    /// What is known of `credential`.
    pub fn of(&self, credential: &CredentialId, now: Duration) -> Vec<AllowanceStatus> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let meters = Meter::ALL.into_iter();
        let shown = meters.filter_map(|meter| {
            let (reading, at) = known.get(&(credential.clone(), meter))?;
            Some(aged(reading, now.saturating_sub(*at)))
        });
        shown.collect()
    }
}

fn aged(reading: &Reading, age: Duration) -> AllowanceStatus {
    let left = reading.resets_in.map(|time| time.saturating_sub(age));
    AllowanceStatus {
        meter: reading.meter.as_str(),
        used_percent: reading
            .used_percent
            .map(|used| (used * 10.0).round() / 10.0),
        limit: reading.limit,
        remaining: reading.remaining,
        window_s: reading.window.map(|time| time.as_secs()),
        resets_in_s: left.map(|time| time.as_secs()),
        age_s: age.as_secs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let lines = lines.iter().map(|(name, value)| {
            let value = http::HeaderValue::from_static(value);
            (http::HeaderName::from_static(name), value)
        });
        lines.collect()
    }

    #[test]
    fn each_meter_is_as_old_as_the_last_answer_that_showed_it() {
        let secs = Duration::from_secs;
        let (a, b) = (
            CredentialId::new("a").unwrap(),
            CredentialId::new("b").unwrap(),
        );
        let allowances = Allowances::default();
        let both = head(&[
            ("x-codex-primary-used-percent", "10"),
            ("x-codex-primary-reset-after-seconds", "100"),
            ("x-ratelimit-remaining-tokens", "7"),
        ]);
        allowances.heard(&a, &both, secs(5));
        let one = head(&[("x-ratelimit-remaining-tokens", "6")]);
        allowances.heard(&a, &one, secs(50));
        allowances.heard(&a, &HeaderMap::new(), secs(60));
        let shown = allowances.of(&a, secs(65));
        let shown: Vec<_> = shown
            .iter()
            .map(|it| (it.meter, it.age_s, it.resets_in_s, it.remaining))
            .collect();
        let expected = [
            ("codex_primary", 60, Some(40), None),
            ("tokens", 15, None, Some(6)),
        ];
        assert_eq!(shown, expected);
        assert_eq!(allowances.of(&a, secs(500))[0].resets_in_s, Some(0));
        assert_eq!(allowances.of(&b, secs(65)), []);
    }
}
