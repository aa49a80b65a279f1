//! How long a refusal says it will last: whatever stands there, no panic, and no time beyond the limit.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::admission::Verdict;
use crate::admission::facts::Facts;
use crate::admission::retry_after::{LONGEST, says_spent, stated};

use super::Choices;

/// Header lines up to an empty line, then the body of the error.
pub fn run(bytes: &[u8]) {
    let Some((choices, rest)) = Choices::split(bytes) else {
        return;
    };
    let verdict = choices.pick(0, &[Verdict::Quota, Verdict::RateLimit, Verdict::Capacity]);
    let now = SystemTime::UNIX_EPOCH
        + Duration::from_secs(u64::from(choices.bits(1)) << (choices.bits(2) % 40));
    let end = rest.windows(2).position(|two| two == b"\n\n");
    let (head, body) = rest.split_at(end.unwrap_or(rest.len()));
    let mut headers = HeaderMap::new();
    for line in head.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let facts = Facts::of_error_body(body.trim_ascii());
    says_spent(&headers);
    for headers in [None, Some(&headers)] {
        if let Some(stated) = stated(verdict, &facts, headers, now) {
            assert!(stated.after <= LONGEST, "{stated:?}");
        }
    }
    // A plain number of seconds is believed, whatever else an answer of no other kind says.
    if choices.bits(3) % 4 == 0 {
        let seconds = u64::from(choices.bits(4));
        headers.clear();
        headers.insert("retry-after", HeaderValue::from(seconds));
        let stated = stated(verdict, &Facts::default(), Some(&headers), now);
        assert_eq!(
            stated.map(|it| it.after),
            Some(Duration::from_secs(seconds))
        );
    }
}
