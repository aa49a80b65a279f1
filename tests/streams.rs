//! A healthy stream reaches the client byte for byte, wherever the network cuts it, and a refusal that
//! is cut the same way never leaks a byte.
//!
//! The upstream plays bytes that are written down here, in chunks that end where the request says, so
//! each piece is one for berth whatever the sockets do.

mod common;

use common::upstream::{Conn, LAST_CHUNK, Raw, chunk};
use common::wire::{Client, Client2, Ends, body, post};
use common::{ADMISSION, Berth, credentials};
use proptest::prelude::*;
use std::sync::{Arc, LazyLock};

/// A stream, and how it is asked for.
struct Case {
    name: String,
    path: &'static str,
    bytes: Vec<u8>,
    content_type: &'static str,
}

static CASES: LazyLock<Vec<Case>> = LazyLock::new(cases);
static REFUSALS: LazyLock<Vec<Case>> = LazyLock::new(refusals);

const PATHS: [&str; 3] = [
    "/v1/responses",
    "/v1/chat/completions",
    "/anthropic/v1/messages",
];

/// Short streams: every position of each is cut.
const RESPONSES: &str = r#": hello ¿
event: response.created
data: {"type":"response.created","response":{"id":"r","error":null,"input":"server_is_overloaded"}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","delta":"grüß 🦀 data: {\"error\":"}

event: response.completed
data: {"type":"response.completed","response":{"id":"r","status":"completed","usage":{"input_tokens":1,"output_tokens":2}}}

"#;

const CHAT: &str = r#"data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}

: keepalive
data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"ü漢🦀"}}]}

data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: [DONE]

"#;

const MESSAGES: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"é漢🦀"}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}

event: message_stop
data: {"type":"message_stop"}

"#;

const REFUSED: [&str; 3] = [
    r#"event: response.created
data: {"type":"response.created","response":{"id":"leak","input":"leak ü"}}

event: error
data: {"type":"error","error":{"type":"service_unavailable_error","code":"server_is_overloaded","message":"leak"}}

event: response.failed
data: {"type":"response.failed","response":{"id":"leak","status":"failed","error":{"code":"server_is_overloaded","message":"leak"}}}

"#,
    r#": leak
data: {"id":"leak","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}

data: {"error":{"message":"leak","type":"service_unavailable_error","code":"server_is_overloaded"}}

"#,
    r#"event: message_start
data: {"type":"message_start","message":{"id":"leak","content":[]}}

event: error
data: {"type":"error","error":{"type":"overloaded_error","message":"leak"}}

"#,
];

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (path, text) in PATHS.into_iter().zip([RESPONSES, CHAT, MESSAGES]) {
        let crlf = text.replace('\n', "\r\n");
        let mut marked = "\u{feff}".to_owned();
        marked.push_str(text);
        for (how, bytes, content_type) in [
            ("LF", text.to_owned(), "text/event-stream"),
            ("CRLF", crlf, "text/event-stream; charset=utf-8"),
            ("BOM, no content type", marked, ""),
        ] {
            cases.push(Case {
                name: format!("{path}, {how}"),
                path,
                bytes: bytes.into_bytes(),
                content_type,
            });
        }
    }
    cases
}

fn refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    for (path, text) in PATHS.into_iter().zip(REFUSED) {
        for (how, bytes) in [
            ("LF", text.to_owned()),
            ("CRLF", text.replace('\n', "\r\n")),
        ] {
            cases.push(Case {
                name: format!("refusal at {path}, {how}"),
                path,
                bytes: bytes.into_bytes(),
                content_type: "",
            });
        }
    }
    cases
}

