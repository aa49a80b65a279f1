//! The process that serves: listeners, the admin port, and the end.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pingora::apps::HttpServerOptions;
use pingora::proxy::http_proxy;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server, ShutdownWatch};
use pingora::services::background::{BackgroundService, background_service};
use pingora::services::listening::Service;

use crate::observe::admin::{Admin, AdminApp, Door};

use super::proxy::Proxy;
use super::state::{Edge, look_up, tend};

/// How the process serves.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Where clients come.
    pub listeners: Vec<SocketAddr>,
    /// Where operators come.
    pub admin: SocketAddr,
    /// The admin port's token.
    pub token: Option<Vec<u8>>,
    /// Worker threads.
    pub threads: usize,
    /// How long a stop may take.
    pub stop_timeout: Duration,
}

/// The process cannot serve.
#[derive(Debug)]
pub struct ServeError {
    /// What was to be listened on.
    pub address: SocketAddr,
    /// Why that cannot be.
    pub source: std::io::Error,
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot listen on {}: {}. Stop what listens there, or choose another address.",
            self.address, self.source
        )
    }
}

impl std::error::Error for ServeError {}

/// Serves until a signal ends it.
///
/// # Errors
///
/// An address cannot be listened on; nothing has been served then.
pub fn serve(edge: Arc<Edge>, serving: &Serving) -> Result<(), ServeError> {
    // pingora goes on without a listener that it cannot bind: so that is found out first.
    for address in serving.listeners.iter().chain([&serving.admin]) {
        TcpListener::bind(address).map_err(|source| ServeError {
            address: *address,
            source,
        })?;
    }
    for address in &serving.listeners {
        log::info!(
            "serving on http://{address}; admin on http://{}",
            serving.admin
        );
    }
    let conf = ServerConf {
        threads: serving.threads,
        max_retries: 1,
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(serving.stop_timeout.as_secs()),
        upstream_keepalive_pool_size: 1024,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();

    let mut proxy = http_proxy(&server.configuration, Proxy::new(edge.clone()));
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    proxy.server_options = Some(options);
    let mut service = Service::new("edge".to_owned(), proxy);
    for address in &serving.listeners {
        service.add_tcp(&address.to_string());
    }
    server.add_service(service);

    let admin = Admin::new(edge.clone(), edge.trail.clone(), serving.token.as_deref());
    let app = AdminApp::new(Arc::new(admin), Door::Network);
    let mut admin = Service::new("admin".to_owned(), app);
    admin.threads = Some(1);
    admin.add_tcp(&serving.admin.to_string());
    server.add_service(admin);
    server.add_service(background_service("tending", Tending(edge)));
    server.run(RunArgs::default());
    Ok(())
}

/// Looks up every upstream once, before anything is served, within a time.
pub fn first_look_up(edge: &Edge, within: Duration) {
    let started = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let looked =
                runtime.block_on(async { tokio::time::timeout(within, look_up(edge)).await });
            if looked.is_err() {
                log::warn!("names were not looked up within {:?}", started.elapsed());
            }
        }
        Err(e) => log::warn!("names cannot be looked up yet: {e}"),
    }
}

struct Tending(Arc<Edge>);

#[async_trait]
impl BackgroundService for Tending {
    async fn start(&self, stopped: ShutdownWatch) {
        tend(self.0.clone(), stopped).await;
        self.0.drain();
    }
}
