//! Tokens of a day, by client.
//!
//! A day is one in UTC, and begins with nothing spent. What is counted is what answers report, when they
//! have ended. It outlives the process in two ways: a document for the disk ([`SpendingHandover`]), and the same
//! document for a successor followed by what is spent after it. Promises: what is told after the document
//! is exactly what the document did not hold, so that two processes that live at once lose nothing and
//! count nothing twice; a client that is taken off the list and put back has spent what it had spent.
//!
//! Refused: to count what a request may use before it is sent (nobody knows it), and a day that begins
//! with the first request (nobody could say when a limit ends without asking).

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::spec::ClientId;
use crate::admission::day::Day;

/// What is to be said where the tokens of a day are limited and answers are not read.
pub const NOT_COUNTED: &str = "`tokens_per_day` has no effect with `admission.mode: off`: answers are not read, so nothing is counted";

/// What is to be said where they are limited and there is no folder to keep them in.
pub const NOT_KEPT: &str = "`tokens_per_day` is counted in memory and handed over by a reload, but a restart begins with nothing spent: $STATE_DIRECTORY is not set here (`StateDirectory=berth` in the unit sets it for the service)";

/// Names that are remembered in a day (chosen: beyond any list of clients; what is a list long enough to
/// need more has no limits worth keeping).
const MOST: usize = 100_000;

/// What was spent on the day that it is.
#[derive(Debug, Default)]
pub struct Spending {
    day: Day,
    spent: HashMap<ClientId, Spent>,
    /// Something was added since this was last written down.
    unwritten: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    tokens: u64,
    /// Of these, what the successor knows of.
    told: u64,
}

/// What was spent on one day, by clients' names; on the disk, and to another process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpendingHandover {
    day: String,
    tokens: Vec<(String, u64)>,
}

impl Spending {
    /// Tokens of `client` today.
    pub fn of(&self, client: &ClientId, today: Day) -> u64 {
        let spent = self.spent.get(client).filter(|_| self.day == today);
        spent.map_or(0, |it| it.tokens)
    }

    /// An answer to `client` has ended.
    pub fn add(&mut self, client: &ClientId, tokens: u64, today: Day) {
        self.turn(today);
        if tokens == 0 || self.day != today {
            return;
        }
        if self.spent.len() >= MOST && !self.spent.contains_key(client) {
            return;
        }
        let spent = self.spent.entry(client.clone()).or_default();
        spent.tokens = spent.tokens.saturating_add(tokens);
        self.unwritten = true;
    }

    /// For the disk, where something was added since the last time.
    pub fn unwritten(&mut self) -> Option<SpendingHandover> {
        std::mem::take(&mut self.unwritten).then(|| self.document(|it| it.tokens))
    }

    /// It could not be written down.
    pub fn not_written(&mut self) {
        self.unwritten = true;
    }

    /// Everything, for a successor.
    pub fn hand_over(&mut self) -> SpendingHandover {
        self.spent.values_mut().for_each(|it| it.told = it.tokens);
        self.document(|it| it.tokens)
    }

    /// What was added since the successor was last told.
    pub fn news(&mut self) -> SpendingHandover {
        let news = self.document(|it| it.tokens - it.told);
        self.spent.values_mut().for_each(|it| it.told = it.tokens);
        news
    }

    /// What is known from the disk or of a predecessor, before anything is counted here. Both may know
    /// of the same tokens: whoever knows more has also what the other knows.
    pub fn take_over(&mut self, told: &SpendingHandover, today: Day) {
        self.each(told, today, |spent, tokens| {
            *spent = (*spent).max(tokens);
        });
    }

    /// What a predecessor has counted after its document.
    pub fn hear(&mut self, told: &SpendingHandover, today: Day) {
        self.each(told, today, |spent, tokens| {
            *spent = spent.saturating_add(tokens);
        });
    }

    fn each(&mut self, told: &SpendingHandover, today: Day, mut by: impl FnMut(&mut u64, u64)) {
        let Some(day) = Day::parse(&told.day) else {
            return;
        };
        self.turn(today);
        // Another day's are over, or of a clock that is wrong.
        if day != self.day {
            return;
        }
        for (name, tokens) in told.tokens.iter().take(MOST) {
            let Some(client) = ClientId::new(name) else {
                continue;
            };
            if self.spent.len() < MOST || self.spent.contains_key(&client) {
                by(&mut self.spent.entry(client).or_default().tokens, *tokens);
                self.unwritten = true;
            }
        }
    }

    /// A new day begins with nothing spent. A clock that goes back does not bring a day back.
    fn turn(&mut self, today: Day) {
        if today > self.day {
            self.day = today;
            self.spent.clear();
            self.unwritten = true;
        }
    }

    fn document(&self, of: impl Fn(&Spent) -> u64) -> SpendingHandover {
        let tokens = self.spent.iter().map(|(id, it)| (id.to_string(), of(it)));
        let mut tokens: Vec<_> = tokens.filter(|(_, tokens)| *tokens > 0).collect();
        tokens.sort();
        SpendingHandover {
            day: self.day.to_string(),
            tokens,
        }
    }
}

