//! `routes:`.

use std::collections::BTreeSet;
use std::time::Duration;

use globset::{Glob, GlobSetBuilder};
use schemars::{Schema, json_schema};

use super::fallback::fallback_models;
use super::field::{Fault, Leaf, List, Node, Part, Placed, Slot};
use super::leaf::{Choice, Name, Text};
use super::policy::time;
use super::problem::{Place, Report, suggestion};
use super::raw;
use super::upstream::{Credentials, Upstreams, glob, globs};
use crate::admission::Dialect;
use crate::edge::spec::{OpenPaths, RouteSpec, WebSocket};
use crate::pool::{Balance, CredentialId, ModelPatterns};

/// The prefix of the one route that a file without `routes` has.
const USUAL_PREFIX: &str = "/v1";

impl Choice for Balance {
    const WORDS: &'static [(&'static str, Balance)] = &[
        ("round_robin", Balance::RoundRobin),
        ("least_in_flight", Balance::LeastInFlight),
        ("fill_first", Balance::FillFirst),
    ];
}

impl Choice for WebSocket {
    const WORDS: &'static [(&'static str, WebSocket)] =
        &[("refuse", WebSocket::Refuse), ("proxy", WebSocket::Proxy)];
}

/// A path prefix without its trailing slash; `/` is the empty string.
pub struct Prefix(String);

