//! An upstream at run time: where it is now, and how to connect to it.
//!
//! A name is looked up in the background, never on the way of a request: pingora's own look-up blocks
//! the thread and panics on failure. Addresses that were good once are kept when a look-up fails, and
//! all of them are used in turn. Connections are pooled per credential: on a shared one a switch of
//! credentials would prove nothing, and it would tell the vendor which accounts belong together.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use pingora::connectors::ConnectorOptions;
use pingora::connectors::http::Connector;
use pingora::protocols::TcpKeepalive;
use pingora::protocols::tls::CaType;
use pingora::tls::{CertificateDer, RootCertStore};
use pingora::upstreams::peer::{ALPN, HttpPeer};
use pingora::utils::tls::{WrappedX509, parse_x509};
use rustls_pki_types::pem::PemObject;

use crate::pool::CredentialIndex;

use super::connect::ConnectProxy;
use super::spec::{Http2, UpstreamSpec};

/// How often names are looked up. Chosen: half of the shortest time-to-live in common use.
pub const LOOK_UP_EVERY: Duration = Duration::from_secs(30);

/// How long an idle connection is kept. Chosen: below the 60 s after which common edges close theirs,
/// so that a request seldom meets a connection that is just being closed.
const IDLE_POOLED: Duration = Duration::from_secs(50);

/// Upstream connections that wait for their next request, at most.
const MOST_IDLE: usize = 1024;

/// How long one write may wait for the upstream to take bytes. Chosen: an upstream that takes not a byte for so
/// long is gone; before the attempt ends for it, so that what it may have said is still read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(50);

/// How often a connection of HTTP/2 is asked whether it is alive. Chosen: others find out within seconds that it
/// is not, and nobody's limit of pings is near.
const PING_EVERY: Duration = Duration::from_secs(30);

/// Streams on one HTTP/2 connection. pingora's default of 1 would open a connection per request.
const H2_STREAMS: usize = 32;

/// No more addresses of one name are kept.
const MOST_ADDRESSES: usize = 64;

/// How many connections to upstreams are kept that nobody uses: one for each of a client's, since
/// `limits.connections` reckons with as many files.
pub fn most_idle(connections: usize) -> usize {
    MOST_IDLE.min(connections)
}

/// What connects to upstreams, for an edge of so many `connections`.
pub fn connector(connections: usize) -> Connector {
    Connector::new(Some(ConnectorOptions::new(most_idle(connections))))
}

/// An upstream.
pub struct Upstream {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// As configured.
    pub spec: UpstreamSpec,
    /// `host` or `host:port`, as a request names it.
    pub authority: String,
    addresses: RwLock<Vec<SocketAddr>>,
    turn: AtomicUsize,
    ca: Option<Arc<CaType>>,
    proxy: Option<Arc<ConnectProxy>>,
}

/// Which connection a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// A pooled one, or a new one.
    Any,
    /// A new one: a pooled one was found dead.
    Fresh,
}

/// An upstream cannot be used as configured.
#[derive(Debug)]
pub struct UpstreamError {
    /// Which.
    pub upstream: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upstream `{}`: {}", self.upstream, self.problem)
    }
}

impl std::error::Error for UpstreamError {}

impl Upstream {
    /// Reads what the upstream needs from disk. No name is looked up yet.
    ///
    /// # Errors
    ///
    /// The certificates or the proxy's password cannot be read.
    pub fn new(name: &str, spec: UpstreamSpec) -> Result<Upstream, UpstreamError> {
        let fail = |problem: String| UpstreamError {
            upstream: name.to_owned(),
            problem,
        };
        let ca = match &spec.ca_file {
            None => None,
            Some(path) => Some(read_ca(path).map_err(fail)?),
        };
        let url = &spec.base_url;
        let host = if url.host.contains(':') {
            format!("[{}]", url.host)
        } else {
            url.host.clone()
        };
        let authority = match (url.tls, url.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        };
        let proxy = match &spec.proxy {
            None => None,
            Some(proxy) => {
                let target = format!(
                    "{}:{}",
                    if url.host.contains(':') {
                        format!("[{}]", url.host)
                    } else {
                        url.host.clone()
                    },
                    url.port
                );
                let proxy = ConnectProxy::new(proxy, target, spec.connect_timeout);
                Some(Arc::new(proxy.map_err(fail)?))
            }
        };
        Ok(Upstream {
            name: name.into(),
            spec,
            authority,
            addresses: RwLock::default(),
            turn: AtomicUsize::new(0),
            ca,
            proxy,
        })
    }

    /// Looks the name up again. What is known stays where nothing is found.
    pub async fn look_up(&self) -> std::io::Result<()> {
        let (host, port) = match &self.spec.proxy {
            Some(proxy) => (proxy.host.as_str(), proxy.port),
            None => (self.spec.base_url.host.as_str(), self.spec.base_url.port),
        };
        let mut found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
        found.sort_unstable();
        found.dedup();
        found.truncate(MOST_ADDRESSES);
        if found.is_empty() {
            return Err(std::io::Error::other("the name has no address"));
        }
        *self
            .addresses
            .write()
            .unwrap_or_else(PoisonError::into_inner) = found;
        Ok(())
    }

