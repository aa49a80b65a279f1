//! What of a head goes on: to an upstream, and to a client.
//!
//! Two secrets meet here and must not: the client's, which ends at berth, and the credential's, which
//! goes to its upstream only. So headers that could carry either are taken out by name on the way up,
//! the credential's are put in, and on the way down nothing is added but berth's own. Hop-by-hop
//! headers end at each hop, also those that a `Connection` header names.

use http::header::{self, HeaderMap, HeaderName};
use http::{Uri, Version};
use pingora::http::{RequestHeader, ResponseHeader};

use crate::admission::Withheld;
use crate::pool::Secrets;

use super::request::ROUTING_HINT;
use super::spec::Auth;
use super::upstream::Upstream;

/// Never sent upstream: the client's secrets, its address, and what is berth's to say.
const ENDS_HERE: [&str; 38] = [
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "x-auth-token",
    "x-access-token",
    "ocp-apim-subscription-key",
    "x-amz-security-token",
    // Ways around a route's paths, where an upstream honours them.
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "cookie",
    "cookie2",
    "openai-organization",
    "openai-project",
    "chatgpt-account-id",
    "anthropic-organization-id",
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "expect",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "http2-settings",
    "host",
];

/// Never passed to a client: cookies and policies that belong to the upstream's own site.
const NOT_FOR_CLIENTS: [&str; 3] = ["set-cookie", "alt-svc", "strict-transport-security"];

/// Hop-by-hop headers of an answer.
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "te",
    "trailer",
    "upgrade",
];

/// Parameters of a query that are secrets.
const SECRET_PARAMETERS: [&str; 6] = [
    "key",
    "api_key",
    "api-key",
    "apikey",
    "token",
    "access_token",
];

/// How the body of a request is framed on its way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    Empty,
    /// This many bytes.
    Length(usize),
    /// As the client framed it.
    AsCame,
}

/// Turns the client's request into the upstream's. `below` is the path below the route's prefix,
/// `query` the client's, `plain` asks for an answer without content coding.
///
/// # Errors
///
/// A header value or a target that HTTP does not allow; the configuration makes that impossible but
/// for the client's query.
pub fn to_upstream(
    request: &mut RequestHeader,
    upstream: &Upstream,
    secrets: &Secrets,
    below: &str,
    query: Option<&str>,
    framing: Framing,
    plain: bool,
) -> pingora::Result<()> {
    let framed = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING].map(|name| {
        let value = request.headers.get(&name).cloned();
        (name, value)
    });
    let ends_here = |name: &HeaderName| {
        let text = name.as_str();
        ENDS_HERE.contains(&text) || text.starts_with("x-forwarded-") || is_ours(name)
    };
    let ending: Vec<HeaderName> = request
        .headers
        .keys()
        .filter(|name| ends_here(name))
        .cloned()
        .collect();
    for name in nominated(&request.headers).into_iter().chain(ending) {
        request.remove_header(&name);
    }
    if plain {
        request.insert_header(header::ACCEPT_ENCODING, "identity")?;
    }
    match framing {
        Framing::Empty => {}
        Framing::Length(length) => request.insert_header(header::CONTENT_LENGTH, length)?,
        Framing::AsCame => {
            for (name, value) in framed {
                if let Some(value) = value {
                    request.insert_header(name, value)?;
                }
            }
        }
    }
    let spec = &upstream.spec;
    request.insert_header(header::HOST, upstream.authority.as_str())?;
    for (name, value) in &spec.headers {
        request.insert_header(name.clone(), value.clone())?;
    }
    for (name, value) in secrets.headers() {
        request.insert_header(name.clone(), value.clone())?;
    }
    match &spec.auth {
        Auth::Bearer => request.insert_header(header::AUTHORIZATION, secrets.bearer().clone())?,
        Auth::Header(name) => request.insert_header(name.clone(), secrets.plain().clone())?,
    }
    let mut target = format!("{}{below}", spec.base_url.path);
    if target.is_empty() {
        target.push('/');
    }
    if let Some(query) = query.and_then(without_secrets) {
        target.push('?');
        target.push_str(&query);
    }
    request.set_uri(target.parse().map_err(|e| {
        pingora::Error::because(
            pingora::ErrorType::InvalidHTTPHeader,
            "the request's target",
            e,
        )
    })?);
    Ok(())
}

/// Makes the head of an attempt say what its body says: it is not packed, and names the model `name`.
///
/// # Errors
///
/// The name cannot stand in a header, which the configuration makes impossible.
pub fn rename(request: &mut RequestHeader, name: &str) -> pingora::Result<()> {
    request.remove_header(&header::CONTENT_ENCODING);
    if request.remove_header(ROUTING_HINT).is_some() {
        request.insert_header(ROUTING_HINT, format!("model={name}"))?;
    }
    Ok(())
}

