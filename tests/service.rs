//! A reload and a stop lose nothing: no request, no connection, no byte of a stream.
//!
//! Each test drives real processes through `berth reload`, `berth stop` and signals. What can go wrong
//! is in `service_fails`.

mod common;

use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use common::upstream::{Conn, LAST_CHUNK, Raw, STREAM_HEAD, answer, chunk};
use common::wire::{Answer, Client, Client2, Ends, body, collect, post};
use common::{Berth, DEADLINE, config, free_port, signal, until, within};
use tokio::sync::watch;

const CHAT: &str = "/v1/chat/completions";

/// Events of a stream before its end.
const EVENTS: usize = 12;

/// An upstream whose streams go on when the test says so, one event for each step.
struct Paced {
    raw: Raw,
    steps: Arc<watch::Sender<usize>>,
    begun: Arc<AtomicUsize>,
}

impl Paced {
    async fn start() -> Paced {
        let steps = Arc::new(watch::Sender::new(0));
        let begun = Arc::new(AtomicUsize::new(0));
        let (paced, count) = (steps.clone(), begun.clone());
        let raw = Raw::start(move |conn| play(conn, paced.subscribe(), count.clone())).await;
        Paced { raw, steps, begun }
    }

    fn config(&self, more: &str) -> String {
        config(&self.raw.url(), "a", more)
    }

    /// One event more for every stream.
    fn step(&self) {
        self.steps.send_modify(|step| *step += 1);
    }

    /// To the end of every stream.
    fn finish(&self) {
        self.steps.send_replace(EVENTS);
    }

