//! What clients share: no one of them takes more than half while others ask. A client is an address
//! here, and a loopback interface has many.

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::upstream::{Conn, Raw, answer};
use common::wire::{Answer, Client, body, large_body, post};
use common::{Berth, DEADLINE, config, until, until_async, within};
use tokio::net::TcpSocket;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

const OVERLOADED: &str = r#"{"error":{"code":"server_is_overloaded","message":"busy"}}"#;

/// Asks from 127.0.0.`host`, and says so in a header that goes up.
fn ask_from(host: u8, berth: SocketAddr, body: Vec<u8>) -> JoinHandle<Answer> {
    tokio::spawn(async move {
        let socket = TcpSocket::new_v4().unwrap();
        let from = IpAddr::V4(Ipv4Addr::new(127, 0, 0, host));
        socket.bind(SocketAddr::new(from, 0)).unwrap();
        let stream = within(socket.connect(berth)).await.unwrap();
        let mut client = Client::of(stream);
        client
            .send(post("/v1/responses", &format!("x-host: {host}\r\n"), body))
            .await;
        client.answer().await
    })
}

fn small() -> Vec<u8> {
    body("/v1/responses", true).into_bytes()
}

/// An upstream without a seat, that writes down whose requests come.
async fn full(hosts: Arc<Mutex<Vec<String>>>) -> Raw {
    Raw::start(move |mut conn: Conn| {
        let hosts = hosts.clone();
        async move {
            while let Some(heard) = conn.request().await {
                let host = heard.header("x-host").unwrap().to_owned();
                hosts.lock().unwrap().push(host);
                let json = "content-type: application/json\r\n";
                conn.send(answer(503, json, OVERLOADED)).await;
            }
        }
    })
    .await
}

/// How many wait, as the status says.
async fn waiting(berth: &Berth) -> u64 {
    let status = berth.status().await;
    status["models"][0]["waiting"].as_u64().unwrap_or_default()
}

