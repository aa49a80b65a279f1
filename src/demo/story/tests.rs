//! The checker must find each thing that is not as stated: else the demo proves nothing.

use super::*;
use crate::demo::cases::{Behaviour, cases};
use crate::sim::Shape;

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap()
}

/// A story that goes as `case` states.
fn as_stated(case: &Case, dialect: Dialect) -> (Vec<String>, Seen, Line) {
    let ids: Vec<String> = (0..case.expect.tried)
        .map(|n| case.credential(dialect, n))
        .collect();
    let attempts = ids.iter().map(|id| Attempt {
        credential: id.clone(),
        verdict: case.expect.verdict.to_owned(),
        shape: case.expect.shape.map(str::to_owned),
        then: "fail_over".to_owned(),
    });
    let audit = Line {
        attempts: attempts.collect(),
        ..Line::default()
    };
    let mut seen = Seen {
        status: 200,
        whole: true,
        took: case.expect.at_least,
        ..Seen::default()
    };
    match case.expect.client {
        Sees::Answer => {
            seen.openings = 1;
            seen.text = format!("Hello from {}.", ids.last().unwrap());
        }
        Sees::Error(status, codes, retry_after) => {
            seen.status = status.unwrap_or(403);
            seen.error = Some(codes.of(dialect).to_owned());
            seen.retry_after = (retry_after == RetryAfter::Said).then_some(5);
        }
        Sees::Broken => {
            seen.text = "Hello f".to_owned();
            seen.whole = false;
        }
        Sees::Failure(codes) => {
            seen.text = "Hello f".to_owned();
            seen.error = Some(codes.of(dialect).to_owned());
        }
    }
    (ids, seen, audit)
}

#[test]
fn what_is_as_stated_passes_in_every_case() {
    let mut seen = 0;
    for case in cases() {
        for dialect in Dialect::ALL {
            let (ids, client, audit) = as_stated(&case, dialect);
            let found = differences(&case.expect, dialect, &ids, &client, &audit);
            assert!(found.is_empty(), "{}: {found:?}", case.name);
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen}");
}

#[test]
fn each_thing_that_is_not_as_stated_is_found() {
    type Spoil = fn(&mut Seen, &mut Line);
    let spoils: [(&str, &str, Spoil); 14] = [
        ("sse", "status", |seen, _| seen.status = 503),
        ("sse", "openings", |seen, _| seen.openings = 2),
        ("sse", "error", |seen, _| seen.error = Some("x".to_owned())),
        ("sse", "whole", |seen, _| seen.whole = false),
        ("sse", "text", |seen, _| seen.text.push('!')),
        ("sse", "verdict", |_, audit| {
            audit.attempts[0].verdict = "quota".to_owned()
        }),
        ("sse", "shape", |_, audit| audit.attempts[0].shape = None),
        ("sse", "tried", |_, audit| drop(audit.attempts.pop())),
        ("sse", "no audit line", |_, audit| *audit = Line::default()),
        ("everyone", "code", |seen, _| {
            seen.error = Some("server_is_overloaded".to_owned())
        }),
        ("everyone", "retry-after", |seen, _| seen.retry_after = None),
        ("client_error", "retry-after", |seen, _| {
            seen.retry_after = Some(5)
        }),
        ("cut", "a clean end", |seen, _| seen.whole = true),
        ("hang", "too soon", |seen, _| seen.took = Duration::ZERO),
    ];
    for (name, what, spoil) in spoils {
        let case = case(name);
        let (ids, mut seen, mut audit) = as_stated(&case, Dialect::Responses);
        spoil(&mut seen, &mut audit);
        let found = differences(&case.expect, Dialect::Responses, &ids, &seen, &audit);
        assert!(!found.is_empty(), "{name}: {what} was not found");
    }
}

#[test]
fn every_shape_of_refusal_is_shown() {
    let cases = cases();
    for (name, shape) in Shape::ALL {
        let shown = cases.iter().any(|case| {
            case.name == name
                && matches!(
                    case.credentials.first(),
                    Some(Behaviour::Step(crate::sim::Step::Refuse(refuse))) if refuse.shape == shape
                )
        });
        assert!(shown, "{name}");
    }
}
