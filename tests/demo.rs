//! `berth demo`, as a newcomer runs it.

use std::process::Command;
use std::time::{Duration, Instant};

use berth::sim::Shape;

#[test]
fn the_demo_goes_as_stated_and_shows_every_shape() {
    let started = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_berth"))
        .arg("demo")
        .env_clear()
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let complaints = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}\n{complaints}");
    assert_eq!(complaints, "");
    for (shape, _) in Shape::ALL {
        let line = told
            .lines()
            .find(|line| line.split_whitespace().next() == Some(shape));
        let line = line.unwrap_or_else(|| panic!("{shape} is not shown:\n{told}"));
        assert!(line.trim_end().ends_with("ok"), "{line}");
    }
    assert!(
        !told.contains('\x1b'),
        "colours without a terminal:\n{told}"
    );
    assert!(!told.contains("NOT AS STATED"), "{told}");
    // Promised: under 15 s. Twice that here, where other tests share the processor.
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_demo_that_serves_answers_until_it_is_interrupted_and_leaves_nothing() {
    use std::io::Read;
    let temporary = tempfile::tempdir().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["demo", "--serve"])
        .env_clear()
        .env("TMPDIR", temporary.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = demo.stdout.take().unwrap();
    let mut told = String::new();
    let mut piece = [0; 4096];
    while !told.contains("Ctrl-C ends it") {
        let n = out.read(&mut piece).unwrap();
        assert!(n > 0, "ended before it served:\n{told}");
        told.push_str(&String::from_utf8_lossy(&piece[..n]));
    }
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 1);
    assert!(get(&told, "/models").starts_with("HTTP/1.1 200 "), "{told}");
    let pid = demo.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(sent.success());
    assert!(demo.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

/// The answer to a GET below the client's URL that the demo has printed.
fn get(told: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let url = told
        .split_whitespace()
        .find(|word| word.starts_with("http://") && word.ends_with("/v1"))
        .unwrap();
    let (host, prefix) = url
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once('/'))
        .unwrap();
    let mut connection = std::net::TcpStream::connect(host).unwrap();
    write!(
        connection,
        "GET /{prefix}{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}
