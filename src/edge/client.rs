//! Who a client is.
//!
//! This is the only place that decides it. Where there are clients, a request must prove whose it is by a
//! key, and nothing else that it says of itself is believed. Where there are none, a client is the
//! address that it connects from; an IPv6 host has as many addresses as it likes within its /64, so that
//! counts as one.
//!
//! A stranger costs two digests and an answer: its body is not read, no upstream is asked, nothing of it
//! is kept. Keys that differ are refused rather than ranked: a client that sends two is wrong about one of
//! them, and would otherwise be served as somebody it does not think it is.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, header};
use pingora::proxy::Session;
use subtle::ConstantTimeEq;

use super::answer::Answer;
use super::hash::stable;
use super::request::Plan;
use super::state::Edge;
use super::tale::Tale;
use crate::admission::Dialect;
use crate::admission::share::Client;
use crate::clients::{ClientId, Denied, KeyDigest, Permit, Refusal};
use crate::observe::words::Outcome;

/// Another header in which a key may come.
const API_KEY: &str = "x-api-key";

/// Who asks.
#[derive(Debug)]
pub struct Asker {
    /// As far as shares of memory, retries and the waiting room go.
    pub share: Client,
    /// The right to be served; `None` where nobody has to prove who it is.
    pub permit: Option<Permit>,
}

/// Why a request does not say who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unproven {
    Missing,
    Malformed,
    Several,
}

impl Edge {
    /// Says who asks, in the plan and in the story.
    ///
    /// # Errors
    ///
    /// The answer to whoever may not, or not now.
    pub(super) fn admit(
        &self,
        session: &Session,
        plan: &mut Plan,
        story: &mut Tale,
    ) -> Result<(), (Answer, Outcome)> {
        let Some(clients) = &self.clients else {
            return Ok(());
        };
        let unauthorized = |message: &str| {
            let answer = Answer::client_error(plan.dialect, 401, "invalid_api_key", message);
            (answer, Outcome::Unauthorized)
        };
        let key = key(&session.req_header().headers);
        let key = key.map_err(|why| unauthorized(why.message()))?;
        let admitted = clients
            .register
            .admit(&key, Instant::now(), SystemTime::now());
        let permit = match admitted {
            Ok(permit) => permit,
            Err(Denied::Stranger) => {
                return Err(unauthorized("This gateway does not know this key."));
            }
            Err(Denied::Client(id, refusal)) => {
                story.client(id.shared());
                return Err(self.limited(plan.dialect, &id, refusal));
            }
        };
        story.client(permit.id().shared());
        plan.asker = Asker {
            share: Client::hashed(stable(&[b"client", &[0], permit.id().as_str().as_bytes()])),
            permit: Some(permit),
        };
        Ok(())
    }

    fn limited(&self, dialect: Dialect, id: &ClientId, refusal: Refusal) -> (Answer, Outcome) {
        match refusal {
            Refusal::Expired { last } => {
                let message = format!(
                    "The key of the client {id} has expired: its last day was {last} (UTC). Ask whoever runs this gateway."
                );
                let answer = Answer::client_error(dialect, 401, "invalid_api_key", &message);
                (answer, Outcome::Unauthorized)
            }
            Refusal::Spent { limit, left } => {
                let message = format!(
                    "The client {id} has used its {limit} tokens of today (tokens_per_day). The limit ends at 00:00 UTC, in {}.",
                    spelt(left)
                );
                let answer = Answer::quota(dialect, &message, left);
                (answer, Outcome::Limited)
            }
            Refusal::Busy { limit } => {
                let message = format!(
                    "The client {id} has {limit} requests in flight, as many as it may (max_in_flight). The limit ends when one of them does."
                );
                let after = super::answer::retry_after(None, self.policy.retry_after);
                (
                    Answer::rate_limit(dialect, &message, after),
                    Outcome::Limited,
                )
            }
            Refusal::TooMany { limit, left } => {
                let message = format!(
                    "The client {id} has made {limit} requests within a minute, as many as it may (requests_per_minute). The limit ends in {}.",
                    spelt(left)
                );
                (
                    Answer::rate_limit(dialect, &message, left),
                    Outcome::Limited,
                )
            }
        }
    }
}

impl Asker {
    /// Whoever connects from this address.
    pub fn at_address(session: &Session) -> Asker {
        let address = session
            .client_addr()
            .and_then(|address| address.as_inet())
            .map(|address| host(address.ip()));
        Asker {
            share: Client::hashed(stable(&[address.unwrap_or_default().as_bytes()])),
            permit: None,
        }
    }

    /// Its name, where it has one.
    pub fn name(&self) -> Option<&str> {
        self.permit.as_ref().map(|permit| permit.id().as_str())
    }
}

