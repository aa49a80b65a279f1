//! From text to the raw structs, with every complaint of the parser in our own words.
//!
//! The parser's own messages are not passed on unless they are fixed texts: they quote the offending
//! value, and the value may be a secret. Alias bombs and deep nesting are stopped by the parser's
//! budget; the numbers are far above any configuration that a person writes.

use std::path::PathBuf;

use serde::Deserialize;
use serde_saphyr::{Error, ExternalMessageSource, Options};

use super::field::{List, Part, Placed};
use super::problem::{Place, Problems, Report, is_plain, suggestion};
use super::raw::{Client, File};

/// The clients of a file, as they are written.
pub type ClientList = Placed<Vec<Part<Client>>>;

/// Largest configuration file, bytes; chosen: a thousand credentials need a quarter of it.
pub const MAX_FILE: usize = 1 << 20;

/// What is said of a larger one.
pub const TOO_LARGE: &str =
    "the file is larger than 1 MiB, which no configuration needs; is it the right file?";

pub fn read(text: &str, report: Report) -> Result<(File, Report), Problems> {
    if text.len() > MAX_FILE {
        return Err(report.fail(Place::START, TOO_LARGE));
    }
    match serde_saphyr::from_str_with_options::<Option<File>>(text, options()) {
        Ok(Some(file)) => Ok((file, report)),
        Ok(None) => Err(report.fail(
            Place::START,
            "the file is empty; at least `upstreams` and `credentials` are needed",
        )),
        Err(error) => {
            let place = error.location().map_or(Place::START, Place::from);
            Err(report.fail(place, explain(&error)))
        }
    }
}

/// A file of clients: the list, or nothing where the file says nothing.
pub fn read_clients(text: &str, report: Report) -> Result<(Option<ClientList>, Report), Problems> {
    if text.len() > MAX_FILE {
        return Err(report.fail(Place::START, TOO_LARGE));
    }
    match serde_saphyr::from_str_with_options::<Option<List<Part<Client>>>>(text, options()) {
        Ok(list) => Ok((list.and_then(|list| list.0), report)),
        Err(error) => {
            let place = error.location().map_or(Place::START, Place::from);
            Err(report.fail(place, explain(&error)))
        }
    }
}

/// `process.runtime_dir`, whatever else the file says. `None` where it is not there to be read.
pub fn runtime_dir(text: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct File {
        process: Process,
    }
    #[derive(Deserialize)]
    struct Process {
        runtime_dir: PathBuf,
    }
    if text.len() > MAX_FILE {
        return None;
    }
    let file: File = serde_saphyr::from_str_with_options(text, options()).ok()?;
    Some(file.process.runtime_dir).filter(|folder| folder.is_absolute())
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_events: 200_000,
            max_nodes: 50_000,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_merge_keys: 1_000,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
        // `off` is a word here (`mode: off`), not a boolean.
        strict_booleans: true,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    }
}

fn explain(error: &Error) -> String {
    match error {
        Error::AliasError { error, .. } | Error::WithSnippet { error, .. } => explain(error),
        Error::SerdeUnknownField {
            field, expected, ..
        } => unknown_key(field, expected),
        Error::DuplicateMappingKey { key, .. } => match key.as_deref().filter(|k| is_plain(k)) {
            Some(key) => format!("`{key}` is written twice here; keep one of the two"),
            None => "this key is written twice; keep one of the two".to_owned(),
        },
        Error::Unexpected { expected, .. } => wanted(expected),
        Error::ExternalMessage { source, msg, .. } => match source.as_ref() {
            ExternalMessageSource::Parser(_) => format!(
                "this is not valid YAML: {msg}; look at indentation, quotes and brackets here and above"
            ),
            _ => not_usable(),
        },
        Error::MultipleDocuments { .. } => {
            "a second document begins here; one file holds one configuration, remove `---`".into()
        }
        Error::UnknownAnchor { .. } => {
            "this alias (`*`) has no anchor (`&`) before it; a value that begins with `*` needs quotes"
                .into()
        }
        Error::NullIntoString { .. } => {
            "nothing is written here; give a value or remove the key".into()
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "this alias (`*`) refers to a value that contains it; write the value out".into()
        }
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "the file is too deep, too long or expands too many aliases; write values out instead"
                .into()
        }
        Error::MergeValueNotMapOrSeqOfMaps { .. } => {
            "`<<` merges mappings only; write the keys out instead".into()
        }
        Error::SerdeInvalidType { expected, .. } if expected.starts_with("struct") => {
            wanted("mapping start")
        }
        Error::SerdeInvalidType { expected, .. } if expected.starts_with("a sequence") => {
            wanted("sequence start")
        }
        _ => not_usable(),
    }
}

fn wanted(what: &str) -> String {
    match what {
        "mapping start" => "keys and values are expected here, as in `key: value`",
        "sequence start" => "a list is expected here, as in `[a, b]` or lines that begin with `- `",
        "string scalar" => "one word or value is expected here, not a list or keys",
        _ => return not_usable(),
    }
    .to_owned()
}

fn not_usable() -> String {
    "this value has a form that berth cannot use; see docs/configuration.md for this key".to_owned()
}

fn unknown_key(field: &str, expected: &[&str]) -> String {
    let named = match is_plain(field) {
        true => format!("`{field}` is not a key here"),
        false => "this is not a key here".to_owned(),
    };
    let near = suggestion(field, expected.iter().copied());
    if !near.is_empty() {
        return format!("{named}{near}");
    }
    let known: Vec<String> = expected.iter().map(|k| format!("`{k}`")).collect();
    format!("{named}; the keys are {}", known.join(", "))
}
