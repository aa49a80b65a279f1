//! What a client may take of berth before it has asked anything, and while it is served: time and
//! connections. Who takes more is cut, or told when to come back; nobody else notices.

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::upstream::{Conn, Raw, answer};
use common::wire::{Client, Client2, Ends, body, large_body, post};
use common::{Berth, DEADLINE, config, until_async, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

const CHAT: &str = "/v1/chat/completions";

/// Of HTTP/2: its preface, and the client's settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

/// Answers at once, and a request for `slow` after two and a half seconds.
async fn upstream() -> Raw {
    Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            if heard.header("x-slow").is_some() {
                tokio::time::sleep(Duration::from_millis(2_500)).await;
            }
            conn.send(answer(200, "", "{}")).await;
        }
    })
    .await
}

async fn berth(limits: &str) -> (Berth, Raw) {
    let upstream = upstream().await;
    let more = format!("limits: {{{limits}}}\n");
    let berth = Berth::start(&config(&upstream.url(), "a", &more)).await;
    (berth, upstream)
}

fn chat() -> Vec<u8> {
    post(CHAT, "", body(CHAT, false))
}

async fn serves(berth: &Berth) {
    let answer = berth.ask(chat()).await;
    assert_eq!((answer.status, answer.ends), (200, Ends::Whole));
}

/// A connection that has this address.
async fn connect_from(address: &str, to: SocketAddr) -> Client {
    let socket = TcpSocket::new_v4().unwrap();
    let from: SocketAddr = format!("{address}:0").parse().unwrap();
    socket.bind(from).unwrap();
    Client::of(within(socket.connect(to)).await.unwrap())
}

