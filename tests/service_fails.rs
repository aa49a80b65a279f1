//! A reload that fails says why, with its exit code, and the process that serves goes on: no request
//! and no listening socket is lost with it.

mod common;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use common::upstream::{Conn, Raw, answer};
use common::wire::{Client, Ends, body, post};
use common::{Berth, config, signal, until, until_async};

const CHAT: &str = "/v1/chat/completions";

async fn upstream() -> Raw {
    Raw::start(|mut conn: Conn| async move {
        while conn.request().await.is_some() {
            conn.send(answer(200, "", "{}")).await;
        }
    })
    .await
}

async fn berth() -> (Berth, Raw) {
    let upstream = upstream().await;
    let berth = Berth::start(&config(&upstream.url(), "a", "")).await;
    (berth, upstream)
}

async fn serves(berth: &Berth) {
    let answer = berth.ask(post(CHAT, "", body(CHAT, false))).await;
    assert_eq!(
        (answer.status, answer.ends),
        (200, Ends::Whole),
        "{answer:?}"
    );
}

/// A reload that fails with this exit code and this in its reason, and changes nothing.
async fn refused(berth: &mut Berth, code: i32, reason: &str) {
    let pid = berth.serving();
    // On a connection that it has accepted.
    let mut kept = berth.connect().await;
    kept.send(post(CHAT, "", body(CHAT, false))).await;
    assert_eq!(kept.answer().await.status, 200);
    let done = berth.order(&["reload"]).await;
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(code), "{told}\n{}", berth.log());
    assert!(told.contains(reason), "no `{reason}` in {told}");
    assert_eq!(berth.serving(), pid);
    assert_eq!(berth.get("/readyz").await.status, 200);
    serves(berth).await;
    kept.send(post(CHAT, "", body(CHAT, false))).await;
    let answer = kept.answer().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_ne!(answer.header("connection"), Some("close"), "{answer:?}");
    until("nothing is left of the new one", || {
        berth.generations() == [pid]
    })
    .await;
    berth.is_well().await;
}

/// Puts a program in the place of the binary.
fn build(berth: &Berth, text: &str) {
    let fresh = berth.folder().join("fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(fresh, berth.program()).unwrap();
}

/// A build that takes part in the handover up to a place, and does `then`.
fn talks(berth: &Berth, then: &str) {
    let text = r#"#!/usr/bin/env python3
import json, os, signal, socket, struct, sys, time

channel = socket.socket(fileno=0)
sockets = []

def say(**message):
    body = json.dumps(message).encode()
    channel.sendall(struct.pack(">I", len(body)) + body)

def hear():
    length, fds, _, _ = socket.recv_fds(channel, 4, 253)
    if len(length) < 4:
        sys.exit(1)
    sockets.extend(fds)
    return json.loads(channel.recv(struct.unpack(">I", length)[0], socket.MSG_WAITALL))["is"]

def started(protocol=1):
    say(**{"is": "started", "protocol": protocol, "pid": os.getpid(), "build": "9.9.9"})

def has_sockets():
    started()
    say(**{"is": "asks"})
    assert hear() == "sockets" and len(sockets) == 2
    assert hear() == "learned"
    open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "here"), "w").write(str(os.getpid()))

"#;
    build(berth, &format!("{text}{then}\n"));
}

/// The id of the process that [`talks`] was started as, once it has the sockets.
async fn has_sockets(berth: &Berth) -> u32 {
    let path = berth.folder().join("here");
    let read = || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.parse().ok()
    };
    until("it has the sockets", || read().is_some()).await;
    read().unwrap()
}

#[tokio::test]
async fn a_bad_configuration() {
    let (mut berth, _upstream) = berth().await;
    berth.reconfigure("path_prefix: /v1", "path_prefix: nonsense");
    // The command itself reads it first, and the process that SIGHUP starts reads it too.
    refused(
        &mut berth,
        2,
        "berth.yaml:7:24: a path prefix begins with `/`",
    )
    .await;
    signal("HUP", berth.pid());
    let logged = || {
        berth
            .log()
            .contains("not reloaded, this process serves on reason=")
    };
    until("the log has it", logged).await;
    assert!(berth.log().contains("berth.yaml:7:24:"), "{}", berth.log());
    serves(&berth).await;
}

