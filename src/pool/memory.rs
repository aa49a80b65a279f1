//! One budget for the bytes that requests keep: bodies for another attempt, openings held back.
//!
//! Each request alone is bounded, but a few hundred large ones together are not: agents send up to
//! 40 MiB each. The budget is counted, never allocated; what does not fit is refused at once, and the
//! caller streams instead of keeping. A semaphore was refused: waiting for memory while holding some
//! is how such a budget locks up. The limit is never exceeded, not even for a moment.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that may be kept by all requests together.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Counter>);

/// Bytes counted against a [`MemoryBudget`] until dropped.
#[derive(Debug)]
pub struct Reservation {
    counter: Arc<Counter>,
    bytes: usize,
}

/// There is no room for so many more bytes.
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
    used: AtomicUsize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> MemoryBudget {
        MemoryBudget(Arc::new(Counter {
            limit,
            used: AtomicUsize::new(0),
        }))
    }

    /// Counts `bytes`, or `None` where they do not fit.
    pub fn reserve(&self, bytes: usize) -> Option<Reservation> {
        self.0.add(bytes).then(|| Reservation {
            counter: Arc::clone(&self.0),
            bytes,
        })
    }

    /// Bytes counted now.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that may be counted at most.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Whether nine tenths are in use, from which on new requests are turned away.
    pub fn is_tight(&self) -> bool {
        self.used() >= self.limit() - self.limit() / 10
    }
}

impl Reservation {
    /// Counts `more` bytes with the others; on an error nothing has changed.
    pub fn grow(&mut self, more: usize) -> Result<(), Full> {
        if !self.counter.add(more) {
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
        self.counter.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Counter {
    fn add(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        // Relaxed: only the count itself is shared, no other memory is published by it.
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_ok()
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no room for {} more bytes within {} (limits.memory)",
            self.asked, self.limit
        )
    }
}

impl std::error::Error for Full {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_reservation_gives_back_all_that_it_grew_to() {
        let budget = MemoryBudget::new(100);
        let mut kept = budget.reserve(10).unwrap();
        kept.grow(30).unwrap();
        assert_eq!((budget.used(), kept.bytes()), (40, 40));
        drop(kept);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let budget = MemoryBudget::new(100);
        let mut kept = budget.reserve(60).unwrap();
        assert!(budget.reserve(41).is_none());
        assert!(budget.reserve(usize::MAX).is_none());
        let full = kept.grow(41).unwrap_err();
        assert_eq!((full.asked, full.limit), (41, 100));
        assert_eq!((budget.used(), kept.bytes()), (60, 60));
        kept.grow(40).unwrap();
    }

    #[test]
    fn it_is_tight_from_nine_tenths_on() {
        let budget = MemoryBudget::new(1000);
        let mut kept = budget.reserve(899).unwrap();
        assert!(!budget.is_tight());
        kept.grow(1).unwrap();
        assert!(budget.is_tight());
        drop(kept);
        assert!(!budget.is_tight());
    }

    #[test]
    fn sixteen_threads_never_exceed_the_limit() {
        let budget = MemoryBudget::new(1000);
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let budget = &budget;
                scope.spawn(move || {
                    for round in 0..2_000 {
                        let mut kept = budget.reserve(37 + thread);
                        if let Some(kept) = &mut kept {
                            let _ = kept.grow(round % 90);
                        }
                        assert!(budget.used() <= 1000);
                    }
                });
            }
        });
        assert_eq!(budget.used(), 0);
    }
}
