//! What belongs to the credential that made it: stored responses and turn states.
//!
//! A `previous_response_id` or a turn state sent to another account is an error at best. So berth
//! remembers who made which, by hash, for the latest of them; what it does not know (after a restart,
//! or beyond the bound) goes where the session goes.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::hash::stable;
use crate::admission::recent::Recent;
use crate::pool::{CredentialIndex, Places};

/// How many are remembered. Chosen: a day of ten thousand sessions at 16 bytes each.
const REMEMBERED: usize = 200_000;

/// Who made what.
pub struct Owners(Mutex<Recent<u64, CredentialIndex>>);

impl Default for Owners {
    fn default() -> Owners {
        Owners(Mutex::new(Recent::new(REMEMBERED)))
    }
}

/// The hash of something that belongs to somebody.
pub type Key = u64;

/// What may belong to somebody.
#[derive(Clone, Copy, Debug)]
pub enum Thing {
    /// A stored response, by its id.
    Response,
    /// The state of a turn (`x-codex-turn-state`).
    TurnState,
}

/// Who made what, for the next process: hashes and places of credentials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnersHandover(Vec<(u64, usize)>);

impl Owners {
    /// Everything that is known.
    pub fn hand_over(&self) -> OwnersHandover {
        let owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        OwnersHandover(owners.iter().map(|(key, maker)| (*key, maker.0)).collect())
    }

    /// What another process knew, as far as the makers are here.
    pub fn take_over(&self, told: &OwnersHandover, places: &Places) {
        let mut owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, there) in told.0.iter().take(REMEMBERED) {
            if let Some(maker) = places.here(*there) {
                owners.entry(*key, || maker);
            }
        }
    }

    /// `maker` made this.
    pub fn made(&self, thing: Thing, name: &[u8], maker: CredentialIndex) -> Key {
        let key = key(thing, name);
        self.heard(key, maker);
        key
    }

    /// `maker` made what has this hash.
    pub fn heard(&self, key: Key, maker: CredentialIndex) {
        let mut owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *owners.entry(key, || maker) = maker;
    }

    /// Who made this, as far as is known.
    pub fn maker(&self, thing: Thing, name: &[u8]) -> Option<CredentialIndex> {
        let mut owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        owners.get(&key(thing, name)).copied()
    }
}

/// Names are the upstream's and the client's: only a hash is kept, and never shown.
fn key(thing: Thing, name: &[u8]) -> u64 {
    let kind = match thing {
        Thing::Response => 1,
        Thing::TurnState => 2,
    };
    stable(&[&[kind], name])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_maker_is_remembered_and_kinds_are_kept_apart() {
        let owners = Owners::default();
        owners.made(Thing::Response, b"x", CredentialIndex(1));
        owners.made(Thing::Response, b"x", CredentialIndex(2));
        assert_eq!(
            owners.maker(Thing::Response, b"x"),
            Some(CredentialIndex(2))
        );
        assert_eq!(owners.maker(Thing::TurnState, b"x"), None);
    }
}