impl SpendingHandover {
    /// Whether it says nothing of anybody.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// From `now` to the end of its day in UTC.
pub fn until_midnight(now: SystemTime) -> Duration {
    const DAY: u64 = 24 * 3600;
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    let midnight = Duration::from_secs((since.as_secs() / DAY + 1) * DAY);
    midnight.saturating_sub(since)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn day(text: &str) -> Day {
        Day::parse(text).unwrap()
    }

    fn id(name: &str) -> ClientId {
        ClientId::new(name).unwrap()
    }

    #[test]
    fn a_new_day_begins_with_nothing_spent() {
        let (today, tomorrow) = (day("2026-11-29"), day("2026-11-30"));
        let mut spending = Spending::default();
        spending.add(&id("a"), 5, today);
        spending.add(&id("a"), 7, today);
        assert_eq!(spending.of(&id("a"), today), 12);
        assert_eq!(spending.of(&id("b"), today), 0);
        assert_eq!(spending.of(&id("a"), tomorrow), 0);
        spending.add(&id("b"), 1, tomorrow);
        assert_eq!(spending.of(&id("a"), tomorrow), 0);
        // A clock that goes back changes nothing of the day that it is.
        spending.add(&id("b"), 100, today);
        assert_eq!(spending.of(&id("b"), tomorrow), 1);
    }

    #[test]
    fn midnight_is_told_to_the_second() {
        let at = |text: &str| until_midnight(humantime::parse_rfc3339(text).unwrap());
        assert_eq!(at("2026-11-29T23:59:59Z"), Duration::from_secs(1));
        assert_eq!(at("2026-11-29T00:00:00Z"), Duration::from_secs(24 * 3600));
        assert_eq!(
            at("2026-11-29T12:00:00.5Z"),
            Duration::from_millis(43_199_500)
        );
    }

    #[test]
    fn the_disk_is_asked_for_only_where_there_is_something_new() {
        let today = day("2026-11-29");
        let mut spending = Spending::default();
        assert_eq!(spending.unwritten(), None);
        spending.add(&id("a"), 5, today);
        let written = spending.unwritten().unwrap();
        assert_eq!(spending.unwritten(), None);
        spending.not_written();
        assert_eq!(spending.unwritten(), Some(written.clone()));
        let mut next = Spending::default();
        next.take_over(&written, today);
        assert_eq!(next.of(&id("a"), today), 5);
        let mut later = Spending::default();
        later.take_over(&written, day("2026-11-30"));
        assert_eq!(later.of(&id("a"), day("2026-11-30")), 0);
    }

    #[test]
    fn what_is_no_document_is_left_out() {
        let today = day("2026-11-29");
        let mut spending = Spending::default();
        let strange = |day: &str, name: &str| SpendingHandover {
            day: day.to_owned(),
            tokens: vec![(name.to_owned(), u64::MAX)],
        };
        for told in [
            strange("soon", "a"),
            strange("2026-11-29", "A b"),
            strange("2026-12-01", "a"),
        ] {
            spending.take_over(&told, today);
            spending.hear(&told, today);
        }
        assert_eq!(spending.spent.len(), 0);
        spending.hear(&strange("2026-11-29", "a"), today);
        spending.hear(&strange("2026-11-29", "a"), today);
        assert_eq!(spending.of(&id("a"), today), u64::MAX);
    }

    proptest! {
        /// Generations that hand over at random times, each with requests that still end, and the disk
        /// of the first behind by some: the last one knows of every token once.
        #[test]
        fn no_token_is_lost_or_counted_twice_over_reloads(
            steps in prop::collection::vec((0_u8..4, 0_usize..2, 1_u64..100), 1..200),
        ) {
            let today = day("2026-11-29");
            let ids = [id("a"), id("b")];
            let mut generations = vec![Spending::default()];
            let mut spent = [0_u64; 2];
            let mut disk = SpendingHandover::default();
            for (what, who, tokens) in steps {
                let last = generations.len() - 1;
                match what {
                    // Any process that lives may have a request that ends.
                    0 | 1 => {
                        let which = if what == 0 { last } else { tokens as usize % generations.len() };
                        generations[which].add(&ids[who], tokens, today);
                        spent[who] += tokens;
                    }
                    2 => if let Some(written) = generations[last].unwritten() {
                        disk = written;
                    },
                    _ => {
                        let mut next = Spending::default();
                        next.take_over(&disk, today);
                        next.take_over(&generations[last].hand_over(), today);
                        generations.push(next);
                    }
                }
                // Each tells the next, now and then.
                if tokens % 3 == 0 {
                    tell(&mut generations, today);
                }
            }
            tell(&mut generations, today);
            let last = generations.last().unwrap();
            for (who, spent) in spent.iter().enumerate() {
                prop_assert_eq!(last.of(&ids[who], today), *spent);
            }
        }
    }

    fn tell(generations: &mut [Spending], today: Day) {
        for older in 1..generations.len() {
            let news = generations[older - 1].news();
            generations[older].hear(&news, today);
        }
    }
}
