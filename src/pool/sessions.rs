//! What a session is known under, and where it lives if not where the ring says.
//!
//! The ring gives every session a place that each node works out alone. Two things cannot be worked
//! out, and both are kept in one table: to which root a name belongs, since a subagent may say no more
//! than its parent's thread; and who lives elsewhere, because it came when its place was crowded or
//! because what it has stored or encrypted was made in another realm. A subagent's own thread may
//! live elsewhere than its root: to move the root after it would leave behind what the root has.
//!
//! The table is bounded, and names come scoped by client: who fills it with names makes others fall
//! back to the ring, which is no more than what a restart does.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::credential::CredentialIndex;
use crate::admission::elapsed::FromNow;
use crate::admission::recent::Recent;

/// Names known at once (chosen: two for each session whose score is remembered; 10 MiB).
const MAX_NAMES: usize = 200_000;

/// What one request says of its session; the names are hashed, and scoped by client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The thread that started it, where it is a subagent's.
    pub parent: Option<u64>,
    /// Its session.
    pub session: Option<u64>,
    /// Its thread.
    pub thread: Option<u64>,
}

/// To which session a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The session that it all began with: this decides the credential.
    pub root: u64,
    /// The subagent's own thread, where it is one's.
    pub branch: Option<u64>,
}

/// Where a session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// It was never admitted: it may be given another place than the ring's.
    New,
    /// Where the ring says.
    OnRing,
    /// Here, whatever the ring says.
    Elsewhere(CredentialIndex),
}

/// Everything that is known of sessions, for the next process: the name, its root, where it lives, and
/// when it was last heard of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SessionsHandover(Vec<(u64, u64, HomeHandover, FromNow)>);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HomeHandover {
    New,
    OnRing,
    Elsewhere(usize),
}

/// What is known of sessions, by their names.
#[derive(Debug)]
pub(super) struct Sessions(Recent<u64, Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    root: u64,
    home: Home,
    last: Instant,
}

impl Lineage {
    /// A session without subagents.
    pub fn root(root: u64) -> Lineage {
        Lineage { root, branch: None }
    }
}

impl Sessions {
    /// To which session these names belong, and from now on they are known to. A parent decides if it
    /// is known, or if there is no other name.
    pub fn lineage(&mut self, names: Names, now: Instant) -> Option<Lineage> {
        let parent = names.parent.and_then(|it| self.0.get(&it));
        let root = parent
            .map(|it| it.root)
            .or(names.session)
            .or(names.parent)?;
        for name in names.session.into_iter().chain(names.thread) {
            let new = || Known {
                root,
                home: Home::New,
                last: now,
            };
            self.0.entry(name, new).root = root;
        }
        let own = names.thread.or(names.session);
        let branch = names.parent.and(own).filter(|it| *it != root);
        Some(Lineage { root, branch })
    }

    /// Where a session lives; an exception to the ring is forgotten after `ttl` without a request.
    pub fn home(&mut self, of: Lineage, ttl: Duration, now: Instant) -> Home {
        let branch = of.branch.map(|it| self.lives(it, ttl, now));
        match branch {
            Some(home @ Home::Elsewhere(_)) => home,
            _ => self.lives(of.root, ttl, now),
        }
    }

    /// From now on the session, or the subagent's thread, lives there.
    pub fn settle_down(&mut self, of: Lineage, home: Home, now: Instant) {
        let new = || Known {
            root: of.root,
            home,
            last: now,
        };
        let known = self.0.entry(of.branch.unwrap_or(of.root), new);
        (known.home, known.last) = (home, now);
    }

    /// Everything that is known.
    pub fn hand_over(&self, now: Instant) -> SessionsHandover {
        let told = self.0.iter().map(|(name, known)| {
            let home = match known.home {
                Home::New => HomeHandover::New,
                Home::OnRing => HomeHandover::OnRing,
                Home::Elsewhere(index) => HomeHandover::Elsewhere(index.0),
            };
            (*name, known.root, home, FromNow::of(known.last, now))
        });
        SessionsHandover(told.collect())
    }

