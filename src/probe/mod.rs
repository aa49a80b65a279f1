//! `berth probe`: the swap experiment by hand.
//!
//! Is a refusal a matter of the account, the cohort, the region, the way in, or is the model full? The
//! same small request goes through each credential at the same time, and the answers stand side by side,
//! judged by the gate that judges clients' answers. It needs no running berth and tells it nothing.
//!
//! It costs what its requests cost, so it says how many and asks first. Bounded: the time that an answer
//! may be held, the bytes likewise, [`AT_ONCE`] requests at once. Never shown: a secret, or anything of a
//! token but its `host` and `iss`.
//!
//! The limit: one request each. A credential that refuses two of five admits three.
//!
//! | file | question it answers |
//! |---|---|
//! | `meaning` | what does it mean, in one sentence? |
//! | `table` | how is it told? |

mod meaning;
mod table;

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use clap::Args;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::admission::day::Day;
use crate::admission::rules::{Reading, Rules};
use crate::config::{self, Config};
use crate::edge::question::{Bounds, Question, Reply};
use crate::edge::upstream::Upstream;
use crate::pool::{CredentialId, CredentialSpec, Secrets, TokenRoute};
use crate::tell::{
    self,
    group::{Groups, Kind},
};
use crate::terminal::{self, Failure, Paint};

/// What was asked.
#[derive(Args, Debug)]
pub struct Options {
    /// The configuration.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// The model to ask for.
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Through this credential; may be given more than once. Default: all that serve the model.
    #[arg(long, value_name = "ID")]
    credential: Vec<String>,
    /// Compare label:NAME, route (the host and iss claims of a token) or upstream.
    #[arg(long, value_name = "WHAT", value_parser = Kind::argument)]
    by: Option<Kind>,
    /// Send without asking first.
    #[arg(long)]
    yes: bool,
}

/// A credential and what it said.
struct Row {
    credential: CredentialId,
    route: Option<TokenRoute>,
    reply: Reply,
}

/// One credential, ready to be asked.
struct Party {
    credential: CredentialId,
    upstream: Arc<Upstream>,
    secrets: Secrets,
}

/// Requests at once (chosen: a pool of a department is asked in one go, and few sockets are used).
const AT_ONCE: usize = 32;

/// Asks, and prints what was said.
pub fn run(options: &Options) -> ExitCode {
    match probe(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}

fn probe(options: &Options) -> Result<(), Failure> {
    let config = config::load(&options.config);
    let config = config.map_err(|problems| Failure::Asked(problems.to_string()))?;
    let chosen = choose(options, &config)?;
    let groups = match &options.by {
        Some(kind) => Some((kind, kind.groups(&config)?)),
        None => None,
    };
    let parties = parties(&chosen, &config)?;
    if !options.yes {
        consent(&parties, &options.model)?;
    }
    let bounds = Bounds {
        time: config.policy.hold.max_time,
        bytes: config.policy.hold.max_bytes,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::Undone(format!("its threads cannot be started: {e}")))?;
    let rows = runtime.block_on(ask(parties, &config.policy.rules, &options.model, bounds));
    runtime.shutdown_background();
    let groups: Option<(&str, &Groups)> = groups.as_ref().map(|(kind, it)| (kind.name(), it));
    let told = table::tell(&rows, groups, Paint::on(&io::stdout()));
    terminal::print(&told)
}

/// The credentials named, or those that serve the model.
fn choose<'a>(options: &Options, config: &'a Config) -> Result<Vec<&'a CredentialSpec>, Failure> {
    let all = &config.credentials;
    if options.credential.is_empty() {
        let model = Some(options.model.as_str());
        let serving: Vec<_> = all.iter().filter(|it| it.models.serve(model)).collect();
        return match serving.is_empty() {
            false => Ok(serving),
            true => Err(Failure::Asked(format!(
                "no credential of {} serves that model: see their `models`, or name some with \
                 --credential ID",
                options.config.display()
            ))),
        };
    }
    tell::known(&options.credential, config)?;
    let named = |it: &&CredentialSpec| options.credential.iter().any(|id| it.id.as_str() == id);
    Ok(all.iter().filter(named).collect())
}

/// Reads what is needed to ask; nothing is sent before all of it is there.
fn parties(chosen: &[&CredentialSpec], config: &Config) -> Result<Vec<Party>, Failure> {
    let mut upstreams = BTreeMap::new();
    for (name, spec) in &config.upstreams {
        let upstream = Upstream::new(name, spec.clone());
        let upstream = upstream.map_err(|error| Failure::Undone(error.to_string()))?;
        upstreams.insert(name.as_str(), Arc::new(upstream));
    }
    let ready = |spec: &&CredentialSpec| -> Result<Party, Failure> {
        let secrets = Secrets::read(spec).map_err(|error| {
            Failure::Undone(format!(
                "{error}; or leave it out: name the others with --credential ID. Nothing was sent"
            ))
        })?;
        let upstream = upstreams.get(spec.upstream.as_str());
        let upstream = upstream.ok_or_else(|| {
            Failure::Undone(format!("credential {}: its upstream is unknown", spec.id))
        })?;
        Ok(Party {
            credential: spec.id.clone(),
            upstream: Arc::clone(upstream),
            secrets,
        })
    };
    chosen.iter().map(ready).collect()
}

/// Asks the person at the terminal.
fn consent(parties: &[Party], model: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::Asked(format!(
            "this would send {} and there is no terminal to ask at: say --yes. Nothing was sent",
            requests(parties.len())
        )));
    }
    let names: Vec<&str> = parties.iter().map(|it| it.credential.as_str()).collect();
    let unheard = |e: io::Error| Failure::Undone(format!("the terminal cannot be read: {e}"));
    let mut err = io::stderr();
    let text = format!(
        "Through {}, for {model:?}.\nSend {}? [y/N] ",
        names.join(", "),
        requests(names.len())
    );
    err.write_all(text.as_bytes())
        .and_then(|()| err.flush())
        .map_err(unheard)?;
    let mut said = String::new();
    io::stdin().lock().read_line(&mut said).map_err(unheard)?;
    match said.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::Undone("nothing was sent".to_owned())),
    }
}

fn requests(count: usize) -> String {
    match count {
        1 => "1 request".to_owned(),
        _ => format!("{count} requests"),
    }
}

/// Asks all at once; the rows are in the order of the configuration.
async fn ask(parties: Vec<Party>, rules: &Arc<Rules>, model: &str, bounds: Bounds) -> Vec<Row> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut asked = JoinSet::new();
    for (place, party) in parties.into_iter().enumerate() {
        let reading = Reading {
            withheld: party.secrets.withheld().clone(),
            rules: rules.clone(),
            today: Day::of(SystemTime::now()),
            dialect: party.upstream.spec.dialect,
            upstream: party.upstream.name.clone(),
        };
        let question = Question::new(reading, model);
        let room = Arc::clone(&room);
        asked.spawn(async move {
            let _room = room.acquire().await;
            let reply = question.ask(&party.upstream, &party.secrets, bounds).await;
            let row = Row {
                credential: party.credential,
                route: party.secrets.token_route(),
                reply,
            };
            (place, row)
        });
    }
    let mut rows = asked.join_all().await;
    rows.sort_by_key(|(place, _)| *place);
    rows.into_iter().map(|(_, row)| row).collect()
}
