//! One pair: its two scores, its cooling, and how it is shunned and comes back.
//!
//! ```text
//!            excess >= cool_at            excess >= shun_at
//!   ready ────────────────────▶ cooling ────────────────────▶ shunned ◀───────────┐
//!     ▲ ▲                          │                            │ due             │ refused:
//!     │ └──────── its time ends ───┘                            ▼                 │ wait doubled
//!     │                                                      probing ─────────────┘
//!     ├── five admissions in a row ─────────────────────────────┤
//!     └── excess < cool_at ─────────────────────────────────────┘
//! ```

use std::time::{Duration, Instant};

use super::super::dice::Dice;
use super::super::policy::{Cooldown, Probe, ScoreMarks};
use super::Credential;

/// A pair about which something is known.
#[derive(Debug)]
pub struct Pair {
    pub credential: Credential,
    pub weight: u32,
    /// Moved by newcomers.
    pub score: f64,
    /// Moved by warm sessions.
    pub warm: f64,
    pub cooling: Option<Cooling>,
    pub shunned: Option<Shunned>,
    /// Refused probes in a row, and when the last change of that was.
    pub(super) doublings: u32,
    pub(super) doubled: Option<Instant>,
    pub evidence: Evidence,
}

/// What a pair's score rests on: newcomers, since it last was at nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Refused here and admitted elsewhere.
    pub refused: u64,
    /// Admitted here.
    pub admitted: u64,
}

/// Goes last for a while.
#[derive(Clone, Copy, Debug)]
pub struct Cooling {
    pub since: Instant,
    pub until: Instant,
}

/// Goes last until its probes bring it back.
#[derive(Clone, Copy, Debug)]
pub struct Shunned {
    pub since: Instant,
    /// Names this shunning, so that a probe of an earlier one is told apart.
    pub serial: u64,
    /// When probes may start.
    pub due: Instant,
    /// Probes at once.
    pub allowed: u32,
    /// Probes now.
    pub under_way: u32,
    /// Admissions without a refusal between them.
    pub in_a_row: u32,
}

/// What a probe came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// A seat.
    Admitted,
    /// No seat.
    Refused,
    /// No verdict about that.
    Nothing,
}

/// The numbers that move a pair.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub marks: ScoreMarks,
    pub cooldown: Cooldown,
    pub probe: Probe,
}

/// Probes at once, at most (the policy's).
const PROBES: u32 = 16;
/// A refusal's own `Retry-After` is believed up to here (the policy's).
const STATED_MAX: Duration = Duration::from_secs(60);
/// Doublings are forgotten after so long without a shunning or a refused probe (the simulation's).
const DOUBLINGS_LAST: Duration = Duration::from_secs(1800);
/// Times are lengthened by up to so much, for they must not end together (the policy's).
const JITTER: f64 = 0.2;
/// What counts as a score of nothing (chosen: a thousandth of a refusal).
const NOTHING: f64 = 0.01;

impl Pair {
    pub fn new(credential: Credential, weight: u32) -> Pair {
        Pair {
            credential,
            weight,
            score: 0.0,
            warm: 0.0,
            cooling: None,
            shunned: None,
            doublings: 0,
            doubled: None,
            evidence: Evidence::default(),
        }
    }

    pub fn is_cooling(&self, now: Instant) -> bool {
        self.cooling.is_some_and(|cooling| cooling.until > now)
    }

    /// Whether a probe may start now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.shunned
            .is_some_and(|it| it.due <= now && it.under_way < it.allowed)
    }

    /// Whether it is shunned and was refused within this time.
    pub fn is_shunned_within(&self, time: Duration, now: Instant) -> bool {
        let lately = |then| now.saturating_duration_since(then) <= time;
        self.shunned.is_some() && self.doubled.is_some_and(lately)
    }

    /// A newcomer was refused here and admitted elsewhere; `others` is the median of the others.
    pub fn blame(
        &mut self,
        numbers: &Numbers,
        (others, stated): (f64, Option<Duration>),
        serial: u64,
        dice: &mut Dice,
        now: Instant,
    ) {
        let marks = &numbers.marks;
        self.score = (self.score + marks.refused).min(marks.ceiling);
        self.evidence.refused += 1;
        let excess = self.score - others;
        if self.shunned.is_some() || excess < marks.cool_at {
            return;
        }
        if excess >= marks.shun_at {
            if self
                .doubled
                .is_none_or(|then| now.saturating_duration_since(then) > DOUBLINGS_LAST)
            {
                self.doublings = 0;
            }
            self.doubled = Some(now);
            self.cooling = None;
            self.shunned = Some(Shunned {
                since: now,
                serial,
                due: now + self.until_probe(&numbers.probe, dice),
                allowed: 1,
                under_way: 0,
                in_a_row: 0,
            });
            return;
        }
        let stated = stated.unwrap_or_default().min(STATED_MAX);
        let until = now + longer(cooling(numbers, excess).max(stated), dice);
        let before = self.cooling.filter(|it| it.until > now);
        self.cooling = Some(Cooling {
            since: before.map_or(now, |it| it.since),
            until: before.map_or(until, |it| it.until.max(until)),
        });
    }

    /// A probe of the shunning `serial` ended.
    pub fn probed(
        &mut self,
        numbers: &Numbers,
        serial: u64,
        probed: Probed,
        dice: &mut Dice,
        now: Instant,
    ) {
        let Some(mut shunned) = self.shunned.filter(|it| it.serial == serial) else {
            return;
        };
        shunned.under_way = shunned.under_way.saturating_sub(1);
        match probed {
            Probed::Nothing => {}
            Probed::Admitted => {
                shunned.in_a_row += 1;
                shunned.allowed = (shunned.allowed * 2).min(PROBES);
            }
            Probed::Refused => {
                shunned.in_a_row = 0;
                shunned.allowed = 1;
                self.doublings = self.doublings.saturating_add(1);
                self.doubled = Some(now);
                shunned.due = now + self.until_probe(&numbers.probe, dice);
            }
        }
        self.shunned = Some(shunned);
        if shunned.in_a_row >= numbers.probe.admissions.get() {
            self.shunned = None;
            let below = numbers.marks.cool_at - numbers.marks.admitted;
            self.score = self.score.min(below.max(0.0));
        }
    }

    /// Whether nothing of it is worth remembering.
    pub fn is_blank(&self, now: Instant) -> bool {
        let recent = |then| now.saturating_duration_since(then) <= DOUBLINGS_LAST;
        self.score < NOTHING
            && self.warm < NOTHING
            && self.shunned.is_none()
            && !self.is_cooling(now)
            && !self.doubled.is_some_and(recent)
    }

    fn until_probe(&self, probe: &Probe, dice: &mut Dice) -> Duration {
        let doubled = 2_u32.saturating_pow(self.doublings);
        longer(probe.first.saturating_mul(doubled).min(probe.max), dice)
    }
}

/// How long a pair of this excess cools: `base`, doubled at each half of the way to the shun mark.
fn cooling(numbers: &Numbers, excess: f64) -> Duration {
    let Numbers {
        marks, cooldown, ..
    } = numbers;
    let half = ((marks.shun_at - marks.cool_at) / 2.0).max(1.0);
    // Below the shun mark it is 0 or 1; a cast of anything else stays within u32.
    let doublings = ((excess - marks.cool_at) / half).floor() as u32;
    let doubled = 2_u32.saturating_pow(doublings);
    cooldown.base.saturating_mul(doubled).min(cooldown.max)
}

fn longer(time: Duration, dice: &mut Dice) -> Duration {
    time.mul_f64(1.0 + JITTER * dice.fraction())
}