impl Plan {
    /// The answer to a request for a model that its client may not use; `None` where it may. `to_the_end` says
    /// that all of its body was looked at: then a model that is named somewhere must have been found.
    pub fn beyond_its_models(&self, to_the_end: bool) -> Option<Answer> {
        let permit = self.asker.permit.as_ref()?;
        if permit.has_every_model() {
            return None;
        }
        let ask = &self.ask;
        let is_clear = !self.endpoint.names_a_model()
            || (ask.model.is_some() && !ask.is_ambiguous && (ask.whole || !to_the_end));
        if is_clear && permit.has_model(ask.model.as_deref()) {
            return None;
        }
        let id = permit.id();
        let message = match is_clear {
            true => format!("The client {id} may not use this model (models)."),
            false => format!(
                "The client {id} may use some models only (models), and which one this request is for cannot be read."
            ),
        };
        let code = "model_not_found";
        Some(Answer::client_error(self.dialect, 404, code, &message))
    }
}

impl Unproven {
    fn message(self) -> &'static str {
        match self {
            Unproven::Missing => {
                "This gateway needs a key: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`."
            }
            Unproven::Malformed => {
                "The Authorization header is not `Bearer KEY`; send the key so, or as `x-api-key: KEY`."
            }
            Unproven::Several => {
                "The request carries different keys; send one, as `Authorization: Bearer KEY` or as `x-api-key: KEY`."
            }
        }
    }
}

/// The digest of the one key of a request.
fn key(headers: &HeaderMap) -> Result<KeyDigest, Unproven> {
    let bearers = headers.get_all(header::AUTHORIZATION).iter();
    let bearers = bearers.map(|value| bearer(value.as_bytes()).ok_or(Unproven::Malformed));
    let plain = headers.get_all(API_KEY).iter();
    let plain = plain.map(|value| Ok(value.as_bytes().trim_ascii()));
    let mut found: Option<KeyDigest> = None;
    for key in bearers.chain(plain) {
        let key = key?;
        if key.is_empty() {
            return Err(Unproven::Missing);
        }
        let digest = KeyDigest::of(key);
        match &found {
            Some(first) if !bool::from(first.ct_eq(&digest)) => return Err(Unproven::Several),
            Some(_) => {}
            None => found = Some(digest),
        }
    }
    found.ok_or(Unproven::Missing)
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(b"bearer".len())?;
    let apart = key.first().is_none_or(|b| *b == b' ');
    (scheme.eq_ignore_ascii_case(b"bearer") && apart).then(|| key.trim_ascii())
}

/// To the second, rounded up, as `Retry-After` is.
fn spelt(left: Duration) -> String {
    let seconds = left.as_millis().div_ceil(1_000);
    let seconds = u64::try_from(seconds).unwrap_or(u64::MAX).max(1);
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

/// An address, as far as it tells one host from another.
pub(super) fn host(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn a_host_is_one_client_whatever_form_its_address_has() {
        let host = |text: &str| host(text.parse().unwrap());
        assert_eq!(host("127.0.0.2"), host("::ffff:127.0.0.2"));
        assert_eq!(host("2001:db8:1:2::1"), host("2001:db8:1:2:ffff::9"));
        assert_ne!(host("2001:db8:1:2::1"), host("2001:db8:1:3::1"));
        assert_ne!(host("127.0.0.2"), host("127.0.0.3"));
    }

    #[test]
    fn a_request_has_one_key_or_none() {
        let of = |headers: &[(&str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                let name: HeaderName = name.parse().unwrap();
                map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
            key(&map)
        };
        let good = Ok(KeyDigest::of(b"k"));
        for (headers, expected) in [
            (vec![("authorization", "Bearer k")], good),
            (vec![("authorization", "bearer  k ")], good),
            (vec![("x-api-key", "k")], good),
            (vec![("x-api-key", " k ")], good),
            (
                vec![("authorization", "Bearer k"), ("x-api-key", "k")],
                good,
            ),
            (vec![("x-api-key", "k"), ("x-api-key", "k")], good),
            (vec![], Err(Unproven::Missing)),
            (vec![("api-key", "k")], Err(Unproven::Missing)),
            (vec![("authorization", "Bearer ")], Err(Unproven::Missing)),
            (vec![("authorization", "Bearer")], Err(Unproven::Missing)),
            (vec![("x-api-key", "")], Err(Unproven::Missing)),
            (
                vec![("authorization", "Basic azo=")],
                Err(Unproven::Malformed),
            ),
            (vec![("authorization", "k")], Err(Unproven::Malformed)),
            (vec![("authorization", "Bearerk")], Err(Unproven::Malformed)),
            (
                vec![("authorization", "Basic x"), ("x-api-key", "k")],
                Err(Unproven::Malformed),
            ),
            (
                vec![("authorization", "Bearer k"), ("x-api-key", "l")],
                Err(Unproven::Several),
            ),
            (
                vec![("authorization", "Bearer k"), ("authorization", "Bearer l")],
                Err(Unproven::Several),
            ),
            (
                vec![("x-api-key", "k"), ("x-api-key", "l")],
                Err(Unproven::Several),
            ),
        ] {
            assert_eq!(of(&headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn a_time_is_spelt_as_it_is_told_in_the_header() {
        assert_eq!(spelt(Duration::from_millis(100)), "1s");
        assert_eq!(spelt(Duration::from_millis(58_200)), "59s");
        assert_eq!(spelt(Duration::from_secs(18_180)), "5h 3m");
    }
}