impl Leaf for Prefix {
    fn read(node: Node) -> Result<Prefix, Fault> {
        let text = Text::read(node)?.0;
        if text == "/" {
            return Ok(Prefix(String::new()));
        }
        if !text.starts_with('/') {
            return Err("a path prefix begins with `/`".into());
        }
        if text.ends_with('/') {
            return Err("a path prefix has no `/` at its end; remove it".into());
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"/-._~".contains(&b);
        let dots = text.split('/').any(|segment| matches!(segment, "." | ".."));
        match text.contains("//") || dots || !text.bytes().all(plain) {
            true => Err(
                "a path prefix is letters, digits, `-`, `.`, `_`, `~` and single `/`, \
                         without `.` or `..` as a part, `%` or `?`"
                    .into(),
            ),
            false => Ok(Prefix(text)),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^(/|(/[A-Za-z0-9._~-]+)+)$" })
    }
}

/// A glob over the path below a prefix.
pub struct PathGlob(Glob);

impl Leaf for PathGlob {
    fn read(node: Node) -> Result<PathGlob, Fault> {
        let text = Text::read(node)?.0;
        Ok(PathGlob(glob(text.strip_prefix('/').unwrap_or(&text))?))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": 256 })
    }
}

pub fn routes(
    raw: List<Part<raw::Route>>,
    credentials: &Credentials,
    upstreams: &Upstreams,
    report: &mut Report,
) -> Vec<RouteSpec> {
    let known = Known::new(credentials, upstreams);
    let Some(Placed { at, value: parts }) = raw.0 else {
        let usual = raw::Route::default();
        let prefix = USUAL_PREFIX.to_owned();
        return vec![route(prefix, Place::START, usual, &known, report)];
    };
    if parts.is_empty() {
        let text =
            "an empty list serves nothing; remove `routes` for one route at `/v1`, or add one";
        report.problem(at, text);
    }
    let mut routes = Vec::new();
    let mut prefixes = BTreeSet::new();
    for part in parts {
        let Placed { at, value: mut raw } = part.or_empty();
        let prefix = std::mem::take(&mut raw.path_prefix).must("path_prefix", at, report);
        let (at, prefix) = prefix.map_or((at, None), |placed| (placed.at, Some(placed.value.0)));
        if let Some(prefix) = &prefix
            && !prefixes.insert(prefix.clone())
        {
            let text = "another route above has the same `path_prefix`; prefixes are unique";
            report.problem(at, text);
        }
        routes.push(route(prefix.unwrap_or_default(), at, raw, &known, report));
    }
    routes
}

fn route(
    path_prefix: String,
    at: Place,
    raw: raw::Route,
    known: &Known,
    report: &mut Report,
) -> RouteSpec {
    let affinity = raw.affinity.or_empty().value;
    let enabled = affinity.enabled.or(true, report);
    let ttl = time("affinity.ttl", affinity.ttl, 60 * 60, report);
    let credentials = known.members(at, raw.credentials, report);
    let serves = |model: &str| known.serve(&credentials, model);
    let fallback_models = fallback_models(raw.fallback_models, serves, report);
    RouteSpec {
        path_prefix,
        paths: paths(raw.paths, report),
        websocket: raw.websocket.or(WebSocket::Refuse, report),
        credentials,
        balance: raw.balance.or(Balance::LeastInFlight, report),
        affinity: enabled.then_some::<Duration>(ttl),
        fallback_models,
    }
}

fn paths(raw: List<Slot<PathGlob>>, report: &mut Report) -> OpenPaths {
    let at = raw.0.as_ref().map_or(Place::START, |placed| placed.at);
    let Some(globs) = globs(raw, report) else {
        return OpenPaths::Defaults;
    };
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        set.add(glob.0);
    }
    match set.build() {
        Ok(set) => OpenPaths::Globs(set),
        Err(_) => {
            report.problem(
                at,
                "these patterns are too large together; write fewer or shorter ones",
            );
            OpenPaths::Defaults
        }
    }
}

/// What a route may refer to.
struct Known<'a> {
    /// Every id in the order of the file, with its dialect where its upstream is usable.
    usable: Vec<(&'a CredentialId, Option<Dialect>)>,
    /// What each serves, in the same order.
    models: Vec<&'a ModelPatterns>,
    /// Ids that are written, usable or not.
    named: &'a BTreeSet<String>,
}

impl<'a> Known<'a> {
    fn new(credentials: &'a Credentials, upstreams: &Upstreams) -> Known<'a> {
        let dialect = |name: &str| upstreams.usable.get(name).map(|spec| spec.dialect);
        let usable = credentials.usable.iter();
        Known {
            usable: usable
                .map(|placed| (&placed.value.id, dialect(&placed.value.upstream)))
                .collect(),
            models: credentials
                .usable
                .iter()
                .map(|placed| &placed.value.models)
                .collect(),
            named: &credentials.named,
        }
    }

    /// Whether one of these credentials serves a model.
    fn serve(&self, credentials: &[CredentialId], model: &str) -> bool {
        let mut known = self.usable.iter().zip(&self.models);
        known.any(|((id, _), models)| credentials.contains(id) && models.serve(Some(model)))
    }

    fn members(
        &self,
        route: Place,
        raw: List<Slot<Name>>,
        report: &mut Report,
    ) -> Vec<CredentialId> {
        let mut one = OneDialect(None);
        let mut members: Vec<CredentialId> = Vec::new();
        let Some(Placed { at, value: slots }) = raw.0 else {
            for (id, dialect) in &self.usable {
                one.check(route, *dialect, report);
                members.push((*id).clone());
            }
            return members;
        };
        if slots.is_empty() {
            report.problem(
                at,
                "an empty list serves nothing; remove the key for all credentials",
            );
        }
        for slot in slots {
            let Some(Placed {
                at,
                value: Name(name),
            }) = slot.take(report)
            else {
                continue;
            };
            if members.iter().any(|id| id.as_str() == name) {
                report.problem(
                    at,
                    format!("`{name}` is listed twice in this route; keep one"),
                );
            } else if let Some((id, dialect)) = self.usable.iter().find(|k| k.0.as_str() == name) {
                one.check(at, *dialect, report);
                members.push((*id).clone());
            } else if !self.named.contains(&name) {
                let near = suggestion(&name, self.named.iter().map(String::as_str));
                report.problem(at, format!("no credential has this id{near}"));
            }
        }
        members
    }
}

/// Sees to it that a route speaks one dialect; complains once.
struct OneDialect(Option<(Dialect, bool)>);

impl OneDialect {
    fn check(&mut self, at: Place, dialect: Option<Dialect>, report: &mut Report) {
        let Some(dialect) = dialect else { return };
        let (first, told) = *self.0.get_or_insert((dialect, false));
        if first != dialect && !told {
            self.0 = Some((first, true));
            report.problem(
                at,
                "this route mixes the dialects openai and anthropic, whose paths and errors differ; \
                 make one route for each and list its `credentials`",
            );
        }
    }
}
