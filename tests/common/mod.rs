//! A `berth` process under test, seen from outside: its ports, its audit file, its metrics.
//!
//! Every wait has a deadline and ends at a signal; where the only signal is a file, the file is looked
//! at again. The process is killed by its id and reaped when the test ends, however it ends.

// Each file of tests uses a part of this.
#![allow(dead_code)]

mod admin;
mod configuration;
pub mod fallback;
pub mod keys;
pub mod paced;
pub mod upstream;
pub mod wire;

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub use configuration::*;
use wire::{Answer, Client};

/// How long anything may take. Far above what it takes, so that a loaded machine is not a failure.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// How often a file is looked at again.
const AGAIN: Duration = Duration::from_millis(5);

/// The token of the admin port.
pub const TOKEN: &str = "admin-token-of-the-tests";

/// A running berth.
pub struct Berth {
    child: Option<Child>,
    dir: TempDir,
    /// Where clients come.
    pub addr: SocketAddr,
    /// Where operators come.
    pub admin: SocketAddr,
}

impl Berth {
    /// Starts berth with `config`, to which listeners, admin port and audit file are added, and waits
    /// until it is ready.
    pub async fn start(config: &str) -> Berth {
        // A free port may be taken between its choice and its use.
        for _ in 0..5 {
            let mut berth = Berth::spawn(config);
            if berth.becomes_ready().await {
                return berth;
            }
            let log = berth.log();
            assert!(log.contains("cannot listen"), "berth did not start:\n{log}");
        }
        panic!("no free port");
    }

    /// The same, by a line of a shell: `"$@"` is berth with its arguments. Its stdin is `stdin`.
    pub async fn start_by(shell: &str, stdin: impl Into<Stdio>, config: &str) -> Berth {
        let mut berth = Berth::prepare(config);
        let mut command = Command::new("sh");
        command.args(["-c", shell, "sh"]).arg(berth.program());
        berth.run(command, stdin.into());
        assert!(berth.becomes_ready().await, "{}", berth.log());
        berth
    }

    /// Stops it, and starts it again by a line of a shell.
    pub async fn restart_by(&mut self, shell: &str) {
        assert!(self.order(&["stop"]).await.status.success());
        self.ends().await;
        let mut command = Command::new("sh");
        command.args(["-c", shell, "sh"]).arg(self.program());
        self.run(command, Stdio::null());
        assert!(self.becomes_ready().await, "{}", self.log());
    }

    fn spawn(config: &str) -> Berth {
        let mut berth = Berth::prepare(config);
        berth.run(Command::new(berth.program()), Stdio::null());
        berth
    }

    fn prepare(config: &str) -> Berth {
        let dir = tempfile::tempdir().unwrap();
        let (addr, admin) = (free_port(), free_port());
        let text = format!(
            "listeners: [{{address: \"{addr}\"}}]\n\
             admin: {{address: \"{admin}\", token: {{env: ADMIN_TOKEN}}}}\n\
             audit: {{path: {}}}\n{config}",
            dir.path().join("audit.jsonl").display(),
        );
        std::fs::write(dir.path().join("berth.yaml"), text).unwrap();
        // A link, so that a test can put another build in its place.
        std::os::unix::fs::symlink(binary(), dir.path().join("berth")).unwrap();
        Berth {
            child: None,
            dir,
            addr,
            admin,
        }
    }

