//! One client request, from its head to its end.
//!
//! What is answered without an upstream comes first: probes, closed paths, bodies that are too large.
//! Then the body is read, and `failover` tries credentials until one answers or none is left.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, header};
use pingora::proxy::Session;

use crate::admission::ask::{Ask, is_model_name};
use crate::admission::coding::Coding;
use crate::admission::{Dialect, Endpoint};
use crate::observe::words::Outcome;
use crate::pool::{CredentialIndex, Lineage, Reach};

use super::answer::{self, Answer};
use super::body::{Body, BodyFault, declared_length};
use super::client::Asker;
use super::malformed::{malformed, wants_websocket};
use super::owners::Thing;
use super::paths::{self, Place};
use super::sessions;
use super::spec::WebSocket;
use super::state::Edge;
use super::tale::Tale;
use super::turns::Turns;

/// A request smaller than this is taken even when memory is tight.
const SMALL_BODY: usize = 64 * 1024;

/// What is still coming of a body that is too large is read up to this, so that the client sees the
/// answer.
const DISCARD_BYTES: usize = 1024 * 1024;
const DISCARD_TIME: Duration = Duration::from_secs(2);

/// A body larger than this, or packed, is read on a thread of its own.
pub const READ_ASIDE: usize = 256 * 1024;

/// In which the Codex client names the model a second time: `model=NAME`.
pub const ROUTING_HINT: &str = "x-codex-routing-hint";

/// The header of a turn's state: the Codex client sends back what an answer gave it.
pub const TURN_STATE: &str = "x-codex-turn-state";

/// How a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// With a whole answer: the connection may be used again.
    Whole,
    /// Not to its end: the client must see a broken one.
    Broken,
}

/// A request that goes to an upstream.
#[derive(Debug)]
pub struct Plan {
    /// Its route.
    pub route: usize,
    /// What it is for.
    pub endpoint: Endpoint,
    /// The path below the route's prefix.
    pub below: String,
    /// Its query.
    pub query: Option<String>,
    /// The route's dialect.
    pub dialect: Dialect,
    /// What it asks for.
    pub ask: Ask,
    /// Only the beginning of its body was read: what comes later may be encrypted content.
    pub read_in_part: bool,
    /// It is a HEAD.
    pub head_only: bool,
    /// Its session.
    pub session: Option<Lineage>,
    /// The turn state that it carries, and who made that.
    pub turn_state: Option<TurnState>,
    /// Who asks; stands in for a session where there is none.
    pub asker: Asker,
}

/// A turn state that a client sends back.
#[derive(Clone, Copy, Debug)]
pub struct TurnState {
    /// Who made it, where that is known.
    pub maker: Option<CredentialIndex>,
}

/// Where a request goes.
#[derive(Debug)]
pub enum Way {
    /// Nowhere: this is the answer.
    Answer(Option<usize>, Answer, Outcome),
    /// To an upstream.
    Upstream(Plan),
}

impl Edge {
    /// Serves one request.
    pub async fn serve(&self, session: &mut Session, mut story: Tale) -> Served {
        self.be_patient(session);
        let mut plan = match self.way(session) {
            Way::Upstream(plan) => plan,
            Way::Answer(route, answer, outcome) => {
                self.name_route(&mut story, route);
                return self.answer_unread(session, story, answer, outcome).await;
            }
        };
        self.name_route(&mut story, Some(plan.route));
        if let Err((answer, outcome)) = self.admit(session, &mut plan, &mut story) {
            return self.answer_unread(session, story, answer, outcome).await;
        }
        let dialect = plan.dialect;
        let is_large = declared_length(session).is_none_or(|length| length > SMALL_BODY);
        if is_large && self.memory.turns_away(plan.asker.share, Instant::now()) {
            let message = "The gateway is short of memory. Please try again.";
            let after = answer::retry_after(None, self.policy.retry_after);
            let answer = Answer::retry(dialect, ("server_error", message), after);
            return self
                .refuse_body(session, story, answer, Outcome::NoneAvailable)
                .await;
        }
        let room = (&self.memory, plan.asker.share);
        let body = match Body::read(session, &self.limits, room, &self.turns).await {
            Ok(body) => body,
            Err(fault) => return self.body_fault(session, story, dialect, fault).await,
        };
        let ask = read_ask(session, body.bytes(), &self.turns).await;
        let mut plan = self.read(plan, session, ask);
        plan.read_in_part = !body.is_whole();
        self.tell(&mut story, &plan);
        if let Some(answer) = plan.beyond_its_models(body.is_whole()) {
            let outcome = Outcome::ClientError;
            return match body.is_whole() {
                true => self.answer(session, story, answer, outcome).await,
                false => self.refuse_body(session, story, answer, outcome).await,
            };
        }
        self.fail_over(session, story, plan, body).await
    }

