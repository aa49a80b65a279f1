//! Every client, what each has in flight, and the one question: may this request be served?
//!
//! ```text
//!   keys ──▶ one digest ──▶ a client ──▶ its last day ──▶ tokens of the day ──▶ in flight ──▶ minute ──▶ permit
//!     │           │             │              │                 │                 │            │
//!     └── none    └ several     └ unknown      └ expired         └ spent           └ busy       └ too many
//! ```
//!
//! The minute comes last because asking takes a place in it. A list of clients may be replaced at any time:
//! who stays on it keeps what it has in flight and what it asked, and who is taken off it keeps the
//! answers that are under way.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::key::KeyDigest;
use super::lock;
use super::minute::{Aged, Minute};
use super::spec::{ClientId, ClientSpec};
use super::spending::{Spending, SpendingHandover, until_midnight};
use crate::admission::day::Day;

/// Clients of one process (chosen: each is some series of the metrics).
pub const MAX_CLIENTS: usize = 5_000;

/// Every client.
#[derive(Debug)]
pub struct Register {
    table: RwLock<Arc<Table>>,
    spending: Mutex<Spending>,
}

/// The right of one request to be served. It counts as in flight until it is dropped.
pub struct Permit {
    client: Arc<Client>,
}

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Nobody has this key.
    Stranger,
    /// This client has it, but.
    Client(ClientId, Refusal),
}

/// Why a client is not served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its time is over.
    Expired {
        /// Its last day.
        last: Day,
    },
    /// `tokens_per_day`.
    Spent {
        /// The limit.
        limit: u64,
        /// Until the day is over.
        left: Duration,
    },
    /// `max_in_flight`.
    Busy {
        /// The limit.
        limit: u32,
    },
    /// `requests_per_minute`.
    TooMany {
        /// The limit.
        limit: u32,
        /// Until one more may come.
        left: Duration,
    },
}

/// A client at one moment.
#[derive(Clone, Debug)]
pub struct ClientView {
    /// Its name.
    pub id: ClientId,
    /// Requests in flight.
    pub in_flight: u32,
    /// Its limit.
    pub max_in_flight: Option<u32>,
    /// Requests of the last minute.
    pub requests: u32,
    /// Their limit.
    pub requests_per_minute: Option<u32>,
    /// Tokens of today.
    pub tokens: u64,
    /// Their limit.
    pub tokens_per_day: Option<u64>,
    /// Its last day.
    pub expires: Option<Day>,
    /// Whether that is over.
    pub expired: bool,
}

/// What another process is told of all clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientFigures {
    spending: SpendingHandover,
    clients: Vec<Figures>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    id: String,
    in_flight: u32,
    requests: Vec<Aged>,
}

#[derive(Debug, Default)]
struct Table {
    by_key: HashMap<KeyDigest, Arc<Client>>,
    all: Vec<Arc<Client>>,
}

#[derive(Debug)]
struct Client {
    spec: ClientSpec,
    meter: Arc<Mutex<Meter>>,
}

/// What a client does, whatever is written of it.
#[derive(Debug)]
struct Meter {
    in_flight: u32,
    /// The same in the process before this one.
    elsewhere: u32,
    minute: Minute,
    /// Requests that were let in since the successor was told.
    untold: u32,
}

impl Register {
    /// These clients. Of two with one name or one key, which a configuration rules out, the first counts.
    pub fn new(specs: Vec<ClientSpec>, now: Instant) -> Register {
        let register = Register {
            table: RwLock::default(),
            spending: Mutex::default(),
        };
        register.replace(specs, now);
        register
    }

