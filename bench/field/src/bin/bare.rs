//! The yardstick: a proxy on Pingora that does nothing but pass requests on to one upstream.
//!
//! ```text
//! bare LISTEN UPSTREAM [TLS-LISTEN CERTIFICATE KEY]
//! ```

use async_trait::async_trait;
use pingora::Result;
use pingora::prelude::HttpPeer;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::ServerConf;

struct Bare {
    upstream: String,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, _: &mut ()) -> Result<Box<HttpPeer>> {
        let peer = HttpPeer::new(&self.upstream, false, String::new());
        Ok(Box::new(peer))
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let conf = ServerConf {
        // The same as berth: its default number of threads, and its pool of connections.
        threads: std::thread::available_parallelism().map_or(2, |n| n.get()),
        upstream_keepalive_pool_size: 1024,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    let upstream = words[1].clone();
    let mut service = http_proxy_service(&server.configuration, Bare { upstream });
    service.add_tcp(&words[0]);
    if let [_, _, address, certificate, key] = &words[..] {
        service
            .add_tls(address, certificate, key)
            .expect("a certificate and its key");
    }
    server.add_service(service);
    server.run_forever();
}
