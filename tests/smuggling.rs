//! What can be read in two ways: a request that hides another one, over HTTP/1 and from HTTP/2 to
//! HTTP/1. The upstream here keeps every byte that it is sent, and answers whatever it takes for a
//! request: what counts is how many it sees, and that none has what was to be smuggled.

mod common;

use std::sync::{Arc, Mutex};

use common::upstream::{Conn, Raw, answer};
use common::wire::{Ends, body, post};
use common::{Berth, config, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CHAT: &str = "/v1/chat/completions";

/// Stands in what is smuggled, and nowhere else.
const HIDDEN: &str = "smuggled";

/// What the upstream was asked.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

async fn upstream() -> (Raw, Seen) {
    let seen = Seen::default();
    let keep = seen.clone();
    let raw = Raw::start(move |mut conn: Conn| {
        let keep = keep.clone();
        async move {
            while let Some(heard) = conn.request().await {
                keep.0.lock().unwrap().push(format!("{heard:?}"));
                conn.send(answer(200, "", "{}")).await;
            }
        }
    })
    .await;
    (raw, seen)
}

/// Sends these bytes, and gives the statuses of all that comes until the end.
async fn statuses(berth: &Berth, bytes: &[u8]) -> Vec<u16> {
    let mut client = berth.connect().await;
    client.send(bytes).await;
    // What waits for more of it is told that there is none.
    let _ = client.stream.shutdown().await;
    let mut came = Vec::new();
    let _ = within(client.stream.read_to_end(&mut came)).await;
    let text = String::from_utf8_lossy(&came).into_owned();
    let heads = text.match_indices("HTTP/1.1 ");
    heads
        .map(|(at, _)| text[at + 9..at + 12].parse().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_http1_hides_no_other() {
    let (upstream, seen) = upstream().await;
    let mut berth = Berth::start(&config(&upstream.url(), "a", "")).await;
    let hidden =
        format!("POST {CHAT}?{HIDDEN} HTTP/1.1\r\nhost: b\r\ncontent-length: 2\r\n\r\n{{}}");
    let length = hidden.len();
    let chunked = format!("0\r\n\r\n{hidden}");
    let whole = chunked.len();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: b\r\n");
    let tricks = [
        // CL.TE and TE.CL, in both orders.
        format!("{head}content-length: {whole}\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"),
        format!(
            "{head}transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n5c\r\n{hidden}\r\n0\r\n\r\n"
        ),
        // TE.TE: one that only somebody else understands.
        format!("{head}transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n{chunked}"),
        format!("{head}transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"),
        format!("{head}transfer-encoding: chunked, identity\r\n\r\n{chunked}"),
        format!("{head}transfer-encoding: xchunked\r\ncontent-length: 0\r\n\r\n{hidden}"),
        format!("{head}transfer-encoding: \u{b}chunked\r\ncontent-length: 0\r\n\r\n{hidden}"),
        format!("{head}transfer-encoding : chunked\r\ncontent-length: 0\r\n\r\n{hidden}"),
        format!(
            "{head}transfer_encoding: chunked\r\ncontent-length: {whole}\r\nx: y\r\n transfer-encoding: chunked\r\n\r\n{chunked}"
        ),
        format!(
            "{head}x: y\r\n\ttransfer-encoding: chunked\r\ncontent-length: {whole}\r\n\r\n{chunked}"
        ),
        format!("{head}transfer-encoding:\r\n chunked\r\ncontent-length: {whole}\r\n\r\n{chunked}"),
        // Lengths that are none, or two.
        format!("{head}content-length: 0\r\ncontent-length: {length}\r\n\r\n{hidden}"),
        format!("{head}content-length: {length}\r\ncontent-length: 0\r\n\r\n{hidden}"),
        format!("{head}content-length: 0, {length}\r\n\r\n{hidden}"),
        format!("{head}content-length: +0\r\n\r\n{hidden}"),
        format!("{head}content-length: -0\r\n\r\n{hidden}"),
        format!("{head}content-length: 0x0\r\n\r\n{hidden}"),
        format!("{head}content-length: 0 0\r\n\r\n{hidden}"),
        format!("{head}content-length: 18446744073709551616\r\n\r\n{hidden}"),
        format!("{head}content-length:\r\n\r\n{hidden}"),
        // Line ends.
        format!("{head}x: y\rcontent-length: {length}\r\n\r\n{hidden}"),
        format!("{head}x: y\rtransfer-encoding: chunked\r\n\r\n{chunked}"),
        format!("{head}x: y\0\r\ncontent-length: 0\r\n\r\n{hidden}"),
        // HTTP/1.0 knows no chunks.
        format!("POST {CHAT} HTTP/1.0\r\nhost: b\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"),
        format!(
            "POST {CHAT} HTTP/1.0\r\nhost: b\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\ncontent-length: {whole}\r\n\r\n{chunked}"
        ),
        // Chunks.
        format!("{head}transfer-encoding: chunked\r\n\r\n0x2\r\n{{}}\r\n{chunked}"),
        format!("{head}transfer-encoding: chunked\r\n\r\n-1\r\n{{}}\r\n{chunked}"),
        format!("{head}transfer-encoding: chunked\r\n\r\nffffffffffffffff2\r\n{{}}\r\n{chunked}"),
        format!("{head}transfer-encoding: chunked\r\n\r\n2\r\n{{}}xx{chunked}"),
        // Who it is for.
        format!("{head}host: c\r\ncontent-length: 0\r\n\r\n{hidden}"),
        format!("POST http://c{CHAT} HTTP/1.1\r\nhost: b\r\ncontent-length: 2\r\n\r\n{{}}"),
        format!("POST {CHAT} HTTP/1.1 HTTP/1.1\r\nhost: b\r\ncontent-length: 0\r\n\r\n{hidden}"),
        format!("POST {CHAT}\r\nx: {HIDDEN} HTTP/1.1\r\nhost: b\r\ncontent-length: 0\r\n\r\n"),
    ];
    let mut wrong = Vec::new();
    for trick in &tricks {
        let before = seen.all().len();
        let statuses = statuses(&berth, trick.as_bytes()).await;
        let went_up = &seen.all()[before..];
        // Where a line end or a fold is mended instead, it may be one good request.
        let harmless = went_up.len() <= 1 && went_up.iter().all(|it| !it.contains(HIDDEN));
        let told = statuses.len() <= 1 && statuses.iter().all(|status| (400..500).contains(status));
        if !harmless || !told || !went_up.is_empty() {
            wrong.push(format!("{trick:?}\n  -> {statuses:?} {went_up:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(tricks.len(), 33);
    berth.is_well().await;
    assert_eq!(
        berth.ask(post(CHAT, "", body(CHAT, false))).await.status,
        200
    );
    assert!(berth.exclusions().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_within_a_body_stays_there() {
    let (upstream, seen) = upstream().await;
    let berth = Berth::start(&config(&upstream.url(), "a", "")).await;
    let inner = format!("\r\n\r\n0\r\n\r\nPOST /v1/{HIDDEN} HTTP/1.1\r\nhost: b\r\n\r\n");
    let body = format!("{{\"model\":\"m\"}}{inner}");
    let answer = berth.ask(post(CHAT, "", &body)).await;
    assert_eq!((answer.status, answer.ends), (200, Ends::Whole));
    let seen = seen.all();
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_after_an_upgrade_that_was_refused_are_no_tunnel() {
    let (upstream, seen) = upstream().await;
    let berth = Berth::start(&config(&upstream.url(), "a", "")).await;
    for upgrade in ["websocket", "h2c", "TLS/1.0"] {
        let request = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: b\r\nconnection: upgrade\r\nupgrade: {upgrade}\r\n\
             content-length: 2\r\n\r\n{{}}\u{0}\u{1}{HIDDEN}"
        );
        let statuses = statuses(&berth, request.as_bytes()).await;
        assert!(!statuses.contains(&101), "{upgrade}: {statuses:?}");
        for request in seen.all() {
            assert!(!request.contains(HIDDEN), "{request}");
            assert!(!request.contains("upgrade"), "{request}");
        }
    }
    let refused = statuses(
        &berth,
        format!(
            "GET /v1/responses HTTP/1.1\r\nhost: b\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\
             POST {CHAT}?{HIDDEN} HTTP/1.1\r\nhost: b\r\nx: \r\n"
        )
        .as_bytes(),
    )
    .await;
    assert_eq!(refused.first(), Some(&426));
    assert!(seen.all().iter().all(|request| !request.contains(HIDDEN)));
}

/// A header in a block of HPACK, as it is: a literal that is not indexed.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        assert!(text.len() < 127, "one byte of length");
        [&[text.len() as u8], text.as_bytes()].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_http2_becomes_one_of_http1_and_no_more() {
    let (upstream, seen) = upstream().await;
    let mut berth = Berth::start(&config(&upstream.url(), "a", "")).await;
    let path = (":path", CHAT);
    let hidden = format!("x\r\n\r\nPOST /{HIDDEN} HTTP/1.1\r\nhost: b\r\n\r\n");
    let in_path = [
        format!("{CHAT} HTTP/1.1\r\nx: {HIDDEN}"),
        format!("{CHAT} {HIDDEN}"),
        format!("{CHAT}\t{HIDDEN}"),
        format!("{CHAT}?a\n{HIDDEN}"),
        format!("http://c/{HIDDEN}"),
        format!("//c/{HIDDEN}"),
    ];
    let mut tricks: Vec<Vec<(&str, &str)>> = vec![
        vec![path, ("x-a", &hidden)],
        vec![path, ("x-a", "b\nx-smuggled: 1")],
        vec![path, ("x-a", "b\rx-smuggled: 1")],
        vec![path, ("x-a", "b\0x-smuggled: 1")],
        vec![path, ("x-a: smuggled\r\nx-b", "c")],
        vec![path, ("x-a:smuggled", "c")],
        vec![path, ("x smuggled", "c")],
        vec![path, ("X-Smuggled", "c")],
        vec![path, ("", "smuggled")],
        vec![path, ("transfer-encoding", "chunked")],
        vec![
            path,
            ("transfer-encoding", "chunked"),
            ("content-length", "2"),
        ],
        vec![path, ("connection", "x-smuggled")],
        vec![path, ("proxy-connection", "keep-alive")],
        vec![path, ("keep-alive", "1")],
        vec![path, ("upgrade", "h2c")],
        vec![path, ("te", "chunked")],
        // A body of two bytes.
        vec![path, ("content-length", "0")],
        vec![path, ("content-length", "1")],
        vec![path, ("content-length", "50")],
        vec![path, ("content-length", "2"), ("content-length", "3")],
        vec![path, ("content-length", "+2")],
        vec![path, ("content-length", "2, 3")],
        // Whose it is.
        vec![path, ("host", "c"), ("host", "d")],
        vec![path, (":path", "/v1/smuggled")],
        vec![path, (":smuggled", "1")],
        vec![path, ("x-a", "b"), (":authority", "smuggled")],
    ];
    tricks.extend(in_path.iter().map(|path| vec![(":path", path.as_str())]));
    let mut wrong = Vec::new();
    for trick in &tricks {
        let before = seen.all().len();
        let status = ask2(&berth, trick).await;
        let went_up = &seen.all()[before..];
        let clean = |it: &String| {
            let it = it.to_lowercase();
            !it.contains(HIDDEN) && !it.contains("connection") && !it.contains("te\"")
        };
        let harmless = went_up.len() <= 1 && went_up.iter().all(clean);
        if !harmless {
            wrong.push(format!("{trick:?}\n  -> {status} {went_up:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(tricks.len(), 32);
    // The same bytes without a trick are a request.
    let before = seen.all().len();
    assert_eq!(ask2(&berth, &[path]).await, "200");
    assert_eq!(seen.all().len(), before + 1);
    berth.is_well().await;
    assert!(berth.exclusions().await.is_empty());
}

/// One request with a body of two bytes, by frames made by hand. The status, where one came.
async fn ask2(berth: &Berth, headers: &[(&str, &str)]) -> String {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "b"),
    ] {
        block.extend(literal(name, value));
    }
    for (name, value) in headers {
        block.extend(literal(name, value));
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    bytes.extend(frame(1, 4, 1, &block));
    bytes.extend(frame(0, 1, 1, b"{}"));
    let mut client = berth.connect().await;
    client.send(&bytes).await;
    let mut came = Vec::new();
    within(async {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = client.stream.read(&mut piece).await {
            came.extend_from_slice(&piece[..length]);
            if let Some(told) = told(&came) {
                return told;
            }
        }
        "closed".to_owned()
    })
    .await
}

/// What the frames say of stream 1: its status, or how it ended.
fn told(mut frames: &[u8]) -> Option<String> {
    while frames.len() >= 9 {
        let length = u32::from_be_bytes([0, frames[0], frames[1], frames[2]]) as usize;
        let (kind, payload) = (frames[3], frames.get(9..9 + length)?);
        match kind {
            1 => {
                let mut block = payload;
                // Indexed, in the static table; or a literal with an indexed name.
                return Some(match block.first()? {
                    0x88 => "200".to_owned(),
                    0x8c => "400".to_owned(),
                    _ => {
                        let at = block.iter().position(|b| b.is_ascii_digit());
                        block = &block[at.unwrap_or_default()..];
                        String::from_utf8_lossy(&block[..3.min(block.len())]).into_owned()
                    }
                });
            }
            3 => return Some("reset".to_owned()),
            7 => return Some("goaway".to_owned()),
            _ => {}
        }
        frames = &frames[9 + length..];
    }
    None
}
