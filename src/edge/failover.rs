//! From one credential to the next, until one answers or none is left.
//!
//! ```text
//!   choose ──▶ attempt ──▶ ready ─────────────────▶ deliver
//!     ▲           │
//!     │           ├──▶ refused, broken, expired ──▶ may it move? ── yes ─┐
//!     │           │                                      │ no            │
//!     │           └──▶ client gone                       ▼               │
//!     │                                          answer, or deliver      │
//!     └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Whether a request may move is decided in one place ([`Course::next`]) and recorded when it may
//! not. Nothing of an answer that was dropped reaches the client, except, where nothing is left, the
//! most retryable refusal of all.

mod choosing;
mod fallback;
mod last_word;
mod sending;
mod turn;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use pingora::proxy::Session;

use crate::admission::Verdict;
use crate::admission::gate::{CommitReason, Refusal};
use crate::admission::policy::{ClientErrorCode, OnHoldTimeout};
use crate::admission::rules::OF_TIER;
use crate::admission::verdict::{HoldOut, Switch, Telling};
use crate::observe::record::CredentialName;
use crate::observe::words::{Blocked, Outcome, Then};
use crate::pool::{self, CredentialIndex, Lease, NoneReason, RouteIndex, Stated};

use super::answer::Answer;
use super::attempt::{Attempt, Held};
use super::body::Body;
use super::delivery::{Additions, Change, End, bounded, deliver};
use super::owners::Thing;
use super::request::{Plan, Served, TURN_STATE};
use super::state::Edge;
use super::tale::{Ended, Tale, head_is_its_own};
use fallback::Own;
use last_word::Refused;
use turn::{Seat, Turn};

/// The course of one request over its attempts.
struct Course<'a> {
    edge: &'a Edge,
    plan: Plan,
    body: Body,
    tale: Tale,
    tried: Vec<CredentialIndex>,
    /// Once the request has fallen back to another model: what it was before.
    own: Option<Own>,
    /// The refusal that is answered if nothing is left: of several, the most retryable one.
    refused: Option<Refused>,
    /// Who had no seat for it, to be told to the pool once it is known who had.
    without_seat: Vec<pool::Refused>,
    /// Attempts made.
    made: u32,
    /// Attempts that this request has.
    allowed: u32,
    /// When the last attempt began.
    began: Instant,
    /// The earliest end that a rate limit stated.
    soonest: Option<Duration>,
    timed_out: bool,
    /// The request was sent on a connection that turned out to be dead: the work may be done twice.
    sent_before: bool,
    /// The end of the request's time; none where silence is waited out.
    deadline: Option<Instant>,
}

/// What follows an attempt.
enum Step<'a> {
    /// Another credential.
    Again(Box<Course<'a>>, Arc<Lease>),
    /// The request is served.
    Served(Served),
}

impl Edge {
    /// Serves a request from its first attempt on.
    pub async fn fail_over(
        &self,
        session: &mut Session,
        tale: Tale,
        plan: Plan,
        body: Body,
    ) -> Served {
        let now = Instant::now();
        let time = self.policy.hold.request_max_time;
        let deadline = plan.ask.stream.then(|| now + bounded(time));
        let mut course = Box::new(Course {
            edge: self,
            plan,
            body,
            tale,
            tried: Vec::new(),
            own: None,
            refused: None,
            without_seat: Vec::new(),
            made: 0,
            allowed: 0,
            began: now,
            soonest: None,
            timed_out: false,
            sent_before: false,
            deadline,
        });
        let mut since = None;
        let first = match course.turn(session, &mut since).await {
            Turn::Go(attempts) => {
                course.allowed = course.set_aside(attempts);
                match course.seat(session, &mut since).await {
                    Seat::Taken(lease) => Ok(lease),
                    Seat::None(why) => Err(Some(why)),
                    Seat::Left => return course.left(),
                }
            }
            Turn::Full => Err(None),
            Turn::Left => return course.left(),
        };
        let mut lease = match first {
            Ok(lease) => lease,
            // A model that the route does not have is neither full nor refused.
            Err(Some(why)) if why.reason == NoneReason::NoCredentialServesModel => {
                return course.give_up(session, Some(why)).await;
            }
            Err(why) => match course.fall_back(session).await {
                Some(lease) => lease,
                None => {
                    if why.is_some_and(|why| why.other_realm) {
                        course.tale.blocked(Blocked::EncryptedContent);
                    }
                    return course.give_up(session, why).await;
                }
            },
        };
        self.deposit(RouteIndex(course.plan.route), Instant::now());
        loop {
            match course.attempt(session, lease).await {
                Step::Again(again, next) => (course, lease) = (again, next),
                Step::Served(served) => return served,
            }
        }
    }
}

