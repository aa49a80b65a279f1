//! Times as they travel from one process to the next.
//!
//! A monotonic clock means nothing elsewhere, and the wall's may jump. So a time travels as what it is
//! from now: nanoseconds, ahead or ago, so that nothing is due a little earlier there than here.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Nanoseconds from now; below 0 is ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FromNow(i64);

/// Farther than that no time is believed (chosen: a year).
const FARTHEST: i64 = 366 * 24 * 3600 * 1_000_000_000;

impl FromNow {
    /// Of a time.
    pub fn of(time: Instant, now: Instant) -> FromNow {
        let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(FARTHEST);
        FromNow(match time.checked_duration_since(now) {
            Some(ahead) => nanos(ahead),
            None => -nanos(now.saturating_duration_since(time)),
        })
    }

    /// The time again, by this process's clock; `now` where that clock does not reach so far.
    pub fn at(self, now: Instant) -> Instant {
        let span = Duration::from_nanos(self.0.unsigned_abs().min(FARTHEST.unsigned_abs()));
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
        for nanos in [-5_000_000_000, -1, 0, 1, 90_000_000_000] {
            let time = FromNow(nanos).at(here);
            assert_eq!(FromNow::of(time, here), FromNow(nanos));
            let moved = FromNow::of(time, here).at(there);
            assert_eq!(moved, time + Duration::from_secs(7));
        }
        for nanos in [i64::MIN, i64::MAX] {
            FromNow(nanos).at(here);
        }
    }
}
