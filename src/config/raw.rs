//! The file as it is written: what serde reads and what the JSON Schema describes.
//!
//! Private to `config`. The comments on the fields are the descriptions in the schema.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::clients::InsecureOption;
use super::fallback::Model;
use super::field::{Later, List, Named, Part, Slot};
use super::leaf::{Count, FilePath, Memory, Name, Size};
use super::policy::ErrorCode;
use super::route::{PathGlob, Prefix};
use super::rules::{Alternatives, Beginning, Reason, Status, Word};
use super::secret::Literal;
use super::upstream::{Label, ModelGlob};
use crate::admission::day::Day;
use crate::admission::policy::{Mode, OnHoldTimeout};
use crate::admission::rules::Then;
use crate::admission::{Dialect, Verdict};
use crate::clients::KeyDigest;
use crate::edge::spec::{Auth, BaseUrl, Http2, ProxySpec, WebSocket};
use crate::pool::{Balance, HeaderSource, SecretSource};

/// The configuration of berth, an edge load balancer for AI APIs.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "berth", extend("required" = ["upstreams", "credentials"]))]
pub struct File {
    /// Where clients connect. Default: one listener on 127.0.0.1:8080.
    pub listeners: List<Part<Listener>>,
    /// The process itself.
    pub process: Part<Process>,
    /// The admin listener: health, metrics, status and operator's actions.
    pub admin: Part<Admin>,
    /// The API services, each under a name of your choice.
    pub upstreams: Named<Part<Upstream>>,
    /// The accounts, each of one upstream.
    pub credentials: List<Part<Credential>>,
    /// Path prefixes and the credentials behind them. Default: `/v1` with all credentials.
    pub routes: List<Part<Route>>,
    /// What berth does with an answer that refuses.
    pub admission: Part<Admission>,
    /// Limits on what clients send and on memory.
    pub limits: Part<Limits>,
    /// Whether answers carry x-berth-attempts and x-berth-credential. Default: false.
    pub disclose: Slot<bool>,
    /// The audit log, one JSON line per client request. Default: stderr log only.
    pub audit: Part<Audit>,
    /// Who may ask, and how much. Default: everybody who reaches a listener, which then must be a loopback address.
    pub clients: List<Part<Client>>,
    /// A file with more clients, in the same form, that is read again when it changes.
    pub clients_file: Slot<FilePath>,
    /// Names of what is insecure and wanted all the same. Default: none.
    pub insecure_options: List<Slot<InsecureOption>>,
    #[schemars(skip)]
    pub shared: Later,
}

/// A listening address.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["address"]))]
pub struct Listener {
    /// HOST:PORT; a loopback address unless there are `clients`.
    pub address: Slot<SocketAddr>,
    /// Certificate and key; HTTP/2 by ALPN. Default: no TLS.
    pub tls: Part<Tls>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["certificate", "private_key"]))]
pub struct Tls {
    /// PEM file: the certificate, then those between it and its CA.
    pub certificate: Slot<FilePath>,
    /// PEM file: its private key.
    pub private_key: Slot<FilePath>,
    /// PEM file: clients must show a certificate signed by one of these. Default: clients need none.
    pub client_ca: Slot<FilePath>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Process {
    /// Worker threads, 1 to 1024. Default: the cores.
    pub threads: Slot<u64>,
    /// Folder of the control socket. Default: $RUNTIME_DIRECTORY, else a private folder.
    pub runtime_dir: Slot<FilePath>,
    /// How long an old process may live for its last sessions after a reload. Default: 1h.
    pub drain_timeout: Slot<Duration>,
    /// The same on stop. Default: 30s.
    pub stop_timeout: Slot<Duration>,
    /// Processes at once, 1 to 64; a reload beyond that hurries the oldest. Default: 4.
    pub max_generations: Slot<u64>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// HOST:PORT; a loopback address unless `token` is set. Default: 127.0.0.1:9090.
    pub address: Slot<SocketAddr>,
    /// Where the bearer token is kept. Default: none; then POSTs work only over the control socket.
    pub token: Slot<SecretSource>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["base_url"]))]
pub struct Upstream {
    /// Where it is; the request path without the route's prefix is added.
    pub base_url: Slot<BaseUrl>,
    /// How a secret is sent: `bearer` or `header:NAME`. Default: `bearer`, for the dialect anthropic `header:x-api-key`.
    pub auth: Slot<Auth>,
    /// The API family. Default: openai.
    pub dialect: Slot<Dialect>,
    /// Headers added to every request.
    pub headers: Named<Slot<Literal>>,
    /// Whether HTTP/2 is spoken. Default: auto (by ALPN).
    pub http2: Slot<Http2>,
    /// TCP and TLS connect. Default: 5s.
    pub connect_timeout: Slot<Duration>,
    /// Request sent to response head, of a stream. Default: 120s.
    pub header_timeout: Slot<Duration>,
    /// The same where the answer comes in one piece. Default: 600s.
    pub non_stream_timeout: Slot<Duration>,
    /// Between two bytes after commit. Default: 300s.
    pub idle_timeout: Slot<Duration>,
    /// PEM file with extra trust anchors.
    pub ca_file: Slot<FilePath>,
    /// HTTP CONNECT proxy on the way out.
    pub proxy: Slot<ProxySpec>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["id", "upstream", "secret"]))]
