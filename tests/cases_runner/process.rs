//! berth as a process of its own, and its admin listener.
//!
//! Each case starts its own and always ends it: by the child's id, and only that. Ports are taken
//! below the range that the kernel hands out to outgoing connections, so that a parallel case
//! cannot take one between the choice and berth's own bind.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::config::{self, Addresses, TOKEN_ENV};
use super::format::Case;
use super::http1::Wire;

/// How long berth may take until it is ready: generous, since a loaded machine starts many at once.
const START: Duration = Duration::from_secs(20);

/// How often readiness is asked for.
const POLL: Duration = Duration::from_millis(15);

/// The admin token of the tests.
pub const TOKEN: &str = "admin-token-TESTONLY-0001";

/// The first port that is tried, and how many there are.
const PORTS: (u16, u16) = (20_000, 12_000);

/// How often `/readyz` was 200 while the listener refused connections.
pub static TOO_EARLY: AtomicUsize = AtomicUsize::new(0);

pub struct Berth {
    child: Child,
    pub dir: tempfile::TempDir,
    pub listener: SocketAddr,
    pub admin: Admin,
}

impl Drop for Berth {
    fn drop(&mut self) {
        // Both fail only where the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A free port of this host, by binding it.
pub fn free_address() -> Result<SocketAddr, String> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let offset = (std::process::id() % u32::from(PORTS.1)) as u16;
    for _ in 0..PORTS.1 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.0 + (offset.wrapping_add(step)) % PORTS.1;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err("no free port".into())
}

impl Berth {
    /// Starts berth for a case and waits until it is ready.
    pub async fn start(case: &Case, body_len: usize, player: SocketAddr) -> Result<Berth, String> {
        let dir = tempfile::Builder::new()
            .prefix("case-")
            .tempdir()
            .map_err(|e| e.to_string())?;
        let at = Addresses {
            listener: free_address()?,
            admin: free_address()?,
            player,
            refused: free_address()?,
        };
        let file = dir.path().join("berth.yaml");
        let config = config::build(case, body_len, &at, dir.path())?;
        std::fs::write(&file, format!("{config:#}")).map_err(|e| e.to_string())?;
        let child = spawn(case, &file, dir.path())?;
        let admin = Admin { address: at.admin };
        let mut berth = Berth {
            child,
            dir,
            listener: at.listener,
            admin,
        };
        berth.ready().await?;
        Ok(berth)
    }

    async fn ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!(
                    "berth ended at its start: {status}\n{}",
                    self.stderr()
                ));
            }
            if self
                .admin
                .call("GET", "/readyz", None)
                .await
                .is_ok_and(|reply| reply.status == 200)
            {
                if TcpStream::connect(self.listener).await.is_ok() {
                    return Ok(());
                }
                // Counted and told, not waited for in silence: a supervisor would be misled.
                TOO_EARLY.fetch_add(1, Ordering::Relaxed);
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "berth is not ready after {START:?}\n{}",
                    self.stderr()
                ));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub fn stderr(&self) -> String {
        read(&self.dir.path().join("stderr")) + &read(&self.dir.path().join("stdout"))
    }

    pub fn audit_text(&self) -> String {
        read(&self.dir.path().join("audit.jsonl"))
    }

    /// The audit lines so far.
    pub fn audit(&self) -> Vec<Value> {
        self.audit_text()
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Whether the process still lives.
    pub fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// A line of `/proc/PID/status` in bytes; `None` on other systems.
    pub fn memory(&self, key: &str) -> Option<u64> {
        let text = read(&PathBuf::from(format!("/proc/{}/status", self.child.id())));
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_whitespace()
            .nth(1)?
            .parse::<u64>()
            .ok()
            .map(|kib| kib * 1024)
    }
}

fn spawn(case: &Case, file: &Path, dir: &Path) -> Result<Child, String> {
    let output = |name: &str| {
        std::fs::File::create(dir.join(name))
            .map(Stdio::from)
            .map_err(|e| e.to_string())
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.arg("run").arg("-c").arg(file).env(TOKEN_ENV, TOKEN);
    for credential in &case.setup.credentials {
        let secret = credential.upstream_auth.trim_start_matches("Bearer ");
        command.env(config::secret_env(&credential.name), secret);
    }
    // A case about logs is judged at the most talkative level.
    command.env(
        "RUST_LOG",
        if case.expect.logs.is_some() {
            "trace"
        } else {
            "info"
        },
    );
    command.env("RUST_BACKTRACE", "1");
    command
        .stdin(Stdio::null())
        .stdout(output("stdout")?)
        .stderr(output("stderr")?);
    command.spawn().map_err(|e| format!("berth: {e}"))
}

fn read(path: &Path) -> String {
    std::fs::read(path)
        .map(|b| String::from_utf8_lossy(&b).into_owned())
        .unwrap_or_default()
}

/// The admin listener.
pub struct Admin {
    address: SocketAddr,
}

pub struct Reply {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Admin {
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
    ) -> Result<Reply, String> {
        let call = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let auth = token.map_or(String::new(), |t| format!("authorization: Bearer {t}\r\n"));
            let length = if method == "POST" {
                "content-length: 0\r\n"
            } else {
                ""
            };
            let head = format!(
                "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{auth}{length}\r\n",
                self.address
            );
            stream.write_all(head.as_bytes()).await?;
            let (read, _write) = stream.into_split();
            let mut wire = Wire::new(read);
            let head = wire.head().await?;
            let (mut framing, mut body) = (head.body(true), Vec::new());
            while let Some(piece) = wire.piece(&mut framing).await? {
                body.extend(piece);
            }
            std::io::Result::Ok(Reply {
                status: head.status(),
                body,
            })
        };
        tokio::time::timeout(Duration::from_secs(5), call)
            .await
            .map_err(|_| format!("{method} {path}: no answer of the admin listener"))?
            .map_err(|e| format!("{method} {path}: {e}"))
    }

    /// A POST that must succeed.
    pub async fn post(&self, path: &str) -> Result<(), String> {
        let reply = self.call("POST", path, Some(TOKEN)).await?;
        match reply.status {
            200..=299 => Ok(()),
            status => Err(format!(
                "POST {path}: {status} {}",
                String::from_utf8_lossy(&reply.body).trim_end()
            )),
        }
    }

    pub async fn status(&self) -> Result<Value, String> {
        let reply = self.call("GET", "/status", Some(TOKEN)).await?;
        serde_json::from_slice(&reply.body)
            .map_err(|e| format!("GET /status: {} and no JSON: {e}", reply.status))
    }

    pub async fn metrics(&self) -> Result<String, String> {
        let reply = self.call("GET", "/metrics", Some(TOKEN)).await?;
        Ok(String::from_utf8_lossy(&reply.body).into_owned())
    }
}
