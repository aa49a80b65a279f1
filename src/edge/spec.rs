//! What the operator said about listeners, upstreams, routes and limits, correct by type. Built by
//! `config`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::admission::Dialect;
use crate::pool::{Balance, CredentialId, SecretSource};

/// A listening address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address and port.
    pub address: SocketAddr,
    /// Certificate and key, where clients come with TLS.
    pub tls: Option<TlsSpec>,
}

/// The files of a listener with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSpec {
    /// The certificate and those between it and its CA, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub private_key: PathBuf,
    /// Certificates that a client's must be signed by; `None` asks clients for none.
    pub client_ca: Option<PathBuf>,
}

/// The process itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Worker threads.
    pub threads: usize,
    /// Folder of the control socket.
    pub runtime_dir: PathBuf,
    /// How long a draining process may live after a reload.
    pub drain_timeout: Duration,
    /// How long it may live after a stop.
    pub stop_timeout: Duration,
    /// Processes at once.
    pub max_generations: u32,
}

/// An upstream's base URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    /// `https`?
    pub tls: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port, by the scheme where none is written.
    pub port: u16,
    /// Path without a trailing slash; empty or beginning with `/`.
    pub path: String,
}

/// How a credential's secret is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: Bearer SECRET`.
    Bearer,
    /// `NAME: SECRET`.
    Header(HeaderName),
}

/// Whether HTTP/2 is spoken to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2 {
    /// By ALPN; plain connections speak HTTP/1.1.
    Auto,
    /// Never.
    Never,
    /// Always; plain connections by prior knowledge.
    Always,
}

/// An HTTP CONNECT proxy on the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySpec {
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// User name for `Proxy-Authorization: Basic`.
    pub user: Option<SecretSource>,
    /// Password for it.
    pub password: Option<SecretSource>,
}

/// One upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSpec {
    /// Where it is.
    pub base_url: BaseUrl,
    /// How it takes a secret.
    pub auth: Auth,
    /// What it speaks.
    pub dialect: Dialect,
    /// Headers added to every request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether HTTP/2 is spoken.
    pub http2: Http2,
    /// TCP (and TLS) connect.
    pub connect_timeout: Duration,
    /// Request sent to response head, of a stream.
    pub header_timeout: Duration,
    /// The same where the answer comes in one piece.
    pub non_stream_timeout: Duration,
    /// Between two bytes after commit.
    pub idle_timeout: Duration,
    /// Extra trust anchors.
    pub ca_file: Option<PathBuf>,
    /// A proxy on the way out.
    pub proxy: Option<ProxySpec>,
}

/// Which paths below a route's prefix are open.
#[derive(Clone, Debug)]
pub enum OpenPaths {
    /// The inference endpoints and the model list.
    Defaults,
    /// Globs over the path below the prefix, any method.
    Globs(globset::GlobSet),
}

/// What a WebSocket upgrade gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocket {
    /// 426, at which the Codex client turns to HTTP.
    Refuse,
    /// Passed on.
    Proxy,
}

/// One route.
#[derive(Clone, Debug)]
pub struct RouteSpec {
    /// Begins with `/`, no trailing slash; `/` itself is the empty string.
    pub path_prefix: String,
    /// What is open below it.
    pub paths: OpenPaths,
    /// What an upgrade gets.
    pub websocket: WebSocket,
    /// Its credentials, in the order listed.
    pub credentials: Vec<CredentialId>,
    /// How they are chosen.
    pub balance: Balance,
    /// Affinity of sessions, and how long an exception to it is remembered; `None` is off.
    pub affinity: Option<Duration>,
    /// Models to try when a model is full or refused everywhere.
    pub fallback_models: BTreeMap<String, Vec<String>>,
}

/// Limits on what clients send, on their time and number, and on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body, bytes.
    pub request_body: usize,
    /// Largest body kept for a second attempt, bytes.
    pub replay_body: usize,
    /// Largest request head, bytes.
    pub header_bytes: usize,
    /// Held and replayable bytes of all requests together.
    pub memory: usize,
    /// How long a client may keep berth waiting: for a whole head, for more of a body, and for taking
    /// more of an answer.
    pub client_timeout: Duration,
    /// Connections at once.
    pub connections: usize,
    /// Connections at once from one address; 0 is no limit.
    pub connections_per_address: usize,
}
