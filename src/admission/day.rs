//! A day of the calendar, in UTC: when a rule ends.
//!
//! A rule made for an incident ends with a day and not with a moment, because nobody can say the
//! moment in advance. Which day it is comes from outside, like every time in this folder.

use std::fmt;
use std::time::{Duration, SystemTime};

/// A day, counted from 1970-01-01 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(u64);

const SECONDS: u64 = 24 * 3600;

impl Day {
    /// The day of a moment; the first day for what is before it.
    pub fn of(moment: SystemTime) -> Day {
        let since = moment.duration_since(SystemTime::UNIX_EPOCH);
        Day(since.unwrap_or_default().as_secs() / SECONDS)
    }

    /// The day that `YYYY-MM-DD` names, from 1970 on.
    pub fn parse(text: &str) -> Option<Day> {
        let form = text.len() == 10
            && text.bytes().enumerate().all(|(at, b)| match at {
                4 | 7 => b == b'-',
                _ => b.is_ascii_digit(),
            });
        let midnight = || humantime::parse_rfc3339(&format!("{text}T00:00:00Z")).ok();
        form.then(midnight).flatten().map(Day::of)
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let midnight = SystemTime::UNIX_EPOCH + Duration::from_secs(self.0 * SECONDS);
        let text = humantime::format_rfc3339_seconds(midnight).to_string();
        f.write_str(text.split('T').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_written_as_it_is_read() {
        for text in ["1970-01-01", "2024-02-29", "2026-11-29", "9999-12-31"] {
            assert_eq!(Day::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_day_is_not_read() {
        for text in [
            "",
            "2027-02-29",
            "2027-13-01",
            "2027-00-10",
            "2027-1-1",
            "27-01-01",
            "2027/01/01",
            "2027-01-01Z",
            " 2027-01-1",
            "1969-12-31",
            "+027-01-01",
        ] {
            assert_eq!(Day::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_day_ends_at_midnight_in_utc() {
        let at = |text: &str| Day::of(humantime::parse_rfc3339(text).unwrap());
        let day = Day::parse("2027-03-01").unwrap();
        assert_eq!(at("2027-03-01T23:59:59.999Z"), day);
        assert!(at("2027-03-02T00:00:00Z") > day);
        assert_eq!(
            Day::of(SystemTime::UNIX_EPOCH - Duration::from_secs(1)),
            Day(0)
        );
    }
}
