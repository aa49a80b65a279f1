//! What a session remembers of the pairs it met: whether it is warm there, and what it avoids.

use std::time::{Duration, Instant};

use super::Credential;

/// A session is warm for so long after an admission (the policy's).
pub const WARM: Duration = Duration::from_secs(600);

/// Pairs that one session remembers (chosen: a request tries three, and what is older than ten
/// minutes counts for nothing).
const PAIRS: usize = 8;

/// One session and one model.
#[derive(Debug, Default)]
pub struct Memory(Vec<Meeting>);

/// What a session and a pair had to do with each other.
#[derive(Debug)]
pub struct Meeting {
    pub credential: Credential,
    pub admitted: Option<Instant>,
    pub refused: Option<Instant>,
    /// The last refusal as a newcomer.
    pub episode: Option<Instant>,
}

/// What a refusal is to the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighs {
    /// A newcomer's first one in this episode.
    Newcomer,
    /// One of a session that was warm here.
    Warm,
    /// Another one of the same episode.
    Nothing,
}

impl Memory {
    /// Of these meetings, the first of them.
    pub fn of(meetings: impl Iterator<Item = Meeting>) -> Memory {
        Memory(meetings.take(PAIRS).collect())
    }

    /// Whether any of it still counts for something.
    pub fn is_worth_something(&self, episode: Duration, now: Instant) -> bool {
        let recent = |it: &Meeting| since(it.last(now), now) < WARM.max(episode);
        self.0.iter().any(recent)
    }

    /// All of them.
    pub fn meetings(&self) -> &[Meeting] {
        &self.0
    }

    /// Refused by `credential`; `counts` is false while the model is full, when a refusal says
    /// nothing about the pair.
    pub fn refused(
        &mut self,
        credential: Credential,
        counts: bool,
        episode: Duration,
        now: Instant,
    ) -> Weighs {
        self.meet(credential, now, |meeting| {
            let warm = meeting.is_warm(now);
            let last = meeting.episode;
            meeting.refused = Some(now);
            if !counts {
                return Weighs::Nothing;
            }
            if warm {
                return Weighs::Warm;
            }
            meeting.episode = Some(now);
            match last.is_none_or(|then| since(then, now) > episode) {
                true => Weighs::Newcomer,
                false => Weighs::Nothing,
            }
        })
    }

    /// Admitted by `credential`; whether it was warm there before.
    pub fn admitted(&mut self, credential: Credential, now: Instant) -> bool {
        self.meet(credential, now, |meeting| {
            let warm = meeting.is_warm(now);
            meeting.admitted = Some(now);
            warm
        })
    }

    /// Whether the last verdict there was an admission less than ten minutes ago.
    pub fn is_warm(&self, credential: Credential, now: Instant) -> bool {
        self.0
            .iter()
            .any(|it| it.credential == credential && it.is_warm(now))
    }

    /// Where its cache is likely still kept, whatever came after.
    pub fn familiar(&self, now: Instant) -> impl Iterator<Item = Credential> + '_ {
        let lately = move |it: &&Meeting| it.admitted.is_some_and(|then| since(then, now) < WARM);
        self.0.iter().filter(lately).map(|it| it.credential)
    }

    /// What it would rather not meet again during an episode, and since when.
    pub fn avoided(
        &self,
        episode: Duration,
        now: Instant,
    ) -> impl Iterator<Item = (Credential, Instant)> + '_ {
        self.0.iter().filter_map(move |it| {
            let since_then = it.episode.filter(|then| since(*then, now) < episode)?;
            let answered = it.admitted.is_some_and(|then| then > since_then);
            (!answered).then_some((it.credential, since_then))
        })
    }

    /// Does `act` on the meeting with `credential`, which is made where there was none.
    fn meet<R>(
        &mut self,
        credential: Credential,
        now: Instant,
        act: impl FnOnce(&mut Meeting) -> R,
    ) -> R {
        let known = self.0.iter().position(|it| it.credential == credential);
        let mut meeting = match known {
            Some(at) => self.0.swap_remove(at),
            None => Meeting {
                credential,
                admitted: None,
                refused: None,
                episode: None,
            },
        };
        let result = act(&mut meeting);
        if self.0.len() >= PAIRS {
            let oldest = (0..).zip(&self.0).min_by_key(|(_, it)| it.last(now));
            self.0.swap_remove(oldest.map_or(0, |(at, _)| at));
        }
        self.0.push(meeting);
        result
    }
}

impl Meeting {
    fn is_warm(&self, now: Instant) -> bool {
        let admitted = self.admitted.filter(|then| since(*then, now) < WARM);
        admitted.is_some_and(|then| self.refused.is_none_or(|refused| then > refused))
    }

    fn last(&self, now: Instant) -> Instant {
        self.admitted.max(self.refused).unwrap_or(now)
    }
}

fn since(then: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(then)
}
