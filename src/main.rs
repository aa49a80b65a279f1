//! The command line.
//!
//! Exit codes: 0 good, 1 it could not be done, 2 the configuration or the command line is bad.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth::config::{self, Config};
use berth::edge::serve::{Serving, first_look_up, serve};
use berth::edge::state::{Edge, Parts};
use berth::observe::audit::Audit;
use berth::observe::trail::Trail;
use berth::pool::read_secret;
use clap::{Parser, Subcommand};
use secrecy::ExposeSecret;

/// An edge load balancer for AI APIs that fails over before the first word.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve in the foreground.
    Run {
        /// The configuration.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Validate a configuration: `FILE:LINE:COL: what is wrong and how to mend it`.
    Check {
        /// The configuration.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Print the JSON Schema of the configuration.
    Schema,
    /// The simulated upstream alone, scripted per credential.
    Sim {
        /// Where to listen.
        #[arg(long, value_name = "ADDR")]
        listen: SocketAddr,
        /// The script; without one, one key per refusal and fault.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run { config } => run(&config),
        Command::Check { config } => return check(&config),
        Command::Schema => {
            let schema = format!("{:#}\n", config::schema());
            std::io::stdout()
                .write_all(schema.as_bytes())
                .map_err(|e| e.to_string())
        }
        Command::Sim { listen, program } => sim(listen, program.as_deref()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("berth: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn check(path: &Path) -> ExitCode {
    match config::check_text(path) {
        Ok(summary) => {
            for warning in summary.warnings.iter() {
                eprintln!("warning: {warning}");
            }
            println!(
                "{}: good ({} listeners, {} upstreams, {} credentials, {} routes)",
                path.display(),
                summary.listeners,
                summary.upstreams,
                summary.credentials,
                summary.routes
            );
            ExitCode::SUCCESS
        }
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::from(2)
        }
    }
}

fn run(path: &Path) -> Result<(), String> {
    let default = env_logger::Env::default().default_filter_or("info,pingora_core=warn");
    env_logger::Builder::from_env(default).init();
    let config = match config::load(path) {
        Ok(config) => config,
        Err(problems) => {
            eprintln!("{problems}");
            std::process::exit(2);
        }
    };
    let (edge, serving) = assemble(config)?;
    first_look_up(&edge, Duration::from_secs(5));
    for address in &serving.listeners {
        log::info!(
            "serving on http://{address}; admin on http://{}",
            serving.admin
        );
    }
    serve(edge, &serving).map_err(|e| e.to_string())
}

/// Puts the process together from its configuration.
fn assemble(config: Config) -> Result<(Arc<Edge>, Serving), String> {
    let now = Instant::now();
    let audit = match &config.audit {
        Some(spec) => Audit::to_file(spec).map_err(|e| e.to_string())?,
        None => Audit::to_log().map_err(|e| e.to_string())?,
    };
    let trail = Arc::new(Trail::new(audit, now).map_err(|e| e.to_string())?);
    let admin = config.admin.ok_or("the configuration has no admin port")?;
    let token = match &admin.token {
        None => None,
        Some(source) => {
            let secret = read_secret(source).map_err(|e| format!("admin.token: {e}"))?;
            Some(secret.expose_secret().as_bytes().to_vec())
        }
    };
    let warnings = config.warnings.iter().map(ToString::to_string).collect();
    let parts = Parts {
        upstreams: config.upstreams,
        credentials: config.credentials,
        routes: config.routes,
        policy: config.policy,
        limits: config.limits,
        disclose: config.disclose,
        warnings,
    };
    let edge = Edge::new(parts, trail, now).map_err(|e| e.to_string())?;
    let serving = Serving {
        listeners: config.listeners.iter().map(|l| l.address).collect(),
        admin: admin.address,
        token,
        threads: config.process.threads,
        stop_timeout: config.process.stop_timeout,
    };
    Ok((Arc::new(edge), serving))
}

fn sim(listen: SocketAddr, program: Option<&Path>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    runtime.block_on(berth::sim::serve(listen, program))
}
