//! berth as pingora sees it: one `ProxyHttp` for the client's request and for its attempts.
//!
//! In mode `enforce` a client's request never reaches pingora's own path to an upstream: it is served
//! from `request_filter`, and each attempt comes back here as a subrequest, told apart by its user
//! context. In `observe` and `off` it is the other way round (`clean`).

use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::Version;
use http::header;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::prelude::HttpPeer;
use pingora::protocols::Digest;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::{Error, ErrorType};

use crate::admission::policy::Mode;

use super::clean::Clean;
use super::connection::HeadRead;
use super::headers;
use super::request::{Served, TURN_STATE};
use super::state::Edge;
use super::tale::Tale;
use super::task::Task;

/// What is given to bytes that were delivered before their stream is reset.
const FLUSH: std::time::Duration = std::time::Duration::from_millis(20);

/// The edge, as a pingora application.
pub struct Proxy(Arc<Edge>);

/// What pingora keeps for one request.
pub enum Ctx {
    /// Nothing is known yet.
    New,
    /// A client's request that is served here.
    Request,
    /// A client's request on pingora's own path.
    Clean(Box<Clean>),
    /// An attempt.
    Attempt(Box<Task>),
}

impl Proxy {
    /// A pingora application around `edge`.
    pub fn new(edge: Arc<Edge>) -> Proxy {
        Proxy(edge)
    }

    fn error<T>(what: &'static str) -> pingora::Result<T> {
        Error::e_explain(ErrorType::InternalError, what)
    }
}

impl Deref for Proxy {
    type Target = Edge;

    fn deref(&self) -> &Edge {
        &self.0
    }
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Ctx;

    fn new_ctx(&self) -> Ctx {
        Ctx::New
    }

    /// None: berth never compresses, and modules cost time on every piece.
    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    /// Called once the head was read, with what `connection` gave the session.
    fn on_connection_reuse(
        &self,
        _: &mut Session,
        _: &mut Ctx,
        given: Box<dyn std::any::Any + Send + Sync>,
    ) {
        if let Some(head) = given.downcast_ref::<HeadRead>() {
            head.note();
        }
    }

    async fn early_request_filter(
        &self,
        session: &mut Session,
        ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        let attempt = session
            .subrequest_ctx
            .as_mut()
            .and_then(|ctx| ctx.user_ctx_mut())
            .and_then(|user| user.downcast_mut::<Option<Task>>())
            .and_then(Option::take);
        if let Some(task) = attempt {
            if let Some(model) = &task.renamed {
                // Before the body is looked at: pingora reads of it what the head says.
                headers::rename(session.req_header_mut(), model, task.framing)?;
            }
            *ctx = Ctx::Attempt(Box::new(task));
        }
        Ok(())
    }

    fn allow_spawning_subrequest(&self, session: &Session, _: &Ctx) -> bool {
        session.subrequest_ctx.is_none()
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Ctx) -> pingora::Result<bool> {
        if matches!(ctx, Ctx::Attempt(_)) {
            return Ok(false);
        }
        // Bytes of a next request are not a client that misbehaves.
        session.set_pipelining_enabled(true);
        let tale = Tale::begin(session);
        if self.policy.mode != Mode::Enforce {
            return self.clean(session, tale, ctx).await;
        }
        *ctx = Ctx::Request;
        as_http1(session)?;
        match self.serve(session, tale).await {
            Served::Whole => Ok(true),
            Served::Broken => {
                if session.as_downstream().is_http2() && session.response_written().is_some() {
                    // A reset discards what HTTP/2 has not sent yet, and nothing tells when it has.
                    tokio::time::sleep(FLUSH).await;
                }
                session.shutdown_with_reason(h2::Reason::INTERNAL_ERROR);
                Self::error("the answer could not be brought to its end")
            }
        }
    }

    async fn upstream_peer(
        &self,
        _: &mut Session,
        ctx: &mut Ctx,
    ) -> pingora::Result<Box<HttpPeer>> {
        let peer = match ctx {
            Ctx::Attempt(task) => {
                let credential = task.lease.credential().index();
                task.upstream.peer(credential, task.connection)
            }
            Ctx::Clean(clean) => clean.peer(),
            Ctx::New | Ctx::Request => None,
        };
        match peer {
            Some(peer) => Ok(Box::new(peer)),
            None => Error::e_explain(
                ErrorType::ConnectNoRoute,
                "the upstream's name has no known address",
            ),
        }
    }

