//! Requests of the last minute.
//!
//! Counted by the second, so that in any sixty seconds no more are let in than the limit, wherever the
//! sixty seconds begin. A bucket that is refilled was refused: it lets twice the limit through in a
//! minute, a full bucket and what flows in meanwhile. The price is a quarter of a KiB a client.
//!
//! Only requests that were let in count: whoever is refused and comes again is not kept out by that.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Seconds that may hold a request of the last minute: sixty, and the one that has begun.
const SECONDS: usize = 61;

const MINUTE: u64 = 60;

/// The requests of one client.
#[derive(Debug)]
pub struct Minute {
    /// What seconds are counted from.
    origin: Instant,
    /// The second that is counted now.
    current: u64,
    /// By second, modulo [`SECONDS`].
    counts: [u32; SECONDS],
}

/// Requests and the age of the second they came in: for the process that takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aged {
    age: u64,
    count: u32,
}

impl Minute {
    /// No request yet.
    pub fn new(now: Instant) -> Minute {
        Minute {
            origin: now,
            current: 0,
            counts: [0; SECONDS],
        }
    }

    /// Counts a request, unless there are `limit` already; then how long until there are fewer.
    pub fn ask(&mut self, limit: Option<NonZeroU32>, now: Instant) -> Result<(), Duration> {
        let used = self.used(now);
        if let Some(limit) = limit
            && used >= limit.get()
        {
            return Err(self.until_gone(used - limit.get() + 1, now));
        }
        self.add(1, now);
        Ok(())
    }

    /// Counts requests that were let in elsewhere.
    pub fn add(&mut self, requests: u32, now: Instant) {
        self.pass(now);
        self.add_at(self.current, requests);
    }

    /// How many there were in the last minute.
    pub fn used(&mut self, now: Instant) -> u32 {
        self.pass(now);
        let sum = |sum: u32, count: &u32| sum.saturating_add(*count);
        self.counts.iter().fold(0, sum)
    }

    /// For the process that takes over.
    pub fn hand_over(&mut self, now: Instant) -> Vec<Aged> {
        self.pass(now);
        let ages = 0..SECONDS as u64;
        let aged = ages.filter_map(|age| {
            let count = self.count(self.current.checked_sub(age)?);
            (count > 0).then_some(Aged { age, count })
        });
        aged.collect()
    }

    /// What another process has counted.
    pub fn take_over(&mut self, told: &[Aged], now: Instant) {
        self.pass(now);
        // A second here begins at another time than there, so the request counts for a moment longer.
        for aged in told.iter().take(SECONDS) {
            let ages = aged.age.min(MINUTE);
            match self.current.checked_sub(ages) {
                Some(second) => self.add_at(second, aged.count),
                None => {
                    // From before this process: seconds are counted from further back.
                    let Some(earlier) = self.origin.checked_sub(Duration::from_secs(ages)) else {
                        continue;
                    };
                    self.origin = earlier;
                    self.turn(ages);
                    self.current += ages;
                    self.add_at(self.current - ages, aged.count);
                }
            }
        }
    }

    /// The numbers of all seconds grow by so much.
    fn turn(&mut self, by: u64) {
        self.counts.rotate_right(index(by));
    }

    fn pass(&mut self, now: Instant) {
        let second = now.saturating_duration_since(self.origin).as_secs();
        let gone = second.saturating_sub(self.current).min(SECONDS as u64);
        for ahead in 1..=gone {
            if let Some(count) = self.counts.get_mut(index(self.current + ahead)) {
                *count = 0;
            }
        }
        self.current = self.current.max(second);
    }

    fn until_gone(&self, mut requests: u32, now: Instant) -> Duration {
        let oldest = self.current.saturating_sub(MINUTE);
        for second in oldest..=self.current {
            let count = self.count(second);
            if count >= requests {
                // A second is over when the last request that it may hold is a minute old.
                let end = Duration::from_secs(second + 1 + MINUTE);
                return (self.origin + end).saturating_duration_since(now);
            }
            requests -= count;
        }
        Duration::from_secs(MINUTE)
    }

    fn count(&self, second: u64) -> u32 {
        self.counts.get(index(second)).copied().unwrap_or(0)
    }

