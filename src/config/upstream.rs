//! `upstreams:` and `credentials:`.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use globset::{GlobBuilder, GlobMatcher};
use schemars::{Schema, json_schema};

use super::field::{Fault, Leaf, List, Named, Node, Part, Placed, Slot};
use super::leaf::{Choice, NAME_FORM, Name, Text, is_name};
use super::policy::time;
use super::problem::{Place, Report, suggestion};
use super::secret::headers;
use super::{number, raw};
use crate::admission::Dialect;
use crate::edge::spec::{Auth, Http2, UpstreamSpec};
use crate::pool::{CredentialId, CredentialSpec, HeaderSource, ModelPatterns, SecretSource};

/// Most labels of one credential: each is a label of a metric.
const MAX_LABELS: usize = 8;
/// Longest glob, bytes; chosen, model names are below 100.
const MAX_GLOB: usize = 256;
/// Most globs in one list; chosen.
const MAX_GLOBS: usize = 256;

impl Choice for Dialect {
    const WORDS: &'static [(&'static str, Dialect)] = &[
        ("openai", Dialect::OpenAi),
        ("anthropic", Dialect::Anthropic),
    ];
}

impl Choice for Http2 {
    const WORDS: &'static [(&'static str, Http2)] = &[
        ("auto", Http2::Auto),
        ("never", Http2::Never),
        ("always", Http2::Always),
    ];
}

/// The upstreams by name, and the names of those that are written but not usable.
pub struct Upstreams {
    pub usable: BTreeMap<String, UpstreamSpec>,
    pub named: BTreeSet<String>,
}

pub fn upstreams(raw: Named<Part<raw::Upstream>>, report: &mut Report) -> Upstreams {
    let mut all = Upstreams {
        usable: BTreeMap::new(),
        named: BTreeSet::new(),
    };
    for (key, part) in raw.entries() {
        if !is_name(&key.value) {
            report.problem(key.at, format!("an upstream's name is {NAME_FORM}"));
            continue;
        }
        all.named.insert(key.value.clone());
        if let Some(spec) = upstream(key.at, part.or_empty().value, report) {
            all.usable.insert(key.value, spec);
        }
    }
    if all.named.is_empty() {
        let text = "`upstreams` is missing or empty; add at least one, such as \
                    `openai: { base_url: https://api.openai.com/v1 }`";
        report.problem(Place::START, text);
    }
    all
}

fn upstream(at: Place, raw: raw::Upstream, report: &mut Report) -> Option<UpstreamSpec> {
    let dialect = raw.dialect.or(Dialect::OpenAi, report);
    let auth = raw.auth.or(usual_auth(dialect), report);
    let headers = headers(raw.headers, Some(&auth), report)
        .into_iter()
        .map(|(name, literal)| (name, literal.0))
        .collect();
    let connect_timeout = time("connect_timeout", raw.connect_timeout, 5, report);
    let header_timeout = time("header_timeout", raw.header_timeout, 120, report);
    let non_stream_timeout = time("non_stream_timeout", raw.non_stream_timeout, 600, report);
    let idle_timeout = time("idle_timeout", raw.idle_timeout, 300, report);
    Some(UpstreamSpec {
        http2: raw.http2.or(Http2::Auto, report),
        ca_file: raw.ca_file.take(report).map(|placed| placed.value.0),
        proxy: raw.proxy.take(report).map(|placed| placed.value),
        base_url: raw.base_url.must("base_url", at, report)?.value,
        auth,
        dialect,
        headers,
        connect_timeout,
        header_timeout,
        non_stream_timeout,
        idle_timeout,
    })
}

fn usual_auth(dialect: Dialect) -> Auth {
    match dialect {
        Dialect::OpenAi => Auth::Bearer,
        Dialect::Anthropic => Auth::Header(http::HeaderName::from_static("x-api-key")),
    }
}

/// The credentials, their places, and the ids of those that are written but not usable.
pub struct Credentials {
    pub usable: Vec<Placed<CredentialSpec>>,
    pub named: BTreeSet<String>,
}

pub fn credentials(
    raw: List<Part<raw::Credential>>,
    upstreams: &Upstreams,
    report: &mut Report,
) -> Credentials {
    let mut all = Credentials {
        usable: Vec::new(),
        named: BTreeSet::new(),
    };
    let Placed { at, value: parts } = raw.0.unwrap_or(Placed {
        at: Place::START,
        value: Vec::new(),
    });
    if parts.is_empty() {
        let text = "`credentials` is missing or empty; add at least one, such as \
                    `- { id: main, upstream: openai, secret: { env: OPENAI_API_KEY } }`";
        report.problem(at, text);
    }
    for part in parts {
        let Placed { at, value } = part.or_empty();
        if let Some(spec) = credential(at, value, upstreams, &mut all.named, report) {
            all.usable.push(Placed { at, value: spec });
        }
    }
    all
}

