//! The trace that a client's request belongs to, as the W3C header `traceparent` says.
//!
//! The header goes on to the upstream as it came; here it is read for the audit, so that a line there is
//! found from a trace and the other way round. Only its trace id is kept, and only if the header is
//! one that the recommendation allows: what is not a trace id must not get into the audit as one.

use std::fmt;

use http::HeaderMap;
use serde::{Serialize, Serializer};

/// The id of a trace: 32 hex digits, not all of them zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceId(u128);

impl TraceId {
    /// That of the one `traceparent`; `None` where there is none, more than one, or an invalid one.
    pub fn of(headers: &HeaderMap) -> Option<TraceId> {
        let mut values = headers.get_all("traceparent").iter();
        let (value, more) = (values.next()?, values.next());
        match more {
            None => TraceId::parse(value.to_str().ok()?),
            Some(_) => None,
        }
    }

    /// `VERSION-TRACE-PARENT-FLAGS`. A version above 0 may go on after its flags.
    fn parse(text: &str) -> Option<TraceId> {
        let mut parts = text.splitn(5, '-');
        let version = hex(parts.next()?, 2).filter(|version| *version != 0xff)?;
        let trace = hex(parts.next()?, 32).filter(|trace| *trace != 0)?;
        hex(parts.next()?, 16).filter(|parent| *parent != 0)?;
        hex(parts.next()?, 2)?;
        (version > 0 || parts.next().is_none()).then_some(TraceId(trace))
    }
}

/// Exactly so many hex digits, in small letters.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let fits = text.len() == digits && text.bytes().all(is_hex);
    fits.then(|| u128::from_str_radix(text, 16).ok())?
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    /// A trace id.
    pub(crate) fn trace() -> Option<TraceId> {
        TraceId::parse(&format!("00-{TRACE}-b7ad6b7169203331-01"))
    }

    #[test]
    fn only_what_the_recommendation_allows_is_a_trace() {
        let zeros = "0".repeat(32);
        for (text, good) in [
            (format!("00-{TRACE}-b7ad6b7169203331-01"), true),
            (
                format!("cc-{TRACE}-b7ad6b7169203331-01-what-the-future-brings"),
                true,
            ),
            (format!("00-{TRACE}-b7ad6b7169203331-01-more"), false),
            (format!("ff-{TRACE}-b7ad6b7169203331-01"), false),
            (format!("00-{zeros}-b7ad6b7169203331-01"), false),
            (format!("00-{TRACE}-0000000000000000-01"), false),
            (
                format!("00-{}-b7ad6b7169203331-01", TRACE.to_uppercase()),
                false,
            ),
            (format!("00-{TRACE}0-b7ad6b7169203331-01"), false),
            (format!("00-+{}-b7ad6b7169203331-01", &TRACE[1..]), false),
            (format!("00-{TRACE}-b7ad6b7169203331"), false),
            (TRACE.to_owned(), false),
            (String::new(), false),
        ] {
            let read = TraceId::parse(&text).map(|id| id.to_string());
            assert_eq!(read, good.then(|| TRACE.to_owned()), "{text}");
        }
    }

    #[test]
    fn two_of_them_are_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(TraceId::of(&headers), None);
        for expected in [trace(), None] {
            let value = format!("00-{TRACE}-b7ad6b7169203331-01").parse().unwrap();
            headers.append("traceparent", value);
            assert_eq!(TraceId::of(&headers), expected);
        }
    }
}
