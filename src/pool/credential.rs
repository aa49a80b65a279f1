//! One credential while the process lives: its secret, what is in flight with it, and whether it
//! takes a request now.
//!
//! Promises: never more in flight than `max_in_flight`, whatever the number of threads; the secret is
//! never printed, and its header values are marked sensitive; a secret file that turns bad leaves the
//! old secret in use. What excludes the credential is in `exclusion`, behind one short mutex; two
//! atomics beside it (in flight, and from when on it may take anything) let a selection pass over
//! hundreds of excluded credentials without locking any. They are hints for the order alone.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};

use super::exclusion::{
    Exclusions, ExclusionsHandover, Lesson, Passable, Passage, ProbeToken, Shown, Stated,
};
use super::expiry::Expiry;
use super::lease::Lease;
use super::secret::{SecretError, Stamp, header_value, read_secret, stamp};
use super::spec::{CredentialId, CredentialSpec, HeaderSource, SecretSource};
use super::token_route::TokenRoute;
use super::{NO_MODEL, lock};
use crate::admission::{Verdict, Withheld, dice};

/// The place of a credential in its pool, as listed in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CredentialIndex(pub usize);

/// One credential.
#[derive(Debug)]
pub struct Credential {
    index: CredentialIndex,
    spec: CredentialSpec,
    /// Of its id.
    hash: u64,
    origin: Instant,
    in_flight: AtomicU32,
    /// What the process before this one still has in flight.
    elsewhere: AtomicU32,
    /// A [`Moment`], [`Moment::NEVER`] while drained.
    passable_from: AtomicU64,
    exclusions: Mutex<Exclusions>,
    secrets: RwLock<Arc<Secrets>>,
    stamps: Mutex<Stamps>,
}

/// What a credential sends, as it was read last.
#[derive(Debug)]
pub struct Secrets {
    secret: SecretString,
    plain: HeaderValue,
    bearer: HeaderValue,
    headers: Vec<(HeaderName, HeaderValue)>,
    expires: Option<Expiry>,
    route: Option<TokenRoute>,
    /// All of these that are secrets.
    withheld: Withheld,
}

/// A secret of a credential could not be had.
#[derive(Debug)]
pub struct CredentialSecretError {
    /// Whose it is.
    pub credential: CredentialId,
    /// The header that it is for, `None` for the credential's secret itself.
    pub header: Option<HeaderName>,
    /// What is wrong.
    pub error: SecretError,
}

/// A time as the pool's hints know it: milliseconds since the pool was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

/// Why a credential cannot take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It could, but for what is in flight.
    Able,
    /// Excluded, for so long where that is known.
    Excluded { left: Option<Duration> },
    /// Drained.
    Drained,
}

type Stamps = Vec<Option<Stamp>>;

impl Credential {
    /// Reads the secrets of `spec`.
    pub(super) fn new(
        index: CredentialIndex,
        spec: CredentialSpec,
        origin: Instant,
    ) -> Result<Credential, CredentialSecretError> {
        // Before the content, so that a change in between is seen as one later.
        let stamps = stamps(&spec)?;
        let secrets = Secrets::read(&spec)?;
        Ok(Credential {
            index,
            hash: dice::hash(spec.id.as_str()),
            spec,
            origin,
            in_flight: AtomicU32::new(0),
            elsewhere: AtomicU32::new(0),
            passable_from: AtomicU64::new(0),
            exclusions: Mutex::default(),
            secrets: RwLock::new(Arc::new(secrets)),
            stamps: Mutex::new(stamps),
        })
    }

    /// Its place in the pool.
    pub fn index(&self) -> CredentialIndex {
        self.index
    }

    /// What the operator said about it.
    pub fn spec(&self) -> &CredentialSpec {
        &self.spec
    }

    /// Its name.
    pub fn id(&self) -> &CredentialId {
        &self.spec.id
    }

    /// Requests in flight, those of a process that drains included.
    pub fn in_flight(&self) -> u32 {
        let here = self.in_flight.load(Ordering::Relaxed);
        here.saturating_add(self.elsewhere.load(Ordering::Relaxed))
    }

    /// So many are in flight in the process before this one.
    pub fn set_elsewhere(&self, requests: u32) {
        self.elsewhere.store(requests, Ordering::Relaxed);
    }

    /// What it sends now. A request takes it from its lease, so that it is known which secret an
    /// answer is about.
    pub(super) fn secrets(&self) -> Arc<Secrets> {
        let secrets = self.secrets.read();
        Arc::clone(&secrets.unwrap_or_else(PoisonError::into_inner))
    }

    /// When what it sends ends, where that says so.
    pub fn secret_expires(&self) -> Option<Expiry> {
        self.secrets().expires
    }

