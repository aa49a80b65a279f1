//! Traces: a span for each client request and a child for each attempt, over OTLP/HTTP.
//!
//! Spans are made from the finished [`Record`], beside the audit line and of nothing else, so that a trace
//! cannot tell another story and nothing gets into one that may not be in the audit. Spans that are begun
//! and ended along the way were refused: they would put calls into every path of the edge.
//!
//! A request never waits for a collector. [`Spans::finished`] puts the record into a bounded queue and
//! returns; a thread of its own makes spans of the records and sends them in batches, by a client that
//! blocks. What does not fit, and what the collector does not take, is lost, counted and said in the log.
//!
//! Where to is for the standard variables of the environment to say (`OTEL_EXPORTER_OTLP_ENDPOINT` and
//! its kin); without an endpoint there is no thread and no export. A client that says that it does not
//! sample its trace is obeyed.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanExporter as _, SpanLinks,
};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::record::{AttemptRecord, Record};
use super::safe::SafeText;
use super::words::Outcome;

/// Where spans go.
pub struct Spans {
    to: Option<SyncSender<Message>>,
    lost: Arc<AtomicU64>,
}

impl Spans {
    /// As the environment says; nowhere, where it says nothing.
    ///
    /// # Errors
    ///
    /// The environment says something that cannot be used.
    pub fn from_environment() -> Result<Spans, String> {
        let lost = Arc::<AtomicU64>::default();
        if !super::names_collector() {
            return Ok(Spans { to: None, lost });
        }
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(Client::new())
            .build()
            .map_err(|e| format!("OTEL_EXPORTER_OTLP_*: traces cannot be exported: {e}"))?;
        exporter.set_resource(&resource());
        let (to, queue) = sync_channel(QUEUE);
        let sender = Sender {
            exporter,
            lost: lost.clone(),
            told: None,
        };
        std::thread::Builder::new()
            .name("otlp".to_owned())
            .spawn(move || sender.run(&queue))
            .map_err(|e| format!("the thread for traces cannot be started: {e}"))?;
        Ok(Spans { to: Some(to), lost })
    }

