//! What the operator said about a credential, correct by type. Built by `config`.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use globset::GlobMatcher;

/// The name of a credential: `[a-z0-9-]{1,64}`, the only name of it that reaches logs and metrics.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CredentialId(Arc<str>);

impl CredentialId {
    /// `None` unless `name` is `[a-z0-9-]{1,64}`.
    pub fn new(name: &str) -> Option<CredentialId> {
        let fits = (1..=64).contains(&name.len());
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        (fits && name.bytes().all(plain)).then(|| CredentialId(name.into()))
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a secret is kept. The secret itself is read by `pool`, never by `config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// An environment variable.
    Env(String),
    /// A file; re-read when it changes.
    File(PathBuf),
    /// A name below `$CREDENTIALS_DIRECTORY` (systemd's `LoadCredential=`).
    Systemd(String),
}

/// A header value that is written in the configuration or kept elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderSource {
    /// Written in the configuration.
    Literal(http::HeaderValue),
    /// Kept like a secret, and treated as one.
    Secret(SecretSource),
}

/// Which models a credential serves: globs, `!` excludes, the last match decides.
#[derive(Clone, Debug)]
pub struct ModelPatterns(Vec<(bool, GlobMatcher)>);

impl ModelPatterns {
    /// Patterns in the order written; `true` includes, `false` excludes.
    pub fn new(patterns: Vec<(bool, GlobMatcher)>) -> ModelPatterns {
        ModelPatterns(patterns)
    }

    /// The models that are written out.
    pub fn written_out(&self) -> impl Iterator<Item = &str> {
        let included = self.0.iter().filter(|(include, _)| *include);
        let patterns = included.map(|(_, glob)| glob.glob().glob());
        patterns.filter(|pattern| !pattern.contains(['*', '?', '[', '{', '\\']))
    }

    /// Whether `model` is served. A request without a model is served by every credential.
    pub fn serve(&self, model: Option<&str>) -> bool {
        let Some(model) = model else { return true };
        // Most credentials serve everything, and to say so needs no automaton.
        let matches = |glob: &GlobMatcher| glob.glob().glob() == "*" || glob.is_match(model);
        let mut patterns = self.0.iter().rev();
        let decides = patterns.find(|(_, glob)| matches(glob));
        decides.is_some_and(|(include, _)| *include)
    }
}

/// As written.
impl fmt::Display for ModelPatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (include, glob)) in self.0.iter().enumerate() {
            let (comma, not) = (
                if n > 0 { "," } else { "" },
                if *include { "" } else { "!" },
            );
            write!(f, "{comma}{not}{}", glob.glob())?;
        }
        Ok(())
    }
}

/// One credential as configured.
#[derive(Clone, Debug)]
pub struct CredentialSpec {
    /// Its name.
    pub id: CredentialId,
    /// The name of its upstream.
    pub upstream: String,
    /// Where its secret is kept.
    pub secret: SecretSource,
    /// The models it serves.
    pub models: ModelPatterns,
    /// Its share of the traffic within its tier.
    pub weight: NonZeroU32,
    /// Lower tiers are used first.
    pub tier: u32,
    /// Requests in flight at once; `None` is no limit.
    pub max_in_flight: Option<NonZeroU32>,
    /// Headers added to every request made with it.
    pub headers: Vec<(http::HeaderName, HeaderSource)>,
    /// State that an answer leaves behind is good in this realm only.
    pub realm: String,
    /// For people: grouping in status, audit and `berth_credential_info`.
    pub labels: BTreeMap<String, String>,
}

/// How a route spreads requests over ready credentials of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Balance {
    /// In turn, by weight.
    RoundRobin,
    /// The one with the fewest requests in flight for its weight.
    LeastInFlight,
    /// In the order listed in the route.
    FillFirst,
}