    /// Gives the client its time for what pingora reads and writes.
    pub fn be_patient(&self, session: &mut Session) {
        let patience = Some(self.limits.client_timeout);
        let client = session.as_downstream_mut();
        client.set_read_timeout(patience);
        client.set_write_timeout(patience);
        client.set_total_drain_timeout(patience);
    }

    /// Where a request goes, by its head alone.
    pub fn way(&self, session: &Session) -> Way {
        let request = session.req_header();
        let path = request.uri.path();
        let method = request.method.as_str();
        let shut = |route: Option<usize>, message: &str| {
            let dialect = self.dialect(route);
            let answer = Answer::client_error(dialect, 404, "not_found", message);
            Way::Answer(route, answer, Outcome::ClientError)
        };
        if let Some(answer) = malformed(session, self.limits.header_bytes) {
            return Way::Answer(None, answer, Outcome::ClientError);
        }
        if wants_websocket(request)
            && let Some(route) = paths::is_websocket_path(&self.routes, path)
        {
            let spec = self.routes.get(route).map(|spec| spec.websocket);
            if spec == Some(WebSocket::Refuse) {
                let message = "This route does not take WebSockets; use HTTP.";
                let dialect = self.dialect(Some(route));
                let answer = Answer::client_error(dialect, 426, "upgrade_required", message);
                return Way::Answer(Some(route), answer, Outcome::ClientError);
            }
        }
        match paths::place(&self.routes, method, path) {
            Place::Open {
                route,
                endpoint,
                below,
            } => Way::Upstream(Plan {
                route,
                endpoint,
                below: below.to_owned(),
                query: request.uri.query().map(str::to_owned),
                dialect: self.dialect(Some(route)),
                ask: Ask::default(),
                read_in_part: false,
                head_only: request.method == Method::HEAD,
                session: None,
                turn_state: request.headers.get(TURN_STATE).map(|value| TurnState {
                    maker: self.owners.maker(Thing::TurnState, value.as_bytes()),
                }),
                asker: Asker::at_address(session),
            }),
            _ if request.method == Method::HEAD => Way::Answer(None, Answer::alive(), Outcome::Ok),
            Place::Outside if method == "GET" && path == "/healthz" => {
                Way::Answer(None, Answer::alive(), Outcome::Ok)
            }
            Place::Tricky => {
                let message = "This path can be read in two ways: it has `..`, `//`, or an encoded slash, dot or percent sign.";
                let answer = Answer::client_error(Dialect::OpenAi, 400, "invalid_path", message);
                Way::Answer(None, answer, Outcome::ClientError)
            }
            Place::Outside => shut(None, "No route of this gateway has this path."),
            Place::Shut { route } => shut(
                Some(route),
                "This gateway does not open this path and method.",
            ),
        }
    }

    /// Sends an answer of berth's own and ends the story.
    pub async fn answer(
        &self,
        session: &mut Session,
        mut tale: Tale,
        answer: Answer,
        outcome: Outcome,
    ) -> Served {
        tale.answered(answer.status, answer.body.len());
        let served = self.write(session, &tale, &answer).await;
        self.finish(tale, outcome);
        served
    }

    /// The same for a request whose body, if it has one, is not read: the client is told that the
    /// connection ends.
    pub async fn answer_unread(
        &self,
        session: &mut Session,
        tale: Tale,
        answer: Answer,
        outcome: Outcome,
    ) -> Served {
        if session.is_body_empty() {
            self.answer(session, tale, answer, outcome).await
        } else {
            self.refuse_body(session, tale, answer, outcome).await
        }
    }

    /// Ends a story.
    pub fn finish(&self, tale: Tale, outcome: Outcome) {
        self.ended(tale.end(outcome));
    }

    async fn write(&self, session: &mut Session, tale: &Tale, answer: &Answer) -> Served {
        let Ok(mut head) = answer.head() else {
            return Served::Broken;
        };
        let id = tale.id().to_string();
        if head
            .insert_header("x-berth-request-id", id.as_str())
            .is_err()
        {
            return Served::Broken;
        }
        if self.disclose {
            let _ = head.insert_header("x-berth-attempts", tale.attempts());
        }
        if let Some(from) = tale.rewrote_from() {
            let _ = head.insert_header("x-berth-rewrote", from);
        }
        if answer.close {
            session.set_keepalive(None);
            let _ = head.insert_header(header::CONNECTION, "close");
        }
        let empty = answer.body.is_empty() || session.req_header().method == Method::HEAD;
        let sent = session.write_response_header(Box::new(head), empty).await;
        if sent.is_err() {
            return Served::Broken;
        }
        if !empty {
            let sent = session
                .write_response_body(Some(answer.body.clone()), true)
                .await;
            if sent.is_err() {
                return Served::Broken;
            }
        }
        Served::Whole
    }

