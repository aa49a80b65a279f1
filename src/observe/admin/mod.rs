//! The admin listener: health, metrics, status, and the few orders that an operator gives.
//!
//! An order moves traffic off a credential, so who gives it matters more than where it comes from:
//! a browser on the operator's own machine can be made to send one by any page it shows. Without
//! a token, orders work only over the control socket, which a browser cannot reach; with one, the
//! token decides. Beyond that, a page of another origin and a name that is not this machine's (DNS
//! rebinding) are refused, the latter also for reading where no token protects it.
//!
//! The answer is a pure function of the request and the moment, so that every rule here is a line
//! in a test; the Pingora part is a few lines at the end. A separate HTTP server for administration
//! was refused: one more stack to keep safe.

mod control;
mod guard;
mod page;
mod query;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use http::{HeaderMap, Method, Response, StatusCode, Uri, header};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;

use super::log::ORDERS;
use super::status::Status;
use super::trail::Trail;
use crate::pool::CredentialId;
pub use control::{Control, Order, UnknownCredential};
use guard::Guard;

/// Where a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The admin listener: whoever reaches it must be let in.
    Network,
    /// The control socket: its file permissions have let the caller in.
    ControlSocket,
}

/// The admin interface.
pub struct Admin {
    control: Arc<dyn Control>,
    trail: Arc<Trail>,
    guard: Guard,
}

impl Admin {
    /// With a token, everything but the health checks needs it.
    pub fn new(control: Arc<dyn Control>, trail: Arc<Trail>, token: Option<&[u8]>) -> Admin {
        let guard = Guard::new(token);
        Admin {
            control,
            trail,
            guard,
        }
    }

    /// The answer to one request.
    pub fn respond(
        &self,
        door: Door,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        now: Instant,
    ) -> Response<Vec<u8>> {
        let reads = *method == Method::GET || *method == Method::HEAD;
        let answer = match (uri.path(), reads) {
            ("/healthz", true) => Ok(text(StatusCode::OK, "ok\n")),
            ("/readyz", true) => Ok(self.readiness()),
            _ => self.guarded(door, method, uri, headers, now),
        };
        let mut response = answer.unwrap_or_else(Refusal::into_response);
        let length = response.body().len().into();
        if *method == Method::HEAD {
            response.body_mut().clear();
        }
        let fixed = [
            (header::CONTENT_LENGTH, length),
            (
                header::CACHE_CONTROL,
                header::HeaderValue::from_static("no-store"),
            ),
            (
                header::X_CONTENT_TYPE_OPTIONS,
                header::HeaderValue::from_static("nosniff"),
            ),
            (header::CONTENT_SECURITY_POLICY, page::policy()),
        ];
        response.headers_mut().extend(fixed);
        response
    }

    fn guarded(
        &self,
        door: Door,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        now: Instant,
    ) -> Result<Response<Vec<u8>>, Refusal> {
        if door == Door::Network {
            self.guard.admit(method, uri, headers)?;
        }
        match (uri.path(), method.as_str()) {
            ("/", "GET" | "HEAD") => {
                let status = self.status(uri, now)?;
                Ok(answer(
                    StatusCode::OK,
                    "text/html; charset=utf-8",
                    page::html(&status, self.guard.orders()),
                ))
            }
            ("/status", "GET" | "HEAD") => {
                let status = self.status(uri, now)?;
                Ok(json(StatusCode::OK, &status))
            }
            ("/metrics", "GET" | "HEAD") => {
                let metrics = self.trail.metrics(&self.control.snapshot());
                Ok(answer(StatusCode::OK, prometheus::TEXT_FORMAT, metrics))
            }
            ("/" | "/status" | "/metrics" | "/healthz" | "/readyz", _) => {
                Err(Refusal::method("GET, HEAD"))
            }
            (path, _) => self.order(path, method, uri.query()),
        }
    }

