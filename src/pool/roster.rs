//! Who serves a model on a route.
//!
//! Whether a credential serves a model is a matter of globs, and to ask a thousand of them for every
//! attempt costs more than the choice itself. So the answer is kept for the models asked for lately.
//! Models are named by clients, hence the bound; where everybody serves a model the route's own list
//! is shared.

use std::sync::{Arc, Mutex};

use super::credential::{Credential, CredentialIndex};
use super::lock;
use crate::admission::recent::Recent;
use crate::admission::score::Peers;

/// Who serves one model, lowest tier first.
#[derive(Debug)]
pub(super) struct Roster {
    pub tiers: Box<[TierRoster]>,
    pub peers: Peers,
}

/// The members of one tier, in the order listed.
#[derive(Debug)]
pub(super) struct TierRoster {
    /// The place of the tier in the route.
    pub tier: usize,
    pub members: Box<[Arc<Credential>]>,
}

/// The rosters of a route.
#[derive(Debug)]
pub(super) struct Rosters {
    everybody: Arc<Roster>,
    of_models: Mutex<Recent<Box<str>, Arc<Roster>>>,
}

/// Models whose roster is kept for each route (chosen: more than are in use at once).
const MODELS: usize = 256;

impl Rosters {
    /// For a route of these tiers.
    pub fn new(tiers: &[Vec<Arc<Credential>>]) -> Rosters {
        Rosters {
            everybody: Arc::new(Roster::new(tiers.iter().cloned().enumerate())),
            of_models: Mutex::new(Recent::new(MODELS)),
        }
    }

    /// Who serves `model`.
    pub fn of(&self, model: Option<&str>) -> Arc<Roster> {
        let Some(model) = model else {
            return Arc::clone(&self.everybody);
        };
        let mut known = lock(&self.of_models);
        if let Some(roster) = known.get(model) {
            return Arc::clone(roster);
        }
        let serving = |it: &&TierRoster| -> (usize, Vec<_>) {
            let members = it.members.iter();
            let members = members.filter(|it| it.spec().models.serve(Some(model)));
            (it.tier, members.cloned().collect())
        };
        let tiers = self.everybody.tiers.iter().map(|it| serving(&it));
        let roster = Arc::new(Roster::new(tiers));
        let roster = match roster.peers == self.everybody.peers {
            true => Arc::clone(&self.everybody),
            false => roster,
        };
        let kept = known.entry(model.into(), || Arc::clone(&roster));
        Arc::clone(kept)
    }
}

impl Roster {
    fn new(tiers: impl Iterator<Item = (usize, Vec<Arc<Credential>>)>) -> Roster {
        let tiers = tiers.filter(|(_, members)| !members.is_empty());
        let tiers: Box<[_]> = tiers
            .map(|(tier, members)| TierRoster {
                tier,
                members: members.into(),
            })
            .collect();
        let all = || tiers.iter().flat_map(|it| &it.members);
        let peers = Peers {
            count: all().count(),
            weight: all().map(|it| u64::from(it.weight())).sum(),
        };
        Roster { tiers, peers }
    }

    /// Whether this credential serves the model.
    pub fn serves(&self, credential: CredentialIndex) -> bool {
        let mut members = self.tiers.iter().flat_map(|it| &it.members);
        members.any(|it| it.index() == credential)
    }

    /// Whether this credential serves the model in the lowest tier.
    pub fn is_lowest(&self, credential: CredentialIndex) -> bool {
        let lowest = self.tiers.first();
        lowest.is_some_and(|tier| tier.members.iter().any(|it| it.index() == credential))
    }
}
