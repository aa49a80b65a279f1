//! How slowly a request's body may come.
//!
//! A limit between two bytes alone lets a client hold a place for ever with one byte a minute. A limit
//! on the whole alone either cuts a large body on a slow line or is no limit for a small one. So the
//! time grows with what has come, as in Apache's `mod_reqtimeout`: a first time that is given to
//! everybody, and then a lowest rate.

use std::time::{Duration, Instant};

/// Bytes in a second. Chosen: half of what an EDGE telephone sends; 64 MiB have more than two hours.
const LOWEST_RATE: u64 = 8 * 1024;

/// A body on its way here.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    began: Instant,
    /// When something came last.
    last: Instant,
    received: u64,
    /// `limits.client_timeout`.
    patience: Duration,
}

impl Pace {
    /// Of a body that begins to come now.
    pub fn new(patience: Duration, now: Instant) -> Pace {
        Pace {
            began: now,
            last: now,
            received: 0,
            patience,
        }
    }

    /// Some of it came.
    pub fn came(&mut self, bytes: usize, now: Instant) {
        self.received = self.received.saturating_add(bytes as u64);
        self.last = now;
    }

    /// When more must have come.
    pub fn until(&self) -> Instant {
        let whole = self.began + time_for(self.received, self.patience);
        whole.min(self.last + self.patience)
    }
}

/// What a client has for the first `received` bytes of a body.
fn time_for(received: u64, patience: Duration) -> Duration {
    patience + Duration::from_secs(received / LOWEST_RATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(75);

    /// How long a body of `size` bytes lasts that comes in pieces, one every so often; `None` where it
    /// comes whole.
    fn cut_after(size: usize, piece: usize, every: Duration) -> Option<Duration> {
        let start = Instant::now();
        let (mut pace, mut now, mut left) = (Pace::new(PATIENCE, start), start, size);
        while left > 0 {
            now += every;
            if now > pace.until() {
                return Some(pace.until() - start);
            }
            pace.came(piece.min(left), now);
            left = left.saturating_sub(piece);
        }
        None
    }

    #[test]
    fn a_large_body_on_a_slow_line_comes_whole() {
        // A modem of 128 kbit/s, and one that stalls for a minute after each MiB.
        assert_eq!(cut_after(64 << 20, 16 << 10, Duration::from_secs(1)), None);
        assert_eq!(cut_after(64 << 20, 1 << 20, Duration::from_secs(60)), None);
    }

    #[test]
    fn a_body_that_drips_is_cut_however_small_it_is() {
        let drips = |every| cut_after(64 << 10, 1, Duration::from_secs(every));
        for every in [1, 10, 50] {
            assert!(drips(every).is_some_and(|cut| cut <= PATIENCE), "{every}");
        }
        // Just below the lowest rate: it lasts, and not for ever.
        let slow = cut_after(64 << 20, 8_000, Duration::from_secs(1)).unwrap();
        assert!(slow < Duration::from_secs(3_600), "{slow:?}");
    }

    #[test]
    fn silence_is_cut_after_the_patience_whatever_came_before() {
        let start = Instant::now();
        let mut pace = Pace::new(PATIENCE, start);
        pace.came(64 << 20, start);
        assert_eq!(pace.until(), start + PATIENCE);
    }
}