    fn run(&mut self, mut command: Command, stdin: Stdio) {
        let log = File::create(self.dir.path().join("log")).unwrap();
        command.arg("run").arg("-c").arg(self.config_file());
        command
            .env("RUNTIME_DIRECTORY", self.dir.path())
            .env("RUST_LOG", "info,pingora_core=warn,berth=debug");
        // One arena: with one per thread glibc keeps fragments in each, which look like a leak.
        command.env("MALLOC_ARENA_MAX", "1");
        give_secrets(&mut command);
        let child = command
            .stdin(stdin)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Starts it once more, after its process has ended.
    pub async fn again(&mut self) {
        assert!(!self.lives());
        self.run(Command::new(self.program()), Stdio::null());
        assert!(self.becomes_ready().await, "{}", self.log());
    }

    /// What another command of berth says of the same configuration.
    pub fn command(&self, arguments: &[&str]) -> Output {
        let file = self.dir.path().join("berth.yaml");
        command(arguments, &file).output().unwrap()
    }

    /// False where the process ended instead.
    async fn becomes_ready(&mut self) -> bool {
        let since = Instant::now();
        while since.elapsed() < DEADLINE {
            if !self.lives() {
                return false;
            }
            if tokio::net::TcpStream::connect(self.admin).await.is_ok()
                && tokio::net::TcpStream::connect(self.addr).await.is_ok()
                && self.get("/readyz").await.status == 200
            {
                return true;
            }
            tokio::time::sleep(AGAIN).await;
        }
        panic!("not ready within the deadline:\n{}", self.log());
    }

    /// The id of the process that was started.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Whether that process lives.
    pub fn lives(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_none()
    }

    /// How it ended.
    pub async fn ends(&mut self) -> ExitStatus {
        let since = Instant::now();
        while since.elapsed() < DEADLINE {
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                return status;
            }
            tokio::time::sleep(AGAIN).await;
        }
        panic!("it has not ended within the deadline:\n{}", self.log());
    }

    /// The binary that is run, and that a reload runs.
    pub fn program(&self) -> PathBuf {
        self.dir.path().join("berth")
    }

    /// Its configuration.
    pub fn config_file(&self) -> PathBuf {
        self.dir.path().join("berth.yaml")
    }

    /// Replaces a text in its configuration.
    pub fn reconfigure(&self, from: &str, to: &str) {
        let file = self.config_file();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(file, text.replace(from, to)).unwrap();
    }

    /// `berth COMMAND -c FILE`, to its end.
    pub async fn order(&self, command: &[&str]) -> Output {
        let mut order = tokio::process::Command::new(binary());
        order.args(command).arg("-c").arg(self.config_file());
        order.env("RUNTIME_DIRECTORY", self.dir.path());
        let done = tokio::time::timeout(3 * DEADLINE, order.stdin(Stdio::null()).output()).await;
        done.expect("the order did not end").unwrap()
    }

    /// Reloads, and gives the id of the process that serves then.
    pub async fn reload(&self) -> u32 {
        let before = self.serving();
        let done = self.order(&["reload"]).await;
        assert!(done.status.success(), "{done:?}\n{}", self.log());
        let now = self.serving();
        assert_ne!(before, now);
        now
    }

    /// The id of the process that serves.
    pub fn serving(&self) -> u32 {
        let link = self.sockets(|name| name.matches('.').count() == 1);
        let named = std::fs::read_link(&link[0]).unwrap();
        pid_of(&named)
    }

    /// The ids of all processes, those that drain too.
    pub fn generations(&self) -> Vec<u32> {
        let sockets = self.sockets(|name| name.matches('.').count() == 2);
        sockets.iter().map(|path| pid_of(path)).collect()
    }