    /// How many addresses there are to try.
    pub fn addresses(&self) -> usize {
        self.addresses
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// The next address in turn, as pingora wants it; `None` while the name is unknown.
    pub fn peer(&self, credential: CredentialIndex, connection: Connection) -> Option<HttpPeer> {
        let address = {
            let known = self
                .addresses
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            *known.get(turn.checked_rem(known.len())?)?
        };
        let url = &self.spec.base_url;
        let sni = if url.tls {
            url.host.clone()
        } else {
            String::new()
        };
        let mut peer = HttpPeer::new(address, url.tls, sni);
        peer.group_key = match connection {
            Connection::Any => credential.0 as u64 + 1,
            // No pooled connection has this key.
            Connection::Fresh => rand::random::<u64>() | (1 << 63),
        };
        let options = &mut peer.options;
        options.connection_timeout = Some(self.spec.connect_timeout);
        options.total_connection_timeout = Some(self.spec.connect_timeout);
        options.write_timeout = Some(WRITE_TIMEOUT);
        options.idle_timeout = Some(match connection {
            Connection::Any => IDLE_POOLED,
            Connection::Fresh => Duration::from_secs(1),
        });
        options.tcp_keepalive = Some(TcpKeepalive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(15),
            count: 4,
            #[cfg(target_os = "linux")]
            user_timeout: Duration::ZERO,
        });
        options.max_h2_streams = H2_STREAMS;
        options.h2_ping_interval = Some(PING_EVERY);
        options.alpn = match (self.spec.http2, url.tls) {
            (Http2::Never, _) | (Http2::Auto, false) => ALPN::H1,
            (Http2::Auto, true) => ALPN::H2H1,
            (Http2::Always, _) => ALPN::H2,
        };
        options.ca.clone_from(&self.ca);
        if let Some(proxy) = &self.proxy {
            options.custom_l4 = Some(proxy.clone());
        }
        Some(peer)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upstream({})", self.name)
    }
}

fn read_ca(path: &std::path::Path) -> Result<Arc<CaType>, String> {
    let shown = path.display();
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| format!("`ca_file` {shown} cannot be read as PEM certificates: {e}"))?;
    if all.is_empty() {
        return Err(format!(
            "`ca_file` {shown} holds no certificate in PEM form"
        ));
    }
    let mut checked = Vec::with_capacity(all.len());
    for der in all {
        // pingora's parser panics on what is no certificate; rustls says so.
        RootCertStore::empty().add(der.clone()).map_err(|e| {
            format!("`ca_file` {shown} holds something that is no certificate: {e}")
        })?;
        checked.push(WrappedX509::new(der.to_vec(), parse_x509));
    }
    Ok(checked.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Dialect;
    use crate::edge::spec::{Auth, BaseUrl};

    fn upstream(host: &str, port: u16, tls: bool) -> Upstream {
        let spec = UpstreamSpec {
            base_url: BaseUrl {
                tls,
                host: host.into(),
                port,
                path: "/v1".into(),
            },
            auth: Auth::Bearer,
            dialect: Dialect::OpenAi,
            headers: vec![],
            http2: Http2::Auto,
            connect_timeout: Duration::from_secs(1),
            header_timeout: Duration::from_secs(1),
            non_stream_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(1),
            ca_file: None,
            proxy: None,
        };
        Upstream::new("x", spec).unwrap()
    }

    #[test]
    fn an_authority_names_the_port_only_where_it_must() {
        assert_eq!(upstream("api.test", 443, true).authority, "api.test");
        assert_eq!(upstream("api.test", 443, false).authority, "api.test:443");
        assert_eq!(upstream("::1", 8080, false).authority, "[::1]:8080");
    }

    #[test]
    fn credentials_never_share_a_connection() {
        let upstream = upstream("127.0.0.1", 80, false);
        assert!(upstream.peer(CredentialIndex(0), Connection::Any).is_none());
        *upstream.addresses.write().unwrap() = vec!["127.0.0.1:80".parse().unwrap()];
        let key = |credential, connection| {
            upstream
                .peer(CredentialIndex(credential), connection)
                .unwrap()
                .group_key
        };
        assert_eq!(key(0, Connection::Any), key(0, Connection::Any));
        assert_ne!(key(0, Connection::Any), key(1, Connection::Any));
        assert_ne!(key(0, Connection::Any), key(0, Connection::Fresh));
    }

    #[test]
    fn every_address_gets_its_turn() {
        let upstream = upstream("127.0.0.1", 80, false);
        let both = [
            "127.0.0.1:80".parse().unwrap(),
            "127.0.0.2:80".parse().unwrap(),
        ];
        *upstream.addresses.write().unwrap() = both.to_vec();
        let mut seen: Vec<_> = (0..2)
            .map(|_| {
                upstream
                    .peer(CredentialIndex(0), Connection::Any)
                    .unwrap()
                    ._address
            })
            .collect();
        seen.dedup();
        assert_eq!(seen.len(), 2);
    }
}