/// Reads until the connection ends; how long that took.
async fn ends(client: &mut Client, since: Instant) -> Duration {
    let mut bytes = vec![0; 64 << 10];
    within(async { while let Ok(1..) = client.stream.read(&mut bytes).await {} }).await;
    since.elapsed()
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_told_when_to_come_back() {
    let (berth, _upstream) = berth("connections: 3, connections_per_address: 0").await;
    // Those with which the test saw that it is ready have ended.
    berth.metric_becomes("berth_connections", 0.0).await;
    let mut inside = Vec::new();
    for _ in 0..3 {
        let mut client = berth.connect().await;
        client.send(chat()).await;
        assert_eq!(client.answer().await.status, 200);
        inside.push(client);
    }
    for _ in 0..20 {
        let mut outside = berth.connect().await;
        // Already sent when it is turned away: it reads its answer all the same.
        outside.send(chat()).await;
        let told = outside.answer().await;
        assert_eq!((told.status, told.ends), (503, Ends::Whole), "{told:?}");
        assert_eq!(told.header("connection"), Some("close"));
        assert!(told.header("retry-after").is_some(), "{told:?}");
        assert_eq!(told.json()["error"]["code"], "server_error");
        assert!(outside.is_closed().await);
    }
    let refused = "berth_connections_refused_total{reason=\"connections\"}";
    assert_eq!(berth.metric(refused).await, Some(20.0));
    for client in &mut inside {
        client.send(chat()).await;
        assert_eq!(client.answer().await.status, 200);
    }
    drop(inside.pop());
    berth.metric_becomes("berth_connections", 2.0).await;
    serves(&berth).await;
}

#[tokio::test]
async fn one_address_does_not_take_the_places_of_others() {
    let (berth, _upstream) = berth("connections: 8, connections_per_address: 4").await;
    berth.metric_becomes("berth_connections", 0.0).await;
    let mut greedy = Vec::new();
    for _ in 0..4 {
        let mut client = connect_from("127.0.0.2", berth.addr).await;
        client.send(chat()).await;
        assert_eq!(client.answer().await.status, 200);
        greedy.push(client);
    }
    let mut one_more = connect_from("127.0.0.2", berth.addr).await;
    one_more.send(chat()).await;
    assert_eq!(one_more.answer().await.status, 503);
    let refused = "berth_connections_refused_total{reason=\"connections_per_address\"}";
    assert_eq!(berth.metric(refused).await, Some(1.0));
    serves(&berth).await;
    drop(greedy);
    berth.metric_becomes("berth_connections", 0.0).await;
    let mut again = connect_from("127.0.0.2", berth.addr).await;
    again.send(chat()).await;
    assert_eq!(again.answer().await.status, 200);
}

#[tokio::test]
async fn a_connection_without_a_request_ends_after_its_time() {
    let (berth, _upstream) = berth("client_timeout: 1s").await;
    let since = Instant::now();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: berth\r\nx-drip: ");
    let openings: [&[u8]; 7] = [
        b"",
        b"P",
        b"POST",
        head.as_bytes(),
        b"PRI * HT",
        PREFACE,
        // Settings, and then the beginning of a head that never ends.
        &[PREFACE, SETTINGS, &[0, 0, 9, 1, 0, 0, 0, 0, 1, 0x82]].concat(),
    ];
    let mut clients = Vec::new();
    for opening in openings {
        let mut client = berth.connect().await;
        client.send(opening).await;
        clients.push(client);
    }
    // One that has been served, and one whose head drips.
    let mut idle = berth.connect().await;
    idle.send(chat()).await;
    assert_eq!(idle.answer().await.status, 200);
    clients.push(idle);
    let mut dripping = berth.connect().await;
    dripping.send(&head).await;
    let (mut reading, mut writing) = dripping.stream.into_split();
    let drip = tokio::spawn(async move {
        while writing.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let mut nothing = Vec::new();
    let _ = within(reading.read_to_end(&mut nothing)).await;
    within(drip).await.unwrap();
    for (client, opening) in clients.iter_mut().zip(openings) {
        let took = ends(client, since).await;
        let opening = String::from_utf8_lossy(opening);
        assert!(took < Duration::from_secs(6), "{opening:?}: {took:?}");
    }
    assert!(since.elapsed() >= Duration::from_secs(1));
    serves(&berth).await;
}

#[tokio::test]
async fn frames_that_ask_for_nothing_keep_no_connection() {
    let (berth, _upstream) = berth("client_timeout: 1s").await;
    let since = Instant::now();
    let mut client = berth.connect().await;
    client.send([PREFACE, SETTINGS].concat()).await;
    let (mut reading, mut writing) = client.stream.into_split();
    let floods = tokio::spawn(async move {
        while writing.write_all(PING).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut pongs = Vec::new();
    let _ = within(reading.read_to_end(&mut pongs)).await;
    within(floods).await.unwrap();
    let took = since.elapsed();
    assert!((1..6).contains(&took.as_secs()), "{took:?}");
    assert!(pongs.len() > 17, "it answered as long as it stood");
}

#[tokio::test]
async fn who_waits_for_an_answer_is_not_silent() {
    let (berth, _upstream) = berth("client_timeout: 1s").await;
    let slow = post(CHAT, "x-slow: 1\r\n", body(CHAT, false));
    let mut client = berth.connect().await;
    for _ in 0..2 {
        client.send(&slow).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.ends), (200, Ends::Whole));
    }
    let client = Client2::connect(berth.addr).await;
    for _ in 0..2 {
        let answer = client
            .ask(CHAT, &[("x-slow", "1")], body(CHAT, false))
            .await;
        assert_eq!((answer.status, answer.ends), (200, Ends::Whole));
    }
    // And ends when it has nothing to wait for.
    let _ = within(client.connection).await;
}

#[tokio::test]
async fn a_request_shorter_than_the_preface_of_http2_is_answered() {
    let (berth, _upstream) = berth("").await;
    for request in ["HEAD / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost:\r\n\r\n"] {
        let mut client = berth.connect().await;
        client.send(request).await;
        let method = request.split(' ').next().unwrap();
        let answer = client.answer_to(method).await;
        assert!(answer.status >= 200, "{request:?}: {answer:?}");
    }
}

#[tokio::test]
async fn a_body_that_drips_is_answered_408() {
    for mode in ["", "admission: {mode: observe}\n"] {
        let upstream = upstream().await;
        let limits = "limits: {client_timeout: 1s, replay_body: 32KiB}\n";
        let text = config(&upstream.url(), "a", &format!("{mode}{limits}"));
        let berth = Berth::start(&text).await;
        let whole = large_body(100 << 10);
        // From the start, and in the middle of a body that is streamed.
        for begun in [0, 80 << 10] {
            if begun > 0 && !mode.is_empty() {
                // There pingora sends the body, and its answer is the upstream's.
                continue;
            }
            let request = post(CHAT, "", &whole);
            let head = request.len() - whole.len();
            let mut client = berth.connect().await;
            let since = Instant::now();
            client.send(&request[..head + begun]).await;
            let (mut reading, mut writing) = client.stream.into_split();
            let drip = tokio::spawn(async move {
                while writing.write_all(b"x").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
            });
            let mut told = Vec::new();
            let _ = within(reading.read_to_end(&mut told)).await;
            let told = String::from_utf8_lossy(&told).into_owned();
            assert!(told.starts_with("HTTP/1.1 408 "), "{begun}: {told}");
            // A second to begin with, one for each 8 KiB, and those in which the rest is discarded.
            let most = Duration::from_secs(1 + begun as u64 / 8192 + 6);
            assert!(since.elapsed() < most, "{:?}", since.elapsed());
            within(drip).await.unwrap();
        }
        let client = Client2::connect(berth.addr).await;
        let (response, mut sending) = client.start(CHAT, &[]).await;
        sending.send_data("{".into(), false).unwrap();
        let answer = within(common::wire::collect(response)).await;
        assert_eq!(answer.status, 408, "{answer:?}");
        assert!(berth.exclusions().await.is_empty());
        serves(&berth).await;
    }
}

#[tokio::test]
async fn who_takes_nothing_of_an_answer_is_cut() {
    let upstream = Raw::start(|mut conn: Conn| async move {
        while conn.request().await.is_some() {
            conn.send(answer(200, "", large_body(32 << 20))).await;
        }
    })
    .await;
    let limits = "limits: {client_timeout: 1s}\n";
    let berth = Berth::start(&config(&upstream.url(), "a", limits)).await;

    // Not a byte; and one now and then, which opens no window.
    for every in [None, Some(Duration::from_millis(100))] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = Client::of(within(socket.connect(berth.addr)).await.unwrap());
        client.send(chat()).await;
        let mut byte = [0];
        let cut = until_async("it is cut", async || {
            berth.metric("berth_connections").await == Some(0.0)
        });
        let reads = async {
            if let Some(every) = every {
                while client.stream.read_exact(&mut byte).await.is_ok() {
                    tokio::time::sleep(every).await;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = cut => {}
            () = reads => unreachable!(),
        }
    }
    // A window of nothing, with a connection that is well otherwise.
    let stream = within(tokio::net::TcpStream::connect(berth.addr))
        .await
        .unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let (send, connection) = within(builder.handshake::<_, bytes::Bytes>(stream))
        .await
        .unwrap();
    let client = Client2 {
        send,
        connection: tokio::spawn(connection),
    };
    let (response, mut sending) = client.start(CHAT, &[]).await;
    sending.send_data(body(CHAT, false).into(), true).unwrap();
    let answer = within(common::wire::collect(response)).await;
    assert_eq!((answer.status, answer.ends), (200, Ends::Broken));
    for line in berth.audit(3).await {
        assert_eq!(line["outcome"], "client_gone", "{line}");
    }
    assert!(berth.exclusions().await.is_empty());
}

#[tokio::test]
async fn what_says_nothing_does_not_keep_an_old_process() {
    let (mut berth, _upstream) = berth("").await;
    let mut kept = Vec::new();
    for opening in [
        &b""[..],
        b"PO",
        b"POST /v1/ch",
        b"PRI * HT",
        PREFACE,
        &[PREFACE, SETTINGS].concat(),
    ] {
        let mut client = berth.connect().await;
        client.send(opening).await;
        kept.push(client);
    }
    // One that was served by HTTP/2, reads GOAWAY, and stays.
    let stays = Client2::connect(berth.addr).await;
    assert_eq!(stays.ask(CHAT, &[], body(CHAT, false)).await.status, 200);
    let since = Instant::now();
    berth.reload().await;
    assert!(berth.ends().await.success());
    let took = since.elapsed();
    assert!(took < DEADLINE / 2, "{took:?}");
    serves(&berth).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections_take_nothing_from_who_asks() {
    use rustix::process::{Resource, getrlimit};
    // What the machine allows, to this process and to berth, which has as many.
    let files = getrlimit(Resource::Nofile);
    let files = files
        .current
        .unwrap_or(u64::MAX)
        .min(files.maximum.unwrap_or(u64::MAX));
    let wanted = 10_000.min(files.saturating_sub(512) as usize);
    if wanted < 10_000 {
        eprintln!("{wanted} idle connections instead of 10000: {files} files may be open");
    }
    let limits = format!("connections: {}, connections_per_address: 0", wanted + 64);
    let (mut berth, _upstream) = berth(&limits).await;
    serves(&berth).await;
    let before = resident(berth.pid());
    let mut idle = Vec::with_capacity(wanted);
    while idle.len() < wanted {
        let socket = TcpSocket::new_v4().unwrap();
        // Several addresses, as a port is used once for each.
        let host = 2 + idle.len() / 5_000;
        socket
            .bind(format!("127.0.0.{host}:0").parse().unwrap())
            .unwrap();
        idle.push(within(socket.connect(berth.addr)).await.unwrap());
    }
    let open = async || berth.metric("berth_connections").await >= Some(wanted as f64);
    until_async("all of them are inside", open).await;
    for _ in 0..50 {
        serves(&berth).await;
    }
    let each = resident(berth.pid()).saturating_sub(before) / wanted as u64;
    println!("{wanted} idle connections, {each} bytes each");
    assert!(each < 32 << 10, "{each} bytes for an idle connection");
    drop(idle);
    berth.is_well().await;
}

/// Bytes of memory that a process has.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}
