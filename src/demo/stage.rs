//! The stage: a simulated upstream, an edge in front of it, and the audit log to read afterwards.
//!
//! The configuration is written out as YAML and goes through the same door as an operator's. The
//! secrets are files in a private folder, which is removed at the end, whatever that is; the demo's
//! keys open nothing but the simulator.

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::service::Serving;
use crate::sim::{Program, Shape, Sim, Step, Then};

use super::cases::{Behaviour, Case, Dialect};

/// How long berth waits for the head of an answer from a credential that is to hang. Chosen: long
/// enough for a busy machine, short enough to watch.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an answer may be held. Chosen likewise; every case is judged under it.
pub const HOLD_TIME: Duration = Duration::from_secs(3);

/// How long the edge may take until it answers.
const START: Duration = Duration::from_secs(10);

/// What a newcomer expects; each is replaced by a free port where it is taken.
const CLIENTS_AT: u16 = 8080;
const ADMIN_AT: u16 = 9090;
const SIM_AT: u16 = 4010;

/// Everything that serves.
pub struct Stage {
    edge: SocketAddr,
    admin: SocketAddr,
    sim: Sim,
    /// Holds the audit log; removed when dropped.
    folder: TempDir,
}

impl Stage {
    /// Starts the simulator and the edge. `known_ports` asks for the ports that a newcomer expects.
    ///
    /// # Errors
    ///
    /// What could not be started, and why.
    pub async fn set(cases: &[Case], known_ports: bool) -> Result<Stage, String> {
        let at = |port| if known_ports { port } else { 0 };
        let sim_at = free_port(at(SIM_AT)).map_err(no_port)?;
        let sim = Sim::start(sim_at, program(cases))
            .map_err(|e| format!("the simulated upstream cannot listen on {sim_at}: {e}"))?;
        let folder = TempDir::with_prefix("berth-demo-")
            .map_err(|e| format!("a temporary folder cannot be made: {e}"))?;
        let edge = free_port(at(CLIENTS_AT)).map_err(no_port)?;
        let admin = free_port(at(ADMIN_AT)).map_err(no_port)?;
        let nobody = free_port(0).map_err(no_port)?;
        let yaml = configuration(cases, folder.path(), edge, admin, sim.addr(), nobody)
            .map_err(|e| format!("{}: {e}", folder.path().display()))?;
        let stage = Stage {
            edge,
            admin,
            sim,
            folder,
        };
        let config = crate::config::parse("the demo's configuration", &yaml)
            .map_err(|problems| problems.to_string())?;
        let (edge, serving) = crate::start::assemble(config)?;
        stage.serve(edge, serving).await?;
        Ok(stage)
    }

    /// Where clients connect.
    pub fn edge(&self) -> SocketAddr {
        self.edge
    }

    /// Where operators connect.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The simulator.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// The audit log.
    pub fn audit(&self) -> PathBuf {
        audit(self.folder.path())
    }

    /// Ends the simulator and removes the folder; the edge ends with the process.
    pub async fn strike(self) {
        self.sim.stop().await;
    }

    /// Serves on a thread of its own, until the process ends, and waits for the first answer.
    async fn serve(
        &self,
        edge: Arc<crate::edge::state::Edge>,
        serving: Serving,
    ) -> Result<(), String> {
        let (failed, mut failure) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("edge".to_owned())
            .spawn(move || {
                crate::edge::serve::first_look_up(&edge, START);
                match crate::service::open(&edge, &serving) {
                    // The doors stay open until the process ends.
                    Ok(_doors) => loop {
                        std::thread::park();
                    },
                    // Nobody listens any more where the demo is over.
                    Err(refusal) => drop(failed.send(refusal.to_string())),
                }
            })
            .map_err(|e| format!("the edge cannot be started: {e}"))?;
        let answers = async {
            // A port that refuses tells nothing when it will not: it has to be asked again.
            while !super::client::lives(self.edge).await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            answered = tokio::time::timeout(START, answers) => {
                answered.map_err(|_| format!("the edge does not answer on {}", self.edge))
            }
            Ok(why) = &mut failure => Err(why),
        }
    }
}

/// The key that opens one credential of the simulator.
fn key(id: &str) -> String {
    format!("demo-{id}")
}

fn audit(folder: &Path) -> PathBuf {
    folder.join("audit.jsonl")
}

/// Every case in every dialect, its number and what each credential does.
fn scenes(cases: &[Case]) -> impl Iterator<Item = (&Case, Dialect, usize, &Behaviour)> {
    cases.iter().flat_map(|case| {
        Dialect::ALL.into_iter().flat_map(move |dialect| {
            let credentials = case.credentials.iter().enumerate();
            credentials.map(move |(n, behaviour)| (case, dialect, n, behaviour))
        })
    })
}

