//! From a checked configuration to a process that can serve.
//!
//! `config` knows what the operator said and `edge` how it is done; neither should know the other, so
//! they meet here. Files are opened and secrets read for the first time: what fails now fails before
//! anything listens.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use secrecy::ExposeSecret;

use crate::admission::day::Day;
use crate::config::{Clients, Config, load_clients, state_dir};
use crate::edge::clients::{ClientsFile, ClientsSource};
use crate::edge::state::{Edge, Parts};
use crate::edge::tls::Certificates;
use crate::observe::audit::Audit;
use crate::observe::otlp::Spans;
use crate::observe::safe::SafeText;
use crate::observe::trail::Trail;
use crate::pool::read_secret;
use crate::service::{Entrance, Serving};

/// Puts the process together from its configuration.
///
/// # Errors
///
/// What cannot be opened or read, by its key in the configuration.
pub fn assemble(config: Config) -> Result<(Arc<Edge>, Serving), String> {
    let now = Instant::now();
    for warning in config.expired(Day::of(SystemTime::now())) {
        log::warn!(warning:%; "a rule has expired and matches nothing");
    }
    let audit = match &config.audit {
        Some(spec) => Audit::to_file(spec).map_err(|e| e.to_string())?,
        None => Audit::to_log().map_err(|e| e.to_string())?,
    };
    let spans = Spans::from_environment()?;
    let mut trail = Trail::new((audit, spans), now).map_err(|e| e.to_string())?;
    trail.knows(config.models().map(SafeText::new));
    let trail = Arc::new(trail);
    let admin = config.admin.ok_or("the configuration has no admin port")?;
    let token = match &admin.token {
        None => None,
        Some(source) => {
            let secret = read_secret(source).map_err(|e| format!("admin.token: {e}"))?;
            Some(secret.expose_secret().as_bytes().to_vec())
        }
    };
    let warnings = config.warnings.iter().map(ToString::to_string).collect();
    let parts = Parts {
        upstreams: config.upstreams,
        credentials: config.credentials,
        routes: config.routes,
        policy: config.policy,
        limits: config.limits,
        disclose: config.disclose,
        clients: config.clients.map(clients),
        warnings,
    };
    let edge = Edge::new(parts, trail, now).map_err(|e| e.to_string())?;
    let clients = edge.clients.iter();
    for warning in clients.flat_map(|it| it.warnings(edge.policy.mode)) {
        log::warn!("{warning}");
    }
    let entrances = config.listeners.iter().enumerate().map(|(at, listener)| {
        let certificates = listener.tls.as_ref().map(Certificates::load).transpose();
        Ok(Entrance {
            address: listener.address,
            certificates: certificates.map_err(|e| format!("listeners[{at}].tls: {e}"))?,
        })
    });
    let serving = Serving {
        listeners: entrances.collect::<Result<_, String>>()?,
        admin: admin.address,
        token,
        process: config.process,
    };
    Ok((Arc::new(edge), serving))
}

fn clients(spec: Clients) -> ClientsSource {
    let Clients { listed, file } = spec;
    let file = file.map(|path| {
        let (from, beside) = (path.clone(), listed.clone());
        let read = move || {
            let read = load_clients(&from, &beside).map_err(|problems| problems.to_string())?;
            Ok(read.into_iter().map(|it| it.spec).collect())
        };
        ClientsFile {
            path,
            read: Arc::new(read),
        }
    });
    ClientsSource {
        listed,
        file,
        state_dir: state_dir(),
    }
}
