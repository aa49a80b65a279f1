//! What the operator said about a client, correct by type. Built by `config`.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use super::key::KeyDigest;
use crate::admission::day::Day;
use crate::pool::ModelPatterns;

/// The name of a client: `[a-z0-9-]{1,64}`, the only name of it that reaches logs and metrics.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(Arc<str>);

impl ClientId {
    /// `None` unless `name` is `[a-z0-9-]{1,64}`.
    pub fn new(name: &str) -> Option<ClientId> {
        let fits = (1..=64).contains(&name.len());
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        // In the metrics these are those without a key, and those beyond the names that are kept.
        let taken = matches!(name, "none" | "other");
        (fits && name.bytes().all(plain) && !taken).then(|| ClientId(name.into()))
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name, shared.
    pub fn shared(&self) -> &Arc<str> {
        &self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One client as configured.
#[derive(Clone, Debug)]
pub struct ClientSpec {
    /// Its name.
    pub id: ClientId,
    /// Of the key that it sends.
    pub key: KeyDigest,
    /// Requests in any sixty seconds; `None` is no limit.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Requests in flight at once; `None` is no limit.
    pub max_in_flight: Option<NonZeroU32>,
    /// The models that it may ask for; `None` is every model.
    pub models: Option<ModelPatterns>,
    /// Tokens of one day in UTC; `None` is no limit.
    pub tokens_per_day: Option<NonZeroU64>,
    /// Its last day, in UTC; `None` is no end.
    pub expires: Option<Day>,
}

impl ClientSpec {
    /// Whether its time is over.
    pub fn is_expired(&self, today: Day) -> bool {
        self.expires.is_some_and(|last| last < today)
    }
}