    /// So many streams have sent their first event.
    async fn has_begun(&self, count: usize) {
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

fn event(number: usize) -> String {
    let finish = match number {
        EVENTS => r#""stop""#,
        _ => "null",
    };
    format!(
        "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,\
         \"delta\":{{\"content\":\"piece {number} \\u00fc\"}},\"finish_reason\":{finish}}}]}}\n\n"
    )
}

fn whole_stream() -> String {
    let events: String = (0..=EVENTS).map(event).collect();
    events + "data: [DONE]\n\n"
}

fn short() -> Vec<u8> {
    post(CHAT, "", body(CHAT, false))
}

fn long() -> Vec<u8> {
    post(CHAT, "", body(CHAT, true))
}

#[track_caller]
fn is_whole_stream(answer: &Answer) {
    assert_eq!(
        (answer.status, answer.ends),
        (200, Ends::Whole),
        "{answer:?}"
    );
    assert_eq!(answer.text(), whole_stream());
}

#[track_caller]
fn is_whole(answer: &Answer) {
    assert_eq!(
        (answer.status, answer.ends),
        (200, Ends::Whole),
        "{answer:?}"
    );
    assert_eq!(answer.text(), WHOLE);
}

/// Until `over`, one request after the other, each on a connection of its own.
async fn new_connections(berth: Arc<Berth>, over: Arc<AtomicBool>) -> usize {
    let mut served = 0;
    while !over.load(Ordering::SeqCst) {
        is_whole(&berth.ask(short()).await);
        served += 1;
    }
    served
}

/// The same on one connection, as long as it is kept.
async fn kept_alive(berth: Arc<Berth>, over: Arc<AtomicBool>) -> usize {
    let mut served = 0;
    let mut client = berth.connect().await;
    while !over.load(Ordering::SeqCst) {
        client.send(short()).await;
        let answer = client.answer().await;
        is_whole(&answer);
        served += 1;
        if answer.header("connection") == Some("close") {
            client = berth.connect().await;
        }
    }
    served
}

/// The same over HTTP/2, as long as no GOAWAY has come.
async fn by_http2(berth: Arc<Berth>, over: Arc<AtomicBool>) -> usize {
    let mut served = 0;
    let mut client = Client2::connect(berth.addr).await;
    while !over.load(Ordering::SeqCst) {
        let ready = within(client.send.clone().ready()).await;
        let request = http::Request::post(format!("http://berth{CHAT}"))
            .header("content-type", "application/json")
            .body(())
            .unwrap();
        let sent = ready.and_then(|mut send| send.send_request(request, false));
        // Nothing was sent where that fails: the connection takes no more requests.
        let Ok((response, mut sending)) = sent else {
            client = Client2::connect(berth.addr).await;
            continue;
        };
        let _ = sending.send_data(body(CHAT, false).into(), true);
        is_whole(&within(collect(response)).await);
        served += 1;
    }
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_under_load_loses_nothing() {
    let upstream = Paced::start().await;
    let berth = Arc::new(Berth::start(&upstream.config("")).await);
    let mut streams = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut client = berth.connect().await;
        client.send(long()).await;
        streams.spawn(async move { client.answer().await });
    }
    let http2 = Client2::connect(berth.addr).await;
    streams.spawn(async move { http2.ask(CHAT, &[], body(CHAT, true)).await });
    upstream.has_begun(21).await;

    let over = Arc::new(AtomicBool::new(false));
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..2 {
        load.spawn(new_connections(berth.clone(), over.clone()));
        load.spawn(kept_alive(berth.clone(), over.clone()));
        load.spawn(by_http2(berth.clone(), over.clone()));
    }
    let first = berth.pid();
    for _ in 0..5 {
        upstream.step();
        berth.reload().await;
    }
    over.store(true, Ordering::SeqCst);
    while let Some(served) = load.join_next().await {
        assert!(served.unwrap() > 5, "a client was hardly served");
    }
    assert!(
        berth.generations().contains(&first),
        "streams keep their process"
    );
    upstream.finish();
    while let Some(stream) = streams.join_next().await {
        is_whole_stream(&stream.unwrap());
    }
    until("the old ones end", || {
        berth.generations() == [berth.serving()]
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_has_sent_no_request_is_served_all_the_same() {
    let upstream = Paced::start().await;
    let berth = Berth::start(&upstream.config("")).await;
    let mut silent = berth.connect().await;
    let mut half = berth.connect().await;
    half.send("POST /v1/chat").await;
    let mut kept = berth.connect().await;
    kept.send(short()).await;
    let answer = kept.answer().await;
    is_whole(&answer);
    assert_ne!(answer.header("connection"), Some("close"));
    let forgotten = berth.connect().await;
    // They were accepted in this order, so all are the old process's.
    is_whole(&berth.ask(short()).await);
    berth.reload().await;
    half.send(&short()["POST /v1/chat".len()..]).await;
    silent.send(short()).await;
    kept.send(short()).await;
    for mut client in [half, silent, kept] {
        let answer = client.answer().await;
        is_whole(&answer);
        assert_eq!(answer.header("connection"), Some("close"));
    }
    // One that goes on saying nothing is closed, and does not keep the process.
    let mut forgotten = forgotten;
    assert!(forgotten.is_closed().await);
    until("the old one ends", || {
        berth.generations() == [berth.serving()]
    })
    .await;
}

#[tokio::test]
async fn a_connection_whose_stream_ended_on_the_old_process_may_ask_once_more() {
    let upstream = Paced::start().await;
    let berth = Berth::start(&upstream.config("")).await;
    let mut client = berth.connect().await;
    client.send(long()).await;
    upstream.has_begun(1).await;
    berth.reload().await;
    upstream.finish();
    let answer = client.answer().await;
    is_whole_stream(&answer);
    client.send(short()).await;
    let answer = client.answer().await;
    is_whole(&answer);
    assert_eq!(answer.header("connection"), Some("close"));
}

#[tokio::test]
async fn listeners_come_and_go_with_a_reload() {
    let upstream = Paced::start().await;
    let berth = Berth::start(&upstream.config("")).await;
    let mut stream = berth.connect().await;
    stream.send(long()).await;
    upstream.has_begun(1).await;
    let (old, more) = (berth.addr, free_port());
    let one = format!("listeners: [{{address: \"{old}\"}}]");
    let two = format!("listeners: [{{address: \"{old}\"}}, {{address: \"{more}\"}}]");
    berth.reconfigure(&one, &two);
    berth.reload().await;
    for address in [old, more] {
        let mut client = Client::connect(address).await;
        client.send(short()).await;
        is_whole(&client.answer().await);
    }
    berth.reconfigure(&two, &format!("listeners: [{{address: \"{more}\"}}]"));
    berth.reload().await;
    until("it is closed", || {
        std::net::TcpStream::connect(old).is_err()
    })
    .await;
    let mut client = Client::connect(more).await;
    client.send(short()).await;
    is_whole(&client.answer().await);
    upstream.finish();
    is_whole_stream(&stream.answer().await);
}

#[tokio::test]
async fn a_replaced_binary_is_the_one_that_is_started() {
    let upstream = Paced::start().await;
    let berth = Berth::start(&upstream.config("")).await;
    let (program, kept) = (berth.program(), berth.folder().join("kept"));
    std::fs::rename(&program, &kept).unwrap();
    let mark = berth.folder().join("mark");
    let script = format!(
        "#!/bin/sh\necho \"$1\" >> {}\nexec {} \"$@\"\n",
        mark.display(),
        kept.display()
    );
    write_program(&program, &script);
    berth.reload().await;
    assert_eq!(std::fs::read_to_string(&mark).unwrap(), "take-over\n");
    is_whole(&berth.ask(short()).await);
}

#[tokio::test]
async fn sighup_is_a_reload() {
    let upstream = Paced::start().await;
    let mut berth = Berth::start(&upstream.config("")).await;
    let first = berth.pid();
    signal("HUP", first);
    assert!(berth.ends().await.success());
    assert_ne!(berth.serving(), first);
    is_whole(&berth.ask(short()).await);
}

#[tokio::test]
async fn sigterm_drains_and_a_second_one_hurries() {
    for hurried in [false, true] {
        let upstream = Paced::start().await;
        let mut berth = Berth::start(&upstream.config("")).await;
        let mut stream = berth.connect().await;
        stream.send(long()).await;
        upstream.has_begun(1).await;
        signal("TERM", berth.pid());
        until("it takes no more", || {
            std::net::TcpStream::connect(berth.addr).is_err()
        })
        .await;
        let ready = berth.get("/readyz").await;
        assert_eq!((ready.status, ready.text().as_str()), (503, "not ready\n"));
        if hurried {
            signal("TERM", berth.pid());
            assert!(berth.ends().await.success());
            assert_eq!(stream.answer().await.ends, Ends::Broken);
        } else {
            upstream.finish();
            is_whole_stream(&stream.answer().await);
            assert!(berth.ends().await.success());
            assert_eq!(berth.last_audit(1).await["outcome"], "ok");
        }
        assert!(berth.generations().is_empty());
    }
}

#[tokio::test]
async fn stop_ends_every_generation_and_waits_for_their_streams() {
    let upstream = Paced::start().await;
    let berth = Berth::start(&upstream.config("")).await;
    let mut streams = Vec::new();
    for number in 1..=3 {
        let mut client = berth.connect().await;
        client.send(long()).await;
        upstream.has_begun(number).await;
        streams.push(client);
        if number < 3 {
            berth.reload().await;
        }
    }
    assert_eq!(berth.generations().len(), 3);
    // Not even a configuration that was broken in the meantime keeps it from that.
    std::fs::write(berth.config_file(), "nonsense").unwrap();
    let stopping = berth.order(&["stop"]);
    let finishing = async {
        until("none takes more", || {
            std::net::TcpStream::connect(berth.addr).is_err()
        })
        .await;
        upstream.finish();
    };
    let (stopped, ()) = tokio::join!(stopping, finishing);
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(String::from_utf8_lossy(&stopped.stdout), "3 stopped\n");
    for mut stream in streams {
        is_whole_stream(&stream.answer().await);
    }
    assert!(berth.generations().is_empty());
    let again = berth.order(&["stop"]).await;
    assert!(again.status.success(), "{again:?}");
}

#[tokio::test]
async fn stop_now_cuts_what_runs() {
    let upstream = Paced::start().await;
    let mut berth = Berth::start(&upstream.config("")).await;
    let mut stream = berth.connect().await;
    stream.send(long()).await;
    upstream.has_begun(1).await;
    let stopped = berth.order(&["stop", "--now"]).await;
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(berth.ends().await.success());
    assert_eq!(stream.answer().await.ends, Ends::Broken);
}

#[tokio::test]
async fn a_reload_beyond_max_generations_hurries_the_oldest() {
    let upstream = Paced::start().await;
    let more = "process: {max_generations: 2, stop_timeout: 1s}\n";
    let mut berth = Berth::start(&upstream.config(more)).await;
    let mut streams = Vec::new();
    for number in 1..=2 {
        let mut client = berth.connect().await;
        client.send(long()).await;
        upstream.has_begun(number).await;
        streams.push(client);
        berth.reload().await;
    }
    assert_eq!(streams[0].answer().await.ends, Ends::Broken);
    assert!(berth.ends().await.success());
    upstream.finish();
    is_whole_stream(&streams[1].answer().await);
}

#[tokio::test]
async fn a_socket_of_systemd_is_used_and_systemd_is_told_all_of_it() {
    let upstream = Paced::start().await;
    let given = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = given.local_addr().unwrap();
    let spare = tempfile::tempdir().unwrap();
    let path = spare.path().join("notify");
    let heard = UnixDatagram::bind(&path).unwrap();
    let heard = read_all(heard);
    let shell = format!(
        "NOTIFY_SOCKET={} WATCHDOG_USEC=200000 LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\" 3<&0 </dev/null",
        path.display()
    );
    let more = upstream.config("");
    // The socket stands in a unit's file; the port is in the configuration too.
    let config = format!("{more}#");
    let stdin = Stdio::from(std::os::fd::OwnedFd::from(given));
    let berth = Berth::start_by(&shell, stdin, &config).await;
    // It is claimed by nobody yet, so it was closed.
    std::net::TcpStream::connect(address).unwrap_err();
    let name = |address: std::net::SocketAddr| address.to_string().replace(':', "_");
    let first = berth.pid();
    let told = hear(
        &heard,
        &format!("FDSTOREREMOVE=1\nFDNAME={}\n", name(address)),
    );
    assert!(
        told.contains(&format!("READY=1\nMAINPID={first}\n")),
        "{told}"
    );
    let kept = format!("FDSTORE=1\nFDNAME={}\n", name(berth.addr));
    assert!(told.contains(&kept), "{told}");
    hear(&heard, "WATCHDOG=1\n");

    let second = berth.reload().await;
    let told = hear(&heard, &format!("READY=1\nMAINPID={second}\n"));
    let order = [
        "RELOADING=1\n",
        &format!("MAINPID={second}\n"),
        "BARRIER=1\n",
    ];
    let mut rest = told.as_str();
    for each in order {
        let at = rest
            .find(each)
            .unwrap_or_else(|| panic!("no {each} in {told}"));
        rest = &rest[at..];
    }
    hear(&heard, "WATCHDOG=1\n");
    assert!(berth.order(&["stop"]).await.status.success());
    hear(&heard, "STOPPING=1\n");
}

/// Reads as systemd does: at once, whoever wants to know.
fn read_all(socket: UnixDatagram) -> mpsc::Receiver<String> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut message = [0; 4096];
        while let Ok(length) = socket.recv(&mut message) {
            let text = String::from_utf8_lossy(&message[..length]).into_owned();
            if tell.send(text).is_err() {
                return;
            }
        }
    });
    told
}

/// All that systemd is told up to this.
fn hear(heard: &mpsc::Receiver<String>, wanted: &str) -> String {
    let mut told = String::new();
    while !told.contains(wanted) {
        let message = heard.recv_timeout(DEADLINE);
        let message = message.unwrap_or_else(|e| panic!("{e}: no `{wanted}` in {told}"));
        told.push_str(&message);
        told.push('\n');
    }
    told
}

/// In the place of a program that may run at this moment.
fn write_program(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, text).unwrap();
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(fresh, path).unwrap();
}