async fn waiting_becomes(berth: &Berth, count: u64) {
    let since = Instant::now();
    while waiting(berth).await != count {
        assert!(since.elapsed() < DEADLINE, "{count} never wait");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_from_one_address_leaves_its_turn_to_another() {
    let hosts = Arc::new(Mutex::new(Vec::new()));
    let upstream = full(hosts.clone()).await;
    let more = "admission: {full: {sessions: 1}, wait: {max_time: 25s, max_waiting: 4}, max_attempts: 1}\n";
    let mut berth = Berth::start(&config(&upstream.url(), "a", more)).await;
    // One session without a seat, and the model is full.
    let first = ask_from(2, berth.addr, small()).await.unwrap();
    assert_eq!(first.status, 503, "{first:?}");
    hosts.lock().unwrap().clear();

    // One address alone may fill the room, and no more than that.
    let mut flood = Vec::new();
    for n in 1..=4 {
        flood.push(ask_from(2, berth.addr, small()));
        waiting_becomes(&berth, n).await;
    }
    let beyond = ask_from(2, berth.addr, small()).await.unwrap();
    assert_eq!(beyond.status, 503);
    assert!(beyond.header("retry-after").is_some(), "{beyond:?}");
    assert!(
        hosts.lock().unwrap().is_empty(),
        "the model was not full for a second"
    );

    // Another one comes: the flood gives up its latest place at once, and has no more of the room.
    let other = ask_from(3, berth.addr, small());
    let given_up = within(flood.pop().unwrap()).await.unwrap();
    assert_eq!(given_up.status, 503);
    assert_eq!(waiting(&berth).await, 4);
    let beyond = ask_from(2, berth.addr, small()).await.unwrap();
    assert_eq!(beyond.status, 503);

    // They take turns, one start a second.
    assert_eq!(within(other).await.unwrap().status, 503);
    let so_far = hosts.lock().unwrap().clone();
    assert!(
        so_far.len() <= 2,
        "another one waited for the whole flood: {so_far:?}"
    );
    for asked in flood {
        assert_eq!(within(asked).await.unwrap().status, 503);
    }
    assert_eq!(*hosts.lock().unwrap(), ["2", "3", "2", "2"]);
    waiting_becomes(&berth, 0).await;
    berth.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_loop_spends_its_own_half_of_the_budget() {
    let hosts = Arc::new(Mutex::new(Vec::new()));
    let upstream = full(hosts.clone()).await;
    // Twenty later attempts within ten seconds; the model is never full.
    let more = "admission: {retry_budget: {ratio: 0, min_per_second: 2}, full: {sessions: 1000}}\n";
    let berth = Berth::start(&config(&upstream.url(), "ab", more)).await;
    let since = Instant::now();
    for _ in 0..30 {
        let _ = ask_from(2, berth.addr, small()).await.unwrap();
    }
    for _ in 0..5 {
        let _ = ask_from(3, berth.addr, small()).await.unwrap();
    }
    let asked = |host: &str| {
        let hosts = hosts.lock().unwrap();
        hosts.iter().filter(|it| *it == host).count()
    };
    assert!(
        since.elapsed() < Duration::from_secs(9),
        "too slow to say anything"
    );
    assert_eq!((asked("2"), asked("3")), (30 + 18, 5 + 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_one_address_fills_is_short_for_that_one_only() {
    let (go, held) = (Arc::new(Notify::new()), Arc::new(Mutex::new(0)));
    let upstream = {
        let (go, held) = (go.clone(), held.clone());
        Raw::start(move |mut conn: Conn| {
            let (go, held) = (go.clone(), held.clone());
            async move {
                while let Some(heard) = conn.request().await {
                    if heard.header("x-host") == Some("2") {
                        *held.lock().unwrap() += 1;
                        go.notified().await;
                    }
                    let json = "content-type: application/json\r\n";
                    conn.send(answer(200, json, r#"{"id":"r","status":"completed"}"#))
                        .await;
                }
            }
        })
        .await
    };
    let more = "limits: {memory: 16MiB}\n";
    let berth = Berth::start(&config(&upstream.url(), "a", more)).await;
    let flood: Vec<_> = (0..4)
        .map(|_| ask_from(2, berth.addr, large_body(4 << 20)))
        .collect();
    let since = Instant::now();
    while *held.lock().unwrap() < 4 {
        assert!(since.elapsed() < DEADLINE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let used = berth.metric("berth_memory_reserved_bytes").await.unwrap();
    assert!(used >= 0.9 * f64::from(16 << 20), "{used}");
    let mine = ask_from(2, berth.addr, large_body(1 << 20)).await.unwrap();
    assert_eq!(mine.status, 503, "{mine:?}");
    let other = ask_from(3, berth.addr, large_body(1 << 20)).await.unwrap();
    assert_eq!(other.status, 200, "{other:?}");
    for asked in flood {
        go.notify_one();
        drop(asked);
    }
}

/// An upstream that writes down whose requests come, and answers each when it is let.
async fn slow(hosts: Arc<Mutex<Vec<String>>>, lets: Arc<Semaphore>) -> Raw {
    Raw::start(move |mut conn: Conn| {
        let (hosts, lets) = (hosts.clone(), lets.clone());
        async move {
            while let Some(heard) = conn.request().await {
                let host = heard.header("x-host").unwrap().to_owned();
                hosts.lock().unwrap().push(host);
                lets.acquire().await.unwrap().forget();
                let answered = r#"{"status":"completed","output":[]}"#;
                let json = "content-type: application/json\r\n";
                conn.send(answer(200, json, answered)).await;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_that_takes_every_place_leaves_the_next_one_to_another() {
    let hosts = Arc::new(Mutex::new(Vec::new()));
    let lets = Arc::new(Semaphore::new(0));
    let upstream = slow(hosts.clone(), lets.clone()).await;
    let config = config(&upstream.url(), "a", "admission: {wait: {max_time: 25s}}\n");
    let config = config.replace("id: a,", "id: a, max_in_flight: 2,");
    let mut berth = Berth::start(&config).await;
    let json = || body("/v1/responses", false).into_bytes();
    let arrived = |count: usize| {
        let hosts = hosts.clone();
        async move { until("they arrive", || hosts.lock().unwrap().len() == count).await }
    };
    let mut flood = Vec::new();
    for number in 0..6 {
        flood.push(ask_from(2, berth.addr, json()));
        arrived((number + 1).min(2)).await;
    }
    let other = ask_from(3, berth.addr, json());
    // Six of seven wait: four of one address and one of the other, and nobody is told to go.
    until_async("they wait", async || berth.status().await["waiting"] == 5).await;
    for count in 3..=4 {
        lets.add_permits(1);
        arrived(count).await;
    }
    let order = hosts.lock().unwrap().clone();
    assert!(order[2..].contains(&"3".to_owned()), "{order:?}");
    lets.add_permits(100);
    assert_eq!(other.await.unwrap().status, 200);
    for one in flood {
        assert_eq!(one.await.unwrap().status, 200);
    }
    berth.is_well().await;
}
