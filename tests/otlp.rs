//! Traces as a collector receives them: a span for the request, one for each attempt, and nothing that was
//! said.

mod common;

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::upstream::{Conn, Heard, Raw, answer};
use common::wire::post;
use common::{Berth, config, free_port, signal};

const PATH: &str = "/v1/responses";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
/// What `a` takes to refuse, and `b` to answer.
const SLOW: Duration = Duration::from_millis(150);
/// Words that nobody but the two ends may ever read.
const PLANTED: [&str; 5] = [
    "planted-prompt",
    "planted-answer",
    "planted-client-key",
    "planted-message",
    "sk-",
];

#[tokio::test]
async fn a_collector_gets_a_span_of_the_request_and_one_of_each_attempt() {
    let (collector, got) = collector().await;
    let upstream = upstream().await;
    let shell = format!(
        "export OTEL_EXPORTER_OTLP_ENDPOINT=http://{} OTEL_SERVICE_NAME=; exec \"$@\"",
        collector.addr
    );
    let mut berth =
        Berth::start_by(&shell, Stdio::null(), &config(&upstream.url(), "ab", "")).await;
    let before = SystemTime::now();
    let mut ids = Vec::new();
    for header in [
        format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n"),
        format!("traceparent: 00-{TRACE}-{PARENT}-00\r\n"),
        String::new(),
    ] {
        let header = format!("{header}authorization: Bearer planted-client-key\r\n");
        let body = r#"{"model":"gpt-sim","input":"planted-prompt"}"#;
        let answer = berth.ask(post(PATH, &header, body)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        ids.push(answer.id().to_owned());
    }
    let audit = berth.audit(3).await;
    // What is queued is sent before the process ends.
    signal("TERM", berth.pid());
    assert!(berth.ends().await.success());
    let after = SystemTime::now();

    let got = got.lock().unwrap();
    for heard in got.iter() {
        assert_eq!(heard.target, "/v1/traces");
        assert_eq!(heard.header("content-type"), Some("application/x-protobuf"));
        let text = String::from_utf8_lossy(&heard.body);
        for planted in PLANTED {
            assert!(!text.contains(planted), "{planted}: {text}");
        }
    }
    let (services, spans): (Vec<_>, Vec<_>) = got.iter().map(|it| read(&it.body)).unzip();
    assert!(services.iter().all(|it| it == "berth"), "{services:?}");
    let spans = spans.concat();
    // The second was not sampled.
    assert_eq!(spans.len(), 6, "{spans:#?}");
    let request_of = |id: &str| {
        let mut of_it = spans
            .iter()
            .filter(|it| it.attribute("berth.request_id") == id);
        of_it.next().unwrap()
    };
    let children = |of: &Span| {
        let mut all: Vec<Span> = spans
            .iter()
            .filter(|it| it.parent == of.id)
            .cloned()
            .collect();
        all.sort_by_key(|it| it.start);
        all
    };

    let request = request_of(&ids[0]);
    assert_eq!(request.trace, TRACE);
    assert_eq!(request.parent, PARENT);
    assert_eq!((request.name.as_str(), request.kind), ("POST /v1", SERVER));
    assert_eq!(
        request.attributes,
        expected(&[
            ("berth.outcome", "ok"),
            ("berth.request_id", &ids[0]),
            ("berth.route", "/v1"),
            ("gen_ai.request.model", "gpt-sim"),
            ("http.response.status_code", "200"),
        ])
    );
    let attempts = children(request);
    let [refused, admitted] = &attempts[..] else {
        panic!("{attempts:#?}")
    };
    let rule = audit[0]["attempts"][0]["rule"].as_str().unwrap();
    assert_eq!(
        refused.attributes,
        expected(&[
            ("berth.credential", "a"),
            ("berth.rule", rule),
            ("berth.shape", "http_503"),
            ("berth.verdict", "capacity"),
            ("gen_ai.request.model", "gpt-sim"),
            ("http.response.status_code", "503"),
        ])
    );
    assert_eq!(
        admitted.attributes,
        expected(&[
            ("berth.credential", "b"),
            ("berth.verdict", "admitted"),
            ("gen_ai.request.model", "gpt-sim"),
            ("http.response.status_code", "200"),
        ])
    );
    assert_eq!(
        (refused.failed, admitted.failed, request.failed),
        (true, false, false)
    );
    for attempt in [refused, admitted] {
        assert_eq!((attempt.trace.as_str(), attempt.kind), (TRACE, CLIENT));
        assert!(attempt.end - attempt.start >= SLOW.as_nanos() as u64 - MILLI);
    }
    let nanos = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let order = [
        nanos(before),
        request.start,
        refused.start,
        refused.end,
        admitted.start,
        admitted.end,
        request.end,
        nanos(after),
    ];
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(
        request.end - request.start,
        audit[0]["ms_total"].as_u64().unwrap() * MILLI
    );

    // Without a trace of the client's, one of its own. `a` cools by now, or is asked again.
    let alone = request_of(&ids[2]);
    assert_eq!((alone.trace.len(), alone.parent.as_str()), (32, ""));
    assert_ne!(alone.trace, TRACE);
    assert!(children(alone).iter().all(|it| it.trace == alone.trace));
}

#[tokio::test]
async fn a_collector_that_is_away_costs_spans_and_no_request() {
    let upstream = upstream().await;
    let shell = format!(
        "export OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://{}/x; exec \"$@\"",
        free_port()
    );
    let mut berth =
        Berth::start_by(&shell, Stdio::null(), &config(&upstream.url(), "ab", "")).await;
    let body = r#"{"model":"gpt-sim","input":"planted-prompt"}"#;
    assert_eq!(berth.ask(post(PATH, "", body)).await.status, 200);
    berth.audit(1).await;
    signal("TERM", berth.pid());
    assert!(berth.ends().await.success());
    let log = berth.log();
    assert!(log.contains("traces are lost requests=1 reason="), "{log}");
}

/// `a` has no seat and takes its time to say so; `b` answers.
async fn upstream() -> Raw {
    Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            tokio::time::sleep(SLOW).await;
            let json = "content-type: application/json\r\n";
            let bytes = match heard.credential() {
                "a" => answer(
                    503,
                    json,
                    r#"{"error":{"code":"server_is_overloaded","message":"planted-message"}}"#,
                ),
                _ => answer(
                    200,
                    json,
                    r#"{"id":"r","status":"completed","output":[{"type":"message","content":"planted-answer"}]}"#,
                ),
            };
            if !conn.send(bytes).await {
                return;
            }
        }
    })
    .await
}