    /// From now on these are the clients.
    pub fn replace(&self, specs: Vec<ClientSpec>, now: Instant) {
        let before = self.table();
        let known = before.all.iter().map(|it| (&it.spec.id, &it.meter));
        let known: HashMap<_, _> = known.collect();
        let mut table = Table::default();
        for spec in specs.into_iter().take(MAX_CLIENTS) {
            let meter = known.get(&spec.id).map(|it| Arc::clone(it));
            let meter = meter.unwrap_or_else(|| Arc::new(Mutex::new(Meter::new(now))));
            let client = Arc::new(Client { spec, meter });
            let key = client.spec.key;
            table.by_key.entry(key).or_insert_with(|| client.clone());
            table.all.push(client);
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    /// How many clients there are.
    pub fn count(&self) -> usize {
        self.table().all.len()
    }

    /// Whether anybody's tokens are limited.
    pub fn limits_tokens(&self) -> bool {
        let table = self.table();
        table.all.iter().any(|it| it.spec.tokens_per_day.is_some())
    }

    /// Whether the request with this key may be served.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn admit(
        &self,
        key: &KeyDigest,
        now: Instant,
        clock: SystemTime,
    ) -> Result<Permit, Denied> {
        let Some(client) = self.table().of(key) else {
            return Err(Denied::Stranger);
        };
        let (spec, today) = (&client.spec, Day::of(clock));
        let refuse = |refusal| Err(Denied::Client(spec.id.clone(), refusal));
        if let Some(last) = spec.expires.filter(|_| spec.is_expired(today)) {
            return refuse(Refusal::Expired { last });
        }
        if let Some(limit) = spec.tokens_per_day
            && lock(&self.spending).of(&spec.id, today) >= limit.get()
        {
            let left = until_midnight(clock);
            let limit = limit.get();
            return refuse(Refusal::Spent { limit, left });
        }
        let mut meter = lock(&client.meter);
        if let Some(limit) = spec.max_in_flight
            && meter.in_flight.saturating_add(meter.elsewhere) >= limit.get()
        {
            return refuse(Refusal::Busy { limit: limit.get() });
        }
        if let Err(left) = meter.minute.ask(spec.requests_per_minute, now) {
            let limit = spec.requests_per_minute.map_or(0, |it| it.get());
            return refuse(Refusal::TooMany { limit, left });
        }
        meter.in_flight += 1;
        meter.untold = meter.untold.saturating_add(1);
        drop(meter);
        Ok(Permit { client })
    }

    /// An answer to the client of this name used so many tokens.
    pub fn spent(&self, client: &str, tokens: u64, today: Day) {
        if let Some(id) = ClientId::new(client) {
            lock(&self.spending).add(&id, tokens, today);
        }
    }

    /// Every client, in the order of the configuration.
    pub fn views(&self, now: Instant, today: Day) -> Vec<ClientView> {
        let spending = lock(&self.spending);
        let view = |client: &Arc<Client>| {
            let spec = &client.spec;
            let mut meter = lock(&client.meter);
            ClientView {
                id: spec.id.clone(),
                in_flight: meter.in_flight.saturating_add(meter.elsewhere),
                max_in_flight: spec.max_in_flight.map(|it| it.get()),
                requests: meter.minute.used(now),
                requests_per_minute: spec.requests_per_minute.map(|it| it.get()),
                tokens: spending.of(&spec.id, today),
                tokens_per_day: spec.tokens_per_day.map(|it| it.get()),
                expires: spec.expires,
                expired: spec.is_expired(today),
            }
        };
        self.table().all.iter().map(view).collect()
    }

    /// What was spent, for the disk, where there is something new.
    pub fn unwritten(&self) -> Option<SpendingHandover> {
        lock(&self.spending).unwritten()
    }

    /// It could not be written down.
    pub fn not_written(&self) {
        lock(&self.spending).not_written();
    }

    /// What is on the disk, before anything is counted.
    pub fn remember(&self, written: &SpendingHandover, today: Day) {
        lock(&self.spending).take_over(written, today);
    }

    /// Everything, for a successor.
    pub fn hand_over(&self, now: Instant) -> ClientFigures {
        let figures = |client: &Arc<Client>| {
            let mut meter = lock(&client.meter);
            meter.untold = 0;
            client.figures(meter.minute.hand_over(now), &meter)
        };
        ClientFigures {
            clients: self.table().all.iter().filter_map(figures).collect(),
            spending: lock(&self.spending).hand_over(),
        }
    }

    /// What the predecessor knew; before anything is served.
    pub fn take_over(&self, told: &ClientFigures, now: Instant, today: Day) {
        lock(&self.spending).take_over(&told.spending, today);
        self.each(&told.clients, |meter, figures| {
            meter.elsewhere = figures.in_flight;
            meter.minute.take_over(&figures.requests, now);
        });
    }

    /// What happened since the successor was last told.
    pub fn news(&self, now: Instant) -> ClientFigures {
        let figures = |client: &Arc<Client>| {
            let mut meter = lock(&client.meter);
            let mut untold = Minute::new(now);
            untold.add(std::mem::take(&mut meter.untold), now);
            client.figures(untold.hand_over(now), &meter)
        };
        ClientFigures {
            clients: self.table().all.iter().filter_map(figures).collect(),
            spending: lock(&self.spending).news(),
        }
    }

    /// What happened in the predecessor meanwhile.
    pub fn hear(&self, told: &ClientFigures, now: Instant, today: Day) {
        lock(&self.spending).hear(&told.spending, today);
        // It tells of each client that has something in flight.
        self.hears_no_more();
        self.each(&told.clients, |meter, figures| {
            meter.elsewhere = figures.in_flight;
            meter.minute.take_over(&figures.requests, now);
        });
    }

    /// The predecessor is gone.
    pub fn hears_no_more(&self) {
        for client in &self.table().all {
            lock(&client.meter).elsewhere = 0;
        }
    }

    fn each(&self, told: &[Figures], mut then: impl FnMut(&mut Meter, &Figures)) {
        let table = self.table();
        let by_name: HashMap<&str, &Arc<Client>> = table
            .all
            .iter()
            .map(|client| (client.spec.id.as_str(), client))
            .collect();
        for figures in told.iter().take(MAX_CLIENTS) {
            if let Some(client) = by_name.get(figures.id.as_str()) {
                then(&mut lock(&client.meter), figures);
            }
        }
    }

    fn table(&self) -> Arc<Table> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&table)
    }
}