impl<'a> Course<'a> {
    /// The client left before anything was tried.
    fn left(self) -> Served {
        self.edge.finish(self.tale, Outcome::ClientGone);
        Served::Broken
    }

    /// One attempt, and what follows from it.
    async fn attempt(mut self: Box<Self>, session: &mut Session, lease: Arc<Lease>) -> Step<'a> {
        self.tried.push(lease.credential().index());
        self.made += 1;
        self.began = Instant::now();
        let Some(upstream) = self.edge.upstream(lease.credential().index()) else {
            return Step::Served(self.give_up(session, None).await);
        };
        let (mut attempt, held) = self.connect(session, upstream, &lease).await;
        let name = CredentialName(lease.credential().id().clone());
        if let Some(head) = attempt.head() {
            let trail = &self.edge.trail;
            trail.heard(&name.0, &head.headers, Instant::now());
        }
        match held {
            Held::Ready(reason) => {
                self.learn(&lease, Verdict::Admitted, None, None);
                self.settle(Some(lease.credential().index()));
                let told = (Verdict::Admitted, None);
                Step::Served(
                    self.deliver(session, attempt, reason, &name, told, &lease)
                        .await,
                )
            }
            Held::Refused(refusal) => self.refused(session, attempt, lease, &name, refusal).await,
            Held::Broken if attempt.report().was_the_clients() => {
                let ended = Ended {
                    verdict: Verdict::ClientError,
                    refusal: None,
                    then: Then::Answer,
                    possible_duplicate: false,
                };
                self.tale.attempt(&attempt, &name, ended);
                let message = "This request cannot be sent on: its head is not valid HTTP.";
                let answer = Answer::client_error(self.plan.dialect, 400, "invalid_head", message);
                let outcome = Outcome::ClientError;
                Step::Served(self.edge.answer(session, self.tale, answer, outcome).await)
            }
            Held::Broken => {
                self.learn(&lease, Verdict::Transport, None, None);
                let ended = Ended {
                    verdict: Verdict::Transport,
                    refusal: None,
                    then: Then::FailOver,
                    possible_duplicate: attempt.report().was_connected(),
                };
                log::warn!(
                    request:% = self.tale.id(), credential:% = lease.credential().id(),
                    failure = attempt.report().failure().unwrap_or("it broke off");
                    "a credential gave no answer"
                );
                self.tale.attempt(&attempt, &name, ended);
                let unsent = !attempt.report().was_connected();
                self.keep(Refused::silent(Verdict::Transport));
                drop(attempt);
                self.move_on(session, unsent).await
            }
            Held::Expired => {
                let late = self.deadline.is_some_and(|at| at <= Instant::now());
                let commit = self.edge.policy.on_hold_timeout == OnHoldTimeout::Commit;
                let next = if late {
                    Err(Blocked::RequestTime)
                } else if !self.plan.ask.stream {
                    // The work may be done and paid, and its answer on the way.
                    Err(Blocked::SentNonStream)
                } else if self.timed_out || (commit && attempt.head().is_some()) {
                    Err(Blocked::NothingLeft)
                } else {
                    self.next(false)
                };
                self.timed_out = true;
                let ended = Ended {
                    verdict: Verdict::Timeout,
                    refusal: None,
                    then: Then::FailOver,
                    possible_duplicate: true,
                };
                match next {
                    Ok(lease_of_next) => {
                        self.learn(&lease, Verdict::Timeout, None, None);
                        self.tale.attempt(&attempt, &name, ended);
                        self.keep(Refused::silent(Verdict::Timeout));
                        Step::Again(self, lease_of_next)
                    }
                    Err(_) if attempt.head().is_some() => {
                        self.settle(Some(lease.credential().index()));
                        let told = (Verdict::Admitted, None);
                        let reason = CommitReason::HoldTimeout;
                        attempt.set_hold(None);
                        let served = self.deliver(session, attempt, reason, &name, told, &lease);
                        Step::Served(served.await)
                    }
                    Err(blocked) => {
                        self.learn(&lease, Verdict::Timeout, None, None);
                        self.tale.attempt(&attempt, &name, ended);
                        self.keep(Refused::silent(Verdict::Timeout));
                        drop(attempt);
                        self.end_or_fall_back(session, blocked).await
                    }
                }
            }
            Held::ClientGone => {
                self.learn(&lease, Verdict::ClientGone, None, None);
                let ended = Ended {
                    verdict: Verdict::ClientGone,
                    refusal: None,
                    then: Then::GiveUp,
                    possible_duplicate: false,
                };
                self.tale.attempt(&attempt, &name, ended);
                drop(attempt);
                self.edge.finish(self.tale, Outcome::ClientGone);
                Step::Served(Served::Broken)
            }
            Held::BodyFault(fault) => {
                drop(attempt);
                let dialect = self.plan.dialect;
                Step::Served(
                    self.edge
                        .body_fault(session, self.tale, dialect, fault)
                        .await,
                )
            }
        }
    }

    /// The upstream said no.
    async fn refused(
        mut self: Box<Self>,
        session: &mut Session,
        mut attempt: Box<Attempt>,
        lease: Arc<Lease>,
        name: &CredentialName,
        refusal: Box<Refusal>,
    ) -> Step<'a> {
        let verdict = refusal.ruling.verdict;
        let headers = attempt.head().map(|head| &head.headers);
        let headers = headers.filter(|_| head_is_its_own(refusal.shape));
        let stated = refusal.stated(headers, SystemTime::now());
        self.learn(&lease, verdict, stated, Some(&refusal));
        if verdict == Verdict::Capacity && *refusal.ruling.rule != *OF_TIER {
            self.without_seat.push(pool::Refused {
                credential: lease.credential().index(),
                stated: stated.map(|s| s.after),
            });
        }
        if matches!(verdict, Verdict::RateLimit | Verdict::Quota) && self.own.is_none() {
            let after = stated.map(|s| s.after).or(default_time(verdict));
            self.soonest = self.soonest.into_iter().chain(after).min();
        }
        // What only a switch brought about, or a model that the client did not ask for, is answered as
        // what was before it.
        let brought_about = match verdict {
            Verdict::State => self.refused.is_some() || self.own.is_some(),
            Verdict::ClientError => self.own.is_some(),
            _ => false,
        };
        let stays = refusal.ruling.switch() == Switch::No;
        let passes = stays || !self.plan.endpoint.may_be_repeated();
        let too_long = refusal.is_too_long() && !self.fallbacks().is_empty();
        if passes && !brought_about && !too_long {
            if !stays {
                self.tale.blocked(Blocked::NotRepeatable);
            }
            let told = (verdict, Some(&*refusal));
            let reason = CommitReason::PassedOn;
            let served = self.deliver(session, attempt, reason, name, told, &lease);
            return Step::Served(served.await);
        }
        let ended = Ended {
            verdict,
            refusal: Some(&refusal),
            then: Then::FailOver,
            possible_duplicate: self.sent_before,
        };
        self.tale.attempt(&attempt, name, ended);
        if brought_about {
            drop(attempt);
            return Step::Served(self.give_up(session, None).await);
        }
        let as_it_came = verdict.telling().1 == Telling::AsItCame;
        let answer = as_it_came.then(|| attempt.take_refused()).flatten();
        attempt.retire().await;
        let facts = refusal.facts;
        let refused = Refused {
            verdict,
            code: facts.code.or(facts.kind),
            message: facts.message.filter(|_| !facts.is_text),
            answer,
            too_long,
        };
        if too_long {
            // No other credential sees it differently, so this is the last word on the request's own model.
            self.refused = Some(refused);
            return self.end_or_fall_back(session, Blocked::NothingLeft).await;
        }
        self.keep(refused);
        self.move_on(session, false).await
    }

    /// Another credential, or the end.
    async fn move_on(mut self: Box<Self>, session: &mut Session, unsent: bool) -> Step<'a> {
        match self.next(unsent) {
            Ok(lease) => Step::Again(self, lease),
            Err(blocked) => self.end_or_fall_back(session, blocked).await,
        }
    }

    /// No other credential: a fallback model, or the end.
    async fn end_or_fall_back(
        mut self: Box<Self>,
        session: &mut Session,
        blocked: Blocked,
    ) -> Step<'a> {
        match self.fall_back(session).await {
            Some(lease) => Step::Again(self, lease),
            None => {
                self.tale.blocked(blocked);
                Step::Served(self.give_up(session, None).await)
            }
        }
    }

    fn learn(
        &self,
        lease: &Lease,
        verdict: Verdict,
        stated: Option<crate::admission::retry_after::Stated>,
        refusal: Option<&Refusal>,
    ) {
        let model = self.plan.ask.model.as_deref();
        let stated = stated.map(Stated::from);
        self.edge.learn(lease, model, (verdict, stated));
        if let Some(refusal) = refusal {
            log::info!(
                request:% = self.tale.id(),
                credential:% = lease.credential().id(),
                verdict = verdict.as_str(),
                shape = refusal.shape.as_str(),
                rule:% = refusal.ruling.rule;
                "a credential refused"
            );
        }
    }

    /// Delivers an answer to its end.
    async fn deliver(
        mut self: Box<Self>,
        session: &mut Session,
        attempt: Box<Attempt>,
        reason: CommitReason,
        name: &CredentialName,
        (verdict, refusal): (Verdict, Option<&Refusal>),
        lease: &Lease,
    ) -> Served {
        let ended = Ended {
            verdict,
            refusal,
            then: Then::Commit,
            possible_duplicate: self.timed_out || self.sent_before,
        };
        self.tale.attempt(&attempt, name, ended);
        self.tale.commits(reason);
        let mut additions = Additions::default();
        additions.add("x-berth-request-id", &self.tale.id().to_string());
        if self.edge.disclose {
            additions.add("x-berth-attempts", &self.tale.attempts().to_string());
            additions.add("x-berth-credential", name.0.as_str());
        }
        if let Some(model) = self.fell_back_to() {
            additions.add("x-berth-model", &model);
        }
        let Course {
            edge,
            plan,
            body,
            mut tale,
            ..
        } = *self;
        let maker = lease.credential().index();
        if let Some(state) = attempt.head().and_then(|head| head.headers.get(TURN_STATE)) {
            edge.made(Thing::TurnState, state.as_bytes(), maker);
        }
        // From here on nothing is sent twice: the body's memory is free for others.
        drop(body);
        let code = &edge.policy.client_error_code;
        let change = match refusal {
            Some(refusal) if refusal.ruling.passes_untouched() => Change::Nothing,
            Some(_) | None => Change::Failures(code),
        };
        let Some(delivery) = deliver(attempt, session, change, &additions).await else {
            edge.finish(tale, Outcome::UpstreamError);
            return Served::Broken;
        };
        tale.delivered(&delivery, plan.dialect);
        if let Some(id) = &delivery.response_id {
            edge.made(Thing::Response, id.as_bytes(), maker);
        }
        if let (Some((from, times)), ClientErrorCode::Replace(to)) = (delivery.rewritten, code) {
            tale.rewrote(from, to, times);
        }
        let outcome = delivery.outcome(verdict);
        // An error that is passed on stays what it was called.
        if let Some(corrected) = delivery.corrected().filter(|_| refusal.is_none()) {
            tale.correct_last(corrected, delivery.failure.as_ref());
            if delivery.end != End::ClientGone {
                tale.blocked(Blocked::OutputStarted);
            }
            let model = plan.ask.model.as_deref();
            let failure = delivery.failure.as_ref();
            let learned = failure.map_or(corrected, |failure| failure.ruling.verdict);
            let stated = failure.and_then(|failure| failure.stated(None, SystemTime::now()));
            edge.learn(lease, model, (learned, stated.map(Stated::from)));
        }
        edge.finish(tale, outcome);
        match delivery.end {
            End::Whole | End::Failed => Served::Whole,
            End::Truncated | End::ClientGone => Served::Broken,
        }
    }
}

fn default_time(verdict: Verdict) -> Option<Duration> {
    match verdict.hold_out() {
        HoldOut::Stated { default, .. } => Some(default),
        HoldOut::Doubling { .. } | HoldOut::Nothing => None,
    }
}
