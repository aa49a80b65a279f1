//! The group of each credential that a configuration knows, for commands that need no running berth.
//!
//! The route of a token is the only thing for which a secret is needed here. One that cannot be read makes
//! a group of its own instead of an error: the log is often read by somebody else than berth's user.

use std::collections::BTreeMap;

use crate::config::Config;
pub use crate::observe::groups::Kind;
use crate::observe::groups::NO_ROUTE;
use crate::pool::{CredentialSpec, TokenRoute, read_secret};
use crate::terminal::Failure;

/// The group of each credential, by its name.
pub type Groups = BTreeMap<String, String>;

impl Kind {
    /// The group of every credential of `config`.
    ///
    /// # Errors
    ///
    /// No credential has the label.
    pub fn groups(&self, config: &Config) -> Result<Groups, Failure> {
        let labels = config.credentials.iter().flat_map(|it| it.labels.keys());
        if let Some(problem) = self.problem(labels) {
            return Err(Failure::Asked(problem));
        }
        let of = |it: &CredentialSpec| (it.id.to_string(), self.group_of(it));
        Ok(config.credentials.iter().map(of).collect())
    }

    fn group_of(&self, credential: &CredentialSpec) -> String {
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
                    None => NO_ROUTE.to_owned(),
                },
            },
        }
    }
}