    async fn connected_to_upstream(
        &self,
        _: &mut Session,
        reused: bool,
        _: &HttpPeer,
        _: std::os::unix::io::RawFd,
        _: Option<&Digest>,
        ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        if let Ctx::Attempt(task) = ctx {
            task.report.connected(reused);
        }
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        _: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        match ctx {
            Ctx::Attempt(task) => {
                if !task.keeps_turn_state {
                    request.remove_header(TURN_STATE);
                }
                headers::to_upstream(
                    request,
                    &task.upstream,
                    task.lease.secrets(),
                    &task.below,
                    task.query.as_deref(),
                    task.framing,
                    task.plain,
                )
            }
            Ctx::Clean(clean) => clean.request(request),
            Ctx::New | Ctx::Request => Self::error("a request without a credential"),
        }
    }

    async fn request_body_filter(
        &self,
        _: &mut Session,
        body: &mut Option<Bytes>,
        _: bool,
        ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        if let Ctx::Clean(clean) = ctx {
            clean.piece(body)?;
        }
        Ok(())
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        if let Ctx::Clean(clean) = ctx {
            clean.head(&self.0, session, response)?;
        }
        Ok(())
    }

    fn response_body_filter(
        &self,
        _: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        ctx: &mut Ctx,
    ) -> pingora::Result<Option<std::time::Duration>> {
        if let Ctx::Clean(clean) = ctx {
            clean.body(body.as_ref(), end);
        }
        Ok(None)
    }

    async fn logging(&self, _: &mut Session, error: Option<&Error>, ctx: &mut Ctx) {
        if let Ctx::Clean(_) = ctx
            && let Ctx::Clean(clean) = std::mem::replace(ctx, Ctx::Request)
        {
            clean.end(self, error);
        }
    }

    fn suppress_error_log(&self, _: &Session, ctx: &Ctx, error: &Error) -> bool {
        // What went wrong is in the audit, in words that carry no secret.
        log::debug!(error:? = error.etype(); "pingora ends a request");
        !matches!(ctx, Ctx::New)
    }

    fn suppress_proxy_warn_log(
        &self,
        _: &Session,
        _: &Ctx,
        _: &Error,
        _: ProxyWarnLogContext,
    ) -> bool {
        true
    }

    /// Nothing is retried by pingora, and what it says of the failure is kept as it said it.
    fn error_while_proxy(
        &self,
        _: &HttpPeer,
        _: &mut Session,
        mut error: Box<Error>,
        ctx: &mut Ctx,
        _: bool,
    ) -> Box<Error> {
        if let Ctx::Attempt(task) = ctx {
            task.report.failed(&error);
        }
        error.set_retry(false);
        error
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        ctx: &mut Ctx,
    ) -> FailToProxy {
        match ctx {
            Ctx::Attempt(task) => task.report.failed(error),
            Ctx::Clean(clean) => return clean.fail(self, session, error).await,
            Ctx::New | Ctx::Request => {}
        }
        FailToProxy {
            error_code: 0,
            can_reuse_downstream: false,
        }
    }
}

/// A subrequest is made from HTTP/1 text: a request that came by HTTP/2 is given the form.
fn as_http1(session: &mut Session) -> pingora::Result<()> {
    let has_body = !session.is_body_empty();
    let request = session.req_header_mut();
    if request.version != Version::HTTP_2 {
        return Ok(());
    }
    // HTTP/2 needs no length, and HTTP/1 text without any framing has no body.
    if has_body && !request.headers.contains_key(header::CONTENT_LENGTH) {
        request.insert_header(header::TRANSFER_ENCODING, "chunked")?;
    }
    if let Some(authority) = request.uri.authority().map(|a| a.as_str().to_owned()) {
        request.insert_header(header::HOST, authority)?;
    }
    request.set_version(Version::HTTP_11);
    Ok(())
}
