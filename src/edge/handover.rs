//! What the edge tells the process that takes over: once, in one document.
//!
//! What comes after that from requests still under way here is `news`.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::news::Newsreel;
use super::owners::OwnersHandover;
use super::state::{Edge, today};
use crate::clients::ClientFigures;
use crate::observe::allowances::AllowanceHandover;
use crate::observe::hits::RuleHistory;
use crate::observe::refusals::RefusalStatus;
use crate::observe::window::PairHistory;
use crate::pool::{CredentialId, PoolHandover};

/// Exclusions, scores, sessions, owners, counts, hits of rules, allowances, the latest refusals, and what clients
/// do. No secret, no key, no name of a session, nothing that a client wrote but names of models.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EdgeHandover {
    pool: PoolHandover,
    owners: OwnersHandover,
    counts: Vec<PairHistory>,
    allowances: Vec<AllowanceHandover>,
    refusals: Vec<RefusalStatus>,
    hits: Vec<RuleHistory>,
    clients: ClientFigures,
}

impl Edge {
    /// Everything that the next process should know, and the news from there on: whatever happens is in
    /// the one or the other, and never in both.
    pub fn bequeath(&self, now: Instant) -> (EdgeHandover, Newsreel) {
        self.begin_news(|| self.hand_over(now))
    }

    fn hand_over(&self, now: Instant) -> EdgeHandover {
        let clients = self.clients.as_ref().map(|it| it.register.hand_over(now));
        EdgeHandover {
            pool: self.pool.hand_over(now),
            owners: self.owners.hand_over(),
            counts: self.trail.export_counts(now),
            allowances: self.trail.export_allowances(now),
            refusals: self.trail.refusals(),
            hits: self.trail.export_hits(),
            clients: clients.unwrap_or_default(),
        }
    }

    /// What the process before this one knew; before anything is served.
    pub fn take_over(&self, told: &EdgeHandover, now: Instant) {
        let places = self.pool.take_over(&told.pool, now);
        self.owners.take_over(&told.owners, &places);
        self.trail.import_counts(&told.counts, now);
        let of_ours = told.allowances.iter().filter(|it| {
            let id = CredentialId::new(&it.credential);
            id.is_some_and(|id| self.pool.credential(&id).is_some())
        });
        self.trail.import_allowances(of_ours, now);
        self.trail.import_refusals(&told.refusals);
        self.trail.import_hits(&told.hits);
        if let Some(clients) = &self.clients {
            clients.register.take_over(&told.clients, now, today());
        }
    }
}
