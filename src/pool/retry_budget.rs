//! How many second and later attempts a route may make.
//!
//! A retry that is harmless alone doubles the load of an upstream that is already short of seats.
//! So retries are paid for by first attempts: at most `ratio` of them within ten seconds, and
//! `min_per_second` where traffic is too thin for a ratio to mean anything. A token bucket was
//! refused: tokens saved in a quiet hour would all be spent in the first second of an outage.
//! The window moves in steps of a second, so it spans between nine and ten seconds. No client gets
//! more than half while others ask (`admission::share`): a loop spends its own half, not the route's.

use std::sync::Mutex;
use std::time::Instant;

use super::lock;
use crate::admission::policy::RetryBudget;
use crate::admission::recent::Recent;
use crate::admission::share::{Askers, Client, Shared};

/// The attempts of one route within the last ten seconds.
#[derive(Debug)]
pub struct RetryWindow {
    budget: RetryBudget,
    spending: Mutex<Spending>,
}

/// Seconds in the window, one bucket each (the policy's number).
const SECONDS: usize = 10;

/// Clients whose spending is remembered, the latest. Chosen: more than retry within ten seconds, and
/// 200 KiB for each route.
const CLIENTS: usize = 1024;

#[derive(Debug)]
struct Spending {
    of_all: Buckets,
    /// What each client spent of it.
    of: Recent<Client, Buckets>,
    askers: Askers,
}

#[derive(Clone, Debug)]
struct Buckets {
    origin: Instant,
    /// The newest second, counted from `origin`.
    newest: u64,
    /// By second modulo their number.
    buckets: [Bucket; SECONDS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    first: u64,
    later: u64,
}

impl RetryWindow {
    /// An empty window.
    pub fn new(budget: RetryBudget, now: Instant) -> RetryWindow {
        RetryWindow {
            budget,
            spending: Mutex::new(Spending {
                of_all: Buckets::new(now),
                of: Recent::new(CLIENTS),
                askers: Askers::default(),
            }),
        }
    }

    /// A first attempt is made.
    pub fn deposit(&self, now: Instant) {
        let mut spending = lock(&self.spending);
        spending.of_all.update(now, |bucket| bucket.first += 1);
    }

    /// Whether one more later attempt may be made for `client`; if so, it is counted.
    pub fn withdraw(&self, client: Client, now: Instant) -> bool {
        let mut spending = lock(&self.spending);
        let Spending { of_all, of, askers } = &mut *spending;
        let others = askers.asks(client, now);
        of_all.turn_to(now);
        let sum = of_all.sum();
        let always = u64::from(self.budget.min_per_second) * SECONDS as u64;
        let earned = self.budget.ratio * sum.first as f64;
        let shared = Shared {
            // Toward zero, and no number beyond the range is one.
            limit: always.max(earned as u64),
            taken: sum.later,
        };
        let mine = of.entry(client, || Buckets::new(now));
        mine.turn_to(now);
        let granted = shared.grants(mine.sum().later, 1, others);
        if granted {
            mine.update(now, |bucket| bucket.later += 1);
            of_all.update(now, |bucket| bucket.later += 1);
        }
        granted
    }
}

impl Buckets {
    fn new(now: Instant) -> Buckets {
        Buckets {
            origin: now,
            newest: 0,
            buckets: [Bucket::default(); SECONDS],
        }
    }

    /// Empties the seconds that have gone by. A time before the newest one counts as the newest:
    /// two threads may well come here in the other order.
    fn turn_to(&mut self, now: Instant) {
        let second = now.saturating_duration_since(self.origin).as_secs();
        let gone = second.saturating_sub(self.newest).min(SECONDS as u64);
        self.newest = self.newest.max(second);
        for back in 0..gone {
            *self.at(self.newest - back) = Bucket::default();
        }
    }

    fn update(&mut self, now: Instant, change: impl FnOnce(&mut Bucket)) {
        self.turn_to(now);
        change(self.at(self.newest));
    }

