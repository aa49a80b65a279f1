//! What a draining process goes on telling the one that took over.
//!
//! Its requests still end, for up to an hour: who refused them, what they made and what is in flight
//! belong to the pool that serves now. So the drain is a source of news, and each process passes on to
//! its own successor what it hears. Promises: news never hold a request up (what does not fit into the
//! queue is dropped), nothing in them is a secret or the name of a session, and nothing is told twice:
//! what happens is done and told under a shared lock, and the document of the handover, which has all that
//! was done before it, is written under the exclusive one ([`Edge::begin_news`]). Requests then wait for
//! the document, a few milliseconds once a reload; numbering what happens instead would put a counter into
//! each of the places that know it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::owners::{Key, Thing};
use super::state::{Edge, today};
use crate::admission::Verdict;
use crate::admission::elapsed::FromNow;
use crate::clients::ClientFigures;
use crate::observe::hits::RuleHistory;
use crate::observe::record::Record;
use crate::observe::totals::{Since, Total};
use crate::observe::window::PairHistory;
use crate::pool::{
    CredentialId, CredentialIndex, Lease, Lineage, Refused, RouteIndex, Settlement, Stated,
};

/// One piece.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// A request was admitted, or has nothing left to try.
    Settled(SettledNews),
    /// An attempt had a verdict.
    Learned(LearnedNews),
    /// Something belongs to a credential from now on.
    Made {
        /// Its hash.
        key: Key,
        /// The credential's name.
        maker: String,
    },
    /// What is in flight, by credential.
    InFlight(Vec<(String, u32)>),
    /// What the counters have counted since the last time.
    Totals(Vec<Total>),
    /// Attempts that were refused or admitted.
    Counts(Vec<PairHistory>),
    /// Rules that decided.
    Hits(Vec<RuleHistory>),
    /// What clients have in flight, and what they asked and spent since the last time.
    Clients(ClientFigures),
}

/// See [`Settlement`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SettledNews {
    route: String,
    model: Option<String>,
    session: Option<(u64, Option<u64>)>,
    refused: Vec<(String, Option<Duration>)>,
    admitted: Option<String>,
    began: FromNow,
}

/// See [`Lease::learn`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LearnedNews {
    credential: String,
    model: Option<String>,
    verdict: String,
    stated: Option<(Duration, String, bool)>,
}

/// Pieces that wait to be told (chosen: a second of a very busy edge).
const QUEUE: usize = 10_000;

/// The news of this process, in their order.
pub type Newsreel = mpsc::Receiver<News>;

