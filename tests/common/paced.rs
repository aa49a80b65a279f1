//! Streams that go on when a test says so, and clients that ask without end: each answer must be whole
//! and byte for byte what the upstream sent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

use super::upstream::{Conn, LAST_CHUNK, Raw, STREAM_HEAD, answer, chunk};
use super::wire::{Answer, Client, Client2, Ends, body, collect, post};
use super::{config, until, within};

pub const CHAT: &str = "/v1/chat/completions";

/// Events of a stream before its end.
pub const EVENTS: usize = 12;

/// An upstream whose streams go on when the test says so, one event for each step.
pub struct Paced {
    pub raw: Raw,
    steps: Arc<watch::Sender<usize>>,
    begun: Arc<AtomicUsize>,
}

impl Paced {
    pub async fn start() -> Paced {
        let steps = Arc::new(watch::Sender::new(0));
        let begun = Arc::new(AtomicUsize::new(0));
        let (paced, count) = (steps.clone(), begun.clone());
        let raw = Raw::start(move |conn| play(conn, paced.subscribe(), count.clone())).await;
        Paced { raw, steps, begun }
    }

    pub fn config(&self, more: &str) -> String {
        config(&self.raw.url(), "a", more)
    }

    /// One event more for every stream.
    pub fn step(&self) {
        self.steps.send_modify(|step| *step += 1);
    }

    /// So many events for every stream that begins now, and so on.
    pub fn step_up_to(&self, event: usize) {
        self.steps.send_replace(event);
    }

    /// Streams begin anew.
    pub fn rewind(&self) {
        self.steps.send_replace(0);
        self.begun.store(0, Ordering::SeqCst);
    }

    /// To the end of every stream.
    pub fn finish(&self) {
        self.steps.send_replace(EVENTS);
    }

    /// So many streams have sent their first event.
    pub async fn has_begun(&self, count: usize) {
        until("the streams begin", || {
            self.begun.load(Ordering::SeqCst) == count
        })
        .await;
    }
}

async fn play(mut conn: Conn, mut steps: watch::Receiver<usize>, begun: Arc<AtomicUsize>) {
    while let Some(heard) = conn.request().await {
        if !String::from_utf8_lossy(&heard.body).contains(r#""stream":true"#) {
            let json = "content-type: application/json\r\n";
            conn.send(answer(200, json, WHOLE)).await;
            continue;
        }
        conn.send(STREAM_HEAD).await;
        conn.send(chunk(event(0).as_bytes())).await;
        begun.fetch_add(1, Ordering::SeqCst);
        for number in 1..=EVENTS {
            if steps.wait_for(|step| *step >= number).await.is_err() {
                return;
            }
            conn.send(chunk(event(number).as_bytes())).await;
        }
        conn.send(chunk(b"data: [DONE]\n\n")).await;
        conn.send(LAST_CHUNK).await;
    }
}

const WHOLE: &str = r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"x"}}]}"#;

pub fn event(number: usize) -> String {
    let finish = match number {
        EVENTS => r#""stop""#,
        _ => "null",
    };
    format!(
        "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,\
         \"delta\":{{\"content\":\"piece {number} \\u00fc\"}},\"finish_reason\":{finish}}}]}}\n\n"
    )
}

pub fn whole_stream() -> String {
    let events: String = (0..=EVENTS).map(event).collect();
    events + "data: [DONE]\n\n"
}

pub fn short() -> Vec<u8> {
    post(CHAT, "", body(CHAT, false))
}

pub fn long() -> Vec<u8> {
    post(CHAT, "", body(CHAT, true))
}

#[track_caller]
pub fn is_whole_stream(answer: &Answer) {
    assert_eq!(
        (answer.status, answer.ends),
        (200, Ends::Whole),
        "{answer:?}"
    );
    assert_eq!(answer.text(), whole_stream());
}

#[track_caller]
pub fn is_whole(answer: &Answer) {
    assert_eq!(
        (answer.status, answer.ends),
        (200, Ends::Whole),
        "{answer:?}"
    );
    assert_eq!(answer.text(), WHOLE);
}

/// Until `over`, one request after the other, each on a connection of its own.
pub async fn new_connections(berth: SocketAddr, over: Arc<AtomicBool>) -> usize {
    let mut served = 0;
    while !over.load(Ordering::SeqCst) {
        let mut client = Client::connect(berth).await;
        client.send(short()).await;
        is_whole(&client.answer().await);
        served += 1;
    }
    served
}

/// The same on one connection, as long as it is kept.
pub async fn kept_alive(berth: SocketAddr, over: Arc<AtomicBool>) -> usize {
    let mut served = 0;
    let mut client = Client::connect(berth).await;
    while !over.load(Ordering::SeqCst) {
        client.send(short()).await;
        let answer = client.answer().await;
        is_whole(&answer);
        served += 1;
        if answer.header("connection") == Some("close") {
            client = Client::connect(berth).await;
        }
    }
    served
}

/// The same over HTTP/2, as long as no GOAWAY has come.
pub async fn by_http2(berth: SocketAddr, over: Arc<AtomicBool>) -> usize {
    let mut served = 0;
    let mut client = Client2::connect(berth).await;
    while !over.load(Ordering::SeqCst) {
        let ready = within(client.send.clone().ready()).await;
        let request = http::Request::post(format!("http://berth{CHAT}"))
            .header("content-type", "application/json")
            .body(())
            .unwrap();
        let sent = ready.and_then(|mut send| send.send_request(request, false));
        // Nothing was sent where that fails: the connection takes no more requests.
        let Ok((response, mut sending)) = sent else {
            client = Client2::connect(berth).await;
            continue;
        };
        let _ = sending.send_data(body(CHAT, false).into(), true);
        is_whole(&within(collect(response)).await);
        served += 1;
    }
    served
}
