//! `limits.client_timeout`, `limits.connections` and `limits.connections_per_address`: how long clients
//! may take, and how many there may be on the open files that the machine allows.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::field::{Placed, Slot};
use super::number;
use super::problem::Report;

/// What clients may take of time and of open files.
pub struct Clients {
    pub timeout: Duration,
    pub connections: usize,
    pub per_address: usize,
}

/// Chosen: above the minute for which load balancers keep a connection to berth that they may use
/// again. It must be berth that waits longer.
const TIMEOUT: Duration = Duration::from_secs(75);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// Files that clients leave: sockets to listen on, audit, control socket, lookups, and ten to start a
/// successor. Chosen: measured were 30.
const SPARE_FILES: u64 = 64;

/// A connection may need another upstream, and leave a third one idle.
const FILES_EACH: u64 = 3;

/// Chosen: more than the ports of fifteen addresses.
const MOST_CONNECTIONS: u64 = 1_000_000;

/// Most connections that nobody asked for. Chosen: at 28 KiB for an idle one (measured) that is 448 MiB.
const USUAL_CONNECTIONS: u64 = 16 * 1024;

/// Most connections from one address that nobody asked for. Chosen: a campus behind one address fits.
const USUAL_PER_ADDRESS: usize = 1024;

pub fn clients(
    timeout: Slot<Duration>,
    connections: Slot<u64>,
    per_address: Slot<u64>,
    report: &mut Report,
) -> Clients {
    let timeout = match timeout.take(report) {
        Some(Placed { at, value }) => {
            if !(SHORTEST..=LONGEST).contains(&value) {
                report.problem(at, "`limits.client_timeout` is `1s` to `1h`");
            }
            value
        }
        None => TIMEOUT,
    };
    let files = open_files();
    if let Some((at, wanted)) = connections.peek() {
        let needed = wanted
            .saturating_mul(FILES_EACH)
            .saturating_add(SPARE_FILES);
        if needed > files {
            let text = format!(
                "{wanted} connections need {needed} open files, and {files} are allowed: raise \
                 `LimitNOFILE=` of the unit, or `ulimit -n`"
            );
            report.warning(at, text);
        }
    }
    let usual = usual_connections(files);
    let key = "limits.connections";
    let connections = number(key, connections, usual, 1..=MOST_CONNECTIONS, report);
    let default = USUAL_PER_ADDRESS.min(connections.div_ceil(2));
    let key = "limits.connections_per_address";
    Clients {
        timeout,
        connections,
        per_address: number(key, per_address, default, 0..=MOST_CONNECTIONS, report),
    }
}

fn usual_connections(files: u64) -> usize {
    let fit = files.saturating_sub(SPARE_FILES) / FILES_EACH;
    usize::try_from(fit.clamp(1, USUAL_CONNECTIONS)).unwrap_or(usize::MAX)
}

/// What `service` raises the limit to at the start.
fn open_files() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_files_for_all_that_they_bring_about() {
        for (files, expected) in [
            (0, 1),
            (80, 5),
            (1_024, 320),
            (4_096, 1_344),
            (1_048_576, 16_384),
            (u64::MAX, 16_384),
        ] {
            assert_eq!(usual_connections(files), expected, "{files}");
        }
    }
}