    fn at(&mut self, second: u64) -> &mut Bucket {
        let index = (second % SECONDS as u64) as usize;
        #[expect(clippy::indexing_slicing, reason = "taken modulo the length")]
        &mut self.buckets[index]
    }

    fn sum(&self) -> Bucket {
        self.buckets
            .iter()
            .fold(Bucket::default(), |sum, bucket| Bucket {
                first: sum.first + bucket.first,
                later: sum.later + bucket.later,
            })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(SECONDS as u64);

    fn window(ratio: f64, min_per_second: u32) -> (RetryWindow, Instant) {
        let now = Instant::now();
        let budget = RetryBudget {
            ratio,
            min_per_second,
        };
        (RetryWindow::new(budget, now), now)
    }

    /// What a crowd gets: nobody in it comes near half.
    fn withdrawn(window: &RetryWindow, now: Instant, tries: u64) -> usize {
        let tries = (100..100 + tries).map(Client::hashed);
        tries.filter(|it| window.withdraw(*it, now)).count()
    }

    const A: Client = Client::hashed(1);
    const B: Client = Client::hashed(2);

    #[test]
    fn thin_traffic_has_its_minimum() {
        let (window, now) = window(0.2, 3);
        window.deposit(now);
        assert_eq!(withdrawn(&window, now, 100), 30);
    }

    #[test]
    fn more_is_earned_by_first_attempts() {
        let (window, now) = window(0.5, 1);
        for _ in 0..100 {
            window.deposit(now);
        }
        assert_eq!(withdrawn(&window, now, 100), 50);
    }

    #[test]
    fn nothing_at_all_means_no_retries() {
        let (window, now) = window(0.0, 0);
        window.deposit(now);
        assert!(!window.withdraw(A, now));
    }

    #[test]
    fn what_was_spent_comes_back_after_the_window_and_not_before() {
        let (window, now) = window(0.0, 1);
        assert_eq!(withdrawn(&window, now, 100), 10);
        assert!(!window.withdraw(A, now + WINDOW - Duration::from_millis(1)));
        assert_eq!(withdrawn(&window, now + WINDOW, 100), 10);
    }

    #[test]
    fn first_attempts_are_forgotten_after_the_window() {
        let (window, now) = window(1.0, 0);
        window.deposit(now);
        assert!(!window.withdraw(A, now + WINDOW));
        window.deposit(now + WINDOW);
        assert!(window.withdraw(A, now + WINDOW * 2 - Duration::from_millis(1)));
    }

    #[test]
    fn a_long_silence_and_a_time_from_the_past_do_no_harm() {
        let (window, now) = window(1.0, 0);
        let later = now + Duration::from_secs(86_400);
        window.deposit(later);
        assert!(window.withdraw(A, now));
        assert!(!window.withdraw(A, later));
    }

    fn by(window: &RetryWindow, client: Client, now: Instant) -> usize {
        (0..100).filter(|_| window.withdraw(client, now)).count()
    }

    #[test]
    fn one_client_alone_leaves_a_tenth_to_the_next_and_then_has_its_half() {
        let (window, now) = window(0.0, 2);
        assert_eq!(by(&window, A, now), 18);
        assert_eq!(by(&window, B, now), 2);
        let later = now + WINDOW;
        assert_eq!(by(&window, A, later), 10, "B asked lately");
        assert_eq!(by(&window, B, later), 10);
        let alone = later + WINDOW + Duration::from_secs(1);
        assert_eq!(by(&window, A, alone), 18);
    }

    #[test]
    fn what_a_client_spent_comes_back_to_it_after_the_window() {
        let (window, now) = window(0.0, 2);
        window.withdraw(B, now);
        assert_eq!(by(&window, A, now), 10);
        let soon = now + Duration::from_secs(5);
        window.withdraw(B, soon);
        assert_eq!(by(&window, A, soon), 0);
        assert_eq!(by(&window, A, now + WINDOW), 10);
    }
}