    /// The way in that what it sends names.
    pub fn token_route(&self) -> Option<TokenRoute> {
        self.secrets().token_route()
    }

    /// Whether a secret of it stands in `text`; see [`Secrets::are_in`].
    pub fn is_secret_in(&self, text: &[u8]) -> bool {
        self.secrets().are_in(text)
    }

    /// A number that only its id decides.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn weight(&self) -> u32 {
        self.spec.weight.get()
    }

    /// Takes a request for `model`, if nothing excludes that and there is room.
    pub(super) fn take(self: &Arc<Self>, model: Option<&str>, now: Instant) -> Option<Lease> {
        let model = model.unwrap_or(NO_MODEL);
        let mut exclusions = lock(&self.exclusions);
        let passage = exclusions.passage(model, now);
        // The room comes second and the claim last: whoever is turned away has taken nothing, not
        // for a moment.
        let takes = matches!(passage, Passage::Free | Passage::Probe) && self.reserve();
        if !takes {
            return None;
        }
        let probe = (passage == Passage::Probe).then(|| exclusions.claim(model, now));
        let probe = probe.map(|token| (token, model.into()));
        drop(exclusions);
        Some(Lease::new(Arc::clone(self), probe))
    }

    /// Why [`Self::take`] gave nothing.
    pub(super) fn standing(&self, model: Option<&str>, now: Instant) -> Standing {
        match lock(&self.exclusions).passage(model.unwrap_or(NO_MODEL), now) {
            Passage::Free | Passage::Probe => Standing::Able,
            Passage::Out { left } => Standing::Excluded { left },
            Passage::Drained => Standing::Drained,
        }
    }

    /// Whether it most likely is excluded with every model.
    pub(super) fn looks_excluded(&self, moment: Moment) -> bool {
        self.passable_from.load(Ordering::Relaxed) > moment.0
    }

    /// Whether it is most likely not worth asking.
    pub(super) fn looks_unable(&self, moment: Moment) -> bool {
        self.looks_excluded(moment)
            || self
                .spec
                .max_in_flight
                .is_some_and(|max| self.in_flight() >= max.get())
    }

    pub(super) fn give_back(&self, probe: Option<&(ProbeToken, Box<str>)>) {
        if let Some((token, model)) = probe {
            lock(&self.exclusions).release(*token, model);
        }
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn learn(
        &self,
        model: Option<&str>,
        (verdict, stated): (Verdict, Option<Stated>),
        probe: Option<(ProbeToken, &str)>,
        now: Instant,
    ) {
        let lesson = Lesson {
            model: model.unwrap_or(NO_MODEL),
            verdict,
            stated,
            probe,
        };
        self.change(|exclusions| exclusions.learn(lesson, now));
    }

    pub(super) fn hold_out(&self, model: Option<&str>, time: Duration, now: Instant) {
        self.change(|exclusions| exclusions.hold_out(model, time, now));
    }

    pub(super) fn drain(&self, now: Instant) {
        self.change(|exclusions| exclusions.drain(now));
    }

    pub(super) fn enable(&self) {
        self.change(Exclusions::enable);
    }

    pub(super) fn reset(&self) {
        self.change(Exclusions::reset);
    }

    /// What excludes it, for the next process.
    pub(super) fn hand_over(&self, now: Instant) -> ExclusionsHandover {
        lock(&self.exclusions).hand_over(now)
    }

    /// What excluded it in the process before.
    pub(super) fn take_over(&self, told: &ExclusionsHandover, now: Instant) {
        self.change(|exclusions| exclusions.take_over(told, now));
    }

    /// What excludes it, with every model and with single ones.
    pub(super) fn shown(&self, now: Instant) -> (Option<Shown>, Vec<(String, Shown)>) {
        let exclusions = lock(&self.exclusions);
        let pairs = exclusions.shown_pairs(now).into_iter();
        let pairs = pairs.map(|(model, shown)| (model.to_owned(), shown));
        (exclusions.shown(now), pairs.collect())
    }

    /// Reads the secrets again if a file of theirs was written; whether they are others now.
    pub(super) fn reload(&self) -> Result<bool, CredentialSecretError> {
        let mut known = lock(&self.stamps);
        let found = stamps(&self.spec)?;
        if *known == found {
            return Ok(false);
        }
        let read = Secrets::read(&self.spec)?;
        *known = found;
        if read.is_same(&self.secrets()) {
            return Ok(false);
        }
        let mut secrets = self.secrets.write().unwrap_or_else(PoisonError::into_inner);
        *secrets = Arc::new(read);
        drop(secrets);
        self.change(Exclusions::secret_changed);
        Ok(true)
    }

    fn reserve(&self) -> bool {
        let elsewhere = self.elsewhere.load(Ordering::Relaxed);
        let max = self.spec.max_in_flight.map_or(u32::MAX, |max| max.get());
        let max = max.saturating_sub(elsewhere);
        let one_more = |count: u32| (count < max).then_some(count + 1);
        self.in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }

    /// Changes what excludes it, and the hint with it.
    fn change(&self, change: impl FnOnce(&mut Exclusions)) {
        let mut exclusions = lock(&self.exclusions);
        change(&mut exclusions);
        let from = match exclusions.passable_from() {
            None => Moment::NEVER,
            Some(Passable::Now) => Moment(0),
            Some(Passable::From(time)) => Moment::of(time, self.origin),
        };
        self.passable_from.store(from.0, Ordering::Relaxed);
    }
}