    fn status(&self, uri: &Uri, now: Instant) -> Result<Status, Refusal> {
        let by = query::by(uri.query().unwrap_or_default())
            .map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why))?;
        let mut status = self.trail.status(&self.control.snapshot(), now);
        status.groups = by.map(|kind| status.grouped(&kind));
        Ok(status)
    }

    fn order(
        &self,
        path: &str,
        method: &Method,
        query: Option<&str>,
    ) -> Result<Response<Vec<u8>>, Refusal> {
        let (id, verb) = path
            .strip_prefix("/credentials/")
            .and_then(|rest| rest.split_once('/'))
            .filter(|(_, verb)| ["drain", "enable", "reset", "hold-out"].contains(verb))
            .ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, NO_SUCH_PATH))?;
        if *method != Method::POST {
            return Err(Refusal::method("POST"));
        }
        let order = query::order(verb, query.unwrap_or_default())
            .map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why))?;
        let unknown = || {
            Refusal::new(
                StatusCode::NOT_FOUND,
                "no credential of this name; GET /status lists them",
            )
        };
        let credential = CredentialId::new(id).ok_or_else(unknown)?;
        match self.control.order(&credential, &order) {
            Ok(()) => {
                log::info!(target: ORDERS, order = verb, credential:%; "an operator gave an order");
                Ok(json(
                    StatusCode::OK,
                    &serde_json::json!({"credential": id, "done": verb}),
                ))
            }
            Err(UnknownCredential) => {
                log::info!(
                    order = verb, credential:%;
                    "an order is for no credential of this configuration"
                );
                Err(unknown())
            }
        }
    }

    fn readiness(&self) -> Response<Vec<u8>> {
        match self.control.ready() {
            true => text(StatusCode::OK, "ready\n"),
            false => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        }
    }
}

/// The admin interface behind one door, as Pingora serves it.
pub struct AdminApp {
    admin: Arc<Admin>,
    door: Door,
}

impl AdminApp {
    /// For a service that listens at `door`.
    pub fn new(admin: Arc<Admin>, door: Door) -> AdminApp {
        AdminApp { admin, door }
    }
}

#[async_trait]
impl ServeHttp for AdminApp {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        self.admin.respond(
            self.door,
            &request.method,
            &request.uri,
            &request.headers,
            Instant::now(),
        )
    }
}

/// Why a request is not served.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    why: String,
    /// A header that tells the caller what would be.
    hint: Option<(header::HeaderName, &'static str)>,
}

impl Refusal {
    fn new(status: StatusCode, why: impl Into<String>) -> Refusal {
        let why = why.into();
        Refusal {
            status,
            why,
            hint: None,
        }
    }

    fn method(allow: &'static str) -> Refusal {
        Refusal {
            hint: Some((header::ALLOW, allow)),
            ..Refusal::new(StatusCode::METHOD_NOT_ALLOWED, format!("use {allow} here"))
        }
    }

    fn unauthorized(scheme: &'static str, why: &str) -> Refusal {
        Refusal {
            hint: Some((header::WWW_AUTHENTICATE, scheme)),
            ..Refusal::new(StatusCode::UNAUTHORIZED, why)
        }
    }

    fn into_response(self) -> Response<Vec<u8>> {
        let mut response = json(
            self.status,
            &serde_json::json!({"error": {"message": self.why}}),
        );
        if let Some((name, value)) = self.hint {
            response
                .headers_mut()
                .insert(name, header::HeaderValue::from_static(value));
        }
        response
    }
}

fn json(status: StatusCode, document: &impl serde::Serialize) -> Response<Vec<u8>> {
    match serde_json::to_vec(document) {
        Ok(body) => answer(status, "application/json", body),
        Err(_) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the answer cannot be written as JSON\n",
        ),
    }
}

fn text(status: StatusCode, body: &str) -> Response<Vec<u8>> {
    answer(status, "text/plain; charset=utf-8", body)
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Vec<u8>>) -> Response<Vec<u8>> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

const NO_SUCH_PATH: &str = "no such path; there are /, /status, /metrics, /healthz, /readyz and \
    POST /credentials/ID/drain, enable, reset, hold-out?model=M&for=30s";

#[cfg(test)]
mod tests;
