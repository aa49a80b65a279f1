//! From an operator's YAML to values that are correct by type.
//!
//! Everything that can be wrong with a configuration is found here, before a socket is bound, and is
//! said with file, line, column and the mend. Nothing unchecked leaves: the rest of berth gets
//! addresses, durations, globs and policies, never text to parse again.
//!
//! The way is: text -> [`yaml`] -> raw structs with places ([`raw`], [`field`]) -> specs (one module
//! per section), with one [`problem::Report`] that collects what is wrong on the way. Values are
//! checked all at once; only a wrong shape (an unknown key, a list where keys belong) ends the
//! reading at the first problem, since what stands below it cannot be understood.
//!
//! Secrets are named here and read elsewhere. Messages never repeat text of the file, except keys and
//! names that passed their check, because a value may be a secret in the wrong place.
//!
//! Why this YAML parser: `docs/decisions/0001-yaml-parser.md`. Every key: `docs/configuration.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::admission;
use crate::admission::day::Day;
use crate::edge::spec::{Limits, Listener, Process, RouteSpec, UpstreamSpec};
use crate::observe::spec::{AdminSpec, AuditSpec};
use crate::pool::CredentialSpec;

mod clients;
mod connections;
mod fallback;
mod field;
mod later;
mod leaf;
mod policy;
mod problem;
mod process;
mod raw;
mod route;
mod rules;
mod secret;
mod upstream;
mod url;
mod yaml;

#[cfg(test)]
mod tests;

pub use clients::{Clients, FileClient, load_clients, parse_clients};
pub use problem::{Place, Problem, Problems, suggestion};
pub use process::state_dir;

use field::{Placed, Slot};
use problem::Report;
use rules::Expiry;
use upstream::{Credentials, Upstreams};

/// A whole configuration, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The process itself.
    pub process: Process,
    /// Where clients connect; never empty.
    pub listeners: Vec<Listener>,
    /// The admin listener.
    pub admin: Option<AdminSpec>,
    /// By name; never empty.
    pub upstreams: BTreeMap<String, UpstreamSpec>,
    /// In the order of the file; never empty. Each one's upstream is in `upstreams`.
    pub credentials: Vec<CredentialSpec>,
    /// In the order of the file; never empty. Each one's credentials are in `credentials` and of one
    /// dialect.
    pub routes: Vec<RouteSpec>,
    /// The admission policy.
    pub policy: admission::Policy,
    /// Limits on clients and memory.
    pub limits: Limits,
    /// Whether answers tell attempts and credential.
    pub disclose: bool,
    /// The audit log.
    pub audit: Option<AuditSpec>,
    /// Who may ask; `None` is everybody who reaches a listener.
    pub clients: Option<Clients>,
    /// What an operator should know, though nothing is wrong.
    pub warnings: Vec<Problem>,
    expiries: Vec<Expiry>,
}

impl Config {
    /// Every model that is named, not only matched by a pattern.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let served = self
            .credentials
            .iter()
            .flat_map(|it| it.models.written_out());
        let fallbacks = self.routes.iter().flat_map(|it| &it.fallback_models);
        let fallbacks = fallbacks.flat_map(|(of, others)| others.iter().chain([of]));
        served.chain(fallbacks.map(String::as_str))
    }

    /// What is to be said of the rules and clients whose last day is over.
    pub fn expired(&self, today: Day) -> impl Iterator<Item = &Problem> {
        let over = self.expiries.iter().filter(move |it| it.last < today);
        over.map(|expiry| &expiry.warning)
    }
}

/// What `berth check` says of a good configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Listening addresses, the admin's not counted.
    pub listeners: usize,
    /// Upstreams.
    pub upstreams: usize,
    /// Credentials.
    pub credentials: usize,
    /// Routes.
    pub routes: usize,
    /// What an operator should know, though nothing is wrong.
    pub warnings: Vec<Problem>,
}

/// Reads and checks the configuration at `path`.
pub fn load(path: &Path) -> Result<Config, Problems> {
    parse(&path.to_string_lossy(), &read_text(path)?)
}

/// Checks the configuration `text`; `file_name` is for the messages.
pub fn parse(file_name: &str, text: &str) -> Result<Config, Problems> {
    let (file, mut report) = yaml::read(text, Report::new(file_name))?;
    let config = build(file, &mut report);
    let (config, warnings) = report.finish(config)?;
    Ok(Config { warnings, ..config })
}

/// What `berth check` needs: the counts and the warnings, or the problems.
pub fn check_text(path: &Path, today: Day) -> Result<Summary, Problems> {
    let config = load(path)?;
    let of_clients = match &config.clients {
        Some(clients) => clients::check(clients, config.policy.mode, today)?,
        None => Vec::new(),
    };
    Ok(Summary {
        warnings: config
            .warnings
            .iter()
            .chain(config.expired(today))
            .chain(&of_clients)
            .cloned()
            .collect(),
        listeners: config.listeners.len(),
        upstreams: config.upstreams.len(),
        credentials: config.credentials.len(),
        routes: config.routes.len(),
    })
}