/// Takes everything.
async fn collector() -> (Raw, Arc<Mutex<Vec<Heard>>>) {
    let got = Arc::<Mutex<Vec<Heard>>>::default();
    let kept = got.clone();
    let collector = Raw::start(move |mut conn: Conn| {
        let kept = kept.clone();
        async move {
            while let Some(heard) = conn.request().await {
                kept.lock().unwrap().push(heard);
                if !conn.send(answer(200, "", "")).await {
                    return;
                }
            }
        }
    });
    (collector.await, got)
}

fn expected(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

const MILLI: u64 = 1_000_000;
const SERVER: u64 = 2;
const CLIENT: u64 = 3;

/// A span, as `opentelemetry/proto/trace/v1/trace.proto` numbers its fields.
#[derive(Clone, Debug, Default)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: u64,
    start: u64,
    end: u64,
    attributes: BTreeMap<String, String>,
    failed: bool,
}

impl Span {
    fn attribute(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }

    fn read(bytes: &[u8]) -> Span {
        let mut span = Span::default();
        for (number, value) in fields(bytes) {
            match (number, value) {
                (1, Field::Bytes(it)) => span.trace = hex(it),
                (2, Field::Bytes(it)) => span.id = hex(it),
                (4, Field::Bytes(it)) => span.parent = hex(it),
                (5, Field::Bytes(it)) => span.name = text(it),
                (6, Field::Number(it)) => span.kind = it,
                (7, Field::Number(it)) => span.start = it,
                (8, Field::Number(it)) => span.end = it,
                (9, Field::Bytes(it)) => {
                    let (key, value) = attribute(it);
                    span.attributes.insert(key, value);
                }
                (15, Field::Bytes(it)) => {
                    let code = fields(it).into_iter().find(|(number, _)| *number == 3);
                    span.failed = matches!(code, Some((_, Field::Number(2))));
                }
                _ => {}
            }
        }
        span
    }
}

/// The service's name, and its spans.
fn read(request: &[u8]) -> (String, Vec<Span>) {
    let (mut service, mut spans) = (String::new(), Vec::new());
    for of_resource in inside(request, 1) {
        let attributes = inside(of_resource, 1);
        let attributes = attributes.iter().flat_map(|it| inside(it, 1));
        let mut named = attributes
            .map(attribute)
            .filter(|it| it.0 == "service.name");
        service = named.next().unwrap().1;
        for of_scope in inside(of_resource, 2) {
            spans.extend(inside(of_scope, 2).into_iter().map(Span::read));
        }
    }
    (service, spans)
}

fn attribute(bytes: &[u8]) -> (String, String) {
    let value = match fields(inside(bytes, 2)[0])[0] {
        (1, Field::Bytes(it)) => text(it),
        (3, Field::Number(it)) => it.to_string(),
        ref other => panic!("{other:?}"),
    };
    (text(inside(bytes, 1)[0]), value)
}

#[derive(Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The messages and texts with this number.
fn inside(bytes: &[u8], wanted: u64) -> Vec<&[u8]> {
    let of_it = |(number, field)| match field {
        Field::Bytes(it) if number == wanted => Some(it),
        _ => None,
    };
    fields(bytes).into_iter().filter_map(of_it).collect()
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    std::iter::from_fn(|| next(&mut bytes)).collect()
}

/// The next field of a message in protobuf's wire format.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    if rest.is_empty() {
        return None;
    }
    let tag = varint(rest);
    let field = match tag & 7 {
        0 => Field::Number(varint(rest)),
        1 => Field::Number(u64::from_le_bytes(take(rest, 8).try_into().unwrap())),
        2 => {
            let length = varint(rest) as usize;
            Field::Bytes(take(rest, length))
        }
        5 => Field::Number(u32::from_le_bytes(take(rest, 4).try_into().unwrap()).into()),
        other => panic!("no wire type: {other}"),
    };
    Some((tag >> 3, field))
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for place in 0.. {
        let byte = take(rest, 1)[0];
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, left) = rest.split_at(length);
    *rest = left;
    taken
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
