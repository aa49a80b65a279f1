//! `clients:`, `clients_file:` and `insecure_options:`, and the file of clients itself.
//!
//! The file has the form of the list in the configuration. It may change while berth runs, so it is read
//! by functions of its own, and its problems are told with its own name and places.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};

use schemars::{Schema, json_schema};

use super::field::{Fault, Leaf, List, Node, Part, Placed, Slot};
use super::leaf::{Choice, Count, FilePath};
use super::problem::{Place, Problem, Problems, Report};
use super::process::state_dir;
use super::rules::Expiry;
use super::upstream::models;
use super::{number, raw, read_text, yaml};
use crate::admission::day::Day;
use crate::admission::policy::Mode;
use crate::clients::{ClientId, ClientSpec, KeyDigest, MAX_CLIENTS, NOT_COUNTED, NOT_KEPT};
use crate::edge::spec::Listener;
use crate::pool::ModelPatterns;

/// Who may ask.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Those of the configuration, in its order.
    pub listed: Vec<ClientSpec>,
    /// Where there are more.
    pub file: Option<PathBuf>,
}

/// A client of the file, and where it stands.
#[derive(Clone, Debug)]
pub struct FileClient {
    /// What it may.
    pub spec: ClientSpec,
    /// Where it begins.
    pub place: Place,
}

/// What an operator may want though it is insecure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsecureOption {
    /// A listener that others can reach, without clients.
    PublicListenerWithoutClients,
}

impl Choice for InsecureOption {
    const WORDS: &'static [(&'static str, InsecureOption)] = &[(
        "public_listener_without_clients",
        InsecureOption::PublicListenerWithoutClients,
    )];
}

impl Leaf for KeyDigest {
    fn read(node: Node) -> Result<KeyDigest, Fault> {
        let bad = "64 hexadecimal digits in quotes are expected here: the SHA-256 of the key, never the key \
                   itself; `berth client add` makes both";
        let Node::Text(text) = node else {
            return Err(bad.into());
        };
        let digest = KeyDigest::parse(&text).ok_or(bad)?;
        if digest == KeyDigest::of(b"") {
            return Err("this is the SHA-256 of nothing, and nothing is no key".into());
        }
        Ok(digest)
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9A-Fa-f]{64}$" })
    }
}

/// The clients of the configuration; `None` where nobody has to prove who it is. Also what is to be
/// said of a last day that is over, by that day.
pub fn clients(
    (list, file): (List<Part<raw::Client>>, Slot<FilePath>),
    report: &mut Report,
) -> (Option<Clients>, Vec<Expiry>) {
    let mut file = file.take(report);
    if let Some(Placed { at, value }) = &file {
        if !value.0.is_absolute() {
            report.problem(*at, "`clients_file` begins with `/`");
            file = None;
        } else if !value.0.exists() {
            let text = "this file does not exist or cannot be seen by this user; `berth client add` makes it, \
                        and berth must be able to read it when it starts";
            report.warning(*at, text);
        }
    }
    let mut expiries = Vec::new();
    let listed = match list.0 {
        None if file.is_none() => return (None, expiries),
        None => Vec::new(),
        Some(Placed { at, value }) => {
            if value.is_empty() && file.is_none() {
                let text = "an empty list lets nobody in; remove `clients` to let in everybody who reaches a \
                            loopback address, or add a client";
                report.problem(at, text);
            }
            let read = Reading::new(&[]).list(Placed { at, value }, report);
            expiries = read.iter().filter_map(|it| expiry(it, report)).collect();
            read.into_iter().map(|it| it.spec).collect()
        }
    };
    let file = file.map(|placed| placed.value.0);
    (Some(Clients { listed, file }), expiries)
}

/// The insecure options that are written.
pub fn insecure(
    raw: List<Slot<InsecureOption>>,
    report: &mut Report,
) -> Vec<Placed<InsecureOption>> {
    let written = raw.0.into_iter().flat_map(|list| list.value);
    written.filter_map(|slot| slot.take(report)).collect()
}

/// What is wrong with listeners that others can reach; `places` are theirs.
pub fn check_public(
    (listeners, places): (&[Listener], &[Place]),
    has_clients: bool,
    insecure: &[Placed<InsecureOption>],
    report: &mut Report,
) {
    let wanted = insecure
        .iter()
        .find(|it| it.value == InsecureOption::PublicListenerWithoutClients);
    let mut needed = false;
    for (listener, at) in listeners.iter().zip(places) {
        if listener.address.ip().is_loopback() {
            continue;
        }
        match (has_clients, wanted) {
            (false, None) => {
                let text = "a listener that others can reach needs `clients`: anyone could spend on your \
                            credentials. Add `clients_file` and `berth client add`, use a loopback address \
                            such as 127.0.0.1, or, where something in front checks clients, write \
                            `insecure_options: [public_listener_without_clients]`";
                report.problem(*at, text);
            }
            (false, Some(_)) => {
                needed = true;
                let text = "whoever reaches this listener spends on your credentials, as \
                            `insecure_options` says";
                report.warning(*at, text);
            }
            (true, _) if listener.tls.is_none() => {
                let text = "clients' keys, prompts and answers travel in the clear to this listener; give it \
                            `tls`, or see that only what ends TLS in front of it can reach it";
                report.warning(*at, text);
            }
            (true, _) => {}
        }
    }
    if let (Some(Placed { at, .. }), false) = (wanted, needed) {
        report.warning(
            *at,
            "`public_listener_without_clients` changes nothing here; remove it",
        );
    }
}

