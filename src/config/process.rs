//! `listeners:`, `process:`, `admin:`, `limits:` and `audit:`, and what the machine offers.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::field::{List, Part, Placed};
use super::leaf::{Memory, Size};
use super::policy::time;
use super::problem::{Place, Report};
use super::upstream::{NOT_SEEN, warn_if_absent};
use super::{connections, number, raw};
use crate::edge::spec::{Limits, Listener, Process, TlsSpec};
use crate::observe::spec::{AdminSpec, AuditSpec};

/// Memory of a machine that does not say how much it has, bytes; chosen, small.
const UNKNOWN_MEMORY: u64 = 1 << 30;

/// Listeners of one process (chosen: a reload passes them all in one message, which takes 253).
const MAX_LISTENERS: usize = 200;

/// The listeners and where each stands in the file.
pub fn listeners(
    raw: List<Part<raw::Listener>>,
    report: &mut Report,
) -> (Vec<Listener>, Vec<Place>) {
    let Some(Placed { at, value: parts }) = raw.0 else {
        let usual = Listener {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            tls: None,
        };
        return (vec![usual], vec![Place::START]);
    };
    if parts.is_empty() {
        let text =
            "an empty list listens nowhere; remove `listeners` for 127.0.0.1:8080, or add one";
        report.problem(at, text);
    }
    if parts.len() > MAX_LISTENERS {
        report.problem(at, format!("more than {MAX_LISTENERS} listeners"));
    }
    let mut seen = BTreeSet::new();
    let (mut listeners, mut places) = (Vec::new(), Vec::new());
    for part in parts {
        let Placed { at, value: raw } = part.or_empty();
        let Some(Placed { at, value }) = raw.address.must("address", at, report) else {
            continue;
        };
        if !seen.insert(value) {
            report.problem(at, "another listener above has this address; remove one");
        }
        let tls = raw.tls.0.and_then(|tls| self::tls(tls, report));
        listeners.push(Listener {
            address: value,
            tls,
        });
        places.push(at);
    }
    (listeners, places)
}

fn tls(Placed { at, value: raw }: Placed<raw::Tls>, report: &mut Report) -> Option<TlsSpec> {
    let certificate = raw.certificate.must("certificate", at, report);
    let private_key = raw.private_key.must("private_key", at, report);
    let client_ca = raw.client_ca.take(report);
    for placed in [&certificate, &private_key, &client_ca]
        .into_iter()
        .flatten()
    {
        if !placed.value.0.exists() {
            report.warning(placed.at, NOT_SEEN);
        }
    }
    Some(TlsSpec {
        certificate: certificate?.value.0,
        private_key: private_key?.value.0,
        client_ca: client_ca.map(|placed| placed.value.0),
    })
}

pub fn admin(raw: Part<raw::Admin>, listeners: &[Listener], report: &mut Report) -> AdminSpec {
    let written = raw.0.is_some();
    let Placed {
        at: section,
        value: raw,
    } = raw.or_empty();
    let token = raw.token.take(report);
    let placed = raw.address.take(report).unwrap_or(Placed {
        at: section,
        value: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)),
    });
    let Placed { at, value: address } = placed;
    match &token {
        Some(Placed { at, value }) => warn_if_absent(*at, value, report),
        None if !address.ip().is_loopback() => {
            let text = "an admin address that others can reach needs `token`; add \
                        `token: { env: NAME }` or use a loopback address";
            report.problem(at, text);
        }
        None if written => {
            let text =
                "without `token`, every user of this machine can read the metrics and the status";
            report.warning(section, text);
        }
        None => {}
    }
    if listeners.iter().any(|listener| listener.address == address) {
        report.problem(
            at,
            "a listener has the admin's address (default 127.0.0.1:9090); change one",
        );
    }
    AdminSpec {
        address,
        token: token.map(|placed| placed.value),
    }
}

pub fn process(raw: raw::Process, report: &mut Report) -> Process {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let runtime_dir = match raw.runtime_dir.take(report) {
        Some(Placed { at, value }) => {
            if !value.0.is_absolute() {
                report.problem(at, "`runtime_dir` begins with `/`");
            }
            value.0
        }
        None => usual_runtime_dir(),
    };
    Process {
        threads: number("threads", raw.threads, cores, 1..=1024, report),
        runtime_dir,
        drain_timeout: time("drain_timeout", raw.drain_timeout, 60 * 60, report),
        stop_timeout: time("stop_timeout", raw.stop_timeout, 30, report),
        max_generations: number("max_generations", raw.max_generations, 4, 1..=64, report),
    }
}

