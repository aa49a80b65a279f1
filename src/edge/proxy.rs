//! berth as pingora sees it: a `ProxyHttp`.
//!
//! In mode `enforce` a client's request never reaches pingora's own path to an upstream: it is served
//! from `request_filter`, attempts and all. In `observe` and `off` it is the other way round (`clean`).

use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::prelude::HttpPeer;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::{Error, ErrorType};

use crate::admission::policy::Mode;

use super::clean::Clean;
use super::connection::HeadRead;
use super::request::Served;
use super::state::Edge;
use super::tale::Tale;

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

    async fn request_filter(&self, session: &mut Session, ctx: &mut Ctx) -> pingora::Result<bool> {
        // Bytes of a next request are not a client that misbehaves.
        session.set_pipelining_enabled(true);
        let tale = Tale::begin(session);
        if self.policy.mode != Mode::Enforce {
            return self.clean(session, tale, ctx).await;
        }
        *ctx = Ctx::Request;
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

    async fn upstream_request_filter(
        &self,
        _: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        match ctx {
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
        _: &mut Ctx,
        _: bool,
    ) -> Box<Error> {
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
            Ctx::Clean(clean) => clean.fail(self, session, error).await,
            Ctx::New | Ctx::Request => FailToProxy {
                error_code: 0,
                can_reuse_downstream: false,
            },
        }
    }
}
