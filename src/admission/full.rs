//! Whether a model has seats at all.
//!
//! When every credential refuses, trying them all for every request multiplies the load on a model
//! that has none to give, and each client waits for three refusals instead of one. So a model that
//! refuses everybody is *full*: requests wait their turn, one attempt a second asks on their behalf,
//! and admissions open it again by doubling.
//!
//! ```text
//!          three sessions refused by everything, no recent admission
//!   open ─────────────────────────────────────────────────────────▶ full
//!    ▲                                                               │ one start a second,
//!    │        two admissions without a refusal between them          │ two more per admission
//!    └───────────────────────────────────────────────────────────────┘
//!      those that waited start spread over five seconds
//! ```
//!
//! Promises: one session alone never makes a model full; while full at most one new attempt starts per
//! second and two more per admission; whoever waits is told a time and asks again then.
//!
//! Refused: a probe by a timer (there may be nobody who asks), and a breaker over the share of
//! refusals (one client's loop opens it for all).

use std::time::{Duration, Instant};

use super::dice;
use super::policy;

/// One model.
#[derive(Debug)]
pub struct Fullness {
    rules: policy::Full,
    state: State,
    /// An admission of an attempt that was not old when it came.
    fresh_admission: Option<Instant>,
}

/// Whether an attempt may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Now.
    Go,
    /// Not before then; ask again.
    WaitUntil(Instant),
}

/// A request that asks to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Since when it has been waiting, if it was told to before.
    pub waiting: Option<Instant>,
    /// Its own number, the same each time it asks: it spreads those that wait.
    pub ticket: u64,
}

#[derive(Debug)]
enum State {
    Open {
        /// Different sessions refused by everything, each within the policy's time of the last.
        sessions: Vec<u64>,
        last: Option<Instant>,
        /// The end of the last time that the model was full.
        ended: Option<Instant>,
    },
    Full {
        since: Instant,
        /// The next start without an admission.
        next: Instant,
        /// Starts that admissions have earned.
        earned: u32,
        /// Admissions since the last refusal.
        in_a_row: u32,
    },
}

/// An admission keeps a model open for so long (the policy's).
const ADMISSION_COUNTS: Duration = Duration::from_secs(2);
/// And only one of an attempt begun so short a time ago: one that took a minute to answer says
/// nothing about now (the policy's).
const ADMISSION_FRESH: Duration = Duration::from_secs(10);
/// While full: one start in this time (the policy's).
const PACE: Duration = Duration::from_secs(1);
/// While full: starts earned by an admission, and admissions that end it (the policy's).
const EARNED: u32 = 2;
const ENOUGH: u32 = 2;
/// Those that waited start over so long (the policy's).
const LET_GO_OVER: Duration = Duration::from_secs(5);
/// Those that wait ask again at different times, over so long (the simulation's).
const ASK_AGAIN_OVER: Duration = Duration::from_millis(500);
/// Credentials that must have refused (the policy's): with one alone it could be the credential.
const CREDENTIALS: usize = 2;

impl Fullness {
    /// An open model.
    pub fn new(rules: policy::Full) -> Fullness {
        Fullness {
            rules,
            state: State::open(None),
            fresh_admission: None,
        }
    }

    /// Since when it is full, if it is.
    pub fn full_since(&self) -> Option<Instant> {
        match self.state {
            State::Full { since, .. } => Some(since),
            State::Open { .. } => None,
        }
    }

    /// Whether a request may start now. While full a `Go` takes the place: it is to be used.
    pub fn try_start(&mut self, turn: Turn, now: Instant) -> Start {
        let spread = |over: Duration| over.mul_f64(dice::fraction(dice::mix(turn.ticket)));
        match &mut self.state {
            State::Open { ended, .. } => {
                let waited = |end: &Instant| turn.waiting.is_some_and(|since| since <= *end);
                match ended.filter(waited).map(|end| end + spread(LET_GO_OVER)) {
                    Some(at) if at > now => Start::WaitUntil(at),
                    Some(_) | None => Start::Go,
                }
            }
            State::Full { next, earned, .. } => {
                if *earned > 0 {
                    *earned -= 1;
                    return Start::Go;
                }
                if *next <= now {
                    *next = now + PACE;
                    return Start::Go;
                }
                Start::WaitUntil((*next).max(now + ASK_AGAIN_OVER) + spread(ASK_AGAIN_OVER))
            }
        }
    }

    /// A request of `session` was refused by everything it tried: `refused` credentials of the
    /// `serving` ones.
    pub fn refused_everywhere(
        &mut self,
        session: u64,
        (refused, serving): (usize, usize),
        now: Instant,
    ) {
        let State::Open { sessions, last, .. } = &mut self.state else {
            return;
        };
        if refused < CREDENTIALS.min(serving) || refused == 0 {
            return;
        }
        let gap = last.map(|last| now.saturating_duration_since(last));
        if gap.is_none_or(|gap| gap > self.rules.within) {
            sessions.clear();
        }
        *last = Some(now);
        let needed = self.rules.sessions.get() as usize;
        if !sessions.contains(&session) && sessions.len() < needed {
            sessions.push(session);
        }
        let admits = self
            .fresh_admission
            .is_some_and(|then| now.saturating_duration_since(then) <= ADMISSION_COUNTS);
        if sessions.len() >= needed && !admits {
            self.state = State::Full {
                since: now,
                next: now + PACE,
                earned: 0,
                in_a_row: 0,
            };
        }
    }

    /// An attempt begun at `began` was admitted.
    pub fn admitted(&mut self, began: Instant, now: Instant) {
        if now.saturating_duration_since(began) < ADMISSION_FRESH {
            self.fresh_admission = Some(now);
        }
        if let State::Full {
            since,
            earned,
            in_a_row,
            ..
        } = &mut self.state
            && began > *since
        {
            *in_a_row += 1;
            *earned += EARNED;
            if *in_a_row >= ENOUGH {
                self.state = State::open(Some(now));
            }
        }
    }

    /// An attempt begun at `began` was refused.
    pub fn refused(&mut self, began: Instant) {
        if let State::Full {
            since,
            earned,
            in_a_row,
            ..
        } = &mut self.state
            && began > *since
        {
            *earned = 0;
            *in_a_row = 0;
        }
    }
}

impl State {
    fn open(ended: Option<Instant>) -> State {
        State::Open {
            sessions: Vec::new(),
            last: None,
            ended,
        }
    }
}

#[cfg(test)]
mod tests;
