//! berth beside what people would use instead: one run, pair by pair, on loopback. `make bench`.
//!
//! ```text
//! field [WORD...]      only the measurements whose name is given; no document is written then
//! ```
//!
//! Load generator and upstream are threads of this process; the proxies are processes of their own,
//! started and ended here. They share the cores, which the document says. `BENCH_QUICK=1` does
//! everything once and briefly, to see that it works; its document stays below `target`.

mod answers;
mod bench;
mod client;
mod clock;
mod contenders;
mod figures;
mod load;
mod machine;
mod process;
mod report;
mod rows;
mod upstream;
mod wire;

use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bench::Bench;
use contenders::Place;
use report::Report;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use upstream::Upstream;

/// What can be measured by itself.
type Measurement = (&'static str, fn(&mut Bench));

const ALL: [Measurement; 10] = [
    ("requests", rows::saturation::requests),
    ("tls", rows::saturation::tls),
    ("events", rows::saturation::events),
    ("first-token", rows::latency::first_token),
    ("failover", rows::latency::failover),
    ("live", rows::memory::live),
    ("held", rows::memory::held),
    ("bodies", rows::bodies::measure),
    ("starting", rows::starting::measure),
    ("gateways", rows::gateways::measure),
];

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let quick = std::env::var_os("BENCH_QUICK").is_some_and(|it| !it.is_empty() && it != "0");
    let program = std::env::current_exe()?;
    let programs = program.parent().map(Path::to_path_buf);
    let programs = programs.ok_or_else(|| Error::other("no folder of programs"))?;
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let target = programs.parent().unwrap_or(&root).to_path_buf();
    // Two sockets here for each stream, and as many again in the proxy.
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, most)?;

    let upstream = Upstream::start()?;
    let mut bench = Bench {
        place: Place::new(target.join("bench"), programs, upstream.address)?,
        upstream,
        report: Report::default(),
        quick,
    };
    let began = Instant::now();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|it| it == name);
    for (name, measure) in ALL {
        if is_wanted(name) {
            eprintln!("== {name} ({:.0} s)", began.elapsed().as_secs_f64());
            measure(&mut bench);
        }
    }
    if is_wanted("pure") {
        rows::pure::measure(&mut bench, &target.join("criterion"));
    }
    if wanted.is_empty() {
        let document = match quick {
            true => bench.place.folder.join("performance.md"),
            false => root.join("docs/performance.md"),
        };
        let machine = machine::described(&bench.place, &root);
        bench.report.write(&document, &machine)?;
        let seconds = began.elapsed().as_secs_f64();
        eprintln!("== {} ({seconds:.0} s)", document.display());
    }
    Ok(())
}
