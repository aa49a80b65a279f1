//! What became of an attempt's connection.

use pingora::{Error, ErrorSource, ErrorType, RetryType};

/// What is known of an attempt's way to its upstream.
#[derive(Debug, Default)]
pub struct Report {
    connection: Option<Used>,
    failure: Option<Failure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Used {
    Before,
    Never,
}

#[derive(Debug)]
struct Failure {
    /// Not a byte of an answer was read.
    dead: bool,
    /// The request itself cannot be sent.
    clients: bool,
    /// pingora's name for it.
    name: String,
}

impl Report {
    /// A connection is there.
    pub fn connected(&mut self, reused: bool) {
        self.connection = Some(if reused { Used::Before } else { Used::Never });
    }

    /// The attempt failed. What failed first is kept.
    pub fn failed(&mut self, error: &Error) {
        self.failure.get_or_insert_with(|| Failure {
            dead: read_nothing(error),
            clients: *error.esource() == ErrorSource::Downstream,
            name: format!("{:?}", error.etype()),
        });
    }

    /// Whether anything may have been sent.
    pub fn was_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether a pooled connection turned out to be dead: used before, and closed without a byte.
    pub fn was_dead(&self) -> bool {
        let dead = self.failure.as_ref().is_some_and(|failure| failure.dead);
        dead && self.connection == Some(Used::Before)
    }

    /// Whether the request itself is what could not be sent.
    pub fn was_the_clients(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| failure.clients)
    }

    /// pingora's name for the failure.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| failure.name.as_str())
    }
}

/// Whether an error says that not a byte of an answer was read. pingora tells it in words only.
fn read_nothing(error: &Error) -> bool {
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
