//! The edge as an application that a listener can be put in front of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pingora::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora::proxy::{HttpProxy, http_proxy};
use pingora::server::configuration::ServerConf;

use super::proxy::Proxy;
use super::state::{Edge, look_up};
use super::upstream::most_idle;

/// The edge, as pingora serves it.
pub type Application = HttpProxy<Proxy>;

/// The application of `edge`, which `threads` workers will share.
pub fn application(edge: Arc<Edge>, threads: usize) -> Application {
    let limits = edge.limits;
    let conf = ServerConf {
        threads,
        max_retries: 1,
        upstream_keepalive_pool_size: most_idle(limits.connections),
        ..ServerConf::default()
    };
    let mut proxy = http_proxy(&Arc::new(conf), Proxy::new(edge));
    proxy.h2_options = Some(http2(limits.header_bytes));
    proxy
}

/// What an HTTP/2 connection may cost. Beside these h2 has limits of its own that are as they should
/// be: CONTINUATION by the size of a head, streams that were reset and not yet dropped (50 for a
/// second, and 20 that nobody has taken), errors of its own (1024), empty DATA (100), one PING and one
/// SETTINGS that wait for their answer. Windows stay at 64 KiB, so a connection's uploads hold no more
/// than that.
fn http2(header_bytes: usize) -> H2Options {
    let mut options = default_h2_options();
    options
        .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS)
        .max_send_buffer_size(SEND_BUFFER);
    options
}

/// Requests at once on one connection. Chosen, as most do: what is beyond waits at the client.
const STREAMS: u32 = 100;

/// Bytes of a stream that are written and not sent. Chosen: with h2's 400 KiB a client that takes
/// nothing has berth keep 40 MiB for one connection.
const SEND_BUFFER: usize = 64 * 1024;

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
