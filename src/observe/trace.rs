//! The trace that a client's request belongs to, as the W3C header `traceparent` says.
//!
//! The header goes on to the upstream as it came; here it is read for the audit, so that a line there is
//! found from a trace and the other way round, and for the spans of this berth ([`super::otlp`]). It is
//! kept only if the header is one that the recommendation allows: what is not a trace id must not get
//! into the audit as one.

use std::fmt;

use http::HeaderMap;
use serde::{Serialize, Serializer};

/// A place in a trace. It is shown as the trace's id: 32 hex digits, not all of them zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    id: u128,
    parent: u64,
    flags: u8,
}

impl Trace {
    /// That of the one `traceparent`; `None` where there is none, more than one, or an invalid one.
    pub fn of(headers: &HeaderMap) -> Option<Trace> {
        let mut values = headers.get_all("traceparent").iter();
        let (value, more) = (values.next()?, values.next());
        match more {
            None => Trace::parse(value.to_str().ok()?),
            Some(_) => None,
        }
    }

    /// `VERSION-TRACE-PARENT-FLAGS`. A version above 0 may go on after its flags.
    fn parse(text: &str) -> Option<Trace> {
        let mut parts = text.splitn(5, '-');
        let version = hex(parts.next()?, 2).filter(|version| *version != 0xff)?;
        let trace = hex(parts.next()?, 32).filter(|trace| *trace != 0)?;
        let parent = hex(parts.next()?, 16).filter(|parent| *parent != 0)?;
        let flags = hex(parts.next()?, 2)?;
        let all_read = version > 0 || parts.next().is_none();
        let (parent, flags) = (u64::try_from(parent).ok()?, u8::try_from(flags).ok()?);
        all_read.then_some(Trace {
            id: trace,
            parent,
            flags,
        })
    }

    /// The id of the trace.
    pub fn id(self) -> u128 {
        self.id
    }

    /// The id of the client's own span.
    pub fn parent(self) -> u64 {
        self.parent
    }

    /// Whether the client keeps its part of the trace.
    pub fn is_sampled(self) -> bool {
        self.flags & 1 == 1
    }
}

/// Exactly so many hex digits, in small letters.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let fits = text.len() == digits && text.bytes().all(is_hex);
    fits.then(|| u128::from_str_radix(text, 16).ok())?
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.id)
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Trace {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    /// A trace id.
    pub(crate) fn trace() -> Option<Trace> {
        Trace::parse(&format!("00-{TRACE}-b7ad6b7169203331-01"))
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
            let read = Trace::parse(&text).map(|id| id.to_string());
            assert_eq!(read, good.then(|| TRACE.to_owned()), "{text}");
        }
    }

    #[test]
    fn two_of_them_are_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(Trace::of(&headers), None);
        for expected in [trace(), None] {
            let value = format!("00-{TRACE}-b7ad6b7169203331-01").parse().unwrap();
            headers.append("traceparent", value);
            assert_eq!(Trace::of(&headers), expected);
        }
    }
}
