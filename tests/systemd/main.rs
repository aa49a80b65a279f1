//! The package under a real systemd: what its installation does and does not do, reloads under load, binaries that are swapped and broken, a crash, a
//! stop. `make test-systemd`; it needs root and says so where it cannot run.
//!
//! The last check is a control: a restart under the same load has to be seen as the loss that it is.

#[path = "../common/mod.rs"]
mod common;
mod load;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::free_port;
use common::paced::{CHAT, Paced, long, short, whole_stream};
use common::wire::{Client, Client2, Ends, body};
use load::Load;
use tokio::task::JoinSet;

/// Streams that live through all reloads.
const STREAMS: usize = 50;
const RELOADS: usize = 20;
/// What clients have lost, in their words.
static LOST: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let can = script().arg("can").output().unwrap();
    if !can.status.success() {
        let why = String::from_utf8_lossy(&can.stdout);
        println!("systemd cannot be booted here: {}", why.trim());
        println!("0 passed, 0 failed");
        return ExitCode::SUCCESS;
    }
    // A client that loses something panics, which is counted.
    std::panic::set_hook(Box::new(|panic| {
        if std::thread::current().name() == Some("main") {
            eprintln!("{panic}");
        }
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        lost.push(panic.to_string());
    }));
    let mut report = Report::default();
    let service = Service::install().await;
    run(&service, &mut report).await;
    drop(service);
    println!("{} passed, {} failed", report.passed, report.failed);
    match report.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

async fn run(service: &Service, report: &mut Report) {
    let installed = service.install_package();
    let idle = !service.is_active() && service.property("UnitFileState") == "disabled";
    report.ok(
        "the package is installed and starts nothing",
        installed.status.success() && idle,
        || told(&installed),
    );
    let page = service.inside(&["test", "-s", "/usr/share/man/man1/berth-reload.1.gz"]);
    report.ok(
        "its man pages are there",
        page.status.success(),
        String::new,
    );
    service.configure();
    for name in ["berth.service", "berth.socket"] {
        let unit = format!("/usr/lib/systemd/system/{name}");
        let verified = service.inside(&["systemd-analyze", "verify", "--man=no", &unit]);
        report.ok(
            &format!("systemd-analyze verify has nothing to say of {name}"),
            is_silent(&verified),
            || told(&verified),
        );
    }
    let started = service.inside(&["systemctl", "start", "berth"]);
    report.ok("it starts", started.status.success(), || service.journal());
    let security = service.inside(&["systemd-analyze", "security", "--threshold=15", "berth"]);
    report.ok("exposure is at most 1.5", security.status.success(), || {
        told(&security)
    });

    let mut streams = service.streams(STREAMS).await;
    let load = Load::start(service.addr);
    for number in 0..RELOADS {
        service.upstream.step_up_to(number / 2);
        let swapped = number % 4 == 3;
        if swapped {
            service.build(&format!("cp /opt/berth/berth {NEXT}"));
        }
        let before = service.main_pid();
        let reloaded = service.inside(&["systemctl", "reload", "berth"]);
        let now = service.main_pid();
        let what = if swapped { ", another binary" } else { "" };
        report.ok(
            &format!("reload {}{what}", number + 1),
            reloaded.status.success() && before != now && service.is_active(),
            || service.journal(),
        );
        if swapped {
            let file = service.inside(&["readlink", &format!("/proc/{now}/exe")]);
            report.ok(
                "the other binary serves",
                told(&file) == "/usr/bin/berth\n",
                || told(&file),
            );
        }
        if let Some((name, broken)) = BROKEN.get(number / 5).filter(|_| number % 5 == 4) {
            service.build(broken);
            let refused = service.inside(&["systemctl", "reload", "berth"]);
            report.ok(
                &format!("a build that {name} is refused"),
                !refused.status.success() && service.main_pid() == now && service.is_active(),
                || service.journal(),
            );
            service.build(&format!("cp /opt/berth/berth {NEXT}"));
        }
    }
    let before = service.main_pid();
    let upgraded = service.install_package();
    report.ok(
        "an upgrade of the package is a reload",
        upgraded.status.success() && service.main_pid() != before && service.is_active(),
        || format!("{}{}", told(&upgraded), service.journal()),
    );
    let load = load.end().await;
    report.ok(
        &format!("no request of {} was lost", load.served),
        load.failed == 0,
        || {
            let lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
            let first: Vec<&str> = lost.iter().take(10).map(String::as_str).collect();
            format!(
                "{} failed\n{}\n{}",
                load.failed,
                first.join("\n"),
                service.journal()
            )
        },
    );
    report.ok("each client was served", load.served > 200, || {
        load.served.to_string()
    });
    service.upstream.finish();
    let whole = whole_streams(&mut streams).await;
    report.ok("every stream is whole", whole == STREAMS + 1, || {
        format!("{whole} are")
    });

    let load = Load::start(service.addr);
    let pid = service.main_pid();
    service.inside(&["kill", "-9", &pid]);
    service.becomes("the crashed one is restarted", || {
        service.is_active() && service.main_pid() != pid
    });
    let load = load.end().await;
    report.ok(
        "after a crash no new connection is refused",
        load.refused == 0,
        || load.refused.to_string(),
    );
    let restarts = service.property("NRestarts");
    report.ok("a crash is one restart", restarts == "1", || {
        restarts.clone()
    });

    let restarted = service.lossy_restart().await;
    report.ok(
        "a restart is seen as a loss (control)",
        restarted,
        String::new,
    );

    let mut streams = service.streams(1).await;
    service.inside(&["systemctl", "reload", "berth"]);
    let stopping = service.spawn(&["systemctl", "stop", "berth"]);
    service.becomes("stopping", || {
        service.property("ActiveState") == "deactivating"
    });
    service.upstream.finish();
    let whole = whole_streams(&mut streams).await;
    report.ok("a stop waits for streams", whole == 2, || {
        format!("{whole} are whole")
    });
    let stopped = stopping.wait_with_output().unwrap();
    let result = service.property("Result");
    let clean = stopped.status.success() && result == "success" && !service.is_active();
    report.ok("a stop is clean", clean, || service.journal());
    let left = service.inside(&["pgrep", "-f", "berth run"]);
    report.ok("a stop leaves nothing", told(&left).is_empty(), || {
        told(&left)
    });

    service.listen_by_socket_unit();
    let started = service.inside(&["systemctl", "start", "berth.socket", "berth"]);
    report.ok(
        "a port below 1024 by the socket unit",
        started.status.success(),
        || service.journal(),
    );
    let reloaded = service.inside(&["systemctl", "reload", "berth"]);
    let mut client = Client::connect(service.low).await;
    client.send(short()).await;
    let answer = client.answer().await;
    report.ok(
        "and it survives a reload",
        reloaded.status.success() && answer.status == 200,
        || format!("{answer:?}\n{}", service.journal()),
    );
    let removed = service.inside(&["dpkg", "-r", "berth"]);
    let kept = service.inside(&["test", "-f", "/etc/berth/berth.yaml"]);
    report.ok(
        "a removal stops it and leaves the configuration",
        removed.status.success() && kept.status.success() && !service.is_active(),
        || told(&removed),
    );
}

