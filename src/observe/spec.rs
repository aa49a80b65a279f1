//! What the operator said about the admin listener and the audit log, correct by type. Built by
//! `config`.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::pool::SecretSource;

/// The admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSpec {
    /// Loopback unless `token` is set.
    pub address: SocketAddr,
    /// Bearer token; with it everything but the health checks needs it.
    pub token: Option<SecretSource>,
}

/// The audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSpec {
    /// JSON lines are appended here.
    pub path: PathBuf,
}