impl Secrets {
    /// The secret alone, as a header value.
    pub fn plain(&self) -> &HeaderValue {
        &self.plain
    }

    /// `Bearer` and the secret.
    pub fn bearer(&self) -> &HeaderValue {
        &self.bearer
    }

    /// The credential's further headers.
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// What an upstream that is sent these must not say.
    pub fn withheld(&self) -> &Withheld {
        &self.withheld
    }

    /// The way in that its token names; `None` where the secret is no token.
    pub fn token_route(&self) -> Option<TokenRoute> {
        self.route.clone()
    }

    /// Reads what `spec` names.
    ///
    /// # Errors
    ///
    /// Something cannot be read, or is no header value.
    pub fn read(spec: &CredentialSpec) -> Result<Secrets, CredentialSecretError> {
        let fail = |header: Option<&HeaderName>, error| CredentialSecretError {
            credential: spec.id.clone(),
            header: header.cloned(),
            error,
        };
        let get = |source: &SecretSource| -> Result<_, SecretError> {
            let secret = read_secret(source)?;
            let plain = header_value("", &secret, source)?;
            Ok((secret, plain))
        };
        let get = |header, source| get(source).map_err(|error| fail(header, error));
        let (secret, plain) = get(None, &spec.secret)?;
        let bearer = header_value("Bearer ", &secret, &spec.secret);
        let bearer = bearer.map_err(|error| fail(None, error))?;
        let mut headers = Vec::with_capacity(spec.headers.len());
        let mut withheld = vec![secret.clone()];
        for (name, source) in &spec.headers {
            let value = match source {
                HeaderSource::Literal(value) => value.clone(),
                HeaderSource::Secret(source) => {
                    let (secret, plain) = get(Some(name), source)?;
                    withheld.push(secret);
                    plain
                }
            };
            headers.push((name.clone(), value));
        }
        Ok(Secrets {
            expires: Expiry::of(secret.expose_secret()),
            route: TokenRoute::of(&secret),
            withheld: Withheld::new(withheld),
            secret,
            plain,
            bearer,
            headers,
        })
    }

    /// Whether one of them stands in `text`, or a piece of one that is too long to be told.
    pub fn are_in(&self, text: &[u8]) -> bool {
        self.withheld.bytes(text).is_some()
    }

    fn is_same(&self, other: &Secrets) -> bool {
        self.secret.expose_secret() == other.secret.expose_secret() && self.headers == other.headers
    }
}

impl Moment {
    /// Later than any time.
    const NEVER: Moment = Moment(u64::MAX);

    pub fn of(time: Instant, origin: Instant) -> Moment {
        let millis = time.saturating_duration_since(origin).as_millis();
        Moment(u64::try_from(millis).unwrap_or(u64::MAX - 1))
    }

    /// As the key of a selection, the one argument that pingora hands through to it.
    pub fn to_key(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    pub fn from_key(key: &[u8]) -> Moment {
        Moment(key.try_into().map_or(0, u64::from_le_bytes))
    }
}

fn stamps(spec: &CredentialSpec) -> Result<Stamps, CredentialSecretError> {
    let headers = spec.headers.iter().filter_map(|(name, value)| match value {
        HeaderSource::Literal(_) => None,
        HeaderSource::Secret(source) => Some((Some(name), source)),
    });
    let sources = std::iter::once((None, &spec.secret)).chain(headers);
    let stamp_of = |(header, source): (Option<&HeaderName>, &SecretSource)| {
        stamp(source).map_err(|error| CredentialSecretError {
            credential: spec.id.clone(),
            header: header.cloned(),
            error,
        })
    };
    sources.map(stamp_of).collect()
}

impl fmt::Display for CredentialSecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "credential {}, ", self.credential)?;
        match &self.header {
            None => f.write_str("secret: ")?,
            Some(name) => write!(f, "header {name}: ")?,
        }
        self.error.fmt(f)
    }
}

impl std::error::Error for CredentialSecretError {}