/// What the simulator's credentials do: those of the cases, and three to play with.
fn program(cases: &[Case]) -> Program {
    let mut program = Program::default();
    for (case, dialect, n, behaviour) in scenes(cases) {
        let id = case.credential(dialect, n);
        let step = match behaviour {
            Behaviour::Step(step) | Behaviour::Impatient(step) => step.clone(),
            Behaviour::Nobody => Step::admit(),
        };
        program = program.with(&key(&id), &id, [step], Then::Last);
    }
    for dialect in ["openai", "anthropic"] {
        for (name, steps) in play() {
            let id = format!("play-{dialect}-{name}");
            program = program.with(&key(&id), &id, steps, Then::Cycle);
        }
    }
    program
}

/// The credentials of `--serve`: two that refuse now and then, and one that never does.
fn play() -> [(char, Vec<Step>); 3] {
    [
        ('a', vec![Step::refuse(Shape::Sse), Step::admit()]),
        ('b', vec![Step::admit(), Step::refuse(Shape::Http503)]),
        ('c', vec![Step::admit()]),
    ]
}

fn configuration(
    cases: &[Case],
    folder: &Path,
    edge: SocketAddr,
    admin: SocketAddr,
    sim: SocketAddr,
    nobody: SocketAddr,
) -> Result<String, io::Error> {
    let mut credentials = String::new();
    let mut routes = String::new();
    let mut add = |id: &str, upstream: &str| -> Result<(), io::Error> {
        let file = folder.join(id);
        std::fs::write(&file, key(id))?;
        let file = quoted(&file);
        let entry =
            format!("  - {{ id: {id}, upstream: {upstream}, secret: {{ file: {file} }} }}\n");
        credentials.push_str(&entry);
        Ok(())
    };
    let mut route = |prefix: &str, ids: &str| {
        let entry = format!(
            "  - {{ path_prefix: {prefix}, credentials: [{ids}], balance: fill_first, affinity: {{ enabled: false }} }}\n"
        );
        routes.push_str(&entry);
    };
    for case in cases {
        for dialect in Dialect::ALL {
            let mut ids = Vec::new();
            for (n, behaviour) in case.credentials.iter().enumerate() {
                let id = case.credential(dialect, n);
                let kind = match behaviour {
                    Behaviour::Step(_) => "",
                    Behaviour::Impatient(_) => "-impatient",
                    Behaviour::Nobody => "-nobody",
                };
                add(&id, &format!("{}{kind}", api(dialect)))?;
                ids.push(id);
            }
            route(&case.prefix(dialect), &ids.join(", "));
        }
    }
    for (api, prefix) in [("openai", "/v1"), ("anthropic", "/anthropic/v1")] {
        let ids = play().map(|(name, _)| format!("play-{api}-{name}"));
        for id in &ids {
            add(id, api)?;
        }
        route(prefix, &ids.join(", "));
    }
    let mut upstreams = String::new();
    for api in ["openai", "anthropic"] {
        let times = format!("dialect: {api}, connect_timeout: 2s, idle_timeout: 10s");
        let head = HEADER_TIMEOUT.as_millis();
        // Writing to a string does not fail.
        let _ = write!(
            upstreams,
            "  {api}: {{ base_url: http://{sim}/v1, {times} }}\n  \
             {api}-impatient: {{ base_url: http://{sim}/v1, {times}, header_timeout: {head}ms }}\n  \
             {api}-nobody: {{ base_url: http://{nobody}/v1, {times} }}\n"
        );
    }
    let hold = HOLD_TIME.as_millis();
    Ok(format!(
        "listeners: [{{ address: {edge:?} }}]\n\
         process: {{ threads: 2, stop_timeout: 1s, runtime_dir: {run} }}\n\
         admin: {{ address: {admin:?} }}\n\
         upstreams:\n{upstreams}\
         credentials:\n{credentials}\
         routes:\n{routes}\
         admission: {{ hold: {{ max_time: {hold}ms, request_max_time: 30s }} }}\n\
         disclose: true\n\
         audit: {{ path: {audit} }}\n",
        run = quoted(folder),
        audit = quoted(&audit(folder)),
    ))
}

fn api(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Responses | Dialect::Chat => "openai",
        Dialect::Messages => "anthropic",
    }
}

/// A path as YAML text: JSON's strings are YAML's too.
fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

/// A port of this machine that is free now: `wanted`, or another one where that is taken or 0.
fn free_port(wanted: u16) -> io::Result<SocketAddr> {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.local_addr();
    bind(wanted).or_else(|_| bind(0))
}

fn no_port(error: io::Error) -> String {
    format!("no port of 127.0.0.1 can be had: {error}")
}
