//! How the pairs of a model stand for one request.

use std::time::Instant;

use super::Credential;

/// Everything that is not simply ready.
#[derive(Debug, Default)]
pub struct Outlook {
    /// Those that go last, by credential.
    pub last: Vec<Last>,
    /// Those that this session was refused by lately, and since when.
    pub avoided: Vec<(Credential, Instant)>,
    /// Those where the session's cache is likely still kept.
    pub familiar: Vec<Credential>,
}

/// A pair that goes last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Last {
    /// Whose pair.
    pub credential: Credential,
    /// Its score: the lowest goes first.
    pub score: f64,
    /// Its score among warm sessions.
    pub warm: f64,
    /// Shunned, not only cooling.
    pub shunned: bool,
    /// A place for a probe is free.
    pub probe: bool,
}

/// How one pair stands for the request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// Nothing speaks against it.
    Ready {
        /// The session has been admitted here lately.
        familiar: bool,
    },
    /// Ready, but this session was refused here.
    Avoided {
        /// When.
        since: Instant,
    },
    /// Shunned, and the request may probe it.
    Probe,
    /// After all others, by score.
    Last {
        /// Its score, and one refusal more where the session was refused itself.
        score: f64,
    },
}

/// What a session's own refusal adds to the score by which pairs that go last are put in order.
const OWN_REFUSAL: f64 = 10.0;

impl Outlook {
    /// How this credential's pair stands.
    pub fn standing(&self, credential: Credential) -> Standing {
        let avoided = || self.avoided.iter().find(|(it, _)| *it == credential);
        match self.last(credential) {
            Some(last) if last.probe => Standing::Probe,
            Some(last) => Standing::Last {
                score: last.score + avoided().map_or(0.0, |_| OWN_REFUSAL),
            },
            None => match avoided() {
                Some((_, since)) => Standing::Avoided { since: *since },
                None => Standing::Ready {
                    familiar: self.familiar.contains(&credential),
                },
            },
        }
    }

    /// What is said against this credential's pair.
    pub fn last(&self, credential: Credential) -> Option<&Last> {
        let found = self
            .last
            .binary_search_by_key(&credential, |it| it.credential);
        self.last.get(found.ok()?)
    }

    /// These credentials, in ascending order, go last with every model.
    pub(super) fn widen(&mut self, wide: impl Iterator<Item = Credential>) {
        let mut known = self.last.iter().map(|it| it.credential).peekable();
        let is_missing = |it: &Credential| {
            while known.next_if(|known| known < it).is_some() {}
            known.peek() != Some(it)
        };
        let missing: Vec<Credential> = wide.filter(is_missing).collect();
        self.last.extend(missing.into_iter().map(|credential| Last {
            credential,
            score: 0.0,
            warm: 0.0,
            shunned: true,
            probe: false,
        }));
        // Two runs in order, which this sort joins in one go.
        self.last.sort_by_key(|it| it.credential);
    }
}
