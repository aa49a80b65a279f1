//! What the edge tells the process that takes over: once, in one document.
//!
//! What comes after that from requests still under way here is `news`.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::owners::OwnersHandover;
use super::state::{Edge, today};
use crate::clients::ClientFigures;
use crate::observe::window::PairHistory;
use crate::pool::PoolHandover;

/// Exclusions, scores, sessions, owners, counts, and what clients do. No secret, no key, no name of a
/// session, nothing that a client wrote but names of models.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EdgeHandover {
    pool: PoolHandover,
    owners: OwnersHandover,
    counts: Vec<PairHistory>,
    clients: ClientFigures,
}

impl Edge {
    /// Everything that the next process should know.
    pub fn hand_over(&self, now: Instant) -> EdgeHandover {
        let clients = self.clients.as_ref().map(|it| it.register.hand_over(now));
        EdgeHandover {
            pool: self.pool.hand_over(now),
            owners: self.owners.hand_over(),
            counts: self.trail.export_counts(now),
            clients: clients.unwrap_or_default(),
        }
    }

    /// What the process before this one knew; before anything is served.
    pub fn take_over(&self, told: &EdgeHandover, now: Instant) {
        let places = self.pool.take_over(&told.pool, now);
        self.owners.take_over(&told.owners, &places);
        self.trail.import_counts(&told.counts, now);
        if let Some(clients) = &self.clients {
            clients.register.take_over(&told.clients, now, today());
        }
    }
}