fn credential(
    section: Place,
    raw: raw::Credential,
    upstreams: &Upstreams,
    named: &mut BTreeSet<String>,
    report: &mut Report,
) -> Option<CredentialSpec> {
    let id = raw.id.must("id", section, report);
    if let Some(Placed { at, value }) = &id
        && !named.insert(value.0.clone())
    {
        let text = format!(
            "the id `{}` is already taken above; ids are unique",
            value.0
        );
        report.problem(*at, text);
    }
    let upstream = raw.upstream.must("upstream", section, report);
    let upstream = upstream.and_then(|placed| known_upstream(placed, upstreams, report));
    let auth = upstream
        .as_ref()
        .and_then(|name| upstreams.usable.get(name))
        .map(|spec| &spec.auth);
    let secret = raw.secret.must("secret", section, report);
    if let Some(Placed { at, value }) = &secret {
        warn_if_absent(*at, value, report);
    }
    let headers = headers(raw.headers, auth, report);
    for (_, value) in &headers {
        if let HeaderSource::Secret(source) = value {
            warn_if_absent(section, source, report);
        }
    }
    let models = models(raw.models, report);
    let weight = number("weight", raw.weight, 1, 1..=1000, report);
    let tier = number("tier", raw.tier, 0, 0..=100, report);
    let in_flight = number(
        "max_in_flight",
        raw.max_in_flight,
        64,
        0..=1_000_000,
        report,
    );
    let realm = raw.realm.take(report).map(|placed| placed.value.0);
    let labels = labels(raw.labels, report);
    let upstream = upstream?;
    Some(CredentialSpec {
        id: CredentialId::new(&id?.value.0)?,
        realm: realm.unwrap_or_else(|| upstream.clone()),
        upstream,
        secret: secret?.value,
        models: ModelPatterns::new(models),
        weight: NonZeroU32::new(weight).unwrap_or(NonZeroU32::MIN),
        tier,
        max_in_flight: NonZeroU32::new(in_flight),
        headers,
        labels,
    })
}

fn known_upstream(
    name: Placed<Name>,
    upstreams: &Upstreams,
    report: &mut Report,
) -> Option<String> {
    let Placed { at, value } = name;
    if upstreams.named.contains(&value.0) {
        return Some(value.0);
    }
    let near = suggestion(&value.0, upstreams.named.iter().map(String::as_str));
    report.problem(
        at,
        format!("no upstream under `upstreams` has this name{near}"),
    );
    None
}

/// Of a file that the configuration names.
pub const NOT_SEEN: &str = "this file does not exist or cannot be seen by this user; berth must be able to read it when it starts";

/// Says what cannot be found now. A service may be given it later, so it is no error.
pub fn warn_if_absent(at: Place, source: &SecretSource, report: &mut Report) {
    match source {
        SecretSource::Env(name) if std::env::var_os(name).is_none() => report.warning(
            at,
            "this environment variable is not set here; the service must set it, or berth will not start",
        ),
        SecretSource::File(path) if !path.exists() => report.warning(at, NOT_SEEN),
        SecretSource::Env(_) | SecretSource::File(_) | SecretSource::Systemd(_) => {}
    }
}

/// A glob over model names, `!` excludes.
pub struct ModelGlob(bool, GlobMatcher);

impl Leaf for ModelGlob {
    fn read(node: Node) -> Result<ModelGlob, Fault> {
        let text = Text::read(node)?.0;
        let (include, pattern) = match text.strip_prefix('!') {
            Some(rest) => (false, rest),
            None => (true, text.as_str()),
        };
        Ok(ModelGlob(include, glob(pattern)?.compile_matcher()))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^!?.{1,256}$" })
    }
}

/// A glob in which `*` crosses `/`.
pub fn glob(pattern: &str) -> Result<globset::Glob, Fault> {
    if pattern.is_empty() || pattern.len() > MAX_GLOB {
        return Err(format!("a pattern is 1 to {MAX_GLOB} bytes long").into());
    }
    GlobBuilder::new(pattern)
        .literal_separator(false)
        .build()
        .map_err(|_| {
            "the pattern's brackets do not fit together; `*`, `?`, `[ab]` and `{a,b}` are patterns"
                .into()
        })
}

/// The usable items of a list of globs; a written list is neither empty nor endless.
pub fn globs<T>(raw: List<Slot<T>>, report: &mut Report) -> Option<Vec<T>> {
    let Placed { at, value } = raw.0?;
    if value.is_empty() {
        report.problem(
            at,
            "an empty list opens nothing; remove the key or write `[\"*\"]`",
        );
    }
    if value.len() > MAX_GLOBS {
        report.problem(at, format!("a list has at most {MAX_GLOBS} patterns"));
    }
    let read = |slot: Slot<T>| slot.take(report).map(|placed| placed.value);
    Some(value.into_iter().filter_map(read).collect())
}

/// Globs over model names; `*` first where only some are excluded.
pub fn models(raw: List<Slot<ModelGlob>>, report: &mut Report) -> Vec<(bool, GlobMatcher)> {
    let written = globs(raw, report).unwrap_or_default();
    let mut patterns: Vec<_> = written.into_iter().map(|g| (g.0, g.1)).collect();
    if patterns.iter().all(|(include, _)| !include)
        && let Ok(every) = glob("*")
    {
        patterns.insert(0, (true, every.compile_matcher()));
    }
    patterns
}

/// A label's value.
pub struct Label(String);

impl Leaf for Label {
    fn read(node: Node) -> Result<Label, Fault> {
        match Text::read(node)?.0 {
            text if text.chars().count() <= 64 => Ok(Label(text)),
            _ => Err("a label's value is at most 64 characters".into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": 64 })
    }
}

fn labels(raw: Named<Slot<Label>>, report: &mut Report) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for (n, (key, slot)) in raw.entries().into_iter().enumerate() {
        if n == MAX_LABELS {
            report.problem(
                key.at,
                format!("a credential has at most {MAX_LABELS} labels"),
            );
        }
        if !is_label(&key.value) {
            let text =
                "a label's key is 1 to 32 of the characters a-z, 0-9 and `_`, not a digit first";
            report.problem(key.at, text);
        }
        if let Some(label) = slot.take(report) {
            labels.insert(key.value, label.value.0);
        }
    }
    labels
}

fn is_label(key: &str) -> bool {
    (1..=32).contains(&key.len())
        && !key.starts_with(|c: char| c.is_ascii_digit())
        && key
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}
