//! One budget for the bytes that requests keep: bodies for another attempt, openings held back.
//!
//! Each request alone is bounded, but a few hundred large ones together are not: agents send up to
//! 40 MiB each. The budget is counted, never allocated; what does not fit is refused at once, and the
//! caller streams instead of keeping. A semaphore was refused: waiting for memory while holding some
//! is how such a budget locks up. The limit is never exceeded, not even for a moment, and no client
//! gets more than half while others ask (`admission::share`).

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::lock;
use crate::admission::share::{Askers, Client, Shared, half};

/// Bytes that may be kept by all requests together.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Counter>);

/// Bytes counted against a [`MemoryBudget`] for a client until dropped.
#[derive(Debug)]
pub struct Reservation {
    counter: Arc<Counter>,
    client: Client,
    bytes: usize,
}

/// There is no room for so many more bytes, or not for this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// The bytes asked for.
    pub asked: usize,
    /// The limit of the budget.
    pub limit: usize,
}

#[derive(Debug)]
struct Counter {
    limit: usize,
    holders: Mutex<Holders>,
}

#[derive(Debug, Default)]
struct Holders {
    used: usize,
    /// Those that hold something: no more than there are requests.
    of: HashMap<Client, usize>,
    askers: Askers,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> MemoryBudget {
        MemoryBudget(Arc::new(Counter {
            limit,
            holders: Mutex::default(),
        }))
    }

    /// A reservation of nothing yet, for `client`.
    pub fn reservation(&self, client: Client) -> Reservation {
        Reservation {
            counter: Arc::clone(&self.0),
            client,
            bytes: 0,
        }
    }

    /// Bytes counted now.
    pub fn used(&self) -> usize {
        lock(&self.0.holders).used
    }

    /// Bytes that may be counted at most.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Whether new requests of `client` are turned away: nine tenths are in use, and it is not another
    /// client alone that has more than its half of them.
    pub fn turns_away(&self, client: Client, now: Instant) -> bool {
        let limit = self.0.limit;
        let mut holders = lock(&self.0.holders);
        holders.askers.asks(client, now);
        let half = half(limit as u64);
        let greedy = |(_, bytes): &(&Client, &usize)| **bytes as u64 > half;
        holders.used >= limit - limit / 10
            && (holders.of.iter().find(greedy)).is_none_or(|(greedy, _)| *greedy == client)
    }
}

impl Reservation {
    /// Counts `more` bytes with the others; on an error nothing has changed.
    pub fn grow(&mut self, more: usize, now: Instant) -> Result<(), Full> {
        if !self.counter.add(self.client, more, now) {
            return Err(Full {
                asked: more,
                limit: self.counter.limit,
            });
        }
        // The counter's sum holds this one and fits, so this one fits too.
        self.bytes += more;
        Ok(())
    }

    /// Bytes of this reservation.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut holders = lock(&self.counter.holders);
        holders.used -= self.bytes;
        if let Some(bytes) = holders.of.get_mut(&self.client) {
            *bytes -= self.bytes;
            if *bytes == 0 {
                holders.of.remove(&self.client);
            }
        }
    }
}

impl Counter {
    fn add(&self, client: Client, bytes: usize, now: Instant) -> bool {
        let mut holders = lock(&self.holders);
        let others = holders.askers.asks(client, now);
        let mine = holders.of.get(&client).copied().unwrap_or_default();
        let shared = Shared {
            limit: self.limit as u64,
            taken: holders.used as u64,
        };
        let granted = shared.grants(mine as u64, bytes as u64, others);
        if granted && bytes > 0 {
            holders.used += bytes;
            holders.of.insert(client, mine + bytes);
        }
        granted
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no room for {} more bytes of this client within {} (limits.memory)",
            self.asked, self.limit
        )
    }
}

impl std::error::Error for Full {}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u64) -> Client {
        Client::hashed(number)
    }

    #[test]
    fn a_dropped_reservation_gives_back_all_that_it_grew_to() {
        let (budget, now) = (MemoryBudget::new(100), Instant::now());
        let mut kept = budget.reservation(client(1));
        kept.grow(10, now).unwrap();
        kept.grow(30, now).unwrap();
        assert_eq!((budget.used(), kept.bytes()), (40, 40));
        drop(kept);
        assert_eq!(budget.used(), 0);
        assert!(lock(&budget.0.holders).of.is_empty());
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let (budget, now) = (MemoryBudget::new(100), Instant::now());
        let mut kept = budget.reservation(client(1));
        kept.grow(60, now).unwrap();
        let mut other = budget.reservation(client(1));
        assert!(other.grow(41, now).is_err());
        assert!(other.grow(usize::MAX, now).is_err());
        let full = kept.grow(41, now).unwrap_err();
        assert_eq!((full.asked, full.limit), (41, 100));
        assert_eq!((budget.used(), kept.bytes()), (60, 60));
        kept.grow(40, now).unwrap();
    }

    #[test]
    fn from_nine_tenths_on_requests_are_turned_away() {
        let (budget, now) = (MemoryBudget::new(1000), Instant::now());
        let mut kept: Vec<_> = (0..2).map(|it| budget.reservation(client(it))).collect();
        kept[0].grow(500, now).unwrap();
        kept[1].grow(399, now).unwrap();
        assert!(!budget.turns_away(client(0), now));
        kept[1].grow(1, now).unwrap();
        // Nobody has more than half: this is everybody's traffic.
        assert!((0..3).all(|it| budget.turns_away(client(it), now)));
        kept.pop();
        assert!(!budget.turns_away(client(0), now));
    }

    #[test]
    fn whoever_has_more_than_half_is_turned_away_and_nobody_else() {
        let (budget, now) = (MemoryBudget::new(1000), Instant::now());
        let mut much = budget.reservation(client(0));
        much.grow(900, now).unwrap();
        assert!(much.grow(1, now).is_err(), "the last tenth is for others");
        assert!(budget.turns_away(client(0), now));
        assert!(!budget.turns_away(client(1), now));
        let mut little = budget.reservation(client(1));
        little.grow(100, now).unwrap();
        assert!(little.grow(1, now).is_err(), "there is no more");
        drop(much);
        let mut again = budget.reservation(client(0));
        assert!(again.grow(501, now).is_err(), "another one asks");
        again.grow(500, now).unwrap();
    }

    #[test]
    fn sixteen_threads_never_exceed_the_limit() {
        let (budget, now) = (MemoryBudget::new(1000), Instant::now());
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let budget = &budget;
                scope.spawn(move || {
                    for round in 0..2_000 {
                        let mut kept = budget.reservation(client(thread % 3));
                        if kept.grow(37 + thread as usize, now).is_ok() {
                            let _ = kept.grow(round % 90, now);
                        }
                        assert!(budget.used() <= 1000);
                    }
                });
            }
        });
        assert_eq!(budget.used(), 0);
    }
}