const NEXT: &str = "/usr/bin/next";

/// What is put in the place of the binary.
const BROKEN: [(&str, &str); 3] = [
    ("is none", "echo nonsense > /usr/bin/next"),
    ("crashes", "cp /bin/false /usr/bin/next"),
    (
        "passes its check and crashes then",
        "printf '#!/bin/sh\\n[ $1 = check ]\\n' > /usr/bin/next",
    ),
];

#[derive(Default)]
struct Report {
    passed: usize,
    failed: usize,
}

impl Report {
    fn ok(&mut self, what: &str, passed: bool, why: impl Fn() -> String) {
        match passed {
            true => {
                self.passed += 1;
                println!("ok   - {what}");
            }
            false => {
                self.failed += 1;
                println!("FAIL - {what}\n{}", why());
            }
        }
    }
}

/// berth as a unit, in a systemd of its own.
struct Service {
    dir: PathBuf,
    _folder: tempfile::TempDir,
    upstream: Paced,
    addr: SocketAddr,
    low: SocketAddr,
}

impl Service {
    async fn install() -> Service {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_owned();
        let built = dir.join("built");
        std::fs::create_dir(&built).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_berth"), built.join("berth")).unwrap();
        std::fs::copy(package(), built.join("berth.deb")).unwrap();
        let upstream = Paced::start().await;
        let low = (1..1024)
            .rev()
            .map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let low = low
            .into_iter()
            .find(|a| TcpListener::bind(a).is_ok())
            .unwrap();
        let service = Service {
            dir,
            _folder: folder,
            upstream,
            addr: free_port(),
            low,
        };
        let up = script()
            .arg("up")
            .arg(&service.dir)
            .arg(&built)
            .output()
            .unwrap();
        assert!(up.status.success(), "{}", told(&up));
        service
    }

    fn install_package(&self) -> Output {
        self.inside(&["dpkg", "-i", "/opt/berth/berth.deb"])
    }

    fn configure(&self) {
        let config = self.configuration(self.addr);
        std::fs::write(self.dir.join("built/berth.yaml"), config).unwrap();
        self.shell(
            "cp /opt/berth/berth.yaml /etc/berth/ \
             && install -m 0600 /dev/null /etc/berth/openai-main && echo sk-a > /etc/berth/openai-main \
             && install -d /etc/systemd/system/berth.service.d && printf \
                '[Service]\\nLoadCredential=openai-main:/etc/berth/openai-main\\n' \
                > /etc/systemd/system/berth.service.d/secrets.conf \
             && systemctl daemon-reload",
        );
    }

