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
use std::time::SystemTime;

use berth::admission::day::Day;
use berth::admission::rules::Rules;
use berth::config;
use berth::observe::groups::Kind;
use berth::observe::log::last_words;
use berth::operator::clients;
use berth::operator::rules::{Hits, table};
use berth::operator::status::{self, Telling, Whom};
use berth::service::{self, Haste, Place, Refusal};
use berth::{probe, tell};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tikv_jemallocator::Jemalloc;

/// Gives back what a burst of streams took; glibc's keeps it. See `docs/decisions/0003-allocator.md`.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

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
        /// The standard input leads to a process to take over from.
        #[arg(long, hide = true)]
        take_over: bool,
    },
    /// Hand over to a fresh process: new configuration, and the new binary if it was replaced.
    Reload {
        /// The configuration.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Drain and stop every process that serves the configuration, and wait for that.
    Stop {
        /// The configuration.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Cut what still runs.
        #[arg(long)]
        now: bool,
    },
    /// Start the process that takes over. The serving process calls this.
    #[command(hide = true)]
    TakeOver {
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
    /// The keys of clients: who may ask, and how much.
    Client {
        #[command(subcommand)]
        command: clients::Command,
    },
    /// Print the JSON Schema of the configuration.
    Schema,
    /// No configuration, no keys: meet every kind of refusal, and see what a client sees.
    Demo {
        /// Go on serving afterwards, and print the URLs.
        #[arg(long)]
        serve: bool,
    },
    /// The admission rules in force, with source, expiry and last hit.
    Rules {
        /// The configuration; without one, the built-in table alone.
        #[arg(short, long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// The state of every credential and model of a running berth.
    Status {
        /// Its admin port; the token is read from BERTH_ADMIN_TOKEN.
        #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
        admin: String,
        /// Read the token from here instead.
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
        /// The berth that runs with this configuration: over its control socket, or its admin port.
        #[arg(short, long, value_name = "FILE", conflicts_with_all = ["admin", "token_file"])]
        config: Option<PathBuf>,
        /// Sum up by label:NAME, route (the host and iss claims of a token) or upstream.
        #[arg(long, value_name = "WHAT", value_parser = Kind::argument)]
        by: Option<Kind>,
        /// Go on, every two seconds, until Ctrl-C.
        #[arg(long)]
        watch: bool,
        /// The whole document instead of the table.
        #[arg(long, conflicts_with = "watch")]
        json: bool,
    },
    /// Write man pages and completions into a folder, as packages want them.
    #[command(hide = true)]
    Manual {
        /// The folder; made where it is not there.
        folder: PathBuf,
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
        Command::Run { config, take_over } => return run(&config, take_over),
        Command::Reload { config } => return reload(&config),
        Command::Stop { config, now } => return stop(&config, now),
        Command::TakeOver { config } => service::detach(&config).map_err(|e| e.to_string()),
        Command::Check { config } => return check(&config),
        Command::Client { command } => return client(&command),
        Command::Schema => print(&format!("{:#}\n", config::schema())),
        Command::Rules { config } => return rules(config.as_deref()),
        Command::Status {
            admin,
            token_file,
            config,
            by,
            watch,
            json,
        } => {
            let telling = match (watch, json) {
                (true, _) => Telling::Watch,
                (_, true) => Telling::Json,
                _ => Telling::Once,
            };
            match config {
                Some(config) => return status_of(&config, by, telling),
                None => status::run(&Whom::Url(&admin, token_file.as_deref()), by, telling),
            }
        }
        Command::Demo { serve } => match berth::demo::run(serve) {
            Ok(code) => return code,
            Err(problem) => Err(problem),
        },
        Command::Manual { folder } => {
            manual(&folder).map_err(|e| format!("{}: {e}", folder.display()))
        }
        Command::Sim { listen, program } => sim(listen, program.as_deref()),
        Command::Explain(options) => return tell::explain::run(&options),
        Command::Audit(options) => return tell::audit::run(&options),
        Command::Probe(options) => return probe::run(&options),
    };
    end(done)
}

fn end(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("berth: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> Result<(), String> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|e| e.to_string())
}

fn today() -> Day {
    Day::of(SystemTime::now())
}

fn check(path: &Path) -> ExitCode {
    match config::check_text(path, today()) {
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

fn client(command: &clients::Command) -> ExitCode {
    match clients::run(command) {
        Ok(text) => end(print(&text)),
        Err(clients::Fault::Configuration(problems)) => {
            eprintln!("{problems}");
            ExitCode::from(2)
        }
        Err(clients::Fault::Failed(why)) => end(Err(why)),
    }
}

fn rules(path: Option<&Path>) -> ExitCode {
    let Some(path) = path else {
        return end(print(&table(&Rules::default(), None, today())));
    };
    match config::load(path) {
        Ok(config) => {
            let hits = Hits::of_running(&config);
            if let Err(why) = &hits {
                eprintln!("berth: without hits: {why}");
            }
            end(print(&table(
                &config.policy.rules,
                hits.ok().as_ref(),
                today(),
            )))
        }
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::from(2)
        }
    }
}

fn status_of(path: &Path, by: Option<Kind>, telling: Telling) -> ExitCode {
    match config::load(path) {
        Ok(config) => end(status::run(&Whom::Configured(&config, path), by, telling)),
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::from(2)
        }
    }
}

fn run(path: &Path, take_over: bool) -> ExitCode {
    berth::observe::log::start();
    service::keep_private();
    let served = match take_over {
        false => service::run(path),
        true => service::take_over(path),
    };
    exit_code(served)
}

fn reload(path: &Path) -> ExitCode {
    exit_code(place(path).and_then(|place| {
        let served = service::client::reload(&place)?;
        println!("{served}");
        Ok(())
    }))
}

fn stop(path: &Path, now: bool) -> ExitCode {
    let haste = match now {
        true => Haste::Now,
        false => Haste::Stop,
    };
    // A service whose configuration was broken in the meantime must still stop.
    let place = Place::new(&config::runtime_dir(path), path);
    let stopped = service::client::stop(&place, haste).and_then(|count| {
        match (count, config::load(path)) {
            // Its process.runtime_dir may be another than was looked into, unless systemd says it.
            (0, Err(problems)) if std::env::var_os("RUNTIME_DIRECTORY").is_none() => {
                let folder = place.folder().display();
                return Err(Refusal::Failed(format!(
                    "nothing was found to stop in {folder}. The configuration cannot be read, so \
                     berth may be elsewhere: `systemctl stop berth`, or mend it:\n{problems}"
                )));
            }
            (0, _) => println!("nothing serves {}", path.display()),
            (count, _) => println!("{count} stopped"),
        }
        Ok(())
    });
    exit_code(stopped)
}

fn place(path: &Path) -> Result<Place, Refusal> {
    let config =
        config::load(path).map_err(|problems| Refusal::Configuration(problems.to_string()))?;
    Ok(Place::new(&config.process.runtime_dir, path))
}

fn exit_code(done: Result<(), Refusal>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Refusal::Configuration(problems)) => {
            last_words(&problems);
            ExitCode::from(2)
        }
        Err(Refusal::Failed(why)) => {
            last_words(&format!("berth: {why}"));
            ExitCode::FAILURE
        }
    }
}

/// What this command line says of itself, in the forms of `man` and of the shells.
fn manual(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "berth", folder)?;
    }
    Ok(())
}

fn sim(listen: SocketAddr, program: Option<&Path>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    runtime.block_on(berth::sim::serve(listen, program))
}
