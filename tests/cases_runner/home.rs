//! A name for a case's session that starts where the case says.
//!
//! The ring decides where a session lives, and the cases say `A`. A session's name is the client's to
//! choose: so the case's own is varied until another berth of the same configuration puts it on the
//! first of `pick_order`. That one ends before the case begins, which holds only because the place is
//! the same after a restart.

use serde_json::Value;

use super::client::{self, Connection};
use super::format::{Case, Request};
use super::play::healthy;
use super::player::Player;
use super::process::Berth;

/// Names tried. With two credentials, that all start on the other one is a chance of 2 in 10^10.
const TRIES: usize = 32;

/// The case with its session renamed.
pub async fn housed(case: &Case, player: &Player) -> Result<Case, String> {
    let plan = case.requests()?;
    let headers = &plan.requests[0].headers;
    let line = headers.iter().find(|line| {
        let name = line.split(':').next().unwrap_or_default();
        ["session-id", "session_id"].contains(&name)
    });
    let (header, name) = line
        .and_then(|line| line.split_once(": "))
        .ok_or("the first request names no session")?;
    let berth = Berth::start(case, 0, player.address).await?;
    player.warm(healthy("resp_scout", "ts-scout")?);
    for n in 0..TRIES {
        let other = format!("{name}-{n}");
        let request = Request {
            http: "HTTP/1.1".into(),
            method: "POST".into(),
            path: "/v1/responses".into(),
            headers: vec!["host: lb.test".into(), format!("{header}: {other}")],
            ..Request::default()
        };
        let connection = Connection::open(berth.listener).await?;
        let body = br#"{"model":"gpt-5.6-sol","stream":true,"input":"where"}"#;
        let (answer, _) = client::send(connection, &request, body, false).await;
        if answer.status != 200 {
            return Err(format!("no place for a session: {}", answer.show()));
        }
        if player.last_staged() == case.setup.pick_order.first().cloned() {
            let mut case = case.clone();
            rename(&mut case.client, name, &other);
            return Ok(case);
        }
    }
    Err(format!(
        "none of {TRIES} sessions starts on the first credential"
    ))
}

/// Renames the session wherever a header of the client names it, as a session, thread or parent.
fn rename(client: &mut Value, name: &str, other: &str) {
    match client {
        Value::Array(all) => all.iter_mut().for_each(|one| rename(one, name, other)),
        Value::Object(all) => all.values_mut().for_each(|one| rename(one, name, other)),
        Value::String(line) => {
            if let Some((header, value)) = line.split_once(": ")
                && value == name
            {
                *line = format!("{header}: {other}");
            }
        }
        _ => {}
    }
}
