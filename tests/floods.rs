//! Floods: whoever sends what costs him little and berth much is told so, or cut, or is harmless; and a
//! good client beside it sees no error, and waits hardly longer than in the quiet.
//!
//! Attackers run on what the others leave of the processors: one on another machine takes nothing of
//! these, and what is measured is what berth makes of him.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::upstream::{Conn, Raw, answer};
use common::wire::{Client, Ends, body, post};
use common::{Berth, config, until_async, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Requests of a good client in one measurement.
const REQUESTS: usize = 200;

/// Below this a 99th percentile is the machine's, whose two cores a build may share and the attacker
/// does. Measured before one client's frames had to make a break: 60 to 200 ms.
const FLOOR: Duration = Duration::from_millis(40);

/// How often it is measured: what berth owes is there each time, what the machine does is not.
const ROUNDS: usize = 5;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request's head in HPACK: `POST /v1/chat/completions`.
fn block() -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x04, CHAT.len() as u8];
    block.extend_from_slice(CHAT.as_bytes());
    block.extend_from_slice(&[0x01, 1, b'b']);
    block
}

fn opening() -> Vec<u8> {
    [PREFACE, &frame(4, 0, 0, &[])].concat()
}

async fn berth() -> (Berth, Raw) {
    let upstream = Raw::start(|mut conn: Conn| async move {
        while conn.request().await.is_some() {
            conn.send(answer(200, "", "{}")).await;
        }
    })
    .await;
    let limits = "limits: {client_timeout: 5s, connections_per_address: 0}\n";
    let berth = Berth::start(&config(&upstream.url(), "a", limits)).await;
    (berth, upstream)
}

/// The 99th percentile of what a good client waits, who sees no error.
async fn p99(berth: &Berth) -> Duration {
    let request = post(CHAT, "", body(CHAT, false));
    let mut client = berth.connect().await;
    let mut times = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let since = Instant::now();
        client.send(&request).await;
        let answer = client.answer().await;
        times.push(since.elapsed());
        assert_eq!(
            (answer.status, answer.ends),
            (200, Ends::Whole),
            "{answer:?}"
        );
    }
    times.sort();
    times[REQUESTS * 99 / 100]
}

/// Attacks with four connections at a time, again when one is cut, while a good client asks.
async fn beside<F: Future<Output = ()> + Send>(
    name: &str,
    attack: impl Fn(TcpStream) -> F + Send + Copy + 'static,
) {
    let (mut berth, _upstream) = berth().await;
    let mut measured = Vec::new();
    for _ in 0..ROUNDS {
        let quiet = p99(&berth).await;
        let over = Arc::new(AtomicBool::new(false));
        let attacker = attackers(berth.addr, over.clone(), attack);
        let attacked = p99(&berth).await;
        over.store(true, Ordering::Relaxed);
        attacker.join().unwrap();
        measured.push((quiet, attacked));
        if attacked <= (2 * quiet).max(FLOOR) {
            println!("{name}: {measured:?}");
            berth.is_well().await;
            until_async("the attackers are gone", async || {
                berth.metric("berth_connections").await == Some(0.0)
            })
            .await;
            assert!(berth.exclusions().await.is_empty());
            return;
        }
    }
    panic!(
        "{name}: the good client waited: {measured:?}\n{}",
        berth.log()
    );
}

/// Four attackers on a thread of their own, until it is over.
fn attackers<F: Future<Output = ()> + Send>(
    addr: SocketAddr,
    over: Arc<AtomicBool>,
    attack: impl Fn(TcpStream) -> F + Send + Copy + 'static,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let own = Some(rustix::thread::gettid());
        rustix::process::setpriority_process(own, 19).unwrap();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let one = async || loop {
            if let Ok(stream) = TcpStream::connect(addr).await {
                attack(stream).await;
            }
            tokio::task::yield_now().await;
        };
        let ends = async {
            while !over.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        builder.enable_all().build().unwrap().block_on(async {
            tokio::select! {
                biased;
                () = ends => {}
                _ = async { tokio::join!(one(), one(), one(), one()) } => {}
            }
        });
    })
}

