//! How often the same line may be said.
//!
//! In an outage every request is refused, and a line for each buries the one line that says why. So a
//! kind of line, which is a place in the source, is said a few times in a second; the rest is counted,
//! and the count is said when that second is over. Nothing is lost by it: the audit has every request
//! and the metrics every attempt. Promises: no clock in here, and no more memory than there are places.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use log::Level;

/// A place in the source that says lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its module.
    pub module: &'static str,
    /// Its line.
    pub line: u32,
    /// At which level it speaks.
    pub level: Level,
}

/// What has been said of late.
#[derive(Debug, Default)]
pub struct Flood {
    seconds: HashMap<Place, Second>,
}

/// The second in which a place speaks.
#[derive(Debug)]
struct Second {
    began: Instant,
    said: u32,
    left_out: u64,
}

/// Lines of one place in a second. Chosen: a person reads no more, and sees more clearly with fewer.
pub const MOST: u32 = 10;

/// See [`MOST`].
const SECOND: Duration = Duration::from_secs(1);

impl Flood {
    /// Whether `place` may say a line now.
    pub fn admits(&mut self, place: Place, now: Instant) -> bool {
        let second = self.seconds.entry(place).or_insert(Second {
            began: now,
            said: 0,
            left_out: 0,
        });
        if second.is_over(now) && second.left_out == 0 {
            (second.began, second.said) = (now, 0);
        }
        let admitted = second.said < MOST;
        if admitted {
            second.said += 1;
        } else {
            second.left_out += 1;
        }
        admitted
    }

    /// What was left out in seconds that are over. To be asked before [`Self::admits`], so that the
    /// count stands before the next line of its place.
    pub fn overdue(&mut self, now: Instant) -> Vec<(Place, u64)> {
        let mut overdue = Vec::new();
        self.seconds.retain(|place, second| {
            let over = second.is_over(now);
            if over && second.left_out > 0 {
                overdue.push((*place, second.left_out));
            }
            !over
        });
        overdue
    }
}

impl Second {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) >= SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Place = Place {
        module: "berth::edge::failover",
        line: 1,
        level: Level::Info,
    };

    #[test]
    fn an_outage_is_told_in_ten_lines_and_a_count() {
        let (mut flood, start) = (Flood::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let said = (0..500).filter(|ms| flood.admits(REFUSED, at(*ms))).count();
        assert_eq!(said, 10);
        assert_eq!(flood.overdue(at(999)), []);
        // Another place is not held back by it.
        assert!(flood.admits(Place { line: 2, ..REFUSED }, at(999)));
        assert_eq!(flood.overdue(at(1_000)), [(REFUSED, 490)]);
        assert_eq!(flood.overdue(at(1_001)), []);
        assert!(flood.admits(REFUSED, at(1_001)));
    }

    #[test]
    fn what_is_rare_is_always_said_and_nothing_is_kept_of_it() {
        let (mut flood, start) = (Flood::default(), Instant::now());
        for second in 0..1_000 {
            let now = start + Duration::from_secs(second);
            assert_eq!(flood.overdue(now), []);
            let place = Place {
                line: second as u32,
                ..REFUSED
            };
            assert!(flood.admits(place, now));
        }
        assert_eq!(flood.seconds.len(), 1);
    }

    #[test]
    fn a_count_is_never_forgotten() {
        let (mut flood, start) = (Flood::default(), Instant::now());
        let mut admitted = 0;
        let mut counted = 0;
        for step in 0..5_000_u64 {
            let now = start + Duration::from_millis(step);
            counted += flood
                .overdue(now)
                .iter()
                .map(|(_, count)| count)
                .sum::<u64>();
            admitted += u64::from(flood.admits(REFUSED, now));
        }
        let end = start + Duration::from_secs(9);
        counted += flood
            .overdue(end)
            .iter()
            .map(|(_, count)| count)
            .sum::<u64>();
        assert_eq!((admitted, admitted + counted), (50, 5_000));
    }
}