    /// A request has ended. Drops and counts it where the queue is full; never blocks.
    pub fn finished(&self, record: &Record) {
        let Some(to) = &self.to else { return };
        let sampled = record.trace.is_none_or(|trace| trace.is_sampled());
        if sampled
            && to
                .try_send(Message::Ended(Box::new(record.clone())))
                .is_err()
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until everything so far is sent or lost; `false` where that took longer than `patience`.
    pub fn flush(&self, patience: Duration) -> bool {
        let Some(to) = &self.to else { return true };
        let (done, sent) = sync_channel(1);
        let until = Instant::now() + patience;
        // A full queue has a place again when the batch under way is sent.
        let mut message = Message::Flush(done);
        while let Err(e) = to.try_send(message) {
            let std::sync::mpsc::TrySendError::Full(back) = e else {
                return false;
            };
            if Instant::now() >= until {
                return false;
            }
            message = back;
            std::thread::sleep(Duration::from_millis(10));
        }
        sent.recv_timeout(until.saturating_duration_since(Instant::now()))
            .is_ok()
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans")
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

/// To the thread.
enum Message {
    Ended(Box<Record>),
    /// Send what there is, and say so.
    Flush(SyncSender<()>),
}

/// The thread's side.
struct Sender {
    exporter: SpanExporter,
    lost: Arc<AtomicU64>,
    /// When losses were last said, and how many there were then.
    told: Option<(Instant, u64)>,
}

impl Sender {
    fn run(mut self, queue: &Receiver<Message>) {
        let mut goes_on = true;
        while goes_on {
            let Ok(mut message) = queue.recv() else {
                return;
            };
            let until = Instant::now() + GATHER;
            let (mut records, mut asker) = (Vec::new(), None);
            loop {
                match message {
                    Message::Ended(record) => records.push(*record),
                    Message::Flush(from) => asker = Some(from),
                }
                if asker.is_some() || records.len() >= BATCH {
                    break;
                }
                match queue.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(next) => message = next,
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => {
                        goes_on = false;
                        break;
                    }
                }
            }
            self.send(&records);
            // Whoever waited may have lost patience.
            asker.map(|asker| asker.send(()));
        }
    }

    fn send(&mut self, records: &[Record]) {
        let mut why = None;
        if !records.is_empty() {
            let spans = records.iter().flat_map(spans).collect();
            if let Err(e) = futures_executor::block_on(self.exporter.export(spans)) {
                self.lost.fetch_add(records.len() as u64, Ordering::Relaxed);
                why = Some(e.to_string());
            }
        }
        self.say(why);
    }

    /// Says how many were lost since it was last said.
    fn say(&mut self, why: Option<String>) {
        let lost = self.lost.load(Ordering::Relaxed);
        let (at, told) = self.told.map_or((None, 0), |(at, told)| (Some(at), told));
        if lost == told || at.is_some_and(|at| at.elapsed() < SAY) {
            return;
        }
        let why = why.unwrap_or_else(|| "the collector is too slow".to_owned());
        log::warn!(requests = lost - told, reason = why; "traces are lost");
        self.told = Some((Instant::now(), lost));
    }
}

/// The span of a request, then those of its attempts.
fn spans(record: &Record) -> Vec<SpanData> {
    let ids = RandomIdGenerator::default();
    let trace = match record.trace {
        Some(trace) => trace.id().into(),
        None => ids.new_trace_id(),
    };
    let own = ids.new_span_id();
    let begun = record.ts;
    let ended = later(begun, Duration::from_millis(record.ms_total));
    let failed = match record.outcome {
        Outcome::Ok | Outcome::ClientError | Outcome::ClientGone => None,
        _ => Some(record.outcome.as_str()),
    };
    let mut name = record.method.as_str().to_owned();
    if let Some(route) = &record.route {
        name = format!("{name} {route}");
    }
    let request = span(Facts {
        ids: (trace, own),
        parent: record
            .trace
            .map_or(SpanId::INVALID, |it| it.parent().into()),
        kind: SpanKind::Server,
        name: name.into(),
        times: (begun, ended),
        failed,
        attributes: of_request(record),
    });
    let mut all = vec![request];
    all.extend(record.attempts.iter().map(|attempt| {
        let sent = later(begun, attempt.sent_after).min(ended);
        let verdict = Duration::from_millis(attempt.ms_to_verdict.unwrap_or_default());
        let until = match attempt.committed {
            true => ended,
            false => later(sent, verdict).min(ended),
        };
        let admitted = attempt.verdict.was_admitted();
        span(Facts {
            ids: (trace, ids.new_span_id()),
            parent: own,
            kind: SpanKind::Client,
            name: "attempt".into(),
            times: (sent, until),
            failed: (!admitted).then_some(attempt.verdict.as_str()),
            attributes: of_attempt(attempt),
        })
    }));
    all
}

/// What is particular to a span.
struct Facts {
    ids: (opentelemetry::TraceId, SpanId),
    parent: SpanId,
    kind: SpanKind,
    name: Cow<'static, str>,
    times: (SystemTime, SystemTime),
    failed: Option<&'static str>,
    attributes: Vec<KeyValue>,
}

fn span(facts: Facts) -> SpanData {
    let (trace, own) = facts.ids;
    SpanData {
        span_context: SpanContext::new(
            trace,
            own,
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: facts.parent,
        parent_span_is_remote: facts.kind == SpanKind::Server,
        span_kind: facts.kind,
        name: facts.name,
        start_time: facts.times.0,
        end_time: facts.times.1,
        attributes: facts.attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: facts.failed.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("berth")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

fn of_request(record: &Record) -> Vec<KeyValue> {
    let mut all = vec![
        KeyValue::new("berth.request_id", record.request_id.to_string()),
        KeyValue::new("berth.outcome", record.outcome.as_str()),
    ];
    let more = [
        ("berth.route", &record.route),
        ("berth.client", &record.client),
    ];
    for (key, value) in more {
        all.extend(value.as_ref().map(|it| KeyValue::new(key, it.clone())));
    }
    all.extend(record.model.as_ref().map(model));
    all.extend(record.status.map(status));
    all
}

fn of_attempt(attempt: &AttemptRecord) -> Vec<KeyValue> {
    let mut all = vec![
        KeyValue::new("berth.credential", attempt.credential.0.to_string()),
        KeyValue::new("berth.verdict", attempt.verdict.as_str()),
    ];
    all.extend(
        attempt
            .shape
            .map(|it| KeyValue::new("berth.shape", it.as_str())),
    );
    let rule = attempt.rule.as_ref();
    all.extend(rule.map(|it| KeyValue::new("berth.rule", it.clone())));
    all.extend(attempt.model.as_ref().map(model));
    all.extend(attempt.status.map(status));
    all
}

fn model(model: &SafeText) -> KeyValue {
    KeyValue::new("gen_ai.request.model", model.to_string())
}

fn status(status: u16) -> KeyValue {
    KeyValue::new("http.response.status_code", i64::from(status))
}

fn later(time: SystemTime, by: Duration) -> SystemTime {
    time.checked_add(by).unwrap_or(time)
}

/// What the environment says of this service; its name is `berth` where that says none.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let told = Resource::builder().with_attribute(version).build();
    let name = told.get(&Key::from_static_str("service.name"));
    let unnamed = name.is_none_or(|name| name.as_str().starts_with("unknown_service"));
    match unnamed {
        false => told,
        true => {
            let all = told
                .iter()
                .map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
            let all = Resource::builder_empty().with_attributes(all);
            all.with_service_name("berth").build()
        }
    }
}

/// Blocks, on the thread that is there for it.
#[derive(Debug)]
struct Client(ureq::Agent);

impl Client {
    fn new() -> Client {
        pingora::tls::install_default_crypto_provider();
        // An endpoint without TLS needs none of them, and says so itself where they are missing.
        let roots = pingora::tls::load_native_certs().unwrap_or_default();
        let roots = roots.iter().map(|it| Certificate::from_der(it).to_owned());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::from(roots))
            .build();
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(LIMIT))
            // The headers may hold a key of the collector's.
            .max_redirects(0)
            .http_status_as_error(false)
            .tls_config(tls);
        Client(config.build().new_agent())
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(head, &*body))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

/// Requests that wait to be sent. Chosen: some seconds of a busy berth, a few MB.
const QUEUE: usize = 4_096;
/// Requests that are sent at once. Chosen: far below what collectors take, 4 MB.
const BATCH: usize = 512;
/// How long they are gathered. Chosen: a person who looks for a trace does not wait for it.
const GATHER: Duration = Duration::from_secs(1);
/// How long the collector may take: the standard's default.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes of its answer, which says a number or a sentence.
const ANSWER: u64 = 64 * 1024;
/// How often losses are said.
const SAY: Duration = Duration::from_secs(60);
