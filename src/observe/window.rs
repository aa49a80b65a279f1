//! How often each pair refused and admitted in the last 15 minutes, hour and day.
//!
//! `berth status` answers the question that an operator asks first: does this account get seats at
//! all? The counters in `/metrics` answer it only with a Prometheus beside them. Each pair has two
//! rings of counts, 60 of one minute and 96 of a quarter of an hour, about 2.5 KB; keeping a list
//! of events instead would grow with the traffic.
//!
//! Counted are attempts that were admitted, and those refused for want of capacity. A name
//! that a client made up is one of these only where an upstream takes any name. Beyond [`PAIRS`] pairs
//! those make room that counted nothing for longest: whoever makes names up then pushes out what
//! is idle, and the pairs in use keep their counts. First come, first kept was refused: it hides the next
//! real model for as long as the made-up ones live.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record::{AttemptRecord, Record};
use crate::admission::Verdict;
use crate::pool::{CredentialId, NO_MODEL};

/// The counts of every pair. Times are since any fixed moment, the same in every call.
#[derive(Debug, Default)]
pub struct Counts(Mutex<Table>);

/// What one pair did in one span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Attempts refused for want of capacity.
    pub refused: u32,
    /// Attempts admitted.
    pub admitted: u32,
}

/// What one pair did lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// In the last 15 minutes.
    pub quarter: Count,
    /// In the last hour.
    pub hour: Count,
    /// In the last 24 hours.
    pub day: Count,
    /// The same, piece by piece.
    pub series: Series,
}

/// What one pair did lately, in pieces of equal length, the oldest first; the last is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// The last 15 minutes, by the minute.
    pub quarter: [Count; 15],
    /// The last hour, by five minutes.
    pub hour: [Count; 12],
    /// The last 24 hours, by the hour.
    pub day: [Count; 24],
}

/// A pair's counts by age, for the process that takes over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairHistory {
    /// The credential's name.
    pub credential: String,
    /// The model's name.
    pub model: String,
    /// How long it has counted nothing.
    #[serde(default)]
    pub idle: Duration,
    /// Minutes ago, and what happened then.
    pub minutes: Vec<(u64, Count)>,
    /// Quarters of an hour ago, and what happened then.
    pub quarters: Vec<(u64, Count)>,
}

impl PairHistory {
    /// What the attempts of one finished request add to their pairs now.
    pub fn of(record: &Record) -> Vec<PairHistory> {
        let history = record.attempts.iter().filter_map(|attempt| {
            let (count, model) = counted(attempt)?;
            Some(PairHistory {
                credential: attempt.credential.0.to_string(),
                model: model.to_owned(),
                idle: Duration::ZERO,
                minutes: vec![(0, count)],
                quarters: vec![(0, count)],
            })
        });
        history.collect()
    }
}

impl Counts {
    /// Counts every attempt of a finished request.
    pub fn record(&self, record: &Record, now: Duration) {
        for attempt in &record.attempts {
            let Some((count, model)) = counted(attempt) else {
                continue;
            };
            let mut table = self.lock();
            let rings = table.place(&attempt.credential.0, model);
            rings.used = rings.used.max(now + ORIGIN);
            rings.minutes.add(now, count);
            rings.quarters.add(now, count);
        }
    }

    /// What every pair did lately, by credential and model; pairs that did nothing are left out.
    pub fn spans(&self, now: Duration) -> Vec<(CredentialId, String, Spans)> {
        let table = self.lock();
        let mut all: Vec<_> = table
            .pairs
            .iter()
            .map(|((credential, model), rings)| {
                (credential.clone(), model.to_string(), rings.spans(now))
            })
            .filter(|(_, _, spans)| *spans != Spans::default())
            .collect();
        all.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        all
    }

    /// Everything, by age: clocks of two processes have nothing else in common.
    pub fn export(&self, now: Duration) -> Vec<PairHistory> {
        let table = self.lock();
        let history = |((credential, model), rings): (&Pair, &Rings)| PairHistory {
            credential: credential.to_string(),
            model: model.to_string(),
            idle: (now + ORIGIN).saturating_sub(rings.used),
            minutes: rings.minutes.by_age(now),
            quarters: rings.quarters.by_age(now),
        };
        table.pairs.iter().map(history).collect()
    }

