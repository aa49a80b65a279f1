//! What the pool looks like at one moment, as `/metrics`, `/status` and the page are told it.
//!
//! Gauges that are set at each change drift from what they measure, and the series of a credential
//! that is gone stays for ever. So nothing is set: whoever asks gets a fresh snapshot, and what is
//! not in it does not exist.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::safe::SafeText;
use crate::admission::day::Day;
use crate::admission::{PairState, Verdict};
use crate::clients::ClientView;
use crate::pool::{CredentialId, Expiry, TokenRoute};

/// The pool at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// No new requests are taken.
    pub draining: bool,
    /// Every configured credential.
    pub credentials: Vec<CredentialView>,
    /// Every pair about which something is known.
    pub pairs: Vec<PairView>,
    /// Every model about which something is known.
    pub models: Vec<ModelView>,
    /// Every client, where there are any.
    pub clients: Vec<ClientView>,
    /// Requests that wait, for a model that is full or for a place.
    pub waiting: u64,
    /// Every rule, in the order in which they are asked.
    pub rules: Vec<RuleView>,
    /// Connections of clients.
    pub connections: u64,
    /// Bytes of requests and answers that are kept.
    pub memory: MemoryView,
    /// The longest that an answer may be held (`admission.hold.max_time`).
    pub hold_limit: Duration,
    /// What an operator should look at, in words of berth's own.
    pub warnings: Vec<String>,
}

/// A credential at one moment.
#[derive(Clone, Debug)]
pub struct CredentialView {
    /// Its name.
    pub id: CredentialId,
    /// The name of its upstream.
    pub upstream: String,
    /// As configured.
    pub labels: BTreeMap<String, String>,
    /// The way in that its token names.
    pub route: Option<TokenRoute>,
    /// Requests in flight.
    pub in_flight: u64,
    /// When its secret ends, where the secret says so.
    pub secret_expires: Option<Expiry>,
    /// Its state for every model: `Ready` unless the credential as a whole is excluded.
    pub state: PairState,
}

/// A pair at one moment.
#[derive(Clone, Debug)]
pub struct PairView {
    /// The credential.
    pub credential: CredentialId,
    /// The model; `None` is every model of the credential.
    pub model: Option<SafeText>,
    /// Its state.
    pub state: PairState,
    /// How long it has been in it.
    pub since: Duration,
    /// How long it will be, where that is known.
    pub left: Option<Duration>,
    /// Why, in words of berth's own.
    pub basis: String,
    /// Its score now.
    pub score: f64,
    /// How far that is above the median of the model's other pairs.
    pub excess: f64,
}

/// A model at one moment.
#[derive(Clone, Debug)]
pub struct ModelView {
    /// The model.
    pub model: SafeText,
    /// Whether it is full.
    pub full: bool,
    /// Requests that wait for a seat.
    pub waiting: u64,
}

/// A rule at one moment.
#[derive(Clone, Debug)]
pub struct RuleView {
    /// Its name.
    pub name: Arc<str>,
    /// Whose it is.
    pub source: &'static str,
    /// What it means.
    pub verdict: Verdict,
    /// Its last day.
    pub expires: Option<Day>,
    /// Whether that is over.
    pub expired: bool,
}

/// Memory at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryView {
    /// Bytes reserved.
    pub used: u64,
    /// Bytes allowed (`limits.memory`).
    pub limit: u64,
}