pub fn limits(raw: raw::Limits, report: &mut Report) -> Limits {
    let request_body = raw.request_body.take(report);
    let body_at = request_body.as_ref().map(|placed| placed.at);
    let request_body = request_body.map_or(64 << 20, |placed| placed.value.0);
    if let Some(at) = body_at
        && !(1 << 10..=4 << 30).contains(&request_body)
    {
        report.problem(at, "`limits.request_body` is `1KiB` to `4GiB`");
    }
    let replay_body = match raw.replay_body.take(report) {
        Some(Placed {
            at,
            value: Size(bytes),
        }) => {
            if bytes > request_body {
                let text = "`limits.replay_body` must not exceed `limits.request_body` (default \
                            `64MiB`): larger bodies never arrive";
                report.problem(at, text);
            }
            bytes
        }
        None => request_body.min(64 << 20),
    };
    let header_bytes = match raw.header_bytes.take(report) {
        Some(Placed {
            at,
            value: Size(bytes),
        }) => {
            if !(4 << 10..=1 << 20).contains(&bytes) {
                report.problem(at, "`limits.header_bytes` is `4KiB` to `1MiB`");
            }
            bytes
        }
        None => 64 << 10,
    };
    let memory = match raw.memory.take(report) {
        Some(Placed {
            at,
            value: Memory::Bytes(bytes),
        }) => {
            if bytes < 16 << 20 {
                report.problem(at, "`limits.memory` is at least `16MiB`");
            }
            bytes
        }
        Some(Placed {
            value: Memory::Percent(percent),
            ..
        }) => share_of_memory(percent),
        None => share_of_memory(25),
    };
    let clients = connections::clients(
        raw.client_timeout,
        raw.connections,
        raw.connections_per_address,
        report,
    );
    Limits {
        request_body: bytes(request_body),
        replay_body: bytes(replay_body),
        header_bytes: bytes(header_bytes),
        memory: bytes(memory),
        client_timeout: clients.timeout,
        connections: clients.connections,
        connections_per_address: clients.per_address,
    }
}

pub fn audit(raw: Part<raw::Audit>, report: &mut Report) -> Option<AuditSpec> {
    let Placed { at, value } = raw.0?;
    let path = value.path.must("path", at, report)?.value.0;
    Some(AuditSpec { path })
}

fn bytes(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// `$STATE_DIRECTORY` (systemd may give several): what is to outlive the process.
pub fn state_dir() -> Option<PathBuf> {
    let given = std::env::var_os("STATE_DIRECTORY")?;
    let first = std::env::split_paths(&given).next()?;
    first.is_absolute().then_some(first)
}

/// `$RUNTIME_DIRECTORY` (systemd may give several, separated by `:`), else a folder of this user.
pub fn usual_runtime_dir() -> PathBuf {
    let given = std::env::var_os("RUNTIME_DIRECTORY");
    let first = given
        .as_ref()
        .and_then(|list| std::env::split_paths(list).next());
    if let Some(folder) = first.filter(|folder| folder.is_absolute()) {
        return folder;
    }
    let user = rustix::process::geteuid().as_raw();
    let of_session = PathBuf::from(format!("/run/user/{user}"));
    match of_session.is_dir() {
        true => of_session.join("berth"),
        false => PathBuf::from(format!("/tmp/berth-{user}")),
    }
}

fn share_of_memory(percent: u64) -> u64 {
    let limits = [physical_memory(), control_group_memory()];
    let memory = limits.into_iter().flatten().min().unwrap_or(UNKNOWN_MEMORY);
    memory / 100 * percent
}

fn physical_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least `memory.max` of this process's control group (version 2) and those above it.
fn control_group_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let limit = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join("memory.max")).ok()?;
        text.trim().parse().ok()
    };
    let own = root.join(own);
    let groups = own
        .ancestors()
        .take_while(|folder| folder.starts_with(root));
    groups.filter_map(limit).min()
}