impl Table {
    /// The client with this key. How long that takes tells whoever guesses nothing: where in the table
    /// a key is looked for is decided by its digest, of which nobody can choose the bytes, and by the
    /// map's own random seed. What is found is compared once more, in the same time however much of it
    /// agrees.
    fn of(&self, key: &KeyDigest) -> Option<Arc<Client>> {
        let found = self.by_key.get(key)?;
        bool::from(found.spec.key.ct_eq(key)).then(|| Arc::clone(found))
    }
}

impl Client {
    /// `None` where there is nothing to tell.
    fn figures(&self, requests: Vec<Aged>, meter: &Meter) -> Option<Figures> {
        let in_flight = meter.in_flight.saturating_add(meter.elsewhere);
        (in_flight > 0 || !requests.is_empty()).then(|| Figures {
            id: self.spec.id.to_string(),
            in_flight,
            requests,
        })
    }
}

impl Meter {
    fn new(now: Instant) -> Meter {
        Meter {
            in_flight: 0,
            elsewhere: 0,
            minute: Minute::new(now),
            untold: 0,
        }
    }
}

impl Permit {
    /// Whose it is.
    pub fn id(&self) -> &ClientId {
        &self.client.spec.id
    }

    /// Whether its client may ask for any model.
    pub fn has_every_model(&self) -> bool {
        self.client.spec.models.is_none()
    }

    /// Whether its client may ask for `model`. What names no model asks for none.
    pub fn has_model(&self, model: Option<&str>) -> bool {
        let models = self.client.spec.models.as_ref();
        models.is_none_or(|models| models.serve(model))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut meter = lock(&self.client.meter);
        meter.in_flight = meter.in_flight.saturating_sub(1);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(self.id()).finish()
    }
}

#[cfg(test)]
mod tests;