/// `process.runtime_dir` of a file that may be bad in every other way.
pub fn runtime_dir(path: &Path) -> PathBuf {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    yaml::runtime_dir(&text).unwrap_or_else(process::usual_runtime_dir)
}

/// The JSON Schema of the file, for editors.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(raw::File).to_value()
}

/// Builds what can be built. If `report` has a problem afterwards, the result is not complete.
fn build(file: raw::File, report: &mut Report) -> Config {
    later::refuse(&file, report);
    let (listeners, places) = process::listeners(file.listeners, report);
    let (clients, of_clients) = clients::clients((file.clients, file.clients_file), report);
    let insecure = clients::insecure(file.insecure_options, report);
    let of_listeners = (&*listeners, &*places);
    clients::check_public(of_listeners, clients.is_some(), &insecure, report);
    let upstreams = upstream::upstreams(file.upstreams, report);
    let credentials = upstream::credentials(file.credentials, &upstreams, report);
    let routes = route::routes(file.routes, &credentials, &upstreams, report);
    warn_of_unused(&upstreams, &credentials, &routes, report);
    let mut admission = file.admission.or_empty().value;
    let mut rules = rules::rules(std::mem::take(&mut admission.rules), &upstreams, report);
    rules.expiries.extend(of_clients);
    let policy = policy::policy(admission, rules.usable, report);
    Config {
        process: process::process(file.process.or_empty().value, report),
        admin: Some(process::admin(file.admin, &listeners, report)),
        listeners,
        upstreams: upstreams.usable,
        credentials: credentials.usable.into_iter().map(|c| c.value).collect(),
        routes,
        policy,
        limits: process::limits(file.limits.or_empty().value, report),
        disclose: file.disclose.or(false, report),
        audit: process::audit(file.audit, report),
        clients,
        warnings: Vec::new(),
        expiries: rules.expiries,
    }
}

fn warn_of_unused(
    upstreams: &Upstreams,
    credentials: &Credentials,
    routes: &[RouteSpec],
    report: &mut Report,
) {
    let used: BTreeSet<_> = routes.iter().flat_map(|route| &route.credentials).collect();
    for Placed { at, value } in &credentials.usable {
        if !used.contains(&value.id) {
            report.warning(*at, format!("no route uses the credential `{}`", value.id));
        }
    }
    let used: BTreeSet<_> = credentials
        .usable
        .iter()
        .map(|c| &c.value.upstream)
        .collect();
    for name in upstreams.usable.keys().filter(|name| !used.contains(name)) {
        report.warning(
            Place::START,
            format!("no credential is of the upstream `{name}`"),
        );
    }
}

/// A whole number within `range`.
fn number<T: TryFrom<u64> + Copy>(
    key: &str,
    slot: Slot<u64>,
    default: T,
    range: RangeInclusive<u64>,
    report: &mut Report,
) -> T {
    let Some(Placed { at, value }) = slot.take(report) else {
        return default;
    };
    match T::try_from(value) {
        Ok(number) if range.contains(&value) => number,
        _ => {
            report.problem(
                at,
                format!("`{key}` is {} to {}", range.start(), range.end()),
            );
            default
        }
    }
}

fn read_text(path: &Path) -> Result<String, Problems> {
    let name = path.to_string_lossy();
    let fail = |text: String| Err(Report::new(&name).fail(Place::START, text));
    let mut bytes = Vec::new();
    // One byte more than allowed, so that the reader can tell; a pipe or device must not fill the memory.
    let most = yaml::MAX_FILE as u64 + 1;
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    if let Err(error) = read {
        return fail(format!(
            "the file cannot be read: {error}; give the path of a file that berth's user may read"
        ));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        // A file cut at the limit may end inside a character.
        Err(error) if error.as_bytes().len() > yaml::MAX_FILE => fail(yaml::TOO_LARGE.to_owned()),
        Err(error) => Err(Report::new(&name).fail(
            place_after(error.as_bytes(), error.utf8_error().valid_up_to()),
            "the file is not UTF-8 here; save it as UTF-8",
        )),
    }
}

/// The place of the byte at `index`; the bytes before it are text.
fn place_after(bytes: &[u8], index: usize) -> Place {
    let before = String::from_utf8_lossy(bytes.get(..index).unwrap_or_default());
    let last = before.rsplit('\n').next().unwrap_or_default();
    Place {
        line: before.matches('\n').count() as u64 + 1,
        column: last.chars().count() as u64 + 1,
    }
}
