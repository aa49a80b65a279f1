//! Who is let in at the admin listener.
//!
//! Reading takes the token as a bearer, or as the password of `Basic` with any user, which is how a
//! browser can ask a person for it. A browser then sends it with every request that any page makes
//! it send, so an order takes the bearer only: no form and no other page can send that.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Refusal;

/// Keeps the token's hash only: both sides of the comparison then have one length, and what is in
/// memory is not the token.
pub(super) struct Guard {
    token: Option<[u8; 32]>,
}

/// Whether orders can be given at the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Orders {
    /// With the token.
    WithToken,
    /// Over the control socket only: there is no token.
    ElsewhereOnly,
}

impl Guard {
    pub(super) fn new(token: Option<&[u8]>) -> Guard {
        Guard {
            token: token.map(|token| Sha256::digest(token).into()),
        }
    }

    pub(super) fn orders(&self) -> Orders {
        match self.token {
            Some(_) => Orders::WithToken,
            None => Orders::ElsewhereOnly,
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
            Some(token) if orders && !bears(headers, token) => {
                return Err(Refusal::unauthorized(BEARER_ONLY, ORDERS_NEED));
            }
            Some(token) if !bears(headers, token) && !knows(headers, token) => {
                return Err(Refusal::unauthorized(ASK_A_PERSON, READING_NEEDS));
            }
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

/// Whether the token is there as a bearer.
fn bears(headers: &HeaderMap, token: &[u8; 32]) -> bool {
    given(headers, b"Bearer ").is_some_and(|given| is_token(given, token))
}

/// Whether the token is there as a password.
fn knows(headers: &HeaderMap, token: &[u8; 32]) -> bool {
    let pair = given(headers, b"Basic ").and_then(|given| STANDARD.decode(given).ok());
    pair.is_some_and(|pair| {
        let mut parts = pair.splitn(2, |byte| *byte == b':');
        let (_user, password) = (parts.next(), parts.next());
        password.is_some_and(|password| is_token(password, token))
    })
}

/// What follows the scheme.
fn given<'h>(headers: &'h HeaderMap, scheme: &[u8]) -> Option<&'h [u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (named, given) = value.split_at_checked(scheme.len())?;
    named
        .eq_ignore_ascii_case(scheme)
        .then_some(given.trim_ascii())
}

fn is_token(given: &[u8], token: &[u8; 32]) -> bool {
    let given: [u8; 32] = Sha256::digest(given).into();
    bool::from(given.ct_eq(token))
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
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or_default(),
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    let is_port =
        port.is_empty() || (port.starts_with(':') && digits.bytes().all(|b| b.is_ascii_digit()));
    is_port && (name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok())
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

const BEARER_ONLY: &str = "Bearer";
const ASK_A_PERSON: &str = "Basic realm=\"berth\", charset=\"UTF-8\"";
const ORDERS_NEED: &str = "send admin.token as Authorization: Bearer";
const READING_NEEDS: &str =
    "send admin.token as Authorization: Bearer, or as the password of Basic with any user";
const NO_TOKEN: &str = "orders need a token here: set admin.token, or use the control socket";
const OTHER_HOST: &str = "the Host header must name an IP address or localhost: use one in the URL";
const OTHER_ORIGIN: &str = "orders from a page of another origin are refused";
