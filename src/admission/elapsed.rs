//! Times as they travel from one process to the next.
//!
//! A monotonic clock means nothing elsewhere, and the wall's may jump. So a time travels as what it is
//! from now: milliseconds, ahead or ago.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Milliseconds from now; below 0 is ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FromNow(i64);

/// Farther than that no time is believed (chosen: a year).
const FARTHEST: i64 = 366 * 24 * 3600 * 1000;

impl FromNow {
    /// Of a time.
    pub fn of(time: Instant, now: Instant) -> FromNow {
        let millis = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(FARTHEST);
        FromNow(match time.checked_duration_since(now) {
            Some(ahead) => millis(ahead),
            None => -millis(now.saturating_duration_since(time)),
        })
    }

    /// The time again, by this process's clock; `now` where that clock does not reach so far.
    pub fn at(self, now: Instant) -> Instant {
        let span = Duration::from_millis(self.0.unsigned_abs().min(FARTHEST.unsigned_abs()));
        let time = match self.0 < 0 {
            true => now.checked_sub(span),
            false => now.checked_add(span),
        };
        time.unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_as_far_by_another_clock_and_none_is_out_of_reach() {
        let here = Instant::now();
        let there = here + Duration::from_secs(7);
        for millis in [-5_000, -1, 0, 1, 90_000] {
            let time = FromNow(millis).at(here);
            assert_eq!(FromNow::of(time, here), FromNow(millis));
            let moved = FromNow::of(time, here).at(there);
            assert_eq!(moved, time + Duration::from_secs(7));
        }
        for millis in [i64::MIN, i64::MAX] {
            FromNow(millis).at(here);
        }
    }
}