/// Plays to credentials `a` and `c` what `x-play` says, and to the others the healthy stream of the
/// same path.
async fn player() -> Raw {
    Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            let play = heard.header("x-play").unwrap().to_owned();
            let (kind, rest) = play.split_at(1);
            let (case, cuts) = rest.split_once('@').unwrap();
            let case: usize = case.parse().unwrap();
            let mut cuts: Vec<usize> = cuts
                .split(',')
                .filter(|cut| !cut.is_empty())
                .map(|cut| cut.parse().unwrap())
                .collect();
            let first = matches!(heard.credential(), "a" | "c");
            let case = match (kind, first) {
                ("h", _) => &CASES[case],
                (_, true) => &REFUSALS[case],
                (_, false) => {
                    cuts = vec![];
                    healthy(REFUSALS[case].path)
                }
            };
            if !play_in_pieces(&mut conn, case, &cuts).await {
                return;
            }
        }
    })
    .await
}

fn healthy(path: &str) -> &'static Case {
    CASES.iter().find(|case| case.path == path).unwrap()
}

async fn play_in_pieces(conn: &mut Conn, case: &Case, cuts: &[usize]) -> bool {
    let mut head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n".to_owned();
    if !case.content_type.is_empty() {
        head.push_str(&format!("content-type: {}\r\n", case.content_type));
    }
    head.push_str("\r\n");
    if !conn.send(head).await {
        return false;
    }
    let mut from = 0;
    for cut in cuts.iter().copied().chain([case.bytes.len()]) {
        if !conn.send(chunk(&case.bytes[from..cut])).await {
            return false;
        }
        from = cut;
    }
    conn.send(LAST_CHUNK).await
}

async fn berth(player: &Raw) -> Berth {
    let url = player.url();
    let config = format!(
        "upstreams:\n  up: {{base_url: \"{url}\"}}\n  \
         anthropic: {{base_url: \"{url}\", dialect: anthropic}}\n\
         {}{}routes:\n\
         - {{path_prefix: /v1, balance: fill_first, credentials: [a, b], affinity: {{enabled: false}}}}\n\
         - {{path_prefix: /anthropic/v1, balance: fill_first, credentials: [c, d], affinity: {{enabled: false}}}}\n\
         {ADMISSION}",
        credentials("up", "ab"),
        credentials("anthropic", "cd").replace("credentials:\n", ""),
    );
    Berth::start(&config).await
}

fn request(case: &Case, play: &str) -> Vec<u8> {
    post(
        case.path,
        &format!("x-play: {play}\r\n"),
        body(case.path, true),
    )
}

/// Asks over one connection and compares with `expected`.
async fn expect(client: &mut Client, case: &Case, play: &str, expected: &Case) {
    client.send(request(case, play)).await;
    let answer = client.answer().await;
    let told = format!("{}, play {play}", case.name);
    assert_eq!(answer.status, 200, "{told}: {answer:?}");
    assert_eq!(answer.ends, Ends::Whole, "{told}: {answer:?}");
    assert_eq!(
        answer.text(),
        String::from_utf8_lossy(&expected.bytes),
        "{told}"
    );
    assert_eq!(answer.body, expected.bytes, "{told}");
}

