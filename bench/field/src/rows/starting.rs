//! From start to ready, and from a reload to its end, with a thousand credentials.

use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::figures::{median, spread, written};
use crate::report::Table;

const CREDENTIALS: usize = 1000;
/// No start takes longer.
const LONGEST: Duration = Duration::from_secs(10);

/// Only berth.
pub fn measure(bench: &mut Bench) {
    let (mut starts, mut reloads) = (vec![], vec![]);
    for _ in 0..bench.rounds(5) {
        let began = Instant::now();
        let started = bench.place.berth_of(CREDENTIALS);
        let (contender, (config, admin)) = match started {
            Ok(mut contender) => match contender.berth.take() {
                Some(berth) => (contender, berth),
                None => continue,
            },
            Err(why) => return bench.report.missing(format!("a start: {why}")),
        };
        if !ready(admin) {
            let why = "berth with 1,000 credentials did not become ready";
            return bench.report.missing(why.to_owned());
        }
        starts.push(began.elapsed().as_secs_f64() * 1000.0);
        let began = Instant::now();
        let reload = Command::new(bench.place.programs.join("berth"))
            .args(["reload", "-c"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        let took = began.elapsed().as_secs_f64() * 1000.0;
        match reload {
            Ok(status) if status.success() => reloads.push(took),
            other => bench.report.missing(format!("a reload: {other:?}")),
        }
        drop(contender);
    }
    bench.report.table(Table {
        title: "Start and reload",
        about: "1,000 credentials. From the start of the process until `/readyz` says yes; and how long `berth reload` \
                takes, which ends when the new process serves and the old one drains."
            .to_owned(),
        columns: ["start, ms", "reload, ms"].map(str::to_owned).into(),
        rows: vec![vec![spread(&starts), spread(&reloads)]],
    });
    for (what, times, limit) in [
        ("start to ready", starts, 100.0),
        ("reload to ready", reloads, 300.0),
    ] {
        let what = format!("{what}, 1,000 credentials");
        let shown = format!("{} ms", written(median(&times)));
        bench
            .report
            .at_most(&what, (&shown, "-"), median(&times), limit, " ms");
    }
}

fn ready(admin: SocketAddr) -> bool {
    let end = Instant::now() + LONGEST;
    while Instant::now() < end {
        if is_ready(admin).unwrap_or(false) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

fn is_ready(admin: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}