    fn add_at(&mut self, second: u64, requests: u32) {
        if let Some(count) = self.counts.get_mut(index(second)) {
            *count = count.saturating_add(requests);
        }
    }
}

fn index(second: u64) -> usize {
    (second % SECONDS as u64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIXTY: Duration = Duration::from_secs(60);

    fn limit(requests: u32) -> Option<NonZeroU32> {
        NonZeroU32::new(requests)
    }

    #[test]
    fn whoever_has_asked_too_much_is_told_when_it_may_ask_again() {
        let start = Instant::now();
        let mut minute = Minute::new(start);
        let later = start + Duration::from_millis(2_500);
        assert_eq!(minute.ask(limit(2), start), Ok(()));
        assert_eq!(minute.ask(limit(2), later), Ok(()));
        let after = minute.ask(limit(2), later).unwrap_err();
        assert_eq!(after, Duration::from_millis(58_500));
        let almost = later + after - Duration::from_millis(1);
        assert!(minute.ask(limit(2), almost).is_err());
        assert_eq!(minute.ask(limit(2), later + after), Ok(()));
        assert_eq!(minute.used(later + after), 2);
        assert_eq!(minute.used(later + 10 * SIXTY), 0);
    }

    #[test]
    fn without_a_limit_nothing_is_refused_and_all_is_counted() {
        let start = Instant::now();
        let mut minute = Minute::new(start);
        for _ in 0..10_000 {
            assert_eq!(minute.ask(None, start), Ok(()));
        }
        assert_eq!(minute.used(start), 10_000);
        minute.add(u32::MAX, start);
        assert_eq!(minute.used(start), u32::MAX);
    }

    #[test]
    fn the_next_process_goes_on_with_the_minute() {
        let start = Instant::now();
        let mut old = Minute::new(start);
        for second in [0, 10, 59] {
            old.ask(None, start + Duration::from_secs(second)).unwrap();
        }
        let now = start + Duration::from_millis(59_900);
        let mut new = Minute::new(now);
        new.take_over(&old.hand_over(now), now);
        assert_eq!(new.used(now), 3);
        assert!(new.ask(limit(3), now).is_err());
        let ten_later = now + Duration::from_secs(13);
        assert_eq!(new.used(ten_later), 1, "two of them are a minute old");
    }

    proptest! {
        /// Against every request written down: never more than the limit in any sixty seconds, and
        /// nobody is refused for whom sixty-one seconds hold fewer.
        #[test]
        fn no_sixty_seconds_hold_more_than_the_limit(
            most in 1_u32..20,
            steps in prop::collection::vec(0_u64..20_000, 1..300),
        ) {
            let mut now = Instant::now();
            let mut minute = Minute::new(now);
            let mut let_in: Vec<Instant> = Vec::new();
            for millis in steps {
                now += Duration::from_millis(millis);
                let within = |time: Duration| let_in.iter().filter(|at| now - **at < time).count();
                let (sixty, more) = (within(SIXTY), within(SIXTY + Duration::from_secs(1)));
                match minute.ask(limit(most), now) {
                    Ok(()) => {
                        prop_assert!(sixty < most as usize);
                        let_in.push(now);
                    }
                    Err(after) => {
                        prop_assert!(more >= most as usize);
                        prop_assert!(after > Duration::ZERO && after <= SIXTY + Duration::from_secs(1));
                        // It is true: then, and not a millisecond before.
                        let mut copy = Minute { ..minute };
                        prop_assert!(copy.ask(limit(most), now + after - Duration::from_millis(1)).is_err());
                        prop_assert!(copy.ask(limit(most), now + after).is_ok());
                    }
                }
            }
        }

        /// What is handed over is neither lost nor counted twice.
        #[test]
        fn a_handover_keeps_the_count(
            steps in prop::collection::vec(0_u64..5_000, 1..100),
            lives in 0_u64..200_000,
        ) {
            let start = Instant::now();
            let mut old = Minute::new(start);
            let mut now = start;
            for millis in steps {
                now += Duration::from_millis(millis);
                old.add(1, now);
            }
            let mut new = Minute::new(now.checked_sub(Duration::from_millis(lives)).unwrap_or(now));
            new.take_over(&old.hand_over(now), now);
            prop_assert_eq!(new.used(now), old.used(now));
        }
    }
}
