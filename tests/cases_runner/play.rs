//! One run of one case: the upstream, the proxy, the staging, the client, then the books.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;

use super::client::{self, Connection};
use super::config;
use super::exchange::Answer;
use super::format::{Case, Plan, Request};
use super::h2c;
use super::home;
use super::judge::{Books, Evidence, Findings, Samples, allows, judge};
use super::pass_through::PassThrough;
use super::player::Player;
use super::process::{Berth, TOKEN};
use super::script;

/// What stands between client and upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Berth,
    /// Without failover, holding or books: what the runner must find fault with.
    PassThrough,
}

/// How long berth may take to write its books after an answer.
const BOOKS: Duration = Duration::from_millis(1500);

/// How long a connection that the proxy drops may take to be seen at the upstream.
const SETTLE: Duration = Duration::from_millis(30);

/// What a run found, with the exchange for people.
pub struct Outcome {
    pub findings: Findings,
    pub exchange: String,
}

/// Runs a case. `Err`: the runner itself could not.
pub async fn run(case: &Case, target: Target) -> Result<Outcome, String> {
    let plan = case.requests()?;
    let body = script::request_body(&plan.requests[0])?;
    let player = Player::start(case, body.clone()).await?;
    let housed = match (target, case.group.as_str()) {
        (Target::Berth, "affinity") => Some(home::housed(case, &player).await?),
        _ => None,
    };
    let case = housed.as_ref().unwrap_or(case);
    let plan = match &housed {
        Some(housed) => housed.requests()?,
        None => plan,
    };
    match target {
        Target::PassThrough => {
            let proxy = PassThrough::start(player.address, case).await?;
            let answers = requests(case, &plan, &body, proxy.address, &player).await?;
            Ok(finish(Evidence {
                case,
                answers,
                seen: player.seen(),
                books: None,
            }))
        }
        Target::Berth => {
            let mut berth = Berth::start(case, body.len(), player.address).await?;
            stage(case, &plan, &berth, &player).await?;
            let lines = berth.audit().len();
            let before = Samples::parse(&berth.admin.metrics().await?);
            let memory = berth.memory("VmRSS");
            let answers = requests(case, &plan, &body, berth.listener, &player).await?;
            let mut books = books(&berth, before, lines, answers.len()).await?;
            books.memory = memory.zip(berth.memory("VmHWM"));
            let evidence = Evidence {
                case,
                answers,
                seen: player.seen(),
                books: Some(books),
            };
            let mut outcome = finish(evidence);
            admin(case, &berth, &mut outcome.findings).await?;
            let lives = berth.lives();
            outcome
                .findings
                .check(lives, "process", "berth still lives", berth.stderr());
            if !outcome.findings.problems.is_empty() {
                let log: Vec<char> = berth.stderr().chars().collect();
                let tail: String = log.iter().skip(log.len().saturating_sub(3000)).collect();
                outcome
                    .exchange
                    .push_str(&format!("\n-- berth's log, its end\n{tail}"));
            }
            Ok(outcome)
        }
    }
}

fn finish(evidence: Evidence<'_>) -> Outcome {
    let findings = judge(&evidence);
    let mut exchange = String::new();
    for received in &evidence.seen {
        exchange.push_str(&format!(
            "> request {} on {:?} (entry {:?}), {} bytes of body\n> {}\n",
            received.request,
            received.label,
            received.script.map(|n| n + 1),
            received.body_len,
            received.head.trim_end().replace('\n', "\n> "),
        ));
    }
    for answer in &evidence.answers {
        exchange.push_str(&answer.show());
        exchange.push('\n');
    }
    for line in evidence.books.iter().flat_map(|books| &books.audit) {
        exchange.push_str(&format!("audit {line}\n"));
    }
    Outcome { findings, exchange }
}

/// What has to be true before the case: hold-outs, warm connections, owners of state.
async fn stage(case: &Case, plan: &Plan, berth: &Berth, player: &Player) -> Result<(), String> {
    let reused = case
        .upstream
        .iter()
        .any(|entry| entry.connection.as_deref() == Some("reused"));
    let owners = case
        .setup
        .response_owner
        .iter()
        .chain(&case.setup.turn_state_owner)
        .flatten();
    let mut warm: Vec<(String, String)> = Vec::new();
    if reused {
        warm.push(("resp_warm".into(), "ts-warm".into()));
    }
    for (state, _) in owners {
        warm.push((state.clone(), state.clone()));
    }
    for (response, turn_state) in warm {
        player.warm(healthy(&response, &turn_state)?);
        let mut request = plan.requests[0].clone();
        request
            .headers
            .retain(|line| !line.starts_with("x-codex-turn-state"));
        request
            .headers
            .retain(|line| !line.starts_with("content-length"));
        request.actions.clear();
        let body = br#"{"model":"gpt-5.6-sol","stream":true,"input":"warm"}"#;
        let before = player.staged();
        let connection = Connection::open(berth.listener).await?;
        let (answer, _) = client::send(connection, &request, body, false).await;
        if answer.status != 200 || player.staged() != before + 1 {
            return Err(format!("staging failed: {}", answer.show()));
        }
        // The connection goes to the pool after the answer has ended.
        tokio::time::sleep(SETTLE).await;
    }
    for held in &case.setup.cooldowns {
        let (id, model) = (config::id(&held.credential), &held.model);
        let path = format!(
            "/credentials/{id}/hold-out?model={model}&for={}ms",
            held.remaining_ms
        );
        berth.admin.post(&path).await?;
    }
    for step in &case.setup.after_ready {
        let path = step.post.replace("{id}", &config::id(&step.credential));
        berth.admin.post(&path).await?;
    }
    Ok(())
}