/// The head of a request in the form of HTTP/2: the authority stands in the target. pingora would take the scheme
/// for `https` always.
///
/// # Errors
///
/// A target that HTTP/2 does not allow.
pub fn for_http2(mut request: RequestHeader, tls: bool) -> pingora::Result<RequestHeader> {
    let invalid = pingora::ErrorType::InvalidHTTPHeader;
    request.set_version(Version::HTTP_2);
    request.remove_header(&header::TRANSFER_ENCODING);
    let host = request.remove_header(&header::HOST);
    let target = request.uri.path_and_query();
    let target = Uri::builder()
        .scheme(if tls { "https" } else { "http" })
        .authority(host.as_ref().map_or(&b""[..], |host| host.as_bytes()))
        .path_and_query(target.map_or("/", |target| target.as_str()))
        .build();
    let target = target.map_err(|e| pingora::Error::because(invalid, "the request's target", e))?;
    request.set_uri(target);
    Ok(request)
}

/// Takes out of an answer's head what is not for the client. `recoded` says that the body's content
/// coding was undone.
pub fn to_client(response: &mut ResponseHeader, recoded: bool) {
    for name in nominated(&response.headers) {
        response.remove_header(&name);
    }
    for name in NOT_FOR_CLIENTS.into_iter().chain(HOP_BY_HOP) {
        response.remove_header(name);
    }
    let ours: Vec<HeaderName> = response
        .headers
        .keys()
        .filter(|n| is_ours(n))
        .cloned()
        .collect();
    for name in ours {
        response.remove_header(&name);
    }
    if recoded {
        response.remove_header(&header::CONTENT_ENCODING);
        response.remove_header(&header::CONTENT_LENGTH);
        body_changed(response);
    }
}

/// Takes out what an upstream tells of what it was sent and must not say: nobody gets it.
pub fn withhold(head: &mut ResponseHeader, withheld: &Withheld) {
    let tells = |text: &[u8]| withheld.bytes(text).is_some();
    let cased = head.case_header_iter().map(|(name, _)| name.as_slice());
    let cased = cased.filter(|name| tells(name));
    let cased: Vec<_> = cased
        .filter_map(|it| HeaderName::from_bytes(it).ok())
        .collect();
    for name in cased.into_iter().chain(telling(&head.headers, withheld)) {
        head.remove_header(&name);
    }
    if head
        .get_reason_phrase()
        .is_some_and(|it| tells(it.as_bytes()))
    {
        // The usual words of the status take its place, which cannot fail.
        let _ = head.set_reason_phrase(None);
    }
}

/// The headers or trailers in which it does.
pub fn telling(headers: &HeaderMap, withheld: &Withheld) -> Vec<HeaderName> {
    let tells = |text: &[u8]| withheld.bytes(text).is_some();
    let telling = headers
        .iter()
        .filter(|(name, value)| tells(name.as_str().as_bytes()) || tells(value.as_bytes()));
    telling.map(|(name, _)| name.clone()).collect()
}

/// Takes out what described the body before it was changed.
pub fn body_changed(response: &mut ResponseHeader) {
    for name in [
        "etag",
        "digest",
        "content-digest",
        "repr-digest",
        "content-md5",
    ] {
        response.remove_header(name);
    }
}

/// `x-berth-*` is ours to say, in either direction.
fn is_ours(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-berth-")
}

/// The headers that `Connection` names.
fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| name != header::CONTENT_LENGTH && name != header::TRANSFER_ENCODING)
        .collect()
}

/// The query without the parameters that are secrets; `None` where nothing is left.
fn without_secrets(query: &str) -> Option<String> {
    let secret = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        let decoded = percent_decoded(name);
        SECRET_PARAMETERS
            .iter()
            .any(|s| decoded.eq_ignore_ascii_case(s.as_bytes()))
    };
    let pairs = query.split(['&', ';']);
    let kept: Vec<&str> = pairs.filter(|pair| !secret(pair)).collect();
    let kept = kept.join("&");
    (!kept.is_empty()).then_some(kept)
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let hex = |b: Option<u8>| (b? as char).to_digit(16);
        let mut ahead = bytes.clone();
        match (byte, hex(ahead.next()), hex(ahead.next())) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                bytes = ahead;
            }
            _ => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_the_query_ends_here() {
        for (query, expected) in [
            ("key=abc", None),
            ("a=1&key=abc&b=2", Some("a=1&b=2")),
            ("%6bey=abc&a=1", Some("a=1")),
            ("KEY=abc", None),
            ("monkey=1", Some("monkey=1")),
            ("a=1;access_token=abc", Some("a=1")),
            ("", None),
        ] {
            assert_eq!(without_secrets(query).as_deref(), expected, "{query}");
        }
    }

    #[test]
    fn what_connection_names_ends_here() {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in [
            ("connection", "keep-alive, X-Hop"),
            ("x-hop", "1"),
            ("x-up", "2"),
            ("set-cookie", "a=b"),
            ("set-cookie", "c=d"),
            ("x-berth-credential", "forged"),
        ] {
            response.append_header(name, value).unwrap();
        }
        to_client(&mut response, false);
        let left: Vec<_> = response.headers.keys().map(|n| n.as_str()).collect();
        assert_eq!(left, ["x-up"]);
    }
}
