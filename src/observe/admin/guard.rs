//! Who is let in at the admin listener.

use std::net::IpAddr;

use http::{HeaderMap, Method, StatusCode, Uri, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Refusal;

/// Keeps the token's hash only: both sides of the comparison then have one length, and what is in
/// memory is not the token.
pub(super) struct Guard {
    token: Option<[u8; 32]>,
}

impl Guard {
    pub(super) fn new(token: Option<&[u8]>) -> Guard {
        Guard {
            token: token.map(|token| Sha256::digest(token).into()),
        }
    }

    pub(super) fn admit(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let orders = *method == Method::POST;
        match &self.token {
            Some(token) if !has_token(headers, token) => return Err(Refusal::unauthorized()),
            Some(_) => {}
            None if orders => return Err(Refusal::new(StatusCode::FORBIDDEN, NO_TOKEN)),
            None => {}
        }
        let host = host(uri, headers);
        if (orders || self.token.is_none()) && !host.is_some_and(is_this_machine) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, OTHER_HOST));
        }
        if orders && !origin_fits(headers, host) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, OTHER_ORIGIN));
        }
        Ok(())
    }
}

fn has_token(headers: &HeaderMap, token: &[u8; 32]) -> bool {
    let value = headers
        .get(header::AUTHORIZATION)
        .map(|value| value.as_bytes());
    let given = value.and_then(|value| value.split_at_checked(BEARER.len()));
    given.is_some_and(|(scheme, given)| {
        let given: [u8; 32] = Sha256::digest(given.trim_ascii()).into();
        scheme.eq_ignore_ascii_case(BEARER) && bool::from(given.ct_eq(token))
    })
}

/// What the caller calls this machine, port included; `None` where it says nothing, or two things.
fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
    let mut named = headers.get_all(header::HOST).iter();
    let (first, second) = (named.next(), named.next());
    let first = first.map(|value| value.to_str().ok());
    match (first, second, uri.authority()) {
        (Some(host), None, None) => host,
        (None, None, Some(authority)) => Some(authority.as_str()),
        (Some(host), None, Some(authority)) => host.filter(|host| *host == authority.as_str()),
        _ => None,
    }
}

/// A browser that was lured here by a name still sends the name.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// A browser says which page sends an order; programs do not.
fn origin_fits(headers: &HeaderMap, host: Option<&str>) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    origins.all(|origin| {
        let origin = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.split_once("://"));
        origin.is_some_and(|(_, of)| Some(of) == host)
    })
}

const BEARER: &[u8] = b"Bearer ";
const NO_TOKEN: &str = "orders need a token here: set admin.token, or use the control socket";
const OTHER_HOST: &str = "the Host header must name an IP address or localhost: use one in the URL";
const OTHER_ORIGIN: &str = "orders from a page of another origin are refused";
