//! Reading streams, refusals and requests.

use std::hint::black_box;
use std::sync::Arc;
use std::time::SystemTime;

use berth::admission::ask::Ask;
use berth::admission::coding::Coding;
use berth::admission::day::Day;
use berth::admission::gate::{AnswerHead, Gate, Media, Step};
use berth::admission::policy::ClientErrorCode;
use berth::admission::rules::{Evidence, Origin, Reading, Rule, Rules, Term, When};
use berth::admission::sse::Splitter;
use berth::admission::stream::Stream;
use berth::admission::{Dialect, Endpoint, Verdict, Withheld};
use bytes::Bytes;

use super::Work;

/// Bytes of an event.
pub const EVENT: usize = 200;
/// Bytes of a stream: 500 events.
pub const BYTES: usize = 500 * EVENT;

/// The ends of all frames of a stream, found.
pub fn split() -> Work {
    let pieces = pieces(&plain(), 16 * 1024);
    Box::new(move || {
        let mut splitter = Splitter::default();
        let mut frames = 0;
        for piece in &pieces {
            let mut rest = &piece[..];
            while let Some(end) = splitter.next_end(black_box(rest)) {
                frames += 1;
                rest = &rest[end..];
            }
        }
        assert_eq!(frames, 500);
    })
}

/// An opening is held, and its first token lets it go.
pub fn opening() -> Work {
    let frames = [created(), delta("word")];
    Box::new(move || {
        let mut gate = gate();
        assert_eq!(gate.push(frames[0].clone()), Step::Hold);
        assert!(matches!(gate.push(frames[1].clone()), Step::Commit(_)));
        black_box(gate.into_held());
    })
}

/// An opening, and the refusal that follows it.
pub fn refusal() -> Work {
    let failed = frame(
        r#"{"type":"response.failed","response":{"id":"r1","status":"failed","error":{"code":"server_is_overloaded","message":"Selected model is at capacity. Please try a different model."}}}"#,
    );
    let frames = [created(), failed];
    Box::new(move || {
        let mut gate = gate();
        assert_eq!(gate.push(frames[0].clone()), Step::Hold);
        assert!(matches!(gate.push(frames[1].clone()), Step::Refuse(_)));
    })
}

/// A stream that says nothing: each of its frames is read and held.
pub fn held() -> Work {
    let frame = frame(&format!(
        r#"{{"type":"response.in_progress","response":{{"id":"r1","x":"{}"}}}}"#,
        "x".repeat(EVENT - 69)
    ));
    assert_eq!(frame.len(), EVENT);
    let pieces = pieces(&frame.repeat(500), 16 * 1024);
    Box::new(move || {
        let mut gate = gate();
        for piece in &pieces {
            assert_eq!(gate.push(piece.clone()), Step::Hold);
        }
    })
}

/// A healthy stream after commit, in pieces of so many bytes.
pub fn passed(size: usize) -> Work {
    let pieces = pieces(&plain(), size);
    let reading = by();
    Box::new(move || {
        let code = ClientErrorCode::Keep;
        let mut stream = Stream::events(Endpoint::Responses, reading.clone(), code);
        let mut out = Vec::new();
        for piece in &pieces {
            stream.pass(piece.clone(), &mut out);
            black_box(&out);
            out.clear();
        }
    })
}

/// A refusal that no rule knows, so that all are asked; `own` rules before the built-in ones.
pub fn classify(own: usize) -> Work {
    let rule = |number| Rule {
        name: format!("own-{number}").into(),
        when: When {
            status: vec![400..=400],
            code: vec![format!("code_{number}")],
            message_prefix: vec!["our own words".to_owned()],
            ..When::default()
        },
        verdict: Verdict::Capacity,
        hold: None,
        then: None,
        origin: Origin::Configured(Term::Permanent("measured".to_owned())),
    };
    let rules = Rules::new((0..own).map(rule).collect());
    let today = Day::of(SystemTime::UNIX_EPOCH);
    Box::new(move || {
        let evidence = Evidence {
            status: 400,
            dialect: Dialect::OpenAi,
            upstream: "openai",
            code: Some("unheard_of"),
            kind: Some("never_seen_error"),
            message: Some("The request could not be served for a reason that nobody has met."),
            page: false,
            spent: false,
        };
        black_box(rules.rule_on(black_box(&evidence), today));
    })
}

/// A request of 2 KB, read for its model and session.
pub fn ask() -> Work {
    let body = format!(
        r#"{{"model":"gpt-5","stream":true,"prompt_cache_key":"session-1","input":[{{"role":"user","content":"{}"}}]}}"#,
        "x".repeat(1950)
    );
    Box::new(move || {
        let ask = Ask::of(black_box(body.as_bytes()), Some(Coding::Identity));
        assert!(ask.stream);
    })
}

fn gate() -> Gate {
    let head = AnswerHead {
        status: 200,
        media: Media::Stream,
        challenge: false,
        spent: false,
        bodiless: false,
    };
    let (gate, step) = Gate::new(Endpoint::Responses, by(), head, true, 4 * 1024 * 1024);
    assert_eq!(step, Step::Hold);
    gate
}

fn by() -> Reading {
    Reading {
        withheld: Withheld::default(),
        rules: Arc::new(Rules::default()),
        today: Day::of(SystemTime::UNIX_EPOCH),
        dialect: Dialect::OpenAi,
        upstream: "openai".into(),
    }
}

fn plain() -> Vec<u8> {
    let empty = delta("").len();
    delta(&"x".repeat(EVENT - empty)).repeat(500)
}

fn pieces(bytes: &[u8], size: usize) -> Vec<Bytes> {
    bytes.chunks(size).map(Bytes::copy_from_slice).collect()
}

fn created() -> Bytes {
    frame(r#"{"type":"response.created","response":{"id":"r1"}}"#)
}

fn delta(text: &str) -> Bytes {
    frame(&format!(
        r#"{{"type":"response.output_text.delta","delta":"{text}"}}"#
    ))
}

fn frame(data: &str) -> Bytes {
    format!("data: {data}\n\n").into()
}
