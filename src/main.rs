//! The command line.
//!
//! Exit codes: 0 good, 1 it could not be done, 2 the configuration or the command line is bad.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use berth::config;
use berth::edge::serve::{first_look_up, serve};
use berth::start::assemble;
use berth::{probe, tell};
use clap::{Parser, Subcommand};

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
    /// No configuration, no keys: meet every kind of refusal, and see what a client sees.
    Demo {
        /// Go on serving afterwards, and print the URLs.
        #[arg(long)]
        serve: bool,
    },
    /// The simulated upstream alone, scripted per credential.
    Sim {
        /// Where to listen.
        #[arg(long, value_name = "ADDR")]
        listen: SocketAddr,
        /// The script; without one, one key per refusal and fault.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },
    /// The story of one request, attempt by attempt, from the audit log.
    Explain(tell::explain::Options),
    /// Lines of the audit log: some of them, or summed up.
    Audit(tell::audit::Options),
    /// The swap experiment by hand: the same small request through each credential.
    Probe(probe::Options),
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
        Command::Demo { serve } => match berth::demo::run(serve) {
            Ok(code) => return code,
            Err(problem) => Err(problem),
        },
        Command::Sim { listen, program } => sim(listen, program.as_deref()),
        Command::Explain(options) => return tell::explain::run(&options),
        Command::Audit(options) => return tell::audit::run(&options),
        Command::Probe(options) => return probe::run(&options),
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
    berth::observe::log::start();
    let config = match config::load(path) {
        Ok(config) => config,
        Err(problems) => {
            eprintln!("{problems}");
            std::process::exit(2);
        }
    };
    let (edge, serving) = assemble(config)?;
    first_look_up(&edge, Duration::from_secs(5));
    serve(edge, &serving).map_err(|e| e.to_string())
}

fn sim(listen: SocketAddr, program: Option<&Path>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    runtime.block_on(berth::sim::serve(listen, program))
}