/// What is to be said of the file of clients, and of limits that cannot be kept.
///
/// # Errors
///
/// What is wrong with the file; nothing, where it is not there.
pub fn check(clients: &Clients, mode: Mode, today: Day) -> Result<Vec<Problem>, Problems> {
    let mut said = Vec::new();
    let mut limited = clients.listed.iter().any(|it| it.tokens_per_day.is_some());
    if let Some(file) = clients.file.as_ref().filter(|file| file.exists()) {
        let read = load_clients(file, &clients.listed)?;
        limited |= read.iter().any(|it| it.spec.tokens_per_day.is_some());
        let report = Report::new(&file.to_string_lossy());
        let expiries = read.iter().filter_map(|it| expiry(it, &report));
        let over = expiries.filter(|it| it.last < today);
        said.extend(over.map(|it| it.warning));
    }
    let report = Report::new("tokens_per_day");
    if limited && mode == Mode::Off {
        said.push(report.make(Place::START, NOT_COUNTED.to_owned()));
    }
    if limited && state_dir().is_none() {
        said.push(report.make(Place::START, NOT_KEPT.to_owned()));
    }
    Ok(said)
}

/// Reads the file of clients, beside those of the configuration.
///
/// # Errors
///
/// What is wrong with it, with its name and places.
pub fn load_clients(path: &Path, listed: &[ClientSpec]) -> Result<Vec<FileClient>, Problems> {
    // A pipe that nobody writes to would be waited for, for ever.
    if std::fs::metadata(path).is_ok_and(|it| !it.is_file()) {
        let text = "this is no regular file; give the path of a file that berth's user may read, or make it with \
                    `berth client add`";
        return Err(Report::new(&path.to_string_lossy()).fail(Place::START, text));
    }
    let text = read_text(path)?;
    parse_clients(&path.to_string_lossy(), &text, listed)
}

/// The same of a text.
///
/// # Errors
///
/// As [`load_clients`].
pub fn parse_clients(
    file_name: &str,
    text: &str,
    listed: &[ClientSpec],
) -> Result<Vec<FileClient>, Problems> {
    let (list, mut report) = yaml::read_clients(text, Report::new(file_name))?;
    let read = list.map_or_else(Vec::new, |list| {
        Reading::new(listed).list(list, &mut report)
    });
    Ok(report.finish(read)?.0)
}

/// Clients that are read, and what is taken by those before.
struct Reading<'a> {
    ids: BTreeSet<ClientId>,
    keys: BTreeMap<String, ClientId>,
    before: &'a [ClientSpec],
}

impl<'a> Reading<'a> {
    fn new(before: &'a [ClientSpec]) -> Reading<'a> {
        Reading {
            ids: before.iter().map(|it| it.id.clone()).collect(),
            keys: before
                .iter()
                .map(|it| (it.key.to_hex(), it.id.clone()))
                .collect(),
            before,
        }
    }

    fn list(
        mut self,
        list: Placed<Vec<Part<raw::Client>>>,
        report: &mut Report,
    ) -> Vec<FileClient> {
        if list.value.len() + self.before.len() > MAX_CLIENTS {
            report.problem(list.at, format!("more than {MAX_CLIENTS} clients"));
        }
        let parts = list.value.into_iter().take(MAX_CLIENTS);
        let read = parts.filter_map(|part| self.client(part.or_empty(), report));
        read.collect()
    }

    fn client(
        &mut self,
        Placed {
            at: place,
            value: raw,
        }: Placed<raw::Client>,
        report: &mut Report,
    ) -> Option<FileClient> {
        let id = raw.id.must("id", place, report);
        let key = raw.key_sha256.must("key_sha256", place, report);
        let minute = number(
            "requests_per_minute",
            raw.requests_per_minute,
            600,
            0..=1_000_000,
            report,
        );
        let in_flight = number(
            "max_in_flight",
            raw.max_in_flight,
            32,
            0..=1_000_000,
            report,
        );
        let models = models_of(raw.models, report);
        let tokens = raw.tokens_per_day.take(report).and_then(
            |Placed {
                 at,
                 value: Count(tokens),
             }| {
                if tokens == 0 {
                    report.problem(
                        at,
                        "`tokens_per_day` is at least 1; without the key there is no limit",
                    );
                }
                NonZeroU64::new(tokens)
            },
        );
        let expires = raw.expires.take(report).map(|placed| placed.value);
        let (id, key) = (id?, key?);
        let Some(name) = ClientId::new(&id.value.0) else {
            let text = "`none` and `other` are no names for a client: in the metrics they stand for requests without a \
                        key and for the rest of a list; take another name";
            report.problem(id.at, text);
            return None;
        };
        if !self.ids.insert(name.clone()) {
            let text =
                format!("the id `{name}` is already taken by another client; ids are unique");
            report.problem(id.at, text);
        }
        if let Some(other) = self.keys.insert(key.value.to_hex(), name.clone()) {
            let text =
                format!("the client `{other}` has the same key; give each client a key of its own");
            report.problem(key.at, text);
        }
        let spec = ClientSpec {
            id: name,
            key: key.value,
            requests_per_minute: NonZeroU32::new(minute),
            max_in_flight: NonZeroU32::new(in_flight),
            models,
            tokens_per_day: tokens,
            expires,
        };
        Some(FileClient { spec, place })
    }
}

fn expiry(client: &FileClient, report: &Report) -> Option<Expiry> {
    let last = client.spec.expires?;
    let text = format!(
        "the client `{}` has expired: its last day was {last}; remove it or move its end",
        client.spec.id
    );
    let warning = report.make(client.place, text);
    Some(Expiry { last, warning })
}

/// `None` where the list takes every model.
fn models_of(
    raw: List<Slot<super::upstream::ModelGlob>>,
    report: &mut Report,
) -> Option<ModelPatterns> {
    let patterns = ModelPatterns::new(models(raw, report));
    (patterns.to_string() != "*").then_some(patterns)
}
