//! What a session that nobody admits is allowed and told: how many attempts, and when to come back.
//!
//! A client that is told the same five seconds each time spends its thirty tries in two and a half
//! minutes and loses the turn. So berth's own `Retry-After` grows with the time that the session has
//! been waiting for an answer: a quarter of it. And a session that was just refused by everything gets
//! one attempt on its next tries instead of three: the answer is most likely the same, and a lone
//! client's loop must not cost three attempts each round.
//!
//! Promise: at most [`MAX_SESSIONS`] sessions are remembered. Refused: counting tries instead of
//! time, which clients with their own back-off make meaningless.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::dice::Dice;
use super::elapsed::FromNow;
use super::policy::RetryAfterBounds;
use super::recent::Recent;

/// Sessions remembered (chosen: as many as have a score; 5 MiB).
pub const MAX_SESSIONS: usize = 100_000;

/// The sessions that wait for an answer.
#[derive(Debug)]
pub struct Patience {
    bounds: RetryAfterBounds,
    waiting: Recent<u64, Unanswered>,
    dice: Dice,
}

#[derive(Debug)]
struct Unanswered {
    /// Its first try without an answer.
    first: Instant,
    last: Instant,
    refused_everywhere: Option<Instant>,
}

/// The sessions that wait, for the next process: each with its first try without an answer, its last,
/// and when everything refused it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PatienceHandover(Vec<(u64, FromNow, FromNow, Option<FromNow>)>);

/// How long a session refused by everything gets one attempt only (the policy's).
const ONE_ATTEMPT_FOR: Duration = Duration::from_secs(30);
/// A session not heard of for so long asks something new (chosen: longer than a request may take,
/// with the longest `Retry-After` on top).
const GONE_AFTER: Duration = Duration::from_secs(300);
/// The part of its waiting time after which a session is asked back (the policy's).
const QUARTER: u32 = 4;
/// Times are lengthened by up to so much (the policy's).
const JITTER: f64 = 0.2;

impl Patience {
    /// Nobody waits yet.
    pub fn new(bounds: RetryAfterBounds, seed: u64) -> Patience {
        Patience {
            bounds,
            waiting: Recent::new(MAX_SESSIONS),
            dice: Dice::new(seed),
        }
    }

    /// A request of `session` was refused by everything it tried.
    pub fn refused_everywhere(&mut self, session: u64, began: Instant, now: Instant) {
        self.unanswered(session, began).refused_everywhere = Some(now);
    }

    /// A request of `session` was admitted.
    pub fn admitted(&mut self, session: u64) {
        self.waiting.remove(&session);
    }

    /// Whether the session's next request gets one attempt only.
    pub fn is_short(&self, session: u64, now: Instant) -> bool {
        let refused = self.waiting.peek(&session);
        let refused = refused.and_then(|it| it.refused_everywhere);
        refused.is_some_and(|then| now.saturating_duration_since(then) <= ONE_ATTEMPT_FOR)
    }

    /// When the session is to come back, told when nothing could be done for it.
    pub fn retry_after(&mut self, session: Option<u64>, now: Instant) -> Duration {
        let waited = match session {
            Some(session) => now.saturating_duration_since(self.unanswered(session, now).first),
            None => Duration::ZERO,
        };
        self.spread(waited / QUARTER)
    }

    /// A time within the bounds that others do not get too.
    pub fn spread(&mut self, time: Duration) -> Duration {
        let RetryAfterBounds { min, max } = self.bounds;
        let fraction = self.dice.fraction();
        let longer = time.max(min).mul_f64(1.0 + JITTER * fraction);
        // At the limit half of the jitter, downwards: a client's tries are to last.
        longer
            .min(max.mul_f64(1.0 - JITTER / 2.0 * fraction))
            .max(min)
    }

    /// The sessions that still wait.
    pub fn hand_over(&self, now: Instant) -> PatienceHandover {
        let waiting = self.waiting.iter();
        let waiting =
            waiting.filter(|(_, it)| now.saturating_duration_since(it.last) <= GONE_AFTER);
        let from_now = |time| FromNow::of(time, now);
        let told = waiting.map(|(session, it)| {
            let refused = it.refused_everywhere.map(from_now);
            (*session, from_now(it.first), from_now(it.last), refused)
        });
        PatienceHandover(told.collect())
    }

    /// They wait here from now on.
    pub fn take_over(&mut self, told: &PatienceHandover, now: Instant) {
        for (session, first, last, refused) in told.0.iter().take(MAX_SESSIONS) {
            self.waiting.entry(*session, || Unanswered {
                first: first.at(now),
                last: last.at(now),
                refused_everywhere: refused.map(|it| it.at(now)),
            });
        }
    }

    fn unanswered(&mut self, session: u64, now: Instant) -> &mut Unanswered {
        let new = || Unanswered {
            first: now,
            last: now,
            refused_everywhere: None,
        };
        let it = self.waiting.entry(session, new);
        if now.saturating_duration_since(it.last) > GONE_AFTER {
            *it = new();
        }
        it.last = it.last.max(now);
        it
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::Policy;
    use super::*;

    fn patience() -> Patience {
        Patience::new(Policy::default().retry_after, 1)
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn the_time_told_grows_with_the_time_waited_within_the_bounds() {
        let (mut patience, start) = (patience(), Instant::now());
        for (waited, least, most) in [(0, 5, 6), (40, 10, 12), (80, 20, 24), (280, 25, 30)] {
            let told = patience.retry_after(Some(1), start + secs(waited));
            assert!(
                (secs(least)..=secs(most)).contains(&told),
                "{waited}: {told:?}"
            );
        }
        patience.admitted(1);
        let told = patience.retry_after(Some(1), start + secs(281));
        assert!(told <= secs(6));
        assert!(patience.retry_after(None, start) <= secs(6));
    }

    #[test]
    fn thirty_tries_ride_out_ten_minutes() {
        let (mut patience, start) = (patience(), Instant::now());
        let mut now = start;
        for _ in 0..30 {
            now += patience.retry_after(Some(1), now);
        }
        assert!(now - start > secs(600), "{:?}", now - start);
    }

    #[test]
    fn one_attempt_for_thirty_seconds_after_a_refusal_by_everything() {
        let (mut patience, start) = (patience(), Instant::now());
        assert!(!patience.is_short(1, start));
        patience.refused_everywhere(1, start, start + secs(5));
        assert!(patience.is_short(1, start + secs(35)));
        assert!(!patience.is_short(1, start + secs(36)));
        assert!(!patience.is_short(2, start + secs(6)));
        patience.admitted(1);
        assert!(!patience.is_short(1, start + secs(6)));
    }

    #[test]
    fn a_million_sessions_stay_within_the_bound() {
        let (mut patience, now) = (patience(), Instant::now());
        for session in 0..1_000_000 {
            patience.refused_everywhere(session, now, now);
            patience.retry_after(Some(session), now);
        }
        assert!(patience.waiting.len() <= MAX_SESSIONS);
    }
}
