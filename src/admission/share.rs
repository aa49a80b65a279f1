//! What one client may have of something that all share.
//!
//! Memory, retries and places to wait are limited for all clients together, so one client in a loop
//! could take them from everybody. The rule: no client has more than half while others ask. It is
//! about clients, not requests, and it costs nothing while only one is there.
//!
//! What has been given cannot always be taken back (a body that is kept, an attempt that was made). So
//! while it is alone a client is given no more once nine tenths are taken: the last tenth is for whoever
//! comes next. A client below its half takes from that tenth like from the rest. Whoever is turned down
//! is the one that has much.
//!
//! Refused: a fixed share for each client (nobody knows how many there are, and most are idle), and
//! weights (nobody asked for them).

use std::time::{Duration, Instant};

/// A client, as far as shares go. Who counts as one is decided in one place (`edge::client`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client(u64);

/// A client counts as asking for so long after it asked. Chosen: the window of the retry budget, and
/// longer than SDKs wait between their first tries.
pub const ASKED_LATELY: Duration = Duration::from_secs(10);

impl Client {
    /// The client with this hash.
    pub const fn hashed(hash: u64) -> Client {
        Client(hash)
    }

    /// Its hash.
    pub fn hash(self) -> u64 {
        self.0
    }
}

/// Half of what there is, and not nothing.
pub fn half(limit: u64) -> u64 {
    (limit / 2).max(1)
}

/// Something of which clients take shares.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// How much there is.
    pub limit: u64,
    /// How much of it is taken, by all.
    pub taken: u64,
}

impl Shared {
    /// Whether a client that has `mine` of it may have `more`. `others` says that another client asked
    /// for it lately.
    pub fn grants(self, mine: u64, more: u64, others: bool) -> bool {
        let Some(taken) = self.taken.checked_add(more) else {
            return false;
        };
        // What a client has is part of what is taken, so this sum is no larger.
        let within_half = mine.saturating_add(more) <= half(self.limit);
        let leaves_a_tenth = self.taken < self.limit - self.limit / 10;
        taken <= self.limit && (within_half || (!others && leaves_a_tenth))
    }
}

/// Who asked lately: the last client, and the last one before it that was another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Askers {
    last: Option<(Client, Instant)>,
    other: Option<(Client, Instant)>,
}

impl Askers {
    /// `client` asks. Returns whether another one did so lately.
    pub fn asks(&mut self, client: Client, now: Instant) -> bool {
        if let Some(last) = self.last
            && last.0 != client
        {
            self.other = Some(last);
        }
        self.last = Some((client, now));
        self.other
            .is_some_and(|(_, at)| now.saturating_duration_since(at) <= ASKED_LATELY)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: Client = Client(1);
    const B: Client = Client(2);
    const C: Client = Client(3);

    #[test]
    fn others_count_for_a_while_and_a_client_is_no_other_to_itself() {
        let (mut askers, now) = (Askers::default(), Instant::now());
        let later = now + ASKED_LATELY;
        assert!(!askers.asks(A, now));
        assert!(!askers.asks(A, now));
        assert!(askers.asks(B, now), "A asked just now");
        assert!(askers.asks(A, later), "B asked ten seconds ago");
        assert!(!askers.asks(A, later + Duration::from_millis(1)));
        assert!(askers.asks(C, later + ASKED_LATELY));
    }

    #[test]
    fn one_thing_goes_to_whoever_comes_first() {
        let shared = |taken| Shared { limit: 1, taken };
        assert!(shared(0).grants(0, 1, true));
        assert!(!shared(1).grants(0, 1, true));
        assert!(!shared(1).grants(1, u64::MAX, false));
    }

    proptest! {
        /// Three clients take and give back at random, as a memory budget or a waiting room sees it.
        #[test]
        fn nobody_gets_more_than_half_while_others_ask(
            limit in 1_u64..200,
            steps in prop::collection::vec((0_u64..3, 1_u64..40, 0_u64..12_000, any::<bool>()), 1..200),
        ) {
            let (mut askers, mut now) = (Askers::default(), Instant::now());
            let mut has = [0_u64; 3];
            let mut asked = [None::<Instant>; 3];
            for (who, amount, millis, back) in steps {
                now += Duration::from_millis(millis);
                let me = who as usize;
                if back {
                    has[me] = has[me].saturating_sub(amount);
                    continue;
                }
                let taken: u64 = has.iter().sum();
                let others = (0..3).any(|it| it != me && asked[it]
                    .is_some_and(|at| now - at <= ASKED_LATELY));
                prop_assert_eq!(askers.asks(Client(who), now), others);
                asked[me] = Some(now);
                let granted = Shared { limit, taken }.grants(has[me], amount, others);
                if granted {
                    has[me] += amount;
                    prop_assert!(taken + amount <= limit);
                    prop_assert!(!others || has[me] <= half(limit));
                } else if has[me] + amount <= half(limit) {
                    // A client below its half is turned down only where there is nothing left.
                    prop_assert!(taken + amount > limit);
                }
            }
        }

        /// Whatever the first one has, the second one gets its tenth; and up to its half as soon as the
        /// first one has no more than its own.
        #[test]
        fn a_second_client_always_gets_in(limit in 10_u64..2_000) {
            let mut first = 0;
            while (Shared { limit, taken: first }).grants(first, 1, false) {
                first += 1;
            }
            let (half, tenth) = (half(limit), limit / 10);
            prop_assert_eq!(first, limit - tenth);
            let left = Shared { limit, taken: first };
            prop_assert!(left.grants(0, tenth, true));
            let modest = Shared { limit, taken: half };
            prop_assert!(modest.grants(0, half, true));
            prop_assert!(!modest.grants(half, 1, true));
        }
    }
}
