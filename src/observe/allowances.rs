//! What each upstream last said of its allowance, by credential.
//!
//! Told from the heads of answers as they pass, shown in `/status` with its age, and used for nothing
//! else. A meter that an answer does not show keeps what an earlier one said: vendors send some of them
//! with some answers only. Bounded by the configuration: a place for each credential and meter.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::HeaderMap;
use serde::{Deserialize, Serialize};

use crate::admission::allowance::{Meter, Reading, readings};
use crate::admission::elapsed::FromNow;
use crate::pool::CredentialId;

/// Every meter of every credential, and when it was told.
#[derive(Debug, Default)]
pub struct Allowances(Mutex<BTreeMap<(CredentialId, Meter), (Reading, Instant)>>);

/// One meter, for the process that takes over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllowanceHandover {
    /// Whose it is, by name.
    pub credential: String,
    meter: String,
    used_percent: Option<f64>,
    limit: Option<u64>,
    remaining: Option<u64>,
    window: Option<Duration>,
    resets_in: Option<Duration>,
    told: FromNow,
}

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
    pub fn heard(&self, credential: &CredentialId, headers: &HeaderMap, now: Instant) {
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
    pub fn of(&self, credential: &CredentialId, now: Instant) -> Vec<AllowanceStatus> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let meters = Meter::ALL.into_iter();
        let shown = meters.filter_map(|meter| {
            let (reading, at) = known.get(&(credential.clone(), meter))?;
            Some(aged(reading, now.saturating_duration_since(*at)))
        });
        shown.collect()
    }

    /// Everything that is known.
    pub fn export(&self, now: Instant) -> Vec<AllowanceHandover> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = known
            .iter()
            .map(|((credential, meter), (reading, at))| AllowanceHandover {
                credential: credential.to_string(),
                meter: meter.as_str().to_owned(),
                used_percent: reading.used_percent,
                limit: reading.limit,
                remaining: reading.remaining,
                window: reading.window,
                resets_in: reading.resets_in,
                told: FromNow::of(*at, now),
            });
        told.collect()
    }

    /// What another process exported. A meter that is not known here is left out.
    pub fn import<'a>(&self, told: impl Iterator<Item = &'a AllowanceHandover>, now: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for it in told {
            let meter = Meter::ALL
                .into_iter()
                .find(|meter| meter.as_str() == it.meter);
            let (Some(credential), Some(meter)) = (CredentialId::new(&it.credential), meter) else {
                continue;
            };
            let reading = Reading {
                meter,
                used_percent: it.used_percent,
                limit: it.limit,
                remaining: it.remaining,
                window: it.window,
                resets_in: it.resets_in,
            };
            known.insert((credential, meter), (reading, it.told.at(now)));
        }
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
        let start = Instant::now();
        let secs = |secs| start + Duration::from_secs(secs);
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

    #[test]
    fn the_next_process_knows_it_as_old_as_it_is() {
        let a = CredentialId::new("a").unwrap();
        let told = Allowances::default();
        let at = Instant::now();
        let shown = head(&[
            ("x-codex-primary-used-percent", "10.25"),
            ("x-codex-primary-reset-after-seconds", "100"),
        ]);
        told.heard(&a, &shown, at);
        let now = at + Duration::from_secs(30);
        let mut sent = told.export(now);
        let later = AllowanceHandover {
            meter: "of_a_later_version".to_owned(),
            ..sent[0].clone()
        };
        sent.push(later);
        let sent = serde_json::to_string(&sent).unwrap();
        let sent: Vec<AllowanceHandover> = serde_json::from_str(&sent).unwrap();
        let heard = Allowances::default();
        heard.import(sent.iter(), now);
        assert_eq!(heard.of(&a, now), told.of(&a, now));
        assert_eq!(heard.of(&a, now)[0].age_s, 30);
    }
}