    fn sockets(&self, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                name.starts_with("berth-") && name.ends_with(".sock") && wanted(name)
            })
            .collect()
    }

    /// A connection to the listener.
    pub async fn connect(&self) -> Client {
        Client::connect(self.addr).await
    }

    /// One request on a connection of its own.
    pub async fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut client = self.connect().await;
        client.send(request).await;
        client.answer().await
    }

    /// The audit, once it has at least `lines`.
    pub async fn audit(&self, lines: usize) -> Vec<Value> {
        let path = self.dir.path().join("audit.jsonl");
        let since = Instant::now();
        loop {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            // A process that opens the file while another writes to it may begin with an empty line.
            let read: Vec<Value> = whole
                .lines()
                .filter(|line| !line.is_empty())
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            if read.len() >= lines {
                return read;
            }
            assert!(
                since.elapsed() < DEADLINE,
                "{} audit lines instead of {lines}:\n{text}\n{}",
                read.len(),
                self.log()
            );
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The last of `lines` audit lines, which are all there are.
    pub async fn last_audit(&self, lines: usize) -> Value {
        let mut all = self.audit(lines).await;
        assert_eq!(all.len(), lines, "{all:#?}");
        all.pop().unwrap()
    }

    /// The audit line of the request with this id.
    pub async fn audit_of(&self, request_id: &str) -> Value {
        let mut lines = 1;
        loop {
            let all = self.audit(lines).await;
            if let Some(found) = all.iter().find(|line| line["request_id"] == request_id) {
                return found.clone();
            }
            lines = all.len() + 1;
        }
    }

    /// What it wrote to its log, the last part of it.
    pub fn log(&self) -> String {
        let text = self.whole_log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Asserts that nothing panicked, and that it still serves.
    pub async fn is_well(&mut self) {
        assert!(self.lives(), "berth is gone:\n{}", self.log());
        let text = self.whole_log();
        assert!(!text.contains("panicked"), "{text}");
    }

    /// All that it wrote to its log.
    pub fn whole_log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// A folder that lives as long as the process.
    pub fn folder(&self) -> PathBuf {
        self.dir.path().to_owned()
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        // What it handed over to is nobody's child.
        for pid in self.generations() {
            signal("KILL", pid);
        }
        if std::thread::panicking() {
            eprintln!("--- the log of berth\n{}", self.log());
        }
    }
}

/// Sends a signal to a process of this test.
pub fn signal(name: &str, pid: u32) {
    let mut kill = Command::new("kill");
    kill.arg(format!("-{name}")).arg(pid.to_string());
    let _ = kill.stderr(Stdio::null()).status().unwrap();
}

/// Waits until something is so.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(
            since.elapsed() < DEADLINE,
            "not within the deadline: {what}"
        );
        tokio::time::sleep(AGAIN).await;
    }
}

/// The same, where it takes a question to know.
pub async fn until_async(what: &str, so: impl AsyncFn() -> bool) {
    let since = Instant::now();
    while !so().await {
        let late = since.elapsed() > DEADLINE;
        assert!(!late, "not within the deadline: {what}");
        tokio::time::sleep(AGAIN).await;
    }
}

fn pid_of(socket: &Path) -> u32 {
    let name = socket.file_name().unwrap().to_str().unwrap();
    name.split('.').nth(1).unwrap().parse().unwrap()
}

/// Within the deadline.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(DEADLINE, what).await;
    waited.expect("nothing happened within the deadline")
}

/// The credentials that were asked, in order, with the verdict on each.
pub fn story(line: &Value) -> Vec<(&str, &str)> {
    let attempts = line["attempts"].as_array().unwrap();
    attempts
        .iter()
        .map(|each| {
            (
                each["credential"].as_str().unwrap(),
                each["verdict"].as_str().unwrap(),
            )
        })
        .collect()
}

/// A port on which nobody listens.
pub fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// A command of berth, with a configuration and what it needs of the environment.
fn command(arguments: &[&str], config: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).arg("-c").arg(config);
    give_secrets(&mut command);
    command
}

fn give_secrets(command: &mut Command) {
    command.env("ADMIN_TOKEN", TOKEN);
    for id in IDS.chars() {
        command.env(
            format!("SK_{}", id.to_ascii_uppercase()),
            format!("sk-{id}"),
        );
    }
}

/// The berth under test: another build of it where `BERTH_BIN` says so.
fn binary() -> PathBuf {
    match std::env::var_os("BERTH_BIN") {
        Some(path) => path.into(),
        None => env!("CARGO_BIN_EXE_berth").into(),
    }
}