/// An answer that is complete and leaves its connection open.
pub fn healthy(response: &str, turn_state: &str) -> Result<super::format::Response, String> {
    let event = |kind: &str, status: &str| {
        let inner = json!({ "id": response, "object": "response", "status": status,
            "model": "gpt-5.6-sol", "output": [] });
        format!(
            "event: {kind}\ndata: {}\n\n",
            json!({ "type": kind, "response": inner })
        )
    };
    let bytes = event("response.created", "in_progress")
        + "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n"
        + &event("response.completed", "completed");
    serde_json::from_value(json!({
        "head": format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
            x-codex-turn-state: {turn_state}\r\ntransfer-encoding: chunked\r\n\r\n"),
        "framing": "chunked",
        "writes": [{ "at_ms": 0, "bytes": bytes }],
        "end": { "how": "keepalive" },
    }))
    .map_err(|e| e.to_string())
}

async fn requests(
    case: &Case,
    plan: &Plan,
    body: &[u8],
    address: SocketAddr,
    player: &Player,
) -> Result<Vec<Answer>, String> {
    let watch = case.expect.client.get("connection").is_some();
    // The sentence asks for the next request on the same connection: so that is what is sent.
    let same = case.expect.client["each"]["timing"]
        .as_str()
        .is_some_and(|sentence| sentence.starts_with("next request on the same connection"));
    if plan.parallel {
        player.request(1);
        let mut answers = Vec::new();
        for request in &plan.before {
            answers.push(single(address, request, body, None, watch).await?.0);
        }
        let body: Arc<[u8]> = body.into();
        let mut sending = JoinSet::new();
        for request in plan.requests.clone() {
            let body = body.clone();
            sending.spawn(async move { single(address, &request, &body, None, watch).await });
        }
        for sent in sending.join_all().await {
            answers.push(sent?.0);
        }
        return Ok(answers);
    }
    let start = Instant::now();
    let (mut answers, mut open) = (Vec::new(), None);
    for (n, request) in plan.requests.iter().enumerate() {
        if let Some(ms) = request.at_ms {
            let due = start + Duration::from_millis(ms);
            tokio::time::sleep_until(tokio::time::Instant::from_std(due)).await;
        } else if n > 0 {
            tokio::time::sleep(Duration::from_millis(plan.gap_ms)).await;
        }
        player.request(n + 1);
        let body = if n == 0 {
            body.to_vec()
        } else {
            script::request_body(request)?
        };
        let kept = if request.reuse_connection || (same && n > 0) {
            open.take()
        } else {
            None
        };
        let (answer, connection) = single(address, request, &body, kept, watch).await?;
        open = connection.filter(|_| client::reusable(&answer));
        answers.push(answer);
    }
    Ok(answers)
}

async fn single(
    address: SocketAddr,
    request: &Request,
    body: &[u8],
    kept: Option<Connection>,
    watch: bool,
) -> Result<(Answer, Option<Connection>), String> {
    if request.http == "HTTP/2" {
        return Ok((h2c::send(address, request, body).await?, None));
    }
    let connection = match kept {
        Some(connection) => connection,
        None => Connection::open(address).await?,
    };
    Ok(client::send(connection, request, body, watch).await)
}

/// Waits for the books to be written, then reads them.
async fn books(
    berth: &Berth,
    before: Samples,
    lines: usize,
    requests: usize,
) -> Result<Books, String> {
    let deadline = Instant::now() + BOOKS;
    while berth.audit().len() < lines + requests && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(SETTLE).await;
    let status = berth.admin.status().await?;
    let metrics = berth.admin.metrics().await?;
    Ok(Books {
        before,
        after: Samples::parse(&metrics),
        audit: berth.audit().split_off(lines),
        audit_text: berth.audit_text(),
        status,
        status_at: Instant::now(),
        logs: format!("{}\n{}\n{metrics}", berth.stderr(), berth.audit_text()),
        memory: None,
    })
}

/// The case's own calls to the admin listener, and exclusions that must be clearable.
async fn admin(case: &Case, berth: &Berth, findings: &mut Findings) -> Result<(), String> {
    for call in &case.expect.admin {
        let id = call
            .credential
            .as_deref()
            .map(config::id)
            .unwrap_or_default();
        let path = call.path.replace("{id}", &id);
        let token = match call.token.as_str() {
            "right" => Some(TOKEN),
            "wrong" => Some("wrong-token-TESTONLY"),
            _ => None,
        };
        let reply = berth.admin.call(&call.method, &path, token).await?;
        let told = format!(
            "{} {path}, token {}: {}",
            call.method, call.token, call.status
        );
        findings.check(
            allows(&call.status, reply.status),
            "admin",
            &told,
            reply.status.to_string(),
        );
    }
    let clearable = case
        .expect
        .cooldown
        .iter()
        .flatten()
        .filter(|e| e.clearable_without_restart);
    for exclusion in clearable {
        let id = config::id(&exclusion.credential);
        berth
            .admin
            .post(&format!("/credentials/{id}/reset"))
            .await?;
        let status = berth.admin.status().await?;
        let still = status["pairs"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|pair| {
                pair["credential"] == *id && pair["left_ms"].as_i64().is_some_and(|ms| ms > 0)
            });
        let told = format!("{still:?}");
        findings.check(still.is_none(), "cooldown", "cleared by reset", told);
    }
    Ok(())
}
