//! What an attempt's pingora phases are told, and what they tell back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use pingora::{ErrorSource, ErrorType, RetryType};

use crate::pool::Lease;

use super::headers::Framing;
use super::upstream::{Connection, Upstream};

/// What the pingora phases of an attempt have to know; travels as the subrequest's user context.
pub struct Task {
    /// Where to.
    pub upstream: Arc<Upstream>,
    /// With which credential.
    pub lease: Arc<Lease>,
    /// The path below the route's prefix.
    pub below: String,
    /// The client's query.
    pub query: Option<String>,
    /// How the body is framed.
    pub framing: Framing,
    /// Ask for an answer without content coding.
    pub plain: bool,
    /// The body names this model instead of the client's, and is plain.
    pub renamed: Option<String>,
    /// The state of a turn goes along.
    pub keeps_turn_state: bool,
    /// Which connection may be used.
    pub connection: Connection,
    /// What happened on the way.
    pub report: Arc<Report>,
}

/// What the phases tell the one who started them.
#[derive(Debug, Default)]
pub struct Report {
    connected: AtomicBool,
    reused: AtomicBool,
    dead: AtomicBool,
    clients: AtomicBool,
    failure: OnceLock<String>,
}

impl Report {
    /// A connection is there.
    pub fn connected(&self, reused: bool) {
        self.reused.store(reused, Ordering::Relaxed);
        self.connected.store(true, Ordering::Relaxed);
    }

    /// The attempt failed.
    pub fn failed(&self, error: &pingora::Error) {
        if *error.esource() == ErrorSource::Downstream {
            self.clients.store(true, Ordering::Relaxed);
        }
        if read_nothing(error) {
            self.dead.store(true, Ordering::Relaxed);
        }
        let _ = self.failure.set(format!("{:?}", error.etype()));
    }

    /// Whether anything may have been sent.
    pub fn was_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Whether a pooled connection turned out to be dead: used before, and closed without a byte.
    pub fn was_dead(&self) -> bool {
        self.reused.load(Ordering::Relaxed) && self.dead.load(Ordering::Relaxed)
    }

    /// Whether the request itself is what could not be sent.
    pub fn was_the_clients(&self) -> bool {
        self.clients.load(Ordering::Relaxed)
    }

    /// pingora's name for the failure.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }
}

/// Whether an error says that not a byte of an answer was read. pingora tells it in words only.
fn read_nothing(error: &pingora::Error) -> bool {
    let context = error
        .context
        .as_ref()
        .map_or("", |context| context.as_str());
    match error.etype() {
        ErrorType::WriteError => true,
        ErrorType::ConnectionClosed | ErrorType::ReadError => {
            context.contains("bytes already read: 0")
        }
        ErrorType::H2Error => matches!(
            error.retry,
            RetryType::ReusedOnly | RetryType::Decided(true)
        ),
        _ => false,
    }
}