    fn configuration(&self, addr: SocketAddr) -> String {
        let admin = free_port();
        let text = self
            .upstream
            .config("")
            .replace("{env: SK_A}", "{systemd: openai-main}, max_in_flight: 0");
        format!(
            "listeners: [{{address: \"{addr}\"}}]\nadmin: {{address: \"{admin}\"}}\n\
             process: {{runtime_dir: /run/berth, max_generations: 32}}\n\
             audit: {{path: /var/log/berth/audit.jsonl}}\n{text}"
        )
    }

    /// Puts a file in the place of the binary, by rename.
    fn build(&self, make: &str) {
        self.shell(&format!(
            "{make} && chmod 0755 {NEXT} && mv {NEXT} /usr/bin/berth"
        ));
    }

    fn listen_by_socket_unit(&self) {
        let config = self.configuration(self.low);
        std::fs::write(self.dir.join("built/berth.yaml"), config).unwrap();
        self.shell(&format!(
            "cp /opt/berth/berth.yaml /etc/berth/ \
             && sed 's/^ListenStream=.*/ListenStream={}/' /usr/lib/systemd/system/berth.socket \
                > /etc/systemd/system/berth.socket \
             && systemctl daemon-reload",
            self.low
        ));
    }

    fn shell(&self, line: &str) {
        let done = self.inside(&["sh", "-c", line]);
        assert!(done.status.success(), "{line}: {}", told(&done));
    }

    fn inside(&self, command: &[&str]) -> Output {
        let mut inside = script();
        inside.arg("exec").arg(&self.dir).args(command);
        inside.output().unwrap()
    }

    fn spawn(&self, command: &[&str]) -> std::process::Child {
        let mut inside = script();
        inside.arg("exec").arg(&self.dir).args(command);
        inside.spawn().unwrap()
    }

    fn property(&self, name: &str) -> String {
        let shown = self.inside(&["systemctl", "show", "berth", "-P", name]);
        told(&shown).trim().to_owned()
    }

    fn main_pid(&self) -> String {
        self.property("MainPID")
    }

    fn is_active(&self) -> bool {
        self.property("ActiveState") == "active"
    }

    fn journal(&self) -> String {
        let lines = self.inside(&["journalctl", "-u", "berth", "-n", "40", "--no-pager"]);
        told(&lines)
    }

    fn becomes(&self, what: &str, so: impl Fn() -> bool) {
        let since = Instant::now();
        while !so() {
            assert!(
                since.elapsed() < common::DEADLINE,
                "not {what}: {}",
                self.journal()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Streams that have begun, one of them over HTTP/2.
    async fn streams(&self, count: usize) -> JoinSet<common::wire::Answer> {
        self.upstream.rewind();
        let mut streams = JoinSet::new();
        let addr = self.addr;
        for _ in 0..count {
            let mut client = Client::connect(addr).await;
            client.send(long()).await;
            streams.spawn(async move { client.answer().await });
        }
        streams.spawn(async move {
            let client = Client2::connect(addr).await;
            let (response, mut sending) = client.start(CHAT, &[]).await;
            sending.send_data(body(CHAT, true).into(), true).unwrap();
            common::wire::collect(response).await
        });
        self.upstream.has_begun(count + 1).await;
        streams
    }

    /// Whether a plain restart, under load and with a stream, is seen as a loss.
    async fn lossy_restart(&self) -> bool {
        let mut streams = self.streams(1).await;
        // Streams are given no time, as without a drain.
        let load = Load::start(self.addr);
        self.inside(&[
            "sh",
            "-c",
            "/usr/bin/berth stop --now -c /etc/berth/berth.yaml",
        ]);
        self.inside(&["systemctl", "restart", "berth"]);
        let load = load.end().await;
        self.upstream.finish();
        let whole = whole_streams(&mut streams).await;
        whole < 2 && load.failed > 0
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = script().arg("down").arg(&self.dir).status();
    }
}

async fn whole_streams(streams: &mut JoinSet<common::wire::Answer>) -> usize {
    let mut whole = 0;
    while let Some(answer) = streams.join_next().await {
        let Ok(answer) = answer else { continue };
        whole += usize::from(answer.ends == Ends::Whole && answer.text() == whole_stream());
    }
    whole
}

/// The package, of the binary under test.
fn package() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new(root.join("packaging/deb/build.sh"))
        .arg(env!("CARGO_BIN_EXE_berth"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", told(&built));
    root.join(String::from_utf8_lossy(&built.stdout).trim())
}

fn script() -> Command {
    let mut script = Command::new("bash");
    script.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/systemd/box.sh"));
    script.stdin(Stdio::null());
    script
}

fn told(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

fn is_silent(output: &Output) -> bool {
    output.status.success() && told(output).is_empty()
}