/// Writes the same bytes until the connection is cut, and reads what comes.
async fn pour(mut stream: TcpStream, first: Vec<u8>, again: Vec<u8>) {
    let (mut reading, mut writing) = stream.split();
    let reads = async {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(1..) = reading.read(&mut bytes).await {}
    };
    let writes = async {
        if writing.write_all(&first).await.is_ok() {
            while writing.write_all(&again).await.is_ok() {}
        }
    };
    tokio::join!(reads, writes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_reset() {
    beside("rapid reset", async |stream| {
        let mut bytes = opening();
        for stream in (1..40_000).step_by(2) {
            bytes.extend(frame(1, 4, stream, &block()));
            bytes.extend(frame(3, 0, stream, &[0, 0, 0, 8]));
        }
        pour(stream, bytes, frame(6, 0, 0, &[0; 8])).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_beyond_the_limit() {
    beside("streams", async |stream| {
        let mut bytes = opening();
        for stream in (1..20_000).step_by(2) {
            bytes.extend(frame(1, 4, stream, &block()));
        }
        pour(stream, bytes, frame(6, 0, 0, &[0; 8])).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuation_without_an_end() {
    beside("continuation", async |stream| {
        let first = [opening(), frame(1, 0, 1, &block())].concat();
        // Whole literals, so that nothing but their number is wrong.
        let header = [&[0, 1, b'x', 100][..], &[b'y'; 100]].concat();
        pour(stream, first, frame(9, 0, 1, &header.repeat(100))).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bomb_of_hpack() {
    beside("hpack", async |stream| {
        // One entry of 4 KiB into the table, and then a byte for each time that it is meant.
        let value = [&[0x7f, 0x81, 0x1e][..], &[b'a'; 3_968]].concat();
        let entry = [&[0x40, 1, b'x'][..], &value].concat();
        let bomb = [block(), entry, vec![0xbe; 12_000]].concat();
        let mut bytes = opening();
        for stream in (1..200).step_by(2) {
            bytes.extend(frame(1, 4, stream, &bomb));
            bytes.extend(frame(0, 1, stream, b"{}"));
        }
        pour(stream, bytes, frame(6, 0, 0, &[0; 8])).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_and_pings() {
    beside("settings, pings", async |stream| {
        let ping = frame(6, 0, 0, &[7; 8]);
        let settings = frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]);
        pour(stream, opening(), [ping, settings].concat().repeat(500)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_whose_answers_nobody_reads() {
    beside("unread pings", async |mut stream: TcpStream| {
        let _ = stream.write_all(&opening()).await;
        let pings = frame(6, 0, 0, &[7; 8]).repeat(1_000);
        while stream.write_all(&pings).await.is_ok() {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_are_too_much() {
    beside("heads", async |stream| {
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: b\r\n").into_bytes();
        pour(stream, head, b"x-a: b\r\n".repeat(2_000)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_come_and_go() {
    beside("connections", async |stream: TcpStream| drop(stream)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_much_of_a_head_is_told_so_or_cut() {
    let (mut berth, upstream) = berth().await;
    let large = "y".repeat(60);
    let many: String = (0..300).map(|n| format!("x-{n}: y\r\n")).collect();
    let long: String = (0..2_000).map(|n| format!("x-{n}: {large}\r\n")).collect();
    let line = format!("x: {}\r\n", "z".repeat(2 << 20));
    let path = format!("/v1/{}", "p".repeat(1 << 20));
    for request in [
        format!("POST {CHAT} HTTP/1.1\r\nhost: b\r\n{many}content-length: 2\r\n\r\n{{}}"),
        format!("POST {CHAT} HTTP/1.1\r\nhost: b\r\n{long}content-length: 2\r\n\r\n{{}}"),
        format!("POST {CHAT} HTTP/1.1\r\nhost: b\r\n{line}content-length: 2\r\n\r\n{{}}"),
        format!("POST {path} HTTP/1.1\r\nhost: b\r\ncontent-length: 2\r\n\r\n{{}}"),
        format!("POST {CHAT} HTTP/1.1\r\nhost: b\r\ntransfer-encoding: chunked\r\n\r\n2;{line}"),
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: b\r\ntransfer-encoding: chunked\r\n\r\n\
             2\r\n{{}}\r\n0\r\n{long}{line}\r\n"
        ),
    ] {
        let mut client = berth.connect().await;
        // berth may close while more is coming.
        let _ = client.try_send(&request).await;
        let status = status(&mut client).await;
        let told = status == 0 || (400..500).contains(&status);
        assert!(told, "{status}: {}", &request[..200]);
    }
    assert_eq!(upstream.accepted(), 0);
    berth.is_well().await;
}

/// The status of what comes until the end; 0 where nothing could be read.
async fn status(client: &mut Client) -> u16 {
    let mut came = Vec::new();
    let _ = within(client.stream.read_to_end(&mut came)).await;
    let text = String::from_utf8_lossy(&came);
    let status = text
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3));
    status.map_or(0, |status| status.parse().unwrap())
}
