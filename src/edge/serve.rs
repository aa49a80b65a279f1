//! The edge as an application that a listener can be put in front of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pingora::apps::HttpServerOptions;
use pingora::proxy::{HttpProxy, http_proxy};
use pingora::server::configuration::ServerConf;

use super::proxy::Proxy;
use super::state::{Edge, look_up};

/// The edge, as pingora serves it.
pub type Application = HttpProxy<Proxy>;

/// The application of `edge`, which `threads` workers will share.
pub fn application(edge: Arc<Edge>, threads: usize) -> Application {
    let conf = ServerConf {
        threads,
        max_retries: 1,
        upstream_keepalive_pool_size: 1024,
        ..ServerConf::default()
    };
    let mut proxy = http_proxy(&Arc::new(conf), Proxy::new(edge));
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    proxy.server_options = Some(options);
    proxy
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
                log::warn!(within:? = started.elapsed(); "names were not looked up in time");
            }
        }
        Err(e) => log::warn!(error:% = e; "names cannot be looked up yet"),
    }
}