pub struct Credential {
    /// Its name, the only one that reaches logs and metrics.
    pub id: Slot<Name>,
    /// The name of its upstream.
    pub upstream: Slot<Name>,
    /// Where the secret is kept; never the secret itself.
    pub secret: Slot<SecretSource>,
    /// Globs of the models it serves, `!` excludes, the last match decides. Default: all.
    pub models: List<Slot<ModelGlob>>,
    /// Its share of the traffic within its tier, 1 to 1000. Default: 1.
    pub weight: Slot<u64>,
    /// Lower tiers are used first, 0 to 100. Default: 0.
    pub tier: Slot<u64>,
    /// Requests in flight at once; 0 is no limit. Default: 64.
    pub max_in_flight: Slot<u64>,
    /// Headers added to every request made with it.
    pub headers: Named<Slot<HeaderSource>>,
    /// State that an answer leaves behind is good in this realm. Default: the upstream's name.
    pub realm: Slot<Name>,
    /// For people: grouping in status, audit and metrics.
    pub labels: Named<Slot<Label>>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["path_prefix"]))]
pub struct Route {
    /// The beginning of the paths it serves; the longest prefix wins.
    pub path_prefix: Slot<Prefix>,
    /// Globs over the path below the prefix. Default: the inference endpoints and the model list.
    pub paths: List<Slot<PathGlob>>,
    /// What a WebSocket upgrade gets. Default: refuse.
    pub websocket: Slot<WebSocket>,
    /// Its credentials. Default: all, in the order of the file.
    pub credentials: List<Slot<Name>>,
    /// How requests are spread over ready credentials of one tier. Default: least_in_flight.
    pub balance: Slot<Balance>,
    /// Whether a session stays with its credential.
    pub affinity: Part<Affinity>,
    /// For a model, the models to try once, in order, when it is full or refused everywhere. Default: none.
    pub fallback_models: Named<List<Slot<Model>>>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Affinity {
    /// Default: true.
    pub enabled: Slot<bool>,
    /// How long an exception to it is remembered. Default: 1h.
    pub ttl: Slot<Duration>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admission {
    /// Default: enforce.
    pub mode: Slot<Mode>,
    /// Upstream attempts for one client request, 1 to 20. Default: 3.
    pub max_attempts: Slot<u64>,
    /// Bounds second and later attempts per route, over 10 s.
    pub retry_budget: Part<RetryBudget>,
    /// How much and how long the opening of an answer may be held.
    pub hold: Part<Hold>,
    /// What the first expiry of hold.max_time does. Default: fail_over.
    pub on_hold_timeout: Slot<OnHoldTimeout>,
    /// The score of a credential for a model.
    pub score: Part<Score>,
    /// How long a credential cools for a model.
    pub cooldown: Part<Cooldown>,
    /// How a shunned credential comes back.
    pub probe: Part<Probe>,
    /// When a model counts as full.
    pub full: Part<Full>,
    /// The waiting room before a 503.
    pub wait: Part<Wait>,
    /// Bounds of the Retry-After that berth states.
    pub retry_after: Part<RetryAfter>,
    /// What server_is_overloaded and slow_down become for the client; `keep` leaves them. Default: server_error.
    pub client_error_code: Slot<ErrorCode>,
    /// The operator's own rules, asked in this order before the built-in ones; at most 64.
    pub rules: List<Part<Rule>>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend(
    "required" = ["name", "when", "verdict"],
    "oneOf" = [{ "required": ["expires"] }, { "required": ["permanent", "reason"] }]
))]
pub struct Rule {
    /// Its name in audit and metrics; not that of a built-in rule.
    pub name: Slot<Name>,
    /// Its conditions: all that are given must hold, at least one.
    pub when: Part<When>,
    /// What the refusal then is.
    pub verdict: Slot<Verdict>,
    /// How long what the verdict excludes stays out, where the answer says nothing of it. Default: the verdict's own time.
    pub hold: Slot<Duration>,
    /// Whether another credential is asked. Default: what the verdict says.
    pub then: Slot<Then>,
    /// Its last day, in UTC.
    pub expires: Slot<Day>,
    /// It never ends.
    pub permanent: Slot<bool>,
    /// Why it never ends.
    pub reason: Slot<Reason>,
}

/// Each condition is a value, or a list of values of which any will do.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct When {
    /// Statuses: the one that the error states itself inside a 2xx, else the answer's.
    pub status: Slot<Alternatives<Status>>,
    /// Dialects of the upstream.
    pub dialect: Slot<Alternatives<Dialect>>,
    /// Names of upstreams.
    pub upstream: Slot<Alternatives<Name>>,
    /// The error's code, compared whole.
    pub code: Slot<Alternatives<Word>>,
    /// The error's type, compared whole.
    #[serde(rename = "type")]
    pub kind: Slot<Alternatives<Word>>,
    /// How the error's message begins; case and white space do not matter.
    pub message_prefix: Slot<Alternatives<Beginning>>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryBudget {
    /// Later attempts per first attempt. Default: 1.0.
    pub ratio: Slot<f64>,
    /// Later attempts per second that are always allowed. Default: 10.
    pub min_per_second: Slot<u64>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hold {
    /// Held bytes of one attempt, 1KiB to 256MiB. Default: 4MiB.
    pub max_bytes: Slot<Size>,
    /// Time of one attempt. Default: 120s.
    pub max_time: Slot<Duration>,
    /// Time of one client request over all attempts. Default: 240s.
    pub request_max_time: Slot<Duration>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Score {
    /// Added by a newcomer refused here and admitted elsewhere. Default: 10.
    pub refused: Slot<f64>,
    /// Taken off by a newcomer admitted. Default: 1.
    pub admitted: Slot<f64>,
    /// Excess from which a pair cools. Default: 18.
    pub cool_at: Slot<f64>,
    /// Excess from which a pair is shunned. Default: 36.
    pub shun_at: Slot<f64>,
    /// No score exceeds it. Default: 60.
    pub ceiling: Slot<f64>,
    /// Time in which a score halves by itself. Default: 15m.
    pub half_life: Slot<Duration>,
    /// A session counts once per pair in this time. Default: 5m.
    pub episode: Slot<Duration>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cooldown {
    /// First cooling. Default: 5s.
    pub base: Slot<Duration>,
    /// Longest cooling. Default: 20s.
    pub max: Slot<Duration>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Probe {
    /// Wait before the first probe. Default: 60s.
    pub first: Slot<Duration>,
    /// Longest wait between probes. Default: 300s.
    pub max: Slot<Duration>,
    /// Admissions in a row that make the pair ready, 1 to 100. Default: 5.
    pub admissions: Slot<u64>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Full {
    /// Different sessions refused everywhere, 1 to 1000. Default: 3.
    pub sessions: Slot<u64>,
    /// Longest gap between two of them. Default: 10s.
    pub within: Slot<Duration>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Wait {
    /// Longest wait for a seat; 0s answers at once. Default: 15s.
    pub max_time: Slot<Duration>,
    /// Requests that may wait at once, 0 to 100000. Default: 100.
    pub max_waiting: Slot<u64>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryAfter {
    /// Shortest. Default: 5s.
    pub min: Slot<Duration>,
    /// Longest. Default: 30s.
    pub max: Slot<Duration>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest request body, 1KiB to 4GiB. Default: 64MiB.
    pub request_body: Slot<Size>,
    /// Largest body kept for a second attempt. Default: 64MiB, or request_body where that is less.
    pub replay_body: Slot<Size>,
    /// Largest request head, 4KiB to 1MiB. Default: 64KiB.
    pub header_bytes: Slot<Size>,
    /// Held and replayable bytes of all requests, at least 16MiB. Default: 25%.
    pub memory: Slot<Memory>,
    /// How long a client may keep berth waiting, 1s to 1h. Default: 75s.
    pub client_timeout: Slot<Duration>,
    /// Connections at once, 1 to 1000000. Default: a third of the open files, at most 16384.
    pub connections: Slot<u64>,
    /// Connections at once from one address; 0 is no limit. Default: 1024, or half of connections.
    pub connections_per_address: Slot<u64>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["id", "key_sha256"]))]
pub struct Client {
    /// Its name, the only one that reaches logs and metrics.
    pub id: Slot<Name>,
    /// The SHA-256 of its key, 64 hexadecimal digits; `berth client add` makes both.
    pub key_sha256: Slot<KeyDigest>,
    /// Requests in any sixty seconds; 0 is no limit. Default: 600.
    pub requests_per_minute: Slot<u64>,
    /// Requests in flight at once; 0 is no limit. Default: 32.
    pub max_in_flight: Slot<u64>,
    /// Globs of the models it may ask for, `!` excludes, the last match decides. Default: all.
    pub models: List<Slot<ModelGlob>>,
    /// Tokens of a day in UTC, as the answers count them. Default: no limit.
    pub tokens_per_day: Slot<Count>,
    /// Its last day, in UTC. Default: it has none.
    pub expires: Slot<Day>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["path"]))]
pub struct Audit {
    /// JSON lines are appended to this file.
    pub path: Slot<FilePath>,
}