    /// Answers a body that is not read, and discards some of what is still coming.
    pub(super) async fn refuse_body(
        &self,
        session: &mut Session,
        tale: Tale,
        mut answer: Answer,
        outcome: Outcome,
    ) -> Served {
        answer.close = true;
        let served = self.answer(session, tale, answer, outcome).await;
        if served == Served::Whole {
            let _ = session.as_downstream_mut().finish_body().await;
            let _ = tokio::time::timeout(DISCARD_TIME, discard(session)).await;
        }
        served
    }

    /// Answers for a body that cannot be had.
    pub async fn body_fault(
        &self,
        session: &mut Session,
        tale: Tale,
        dialect: Dialect,
        fault: BodyFault,
    ) -> Served {
        let client_error =
            |status, code, message| Answer::client_error(dialect, status, code, message);
        let answer = match fault {
            BodyFault::TooLarge => Answer::too_large(dialect, self.limits.request_body),
            BodyFault::TooSlow => client_error(
                408,
                "request_timeout",
                "The request body did not come in time.",
            ),
            BodyFault::Malformed => {
                client_error(400, "invalid_body", "The request body's framing is broken.")
            }
            BodyFault::ClientGone => {
                self.finish(tale, Outcome::ClientGone);
                return Served::Broken;
            }
        };
        self.refuse_body(session, tale, answer, Outcome::ClientError)
            .await
    }

    fn name_route(&self, tale: &mut Tale, route: Option<usize>) {
        if let Some(name) = route.and_then(|route| self.route_name(route)) {
            tale.route(name);
        }
    }

    /// The same request, read.
    pub fn read(&self, plan: Plan, session: &Session, ask: Ask) -> Plan {
        let names = sessions::names(plan.asker.name(), &session.req_header().headers, &ask);
        let session = self.pool.lineage(names, Instant::now());
        Plan {
            ask,
            session,
            ..plan
        }
    }

    /// Says in the story what the request asks for. A subagent's has its root's session.
    pub fn tell(&self, story: &mut Tale, plan: &Plan) {
        let session = plan.session;
        let session = session.map(|it| self.session_key.hash(it.root.to_be_bytes()));
        story.asks(plan.ask.model.as_deref(), session);
    }
}

impl Plan {
    /// How far the request may go from its home.
    pub fn reach(&self) -> Reach {
        // What a session goes on from may stand where nobody has read.
        let perhaps = self.read_in_part && self.session.is_some();
        match self.ask.encrypted_content || perhaps {
            true => Reach::Realm,
            false => Reach::Anywhere,
        }
    }
}

/// What a request's body asks for; the model from a header where the body does not say. A large body
/// takes a while, and is read where it keeps nobody waiting.
pub async fn read_ask(session: &Session, body: &Bytes, turns: &Turns) -> Ask {
    let coding = coding(session);
    let hint = session.req_header().headers.get(ROUTING_HINT);
    let hint = hint.and_then(|hint| hint.to_str().ok()?.strip_prefix("model="));
    let hint = hint.filter(|name| is_model_name(name)).map(str::to_owned);
    let mut ask = if body.is_empty() {
        Ask::default()
    } else if body.len() > READ_ASIDE || coding != Some(Coding::Identity) {
        let (body, turn) = (body.clone(), turns.reading(body.len()).await);
        let read = tokio::task::spawn_blocking(move || {
            // Kept to the end of the work, also where nobody waits for it any more.
            let _turn = turn;
            Ask::of(&body, coding)
        });
        read.await.unwrap_or_default()
    } else {
        Ask::of(body, coding)
    };
    ask.model = ask.model.or(hint);
    ask
}

/// The coding of a request's body, if it is one that can be read.
pub fn coding(session: &Session) -> Option<Coding> {
    match session.req_header().headers.get(header::CONTENT_ENCODING) {
        None => Some(Coding::Identity),
        Some(name) => Coding::named(name.as_bytes()),
    }
}

async fn discard(session: &mut Session) {
    let mut left = DISCARD_BYTES;
    while let Ok(Some(piece)) = session.as_downstream_mut().read_request_body().await {
        match left.checked_sub(piece.len()) {
            Some(less) => left = less,
            None => return,
        }
    }
}
