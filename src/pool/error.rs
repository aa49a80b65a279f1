//! Why a pool cannot be made.

use std::fmt;

use super::choice::{MAX_CREDENTIALS, MAX_WEIGHT};
use super::credential::CredentialSecretError;
use super::spec::CredentialId;

/// A pool cannot be made so.
#[derive(Debug)]
pub enum PoolError {
    /// More than [`MAX_CREDENTIALS`].
    TooMany(usize),
    /// Two credentials of one name.
    Duplicate(CredentialId),
    /// A weight above [`MAX_WEIGHT`].
    Weight(CredentialId, u32),
    /// Secrets that cannot be had, all of them.
    Secrets(Vec<CredentialSecretError>),
    /// A route names no credential.
    NoMembers(String),
    /// A route names a credential that does not exist.
    Unknown(String, CredentialId),
    /// A route names a credential twice.
    Repeated(String, CredentialId),
    /// pingora refused to build its selection.
    Balancer(Box<pingora::Error>),
    /// pingora waited while building its selection, which it does not do with a fixed list.
    BalancerWaits,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::TooMany(count) => write!(
                f,
                "{count} credentials: berth takes at most {MAX_CREDENTIALS}, so split them over \
                 several processes"
            ),
            PoolError::Duplicate(id) => {
                write!(f, "two credentials are named {id}: rename one of them")
            }
            PoolError::Weight(id, weight) => write!(
                f,
                "credential {id}: weight {weight} is above {MAX_WEIGHT}: only the ratio counts, so \
                 divide all weights alike"
            ),
            PoolError::Secrets(errors) => {
                for (count, error) in errors.iter().enumerate() {
                    f.write_str(if count == 0 { "" } else { "\n" })?;
                    error.fmt(f)?;
                }
                Ok(())
            }
            PoolError::NoMembers(route) => {
                write!(f, "route {route} has no credentials: list at least one")
            }
            PoolError::Unknown(route, id) => write!(
                f,
                "route {route} lists {id}, which is no credential: correct the name or add it"
            ),
            PoolError::Repeated(route, id) => {
                write!(f, "route {route} lists {id} twice: use its weight instead")
            }
            PoolError::Balancer(error) => write!(f, "cannot build the selection: {error}"),
            PoolError::BalancerWaits => f.write_str(
                "cannot build the selection: pingora did not finish at once; this is a defect of \
                 berth, please report it",
            ),
        }
    }
}

impl std::error::Error for PoolError {}