/// Every cut of every case, over some connections at once; how many there were.
async fn every_cut(berth: Arc<Berth>, kind: &str, cases: &'static [Case]) -> usize {
    let mut plays: Vec<(usize, usize)> = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        plays.extend((0..=case.bytes.len()).map(|cut| (number, cut)));
    }
    let count = plays.len();
    let mut lanes = tokio::task::JoinSet::new();
    for lane in plays.chunks(plays.len().div_ceil(8)) {
        let (lane, berth, kind) = (lane.to_vec(), berth.clone(), kind.to_owned());
        lanes.spawn(async move {
            let mut client = berth.connect().await;
            for (number, cut) in lane {
                let case = &cases[number];
                let expected = if kind == "h" {
                    case
                } else {
                    healthy(case.path)
                };
                expect(
                    &mut client,
                    case,
                    &format!("{kind}{number}@{cut}"),
                    expected,
                )
                .await;
            }
        });
    }
    while let Some(done) = lanes.join_next().await {
        done.unwrap();
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_stream_cut_at_every_byte_arrives_byte_for_byte() {
    let player = player().await;
    let berth = Arc::new(berth(&player).await);
    let count = every_cut(berth.clone(), "h", &CASES).await;
    assert!(count > 3000, "{count} cuts only");
    assert_eq!(berth.audit(count).await.len(), count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_cut_at_every_byte_never_leaks_a_byte() {
    let player = player().await;
    let berth = Arc::new(berth(&player).await);
    let count = every_cut(berth.clone(), "r", &REFUSALS).await;
    assert!(count > 1500, "{count} cuts only");
    for line in berth.audit(count).await {
        let attempts = line["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 2, "{line}");
        assert_eq!(attempts[0]["verdict"], "capacity", "{line}");
        assert_eq!(attempts[0]["shape"], "sse", "{line}");
        assert_eq!(attempts[1]["verdict"], "admitted", "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http2_client_gets_the_same_bytes() {
    let player = player().await;
    let berth = berth(&player).await;
    let client = Client2::connect(berth.addr).await;
    let mut count = 0;
    for (kind, cases) in [("h", &*CASES), ("r", &*REFUSALS)] {
        for (number, case) in cases.iter().enumerate() {
            let expected = if kind == "h" {
                case
            } else {
                healthy(case.path)
            };
            for cut in (0..case.bytes.len()).step_by(7) {
                let play = format!("{kind}{number}@{cut}");
                let answer = client
                    .ask(case.path, &[("x-play", &play)], body(case.path, true))
                    .await;
                assert_eq!(answer.status, 200, "{play}: {answer:?}");
                assert_eq!(answer.ends, Ends::Whole, "{play}: {answer:?}");
                assert_eq!(answer.body, expected.bytes, "{}, play {play}", case.name);
                count += 1;
            }
        }
    }
    assert!(count > 600, "{count} cuts only");
}

#[test]
fn a_stream_cut_anywhere_many_times_arrives_byte_for_byte() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (player, berth) = runtime.block_on(async {
        let player = player().await;
        let berth = berth(&player).await;
        (player, berth)
    });
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let any = (any::<bool>(), any::<prop::sample::Index>())
        .prop_map(|(refused, index)| {
            let cases = if refused { &*REFUSALS } else { &*CASES };
            (refused, index.index(cases.len()))
        })
        .prop_flat_map(|(refused, number)| {
            let cases = if refused { &*REFUSALS } else { &*CASES };
            let cuts = prop::collection::btree_set(0..cases[number].bytes.len(), 0..40);
            (Just(refused), Just(number), cuts)
        });
    runner
        .run(&any, |(refused, number, cuts)| {
            let cuts: Vec<String> = cuts.iter().map(usize::to_string).collect();
            let (kind, case) = match refused {
                true => ("r", &REFUSALS[number]),
                false => ("h", &CASES[number]),
            };
            let expected = if refused { healthy(case.path) } else { case };
            let play = format!("{kind}{number}@{}", cuts.join(","));
            let answer = runtime.block_on(berth.ask(request(case, &play)));
            prop_assert_eq!(answer.status, 200, "{}", play);
            prop_assert_eq!(answer.ends, Ends::Whole, "{}", play);
            prop_assert_eq!(&answer.body, &expected.bytes, "{}", play);
            Ok(())
        })
        .unwrap();
    drop(player);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_one_byte_at_a_time_arrives_byte_for_byte() {
    let player = player().await;
    let berth = berth(&player).await;
    let mut client = berth.connect().await;
    for (kind, cases) in [("h", &*CASES), ("r", &*REFUSALS)] {
        for (number, case) in cases.iter().enumerate() {
            let cuts: Vec<String> = (1..case.bytes.len()).map(|cut| cut.to_string()).collect();
            let play = format!("{kind}{number}@{}", cuts.join(","));
            let expected = if kind == "h" {
                case
            } else {
                healthy(case.path)
            };
            expect(&mut client, case, &play, expected).await;
        }
    }
    assert_eq!(CASES.len() + REFUSALS.len(), 15);
}