#[tokio::test]
async fn a_missing_secret() {
    let (mut berth, _upstream) = berth().await;
    berth.reconfigure("{env: SK_A}", "{file: /nonexistent/secret}");
    refused(&mut berth, 1, "/nonexistent/secret").await;
}

#[tokio::test]
async fn an_audit_file_that_cannot_be_opened() {
    let (mut berth, _upstream) = berth().await;
    berth.reconfigure("audit.jsonl", "nowhere/audit.jsonl");
    refused(&mut berth, 1, "audit.path: cannot append").await;
}

#[tokio::test]
async fn a_full_disk_costs_lines_and_no_reload() {
    let (berth, _upstream) = berth().await;
    let audit = berth.folder().join("audit.jsonl");
    berth.reconfigure(audit.to_str().unwrap(), "/dev/full");
    berth.reload().await;
    serves(&berth).await;
    until("the loss is told", || {
        berth.log().contains("lines are being lost")
    })
    .await;
}

#[tokio::test]
async fn a_taken_port() {
    let (mut berth, _upstream) = berth().await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let old = format!("listeners: [{{address: \"{}\"}}]", berth.addr);
    berth.reconfigure(&old, &format!("listeners: [{{address: \"{address}\"}}]"));
    let reason = format!("cannot listen on {address}");
    refused(&mut berth, 1, &reason).await;
}

#[tokio::test]
async fn a_build_that_crashes_at_once() {
    let (mut berth, _upstream) = berth().await;
    for program in ["#!/bin/sh\nexit 3\n", "#!/bin/sh\nkill -9 $$\n"] {
        build(&berth, program);
        refused(&mut berth, 1, "ended before it served").await;
    }
    build(&berth, "\u{7f}ELF and nothing more");
    refused(&mut berth, 1, "cannot be started").await;
}

#[tokio::test]
async fn a_build_that_crashes_when_it_has_the_sockets() {
    let (mut berth, _upstream) = berth().await;
    talks(&berth, "has_sockets(); os.abort()");
    refused(&mut berth, 1, "ended before it served").await;
    talks(
        &berth,
        "has_sockets(); say(**{'is': 'ready'}); assert hear() == 'go'; os.abort()",
    );
    refused(&mut berth, 1, "ended before it served").await;
}

#[tokio::test]
async fn a_build_that_crashes_when_orders_go_to_it_already() {
    let (mut berth, _upstream) = berth().await;
    let link =
        "os.symlink('nobody', 'next'); os.replace('next', glob.glob('berth-????????.sock')[0])";
    talks(
        &berth,
        &format!(
            "import glob; has_sockets(); say(**{{'is': 'ready'}}); assert hear() == 'go'\n\
             os.chdir(os.path.dirname(os.path.abspath(__file__))); {link}; os.abort()"
        ),
    );
    let audit = berth.folder().join("audit.jsonl");
    std::fs::rename(&audit, berth.folder().join("audit.jsonl.1")).unwrap();
    let refused = berth.order(&["reload"]).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    // Orders come here again, and so do lines of the audit.
    serves(&berth).await;
    berth.audit(1).await;
    std::fs::remove_file(berth.program()).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_berth"), berth.program()).unwrap();
    let done = berth.order(&["reload"]).await;
    assert!(done.status.success(), "{done:?}");
    assert!(berth.ends().await.success());
}

#[tokio::test]
async fn a_build_that_talks_in_another_way() {
    let (mut berth, _upstream) = berth().await;
    talks(&berth, "started(protocol=2); hear()");
    refused(&mut berth, 1, "restart berth instead").await;
    talks(&berth, "channel.sendall(b'\\xff' * 64); time.sleep(600)");
    refused(&mut berth, 1, "cannot be understood").await;
}

#[tokio::test]
async fn a_build_that_never_gets_ready() {
    let (mut berth, _upstream) = berth().await;
    talks(&berth, "has_sockets(); time.sleep(600)");
    refused(&mut berth, 1, "did not serve within 30s").await;
    let pid = has_sockets(&berth).await;
    until("it is ended", || !lives(pid)).await;
}

