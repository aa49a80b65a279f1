//! Credentials of one kind: by a label, by the route behind them, by their upstream.
//!
//! Refusals may be a matter of the account, the cohort, the region or the way in. Labels are the
//! operator's own words for these; the route of a token is read off the token itself
//! ([`crate::pool::TokenRoute`]), which is the only time that a secret is needed here. One that cannot
//! be read makes a group of its own instead of an error: the log is often read by somebody else than
//! berth's user.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Config;
use crate::pool::{CredentialSpec, TokenRoute, read_secret};
use crate::terminal::Failure;

/// What credentials are put together by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The value of this label.
    Label(String),
    /// The `host` and `iss` claims of a token.
    Route,
    /// The upstream.
    Upstream,
}

/// The group of each credential, by its name.
pub type Groups = BTreeMap<String, String>;

impl Kind {
    /// Reads `label:NAME`, `route` or `upstream`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Kind> {
        match text {
            "route" => Some(Kind::Route),
            "upstream" => Some(Kind::Upstream),
            _ => match text.strip_prefix("label:") {
                None | Some("") => None,
                Some(name) => Some(Kind::Label(name.to_owned())),
            },
        }
    }

    /// How the groups are called.
    pub fn name(&self) -> &str {
        match self {
            Kind::Label(name) => name,
            Kind::Route => "route",
            Kind::Upstream => "upstream",
        }
    }

    /// The group of every credential of `config`.
    ///
    /// # Errors
    ///
    /// No credential has the label.
    pub fn groups(&self, config: &Config) -> Result<Groups, Failure> {
        if let Kind::Label(name) = self {
            let labels = config.credentials.iter().flat_map(|it| it.labels.keys());
            let labels: BTreeSet<&str> = labels.map(String::as_str).collect();
            if !labels.contains(name.as_str()) {
                let known: Vec<&str> = labels.into_iter().collect();
                let known = match known.is_empty() {
                    true => "no credential has any: give them `labels`".to_owned(),
                    false => format!("there are: {}", known.join(", ")),
                };
                let problem = format!("no credential has the label `{name}`; {known}");
                return Err(Failure::Asked(problem));
            }
        }
        let of = |it: &CredentialSpec| (it.id.to_string(), self.group(it));
        Ok(config.credentials.iter().map(of).collect())
    }

    fn group(&self, credential: &CredentialSpec) -> String {
        match self {
            Kind::Label(name) => match credential.labels.get(name) {
                Some(value) => value.clone(),
                None => format!("no {name}"),
            },
            Kind::Upstream => credential.upstream.clone(),
            Kind::Route => match read_secret(&credential.secret) {
                Err(_) => "secret not readable here".to_owned(),
                Ok(secret) => match TokenRoute::of(&secret) {
                    Some(route) => route.to_string(),
                    None => "no route in the secret".to_owned(),
                },
            },
        }
    }
}