    /// What another process knew; `here` is the place of a credential in this pool. Whoever lived with
    /// one that is gone starts anew.
    pub fn take_over(
        &mut self,
        told: &SessionsHandover,
        here: impl Fn(usize) -> Option<usize>,
        now: Instant,
    ) {
        for (name, root, home, last) in told.0.iter().take(MAX_NAMES) {
            let home = match home {
                HomeHandover::New => Home::New,
                HomeHandover::OnRing => Home::OnRing,
                HomeHandover::Elsewhere(there) => match here(*there) {
                    Some(index) => Home::Elsewhere(CredentialIndex(index)),
                    None => Home::New,
                },
            };
            let known = Known {
                root: *root,
                home,
                last: last.at(now),
            };
            self.0.entry(*name, || known);
        }
    }

    fn lives(&mut self, name: u64, ttl: Duration, now: Instant) -> Home {
        let known = self.0.get(&name);
        match known.filter(|it| now.saturating_duration_since(it.last) <= ttl) {
            None => Home::New,
            Some(known) => {
                known.last = known.last.max(now);
                known.home
            }
        }
    }
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions(Recent::new(MAX_NAMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn names(parent: u64, session: u64, thread: u64) -> Names {
        let named = |name: u64| (name > 0).then_some(name);
        Names {
            parent: named(parent),
            session: named(session),
            thread: named(thread),
        }
    }

    #[test]
    fn a_subagent_that_names_only_its_parents_thread_belongs_to_its_root() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let mut root = |parent, session, thread| {
            let lineage = sessions.lineage(names(parent, session, thread), now);
            lineage.map(|it| (it.root, it.branch))
        };
        assert_eq!(root(0, 1, 11), Some((1, None)));
        // By the thread, by the session, and a subagent of the subagent.
        assert_eq!(root(11, 2, 12), Some((1, Some(12))));
        assert_eq!(root(1, 0, 13), Some((1, Some(13))));
        assert_eq!(root(13, 3, 0), Some((1, Some(3))));
        assert_eq!(root(12, 12, 12), Some((1, Some(12))));
    }

    #[test]
    fn an_unknown_parent_decides_only_where_nothing_else_is_named() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let mut root = |parent, session, thread| {
            let lineage = sessions.lineage(names(parent, session, thread), now);
            lineage.map(|it| it.root)
        };
        assert_eq!(root(9, 2, 12), Some(2));
        assert_eq!(root(9, 0, 13), Some(9));
        assert_eq!(root(0, 0, 0), None);
        // Each the other's parent: somebody is the root, and nothing goes round in circles.
        assert_eq!(root(21, 20, 20), Some(20));
        assert_eq!(root(20, 21, 21), Some(20));
        assert_eq!(root(21, 20, 20), Some(20));
    }

    #[test]
    fn a_thread_may_live_elsewhere_than_its_root_and_its_root_does_not_follow() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let root = Lineage::root(1);
        let branch = Lineage {
            branch: Some(12),
            ..root
        };
        let sibling = Lineage {
            branch: Some(13),
            ..root
        };
        let elsewhere = |at| Home::Elsewhere(CredentialIndex(at));
        sessions.settle_down(root, elsewhere(3), now);
        assert_eq!(sessions.home(branch, HOUR, now), elsewhere(3));
        sessions.settle_down(branch, elsewhere(4), now);
        assert_eq!(sessions.home(branch, HOUR, now), elsewhere(4));
        assert_eq!(sessions.home(root, HOUR, now), elsewhere(3));
        assert_eq!(sessions.home(sibling, HOUR, now), elsewhere(3));
        let later = now + HOUR + Duration::from_secs(1);
        assert_eq!(sessions.home(branch, HOUR, later), Home::New);
    }

    #[test]
    fn a_million_names_stay_within_the_bound() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        for name in 1..1_000_000 {
            sessions.lineage(names(name + 1, name, name + 2), now);
        }
        assert!(sessions.0.len() <= MAX_NAMES);
    }
}