impl Edge {
    /// From `before` on what happens is told, to this reader and no other; nothing happens meanwhile.
    pub(super) fn begin_news<R>(&self, before: impl FnOnce() -> R) -> (R, Newsreel) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let mut heir = self.heir.write().unwrap_or_else(PoisonError::into_inner);
        let before = before();
        *heir = Some(sender);
        (before, receiver)
    }

    /// What is in flight and what was counted, told together, once a second.
    pub fn figures(&self, since: &mut Since, now: Instant) -> Vec<News> {
        let credentials = self.pool.credentials().iter();
        let in_flight = credentials.map(|it| (it.id().to_string(), it.in_flight()));
        let figures = [
            News::InFlight(in_flight.collect()),
            News::Totals(since.news(self.trail.totals())),
        ];
        let clients = self.clients.iter();
        let clients = clients.map(|it| News::Clients(it.register.news(now)));
        figures.into_iter().chain(clients).collect()
    }

    /// The process before this one has told something.
    pub fn hear(&self, news: News, now: Instant) {
        match &news {
            // What this process tells of itself holds these three already.
            News::InFlight(counts) => self.hear_in_flight(counts),
            News::Totals(totals) => self.trail.add_totals(totals),
            News::Clients(figures) => {
                if let Some(clients) = &self.clients {
                    clients.register.hear(figures, now, today());
                }
            }
            News::Settled(_)
            | News::Learned(_)
            | News::Made { .. }
            | News::Counts(_)
            | News::Hits(_) => self.do_and_tell(|| self.hear_of(&news, now), |()| news.clone()),
        }
    }

    fn hear_of(&self, news: &News, now: Instant) {
        match news {
            News::Settled(settled) => self.hear_settled(settled, now),
            News::Learned(learned) => {
                let verdict = Verdict::ALL
                    .into_iter()
                    .find(|it| it.as_str() == learned.verdict);
                let id = CredentialId::new(&learned.credential);
                if let (Some(id), Some(verdict)) = (id, verdict) {
                    let stated = learned.stated.as_ref();
                    let stated =
                        stated.map(|(after, basis, pair)| Stated::told(*after, basis, *pair));
                    let model = learned.model.as_deref();
                    self.pool.hear(&id, model, (verdict, stated), now);
                }
            }
            News::Made { key, maker } => {
                if let Some(maker) = self.index(maker) {
                    self.owners.heard(*key, maker);
                }
            }
            News::Counts(counts) => self.trail.import_counts(counts, now),
            News::Hits(hits) => self.trail.import_hits(hits),
            News::InFlight(_) | News::Totals(_) | News::Clients(_) => {}
        }
    }

    fn hear_in_flight(&self, counts: &[(String, u32)]) {
        for (name, requests) in counts {
            let credential = self.index(name);
            let credential = credential.and_then(|it| self.pool.credentials().get(it.0));
            if let Some(credential) = credential {
                credential.set_elsewhere(*requests);
            }
        }
    }

    /// The process before this one is gone.
    pub fn hears_no_more(&self) {
        for credential in self.pool.credentials() {
            credential.set_elsewhere(0);
        }
        if let Some(clients) = &self.clients {
            clients.register.hears_no_more();
        }
    }

    /// Another process serves from now on: what is written down for later is its to write.
    pub fn succeeded(&self) {
        self.succeeded.store(true, Ordering::Relaxed);
    }

    /// Whether another process has taken over, or is about to.
    pub(super) fn has_heir(&self) -> bool {
        if self.succeeded.load(Ordering::Relaxed) {
            return true;
        }
        let heir = self.heir.read().unwrap_or_else(PoisonError::into_inner);
        heir.as_ref().is_some_and(|it| !it.is_closed())
    }

    /// Draws every consequence of a request, here and in the process that took over.
    pub(super) fn settle(&self, settlement: &Settlement, now: Instant) {
        let settle = || self.pool.settle(settlement, now);
        self.do_and_tell(settle, |()| {
            let route = self.route_name(settlement.route.0);
            let refused = settlement.refused.iter();
            let refused = refused.map(|it| (self.name(it.credential), it.stated));
            News::Settled(SettledNews {
                route: route.map(ToString::to_string).unwrap_or_default(),
                model: settlement.model.map(str::to_owned),
                session: settlement.session.map(|it| (it.root, it.branch)),
                refused: refused.collect(),
                admitted: settlement.admitted.map(|it| self.name(it)),
                began: FromNow::of(settlement.began, now),
            })
        });
    }

    /// Draws every consequence of a verdict for its credential, likewise.
    pub(super) fn learn(
        &self,
        lease: &Lease,
        model: Option<&str>,
        (verdict, stated): (Verdict, Option<Stated>),
    ) {
        let learn = || lease.learn(model, verdict, stated, Instant::now());
        self.do_and_tell(learn, |()| {
            News::Learned(LearnedNews {
                credential: lease.credential().id().to_string(),
                model: model.map(str::to_owned),
                verdict: verdict.as_str().to_owned(),
                stated: stated.map(|it| (it.after, it.basis.to_owned(), it.pair_only)),
            })
        });
    }

    /// `maker` made this.
    pub(super) fn made(&self, thing: Thing, name: &[u8], maker: CredentialIndex) {
        let made = || self.owners.made(thing, name, maker);
        self.do_and_tell(made, |key| News::Made {
            key,
            maker: self.name(maker),
        });
    }

    /// A request has ended.
    pub(super) fn ended(&self, mut record: Record) {
        for attempt in &mut record.attempts {
            if let Some(credential) = self.pool.credential(&attempt.credential.0) {
                attempt.withhold(|text| credential.is_secret_in(text));
            }
        }
        let heir = self.heir.read().unwrap_or_else(PoisonError::into_inner);
        if let (Some(clients), Some(client), Some(usage)) =
            (&self.clients, &record.client, record.usage)
        {
            let tokens = usage.input.saturating_add(usage.output);
            clients.register.spent(client, tokens, today());
        }
        if let Some(heir) = listening(&heir) {
            let (counts, hits) = (PairHistory::of(&record), RuleHistory::of(&record));
            let counts = (!counts.is_empty()).then_some(News::Counts(counts));
            let hits = (!hits.is_empty()).then_some(News::Hits(hits));
            for news in counts.into_iter().chain(hits) {
                let _ = heir.try_send(news);
            }
        }
        self.trail.finished(record, Instant::now());
    }

    fn hear_settled(&self, told: &SettledNews, now: Instant) {
        let route = (0..self.routes.len()).find(|it| {
            let name = self.route_name(*it);
            name.is_some_and(|name| **name == *told.route)
        });
        let Some(route) = route else { return };
        let refused = told.refused.iter().filter_map(|(name, stated)| {
            Some(Refused {
                credential: self.index(name)?,
                stated: *stated,
            })
        });
        let refused: Vec<_> = refused.collect();
        let admitted = told.admitted.as_deref().and_then(|name| self.index(name));
        if admitted.is_none() && refused.is_empty() {
            return;
        }
        let settlement = Settlement {
            route: RouteIndex(route),
            model: told.model.as_deref(),
            session: told.session.map(|(root, branch)| Lineage { root, branch }),
            refused: &refused,
            admitted,
            began: told.began.at(now),
        };
        self.pool.settle(&settlement, now);
    }

    /// Does something and tells it, both before or both after a handover's document is written.
    fn do_and_tell<R>(&self, act: impl FnOnce() -> R, news: impl FnOnce(R) -> News) {
        let heir = self.heir.read().unwrap_or_else(PoisonError::into_inner);
        let done = act();
        if let Some(heir) = listening(&heir) {
            let _ = heir.try_send(news(done));
        }
    }

    fn name(&self, index: CredentialIndex) -> String {
        let credential = self.pool.credentials().get(index.0);
        credential.map_or_else(String::new, |it| it.id().to_string())
    }

    fn index(&self, name: &str) -> Option<CredentialIndex> {
        let credential = self.pool.credential(&CredentialId::new(name)?)?;
        Some(credential.index())
    }
}

/// The heir, unless it is gone.
fn listening(heir: &Option<mpsc::Sender<News>>) -> Option<&mpsc::Sender<News>> {
    heir.as_ref().filter(|it| !it.is_closed())
}
