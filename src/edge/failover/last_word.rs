//! What a client is told when nothing is left to try.
//!
//! Of several different refusals the most retryable one is answered, because the client will act on
//! it: a 503 with `Retry-After` brings it back, a quota or a 400 ends its task. A refusal that only a
//! switch brought about is never told. The words are the upstream's where it spoke of capacity or of a
//! fault of its own, and berth's otherwise: what else an upstream says may name an account.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use super::Course;
use crate::admission::Verdict;
use crate::admission::policy::ClientErrorCode;
use crate::admission::rewrite;
use crate::admission::verdict::{Telling, Words};
use crate::edge::answer::Answer;
use crate::edge::delivery::{Additions, frame};
use crate::edge::headers;
use crate::edge::request::Served;
use crate::observe::words::{Outcome, Then};
use crate::pool::{NoneReason, Why};

/// A refusal, kept for the case that nothing better comes.
pub struct Refused {
    pub verdict: Verdict,
    pub code: Option<String>,
    pub message: Option<String>,
    /// As it came, where it may have to be passed on so.
    pub answer: Option<(Box<ResponseHeader>, Vec<Bytes>)>,
    /// The request is longer than its model takes: another may have the room.
    pub too_long: bool,
}

const OURS: &str = "No upstream could take this request. Please try again later.";

impl Refused {
    /// A failure that said nothing.
    pub fn silent(verdict: Verdict) -> Refused {
        Refused {
            verdict,
            code: None,
            message: None,
            answer: None,
            too_long: false,
        }
    }

    /// Whether a fallback model may be asked after it.
    pub fn asks_another_model(&self) -> bool {
        self.too_long || self.verdict.asks_another_model()
    }
}

impl Course<'_> {
    /// Of several refusals the most retryable one is kept. The client asked for its own model: what a
    /// fallback came to is not told.
    pub(super) fn keep(&mut self, refused: Refused) {
        if self.own.is_some() {
            return;
        }
        let rank = refused.verdict.telling().0;
        let kept = self.refused.as_ref().map(|kept| kept.verdict.telling().0);
        if kept.is_none_or(|kept| rank < kept) {
            self.refused = Some(refused);
        }
    }

    /// Nothing is left to try: the most retryable refusal is answered, or why there was nobody.
    pub(super) async fn give_up(
        mut self: Box<Self>,
        session: &mut Session,
        why: Option<Why>,
    ) -> Served {
        self.tale.then(Then::Answer);
        self.settle(None);
        self.fall_forward();
        let edge = self.edge;
        let dialect = self.plan.dialect;
        let Some(refused) = self.refused.take() else {
            let answer = self.nobody(why.as_ref());
            let outcome = match self.made {
                0 => Outcome::NoneAvailable,
                _ => Outcome::RefusedAll,
            };
            return edge.answer(session, self.tale, answer, outcome).await;
        };
        let outcome = match refused.verdict {
            Verdict::Timeout => Outcome::Timeout,
            _ => Outcome::RefusedAll,
        };
        let why = self.why();
        let after = self.come_back(why.as_ref());
        // What those that were tried say of themselves is not the client's to wait for where another,
        // for which there was no attempt left, can be asked next time.
        let another = why.is_none();
        let answer = match refused.verdict.telling().1 {
            Telling::RateLimit => {
                let message = refused.message.as_deref().unwrap_or("Rate limit reached.");
                let stated = self.soonest.filter(|_| !another);
                Answer::rate_limit(dialect, message, stated.unwrap_or(after))
            }
            Telling::AsItCame => match refused.answer.filter(|_| !another) {
                Some((head, body)) => return self.pass_on(session, head, body, outcome).await,
                None => Answer::retry(dialect, ("server_error", OURS), after),
            },
            Telling::Retry(words) => {
                let message = match words {
                    Words::Upstream => refused.message.as_deref().unwrap_or(OURS),
                    Words::Ours => OURS,
                };
                let fatal = refused.code.as_deref().and_then(rewrite::is_fatal);
                let code = match (fatal, &edge.policy.client_error_code) {
                    (Some(from), ClientErrorCode::Replace(to)) => {
                        self.tale.rewrote(from, to, 1);
                        to
                    }
                    (Some(from), ClientErrorCode::Keep) => from,
                    (None, _) => "server_error",
                };
                Answer::retry(dialect, (code, message), after)
            }
        };
        edge.answer(session, self.tale, answer, outcome).await
    }

    /// The answer where nobody could be asked at all.
    fn nobody(&self, why: Option<&Why>) -> Answer {
        let dialect = self.plan.dialect;
        let after = self.come_back(why);
        match why.map(|why| why.reason) {
            Some(NoneReason::NoCredentialServesModel) => {
                let model = self.plan.ask.model.as_deref().unwrap_or_default();
                let message = format!("No credential of this gateway serves the model `{model}`.");
                Answer::client_error(dialect, 404, "model_not_found", &message)
            }
            _ => Answer::retry(dialect, ("server_error", OURS), after),
        }
    }

    /// Why nobody can be asked now, if nobody can.
    fn why(&self) -> Option<Why> {
        self.choose(Instant::now()).err()
    }

    /// When the client is to come back.
    fn come_back(&self, why: Option<&Why>) -> Duration {
        let session = self.plan.session.map(|it| it.root);
        let model = self.plan.ask.model.as_deref();
        self.edge
            .pool
            .retry_after(session, model, why, Instant::now())
    }

    /// A refusal is passed on as it came.
    async fn pass_on(
        mut self: Box<Self>,
        session: &mut Session,
        mut head: Box<ResponseHeader>,
        body: Vec<Bytes>,
        outcome: Outcome,
    ) -> Served {
        let body = body.concat();
        let change = rewrite::document(&body, &self.edge.policy.client_error_code);
        let body = change.map_or_else(|| body.into(), |change| change.bytes);
        headers::to_client(&mut head, true);
        let mut additions = Additions::default();
        additions.add("x-berth-request-id", &self.tale.id().to_string());
        if self.edge.disclose {
            additions.add("x-berth-attempts", &self.tale.attempts().to_string());
        }
        self.tale.answered(head.status.as_u16(), body.len());
        let framed = frame(&mut head, session, Some(body.len()), false);
        let written = match framed.and_then(|()| additions.write(&mut head)) {
            Ok(()) => write_whole(session, head, body).await,
            Err(e) => Err(e),
        };
        self.edge.finish(self.tale, outcome);
        match written {
            Ok(()) => Served::Whole,
            Err(_) => Served::Broken,
        }
    }
}

async fn write_whole(
    session: &mut Session,
    head: Box<ResponseHeader>,
    body: Bytes,
) -> pingora::Result<()> {
    session.write_response_header(head, body.is_empty()).await?;
    if !body.is_empty() {
        session.write_response_body(Some(body), true).await?;
    }
    Ok(())
}