    /// Adds what another process exported. Names that are no credential's are left out.
    pub fn import(&self, history: &[PairHistory], now: Duration) {
        let mut table = self.lock();
        for pair in history {
            let Some(credential) = CredentialId::new(&pair.credential) else {
                continue;
            };
            let rings = table.place(&credential, &pair.model);
            rings.used = rings.used.max((now + ORIGIN).saturating_sub(pair.idle));
            rings.minutes.add_by_age(now, &pair.minutes);
            rings.quarters.add_by_age(now, &pair.quarters);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Pair = (CredentialId, Box<str>);

#[derive(Debug, Default)]
struct Table {
    pairs: HashMap<Pair, Rings>,
}

impl Table {
    fn place(&mut self, credential: &CredentialId, model: &str) -> &mut Rings {
        let pair: Pair = (credential.clone(), model.into());
        if self.pairs.len() >= PAIRS && !self.pairs.contains_key(&pair) {
            self.make_room();
        }
        self.pairs.entry(pair).or_default()
    }

    /// Forgets the eighth that was used longest ago: made-up names then do not cost a search each.
    fn make_room(&mut self) {
        let mut used: Vec<Duration> = self.pairs.values().map(|it| it.used).collect();
        let (_, limit, _) = used.select_nth_unstable(PAIRS / 8);
        let limit = *limit;
        let mut surplus = PAIRS / 8;
        self.pairs.retain(|_, rings| {
            let goes = surplus > 0 && rings.used <= limit;
            surplus -= usize::from(goes);
            !goes
        });
    }
}

#[derive(Debug)]
struct Rings {
    /// When something was last counted, since [`ORIGIN`] before the clock's beginning.
    used: Duration,
    minutes: Ring,
    quarters: Ring,
}

impl Default for Rings {
    fn default() -> Rings {
        Rings {
            used: Duration::ZERO,
            minutes: Ring::new(MINUTE, 60),
            quarters: Ring::new(QUARTER, 96),
        }
    }
}

impl Rings {
    fn spans(&self, now: Duration) -> Spans {
        let series = Series {
            quarter: self.minutes.series(now, 1),
            hour: self.minutes.series(now, 5),
            day: self.quarters.series(now, 4),
        };
        Spans {
            quarter: sum(&series.quarter),
            hour: sum(&series.hour),
            day: sum(&series.day),
            series,
        }
    }
}

/// Counts by bucket of time; each bucket knows which one it is, so none has to be cleared.
#[derive(Debug)]
struct Ring {
    width: Duration,
    buckets: Box<[(u64, Count)]>,
}

impl Ring {
    fn new(width: Duration, length: usize) -> Ring {
        let buckets = vec![(0, Count::default()); length].into_boxed_slice();
        Ring { width, buckets }
    }

    fn add(&mut self, now: Duration, count: Count) {
        let number = self.number(now);
        self.add_to(number, count);
    }

    fn add_to(&mut self, number: u64, count: Count) {
        let place = (number % self.buckets.len().max(1) as u64) as usize;
        let Some(bucket) = self.buckets.get_mut(place) else {
            return;
        };
        if bucket.0 < number {
            *bucket = (number, Count::default());
        }
        if bucket.0 == number {
            bucket.1 = bucket.1.plus(count);
        }
    }

    /// The last `N` pieces of `each` buckets, the current bucket included.
    fn series<const N: usize>(&self, now: Duration, each: u64) -> [Count; N] {
        let newest = self.number(now);
        let mut series = [Count::default(); N];
        for (number, count) in &self.buckets {
            let age = newest.checked_sub(*number).map(|age| age / each.max(1));
            let place = age
                .and_then(|age| usize::try_from(age).ok())
                .and_then(|age| N.checked_sub(age + 1))
                .and_then(|place| series.get_mut(place));
            if let Some(piece) = place {
                *piece = piece.plus(*count);
            }
        }
        series
    }

    fn by_age(&self, now: Duration) -> Vec<(u64, Count)> {
        let newest = self.number(now);
        let aged = |(number, count): &(u64, Count)| (newest.saturating_sub(*number), *count);
        let length = self.buckets.len() as u64;
        let live = |(age, count): &(u64, Count)| *age < length && *count != Count::default();
        self.buckets.iter().map(aged).filter(live).collect()
    }

    /// An age from before the clock's beginning is left out, since its bucket has no number: see
    /// [`ORIGIN`].
    fn add_by_age(&mut self, now: Duration, history: &[(u64, Count)]) {
        let newest = self.number(now);
        for (age, count) in history.iter().take(self.buckets.len()) {
            if let Some(number) = newest.checked_sub(*age) {
                self.add_to(number, *count);
            }
        }
    }

    fn number(&self, now: Duration) -> u64 {
        (now + ORIGIN).as_secs() / self.width.as_secs().max(1)
    }
}

impl Count {
    fn plus(self, other: Count) -> Count {
        Count {
            refused: self.refused.saturating_add(other.refused),
            admitted: self.admitted.saturating_add(other.admitted),
        }
    }
}

fn sum(pieces: &[Count]) -> Count {
    pieces
        .iter()
        .fold(Count::default(), |sum, piece| sum.plus(*piece))
}

/// Chosen: 40 credentials with 50 models each, in about 5 MB.
const PAIRS: usize = 2_000;
const MINUTE: Duration = Duration::from_secs(60);
const QUARTER: Duration = Duration::from_secs(15 * 60);
/// Two days: a clock that starts at zero still has numbers for buckets of the day before it.
const ORIGIN: Duration = Duration::from_secs(2 * 24 * 3_600);

/// What an attempt says about seats, and of which model.
fn counted(attempt: &AttemptRecord) -> Option<(Count, &str)> {
    let refused = u32::from(attempt.verdict == Verdict::Capacity);
    let admitted = u32::from(attempt.was_admitted());
    let count = Count { refused, admitted };
    let model = attempt.model.as_ref();
    let model = model.map_or(NO_MODEL, |model| model.as_str());
    (count != Count::default()).then_some((count, model))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::record::tests::failed_over;
    use crate::observe::safe::SafeText;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn of<'s>(spans: &'s [(CredentialId, String, Spans)], credential: &str) -> &'s Spans {
        &spans
            .iter()
            .find(|(id, _, _)| id.as_str() == credential)
            .unwrap()
            .2
    }

    #[test]
    fn a_count_leaves_each_span_in_turn() {
        let counts = Counts::default();
        counts.record(&failed_over(), Duration::ZERO);
        let refused = |now: Duration| {
            let spans = counts.spans(now);
            let spans = spans.iter().find(|(id, _, _)| id.as_str() == "campus-a");
            spans.map(|(_, _, s)| (s.quarter.refused, s.hour.refused, s.day.refused))
        };
        assert_eq!(refused(Duration::ZERO), Some((1, 1, 1)));
        assert_eq!(refused(MINUTE * 14), Some((1, 1, 1)));
        assert_eq!(refused(MINUTE * 15), Some((0, 1, 1)));
        assert_eq!(refused(HOUR), Some((0, 0, 1)));
        assert_eq!(refused(HOUR * 24 - QUARTER), Some((0, 0, 1)));
        assert_eq!(refused(HOUR * 24), None);
    }

    #[test]
    fn a_series_says_when() {
        let counts = Counts::default();
        counts.record(&failed_over(), Duration::ZERO);
        counts.record(&failed_over(), MINUTE * 2);
        let places = |now: Duration| {
            let spans = counts.spans(now);
            let series = of(&spans, "campus-a").series;
            let filled = |pieces: &[Count]| -> Vec<(usize, u32)> {
                let pieces = pieces.iter().enumerate();
                let filled = pieces.filter(|(_, piece)| piece.refused > 0);
                filled.map(|(at, piece)| (at, piece.refused)).collect()
            };
            (
                filled(&series.quarter),
                filled(&series.hour),
                filled(&series.day),
            )
        };
        let first = (vec![(12, 1), (14, 1)], vec![(11, 2)], vec![(23, 2)]);
        assert_eq!(places(MINUTE * 2), first);
        // Thirteen and fifteen minutes ago; the clock's zero is a full hour.
        let later = (vec![(1, 1)], vec![(8, 1), (9, 1)], vec![(23, 2)]);
        assert_eq!(places(MINUTE * 15), later);
        assert_eq!(places(HOUR + QUARTER), (vec![], vec![], vec![(22, 2)]));
    }

    #[test]
    fn a_ring_that_came_round_holds_only_the_new() {
        let counts = Counts::default();
        (0..200).for_each(|hour| counts.record(&failed_over(), HOUR * hour));
        let spans = counts.spans(HOUR * 199);
        assert_eq!(
            of(&spans, "campus-b").hour,
            Count {
                refused: 0,
                admitted: 1
            }
        );
        assert_eq!(
            of(&spans, "campus-b").day,
            Count {
                refused: 0,
                admitted: 24
            }
        );
    }

    #[test]
    fn pairs_are_bounded_and_those_in_use_stay() {
        let counts = Counts::default();
        let mut record = failed_over();
        let mut asked_for = |model: &str, counts: &Counts, now: Duration| {
            for attempt in &mut record.attempts {
                attempt.model = Some(SafeText::new(model));
            }
            counts.record(&record, now);
        };
        asked_for("real", &counts, Duration::ZERO);
        asked_for("idle", &counts, Duration::ZERO);
        for number in 0..PAIRS * 2 {
            let now = Duration::from_secs(number as u64);
            asked_for(&format!("made-up-{number}"), &counts, now);
            asked_for("real", &counts, now);
        }
        let now = Duration::from_secs(2 * PAIRS as u64);
        asked_for("new", &counts, now);
        let known = |counts: &Counts, model: &str| {
            let spans = counts.spans(now);
            assert!(spans.len() <= PAIRS, "{}", spans.len());
            let of_it = spans.iter().filter(|(_, name, _)| name == model);
            of_it.map(|(_, _, spans)| spans.day.refused).sum::<u32>()
        };
        let real = 2 * PAIRS as u32 + 1;
        let all = |counts| ["real", "new", "idle"].map(|model| known(counts, model));
        assert_eq!(all(&counts), [real, 1, 0]);
        // A successor knows as well which of them were idle.
        let successor = Counts::default();
        successor.import(&counts.export(now), now);
        for number in 0..PAIRS {
            let now = now + Duration::from_millis(number as u64);
            asked_for(&format!("more-{number}"), &successor, now);
            asked_for("real", &successor, now);
        }
        assert_eq!(all(&successor)[0], real + PAIRS as u32);
    }

    #[test]
    fn a_client_that_left_while_it_read_was_admitted() {
        let counts = Counts::default();
        let mut record = failed_over();
        record.attempts[1].verdict = Verdict::ClientGone;
        counts.record(&record, Duration::ZERO);
        let admitted = |counts: &Counts| {
            counts
                .spans(Duration::ZERO)
                .get(1)
                .map(|it| it.2.day.admitted)
        };
        assert_eq!(admitted(&counts), Some(1));
        // One that left before there was an answer was not.
        let counts = Counts::default();
        record.attempts[1].committed = false;
        counts.record(&record, Duration::ZERO);
        assert_eq!(admitted(&counts), None);
    }

    #[test]
    fn a_history_survives_the_handover_to_another_clock() {
        let old = Counts::default();
        old.record(&failed_over(), HOUR * 10);
        old.record(&failed_over(), HOUR * 20);
        let history = old.export(HOUR * 20 + MINUTE);
        let new = Counts::default();
        new.import(&history, Duration::ZERO);
        assert_eq!(new.spans(Duration::ZERO), old.spans(HOUR * 20 + MINUTE));
        assert_eq!(of(&new.spans(Duration::ZERO), "campus-a").day.refused, 2);
    }

    #[test]
    fn verdicts_that_say_nothing_about_seats_take_no_place() {
        let counts = Counts::default();
        let mut record = failed_over();
        for attempt in &mut record.attempts {
            attempt.verdict = Verdict::ModelUnsupported;
        }
        counts.record(&record, Duration::ZERO);
        assert_eq!(counts.spans(Duration::ZERO).len(), 0);
    }
}
