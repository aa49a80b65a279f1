//! Heads that cannot be trusted to mean one thing.

use http::{HeaderValue, Method, header};
use pingora::proxy::Session;

use crate::admission::Dialect;

use super::answer::Answer;

/// Headers of a request. Chosen: twice what anybody sends, and less than the 256 that pingora and many others read
/// in HTTP/1.1: beyond them a request over HTTP/2 would fail at every credential, and look like their fault.
const MOST_HEADERS: usize = 200;

/// What is wrong with a head, where an upstream might read it in another way than berth, or where
/// pingora would fail on it half-way.
pub fn malformed(session: &Session, header_bytes: usize) -> Option<Answer> {
    let refuse = |status, code, message: &str| {
        Some(Answer {
            close: true,
            ..Answer::client_error(Dialect::OpenAi, status, code, message)
        })
    };
    let request = session.req_header();
    let headers = &request.headers;
    // pingora drops a Content-Length beside a Transfer-Encoding: the head as it came still has it.
    let raw = session
        .as_downstream()
        .as_http1()
        .map(|http1| http1.get_headers_raw_bytes());
    let lengths = match &raw {
        Some(raw) => raw
            .split(|b| *b == b'\n')
            .filter(|line| is_length(line))
            .count(),
        None => headers.get_all(header::CONTENT_LENGTH).iter().count(),
    };
    let digits =
        |value: &HeaderValue| !value.is_empty() && value.as_bytes().iter().all(u8::is_ascii_digit);
    let codings = headers.get_all(header::TRANSFER_ENCODING);
    let chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    let coded = codings.iter().count();
    if lengths + coded > 1
        || !headers.get_all(header::CONTENT_LENGTH).iter().all(digits)
        || !codings.iter().all(chunked)
    {
        let message = "The request's length can be read in two ways: send one Content-Length in digits, or Transfer-Encoding: chunked.";
        return refuse(400, "invalid_framing", message);
    }
    if !headers
        .get_all(header::CONNECTION)
        .iter()
        .all(names_options)
    {
        return refuse(
            400,
            "invalid_connection",
            "The Connection header names what it may not.",
        );
    }
    let bytes = raw.as_ref().map_or_else(
        || {
            headers
                .iter()
                .map(|(name, value)| name.as_str().len() + value.len() + 4)
                .sum()
        },
        |raw| raw.len(),
    );
    if bytes > header_bytes {
        let limit = bytesize::ByteSize(header_bytes as u64);
        let message = format!(
            "The request head is larger than the {} that this gateway takes (limits.header_bytes).",
            limit.display().iec()
        );
        return refuse(431, "header_too_large", &message);
    }
    if headers.len() > MOST_HEADERS {
        let message = format!(
            "The request has more than the {MOST_HEADERS} headers that this gateway takes."
        );
        return refuse(431, "header_too_large", &message);
    }
    None
}

fn is_length(line: &[u8]) -> bool {
    let name = line.split(|b| *b == b':').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(b"content-length")
}

/// Whether a `Connection` header is a list of names, none of which has a meaning of its own.
fn names_options(value: &HeaderValue) -> bool {
    const PROTECTED: [&str; 5] = [
        "host",
        "content-length",
        "transfer-encoding",
        "x-forwarded-for",
        "authorization",
    ];
    let token = |name: &str| {
        let name = name.trim();
        name.is_empty()
            || (name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
                && !PROTECTED.iter().any(|p| p.eq_ignore_ascii_case(name))
                && !name.to_ascii_lowercase().starts_with("x-forwarded-"))
    };
    value
        .to_str()
        .is_ok_and(|list| list.split(',').count() < 16 && list.split(',').all(token))
}

/// Whether a request asks to become a WebSocket.
pub fn wants_websocket(request: &pingora::http::RequestHeader) -> bool {
    let upgrade = request.headers.get(header::UPGRADE);
    let websocket = |value: &HeaderValue| {
        let mut protocols = value.as_bytes().split(|b| *b == b',');
        protocols.any(|protocol| protocol.trim_ascii().eq_ignore_ascii_case(b"websocket"))
    };
    request.method == Method::GET && upgrade.is_some_and(websocket)
}
