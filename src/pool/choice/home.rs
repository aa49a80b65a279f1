//! Where a session lives after it was answered, and which realm its request may not leave.
//!
//! A session lives on the ring, and a detour keeps it there. What an answer leaves behind (encrypted
//! reasoning, stored items) is good in the realm that made it and nowhere else: so the first answer
//! from another realm moves the session, and a request that carries such content stays in its realm.

use super::super::roster::Roster;
use super::super::search::place_of;
use super::super::sessions::{Home, Lineage};
use super::{Ask, CredentialIndex, Pool, Route};

/// A session that was just admitted.
pub(super) struct Settles {
    pub home: Home,
    pub session: Lineage,
    pub admitted: CredentialIndex,
    /// Nobody refused it: where it was not at home, the load kept it away.
    pub displaced: bool,
}

impl Pool {
    /// Where a session lives from now on, where that changes. A detour changes nothing, except that
    /// whoever was answered in another realm has state there, and stays.
    pub(super) fn moves(
        &self,
        settles: &Settles,
        (route, roster): (&Route, &Roster),
        model: Option<&str>,
    ) -> Option<Home> {
        let Settles {
            home,
            session,
            admitted,
            displaced,
        } = *settles;
        let place = place_of(&route.tiers, roster, session.root, model)?;
        let lived = match home {
            // Where its home does not serve the model, this is a detour for as long as it does not.
            Home::Elsewhere(home) => roster.serves(home).then_some(home)?,
            Home::New | Home::OnRing => place,
        };
        if self.realm(admitted) != self.realm(lived) {
            // A subagent's thread has no place of its own on the ring.
            let returns = session.branch.is_none() && self.realm(admitted) == self.realm(place);
            return Some(match returns {
                true => Home::OnRing,
                false => Home::Elsewhere(admitted),
            });
        }
        if home != Home::New || session.branch.is_some() {
            return None;
        }
        // Whoever was displaced by the load alone stays; whoever was refused comes back.
        let stays = displaced && admitted != place && roster.is_lowest(admitted);
        Some(match stays {
            true => Home::Elsewhere(admitted),
            false => Home::OnRing,
        })
    }

    /// The realm that a request may not leave: of whom it asked first, else of its home.
    pub(super) fn realm_of(
        &self,
        ask: &Ask,
        (route, roster): (&Route, &Roster),
        resident: Option<(u64, Home)>,
    ) -> Option<&str> {
        let home = || match resident? {
            (_, Home::Elsewhere(home)) if roster.serves(home) => Some(home),
            (root, _) => place_of(&route.tiers, roster, root, ask.model),
        };
        self.realm(ask.tried.first().copied().or_else(home)?)
    }

    fn realm(&self, credential: CredentialIndex) -> Option<&str> {
        let credential = self.credentials.get(credential.0)?;
        Some(&credential.spec().realm)
    }
}