#[tokio::test]
async fn a_reload_during_a_reload_and_a_stop_during_one() {
    let (mut berth, _upstream) = berth().await;
    talks(&berth, "has_sockets(); hear()");
    let first = berth.order(&["reload"]);
    let rest = async {
        let new = has_sockets(&berth).await;
        let second = berth.order(&["reload"]).await;
        assert_eq!(second.status.code(), Some(1));
        let told = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(told.contains("a reload is under way"), "{told}");
        serves(&berth).await;
        let stopped = berth.order(&["stop"]).await;
        assert!(stopped.status.success(), "{stopped:?}");
        new
    };
    let (first, new) = tokio::join!(first, rest);
    assert_eq!(first.status.code(), Some(1));
    let told = String::from_utf8_lossy(&first.stderr).into_owned();
    assert!(told.contains("told to stop during the reload"), "{told}");
    assert!(berth.ends().await.success());
    until("the new one is gone", || !lives(new)).await;
}

#[tokio::test]
async fn kill_9_of_the_new_process() {
    let (berth, _upstream) = berth().await;
    talks(&berth, "has_sockets(); hear()");
    let killing = async {
        let new = has_sockets(&berth).await;
        signal("KILL", new);
    };
    let (done, ()) = tokio::join!(berth.order(&["reload"]), killing);
    assert_eq!(done.status.code(), Some(1));
    serves(&berth).await;
}

#[tokio::test]
async fn kill_9_of_the_serving_process() {
    let (mut berth, _upstream) = berth().await;
    // Before the new one serves: it goes too, and leaves the sockets to the next start.
    talks(&berth, "has_sockets(); hear()");
    let pid = berth.pid();
    let killing = async {
        let new = has_sockets(&berth).await;
        signal("KILL", pid);
        new
    };
    let (done, new) = tokio::join!(berth.order(&["reload"]), killing);
    assert_eq!(done.status.code(), Some(1));
    berth.ends().await;
    until("the new one is gone", || !lives(new)).await;
    until("the port is free", || TcpListener::bind(berth.addr).is_ok()).await;
}

#[tokio::test]
async fn kill_9_of_a_draining_process() {
    let (mut berth, _upstream) = berth().await;
    let silent = berth.connect().await;
    serves(&berth).await;
    berth.reload().await;
    signal("KILL", berth.pid());
    berth.ends().await;
    drop(silent);
    serves(&berth).await;
    // What it left behind is in nobody's way.
    berth.reload().await;
    serves(&berth).await;
    let stopped = berth.order(&["stop"]).await;
    assert!(stopped.status.success(), "{stopped:?}");
}

#[tokio::test]
async fn the_limit_of_open_files() {
    let upstream = upstream().await;
    let text = config(&upstream.url(), "a", "");
    let berth = Berth::start_by("ulimit -n 80; exec \"$@\"", Stdio::null(), &text).await;
    serves(&berth).await;
    let mut clients = Vec::new();
    while clients.len() < 100 {
        clients.push(Client::connect(berth.addr).await);
    }
    until("the limit is reached", || {
        berth.log().contains("limits.connections")
    })
    .await;
    // Clients leave files free for an order and for a successor, and the successor's clients do too.
    for _ in 0..3 {
        berth.reload().await;
        while clients.len() < 200 {
            clients.push(Client::connect(berth.addr).await);
        }
    }
    assert!(
        !berth.log().contains("Too many open files"),
        "{}",
        berth.log()
    );
    drop(clients);
    until_async("there is a place again", async || {
        berth.ask(post(CHAT, "", body(CHAT, false))).await.status == 200
    })
    .await;
}

#[tokio::test]
async fn nobody_to_reload() {
    let (mut berth, _upstream) = berth().await;
    assert!(berth.order(&["stop"]).await.status.success());
    assert!(berth.ends().await.success());
    let done = berth.order(&["reload"]).await;
    assert_eq!(done.status.code(), Some(1));
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        told.contains("no berth serves this configuration"),
        "{told}"
    );
}

/// Whether a process is there, and not only its entry.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}
