//! `berth status` and the page through the front door: what a running berth tells of what it met.

mod common;

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use common::upstream::{Conn, Raw, answer};
use common::wire::responses;
use common::{Berth, TOKEN, config, signal, until};
use serde_json::{Value, json};

const JSON: &str = "content-type: application/json\r\n";

/// `a` has no seat; `b` answers, and says what is left of its allowance.
async fn upstream() -> Raw {
    Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            let bytes = match heard.credential() {
                "a" => answer(
                    503,
                    "content-type: application/json\r\nx-codex-primary-used-percent: 97\r\n",
                    r#"{"error":{"code":"server_is_overloaded","message":"m"}}"#,
                ),
                _ => answer(
                    200,
                    &format!(
                        "{JSON}x-codex-primary-used-percent: 42.25\r\n\
                         x-codex-primary-window-minutes: 300\r\n\
                         x-codex-primary-reset-after-seconds: 3600\r\n\
                         x-codex-secondary-used-percent: sk-not-a-number\r\n\
                         x-ratelimit-remaining-tokens: 7\r\n"
                    ),
                    r#"{"id":"r","status":"completed","output":[{"type":"message"}]}"#,
                ),
            };
            if !conn.send(bytes).await {
                return;
            }
        }
    })
    .await
}

async fn met() -> (Berth, Raw) {
    let upstream = upstream().await;
    let berth = Berth::start(&config(&upstream.url(), "ab", "")).await;
    let answer = berth.ask(responses()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    berth.last_audit(1).await;
    (berth, upstream)
}

fn credential<'s>(status: &'s Value, id: &str) -> &'s Value {
    let credentials = status["credentials"].as_array().unwrap();
    credentials.iter().find(|it| it["id"] == id).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_and_what_is_left_of_an_allowance_are_told() {
    let (berth, _upstream) = met().await;
    let status = berth.status().await;

    let mut refusal = status["refusals"][0].clone();
    let at = refusal["at"].take();
    assert!(humantime::parse_rfc3339(at.as_str().unwrap()).is_ok());
    assert!(
        refusal["request_id"]
            .take()
            .as_str()
            .unwrap()
            .starts_with("br-")
    );
    let pairs = status["pairs"].as_array().unwrap();
    let pair = pairs.iter().find(|it| it["refused"]["15m"] == 1).unwrap();
    let model = &pair["model"];
    let expected = json!({
        "at": null, "request_id": null, "credential": "a", "model": model, "verdict": "capacity",
        "shape": "http_503", "code": "server_is_overloaded", "then": "fail_over", "next": "b",
        "outcome": "ok",
    });
    assert_eq!(refusal, expected);
    assert_eq!(status["refusals"].as_array().unwrap().len(), 1);

    let meters = credential(&status, "b")["allowance"].as_array().unwrap();
    let told = |it: &Value| {
        let resets = it["resets_in_s"].as_u64();
        assert!(resets.is_none_or(|secs| (3_500..=3_600).contains(&secs)));
        (
            it["meter"].clone(),
            it["used_percent"].clone(),
            it["remaining"].clone(),
        )
    };
    let told: Vec<_> = meters.iter().map(told).collect();
    let expected = [
        (json!("codex_primary"), json!(42.3), Value::Null),
        (json!("tokens"), Value::Null, json!(7)),
    ];
    assert_eq!(told, expected);
    // Information only: what is nearly used up is asked all the same.
    let a = credential(&status, "a");
    assert_eq!(a["allowance"][0]["used_percent"], 97.0);
    assert_eq!(a["state"], "ready");
    assert!(!status.to_string().contains("sk-"), "{status:#}");

    let series = &pair["series"]["15m"];
    assert_eq!(series["piece_s"], 60);
    let refused = series["refused"].as_array().unwrap();
    assert_eq!(refused.iter().filter_map(Value::as_u64).sum::<u64>(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_tells_the_same_as_a_table_and_as_json() {
    let (berth, _upstream) = met().await;
    let shown = berth.command(&["status"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.status.success(),
        "{}",
        String::from_utf8_lossy(&shown.stderr)
    );
    let row = |id: &str| {
        let line = text.lines().find(|line| line.starts_with(id));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(text.starts_with("berth "), "{text}");
    assert_eq!(
        row("a ")[2..],
        ["ready", "0", "1/0", "1/0", "1/0"],
        "{text}"
    );
    assert_eq!(
        row("b ")[2..],
        ["ready", "0", "0/1", "0/1", "0/1"],
        "{text}"
    );

    let shown = berth.command(&["status", "--json"]);
    let json: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(json["refusals"], berth.status().await["refusals"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_berth_is_asked_by_its_configuration_without_a_token_and_by_its_url_with_one() {
    let (berth, _upstream) = met().await;
    let file = berth.folder().join("berth.yaml");
    let ask = |arguments: &[&str], token: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command
            .arg("status")
            .args(arguments)
            .env("RUNTIME_DIRECTORY", berth.folder())
            .env_remove("ADMIN_TOKEN");
        command.env_remove("BERTH_ADMIN_TOKEN");
        command.envs(token.map(|token| ("BERTH_ADMIN_TOKEN", token)));
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    let (code, told) = ask(&["-c", file.to_str().unwrap()], None);
    assert!(code == Some(0) && told.contains("\na "), "{told}");
    let url = format!("http://{}/", berth.admin);
    let (code, told) = ask(&["--admin", &url], Some(TOKEN));
    assert!(code == Some(0) && told.contains("\na "), "{told}");
    let clients = format!("http://{}/", berth.addr);
    for (url, token, expected) in [
        (&url, None, "put it into BERTH_ADMIN_TOKEN"),
        (&url, Some("wrong"), "does not accept this token"),
        (&clients, Some(TOKEN), "is no admin port"),
    ] {
        let (code, told) = ask(&["--admin", url], token);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains(expected), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_and_what_was_refused_is_known_after_a_reload() {
    let (berth, _upstream) = met().await;
    let told = async || {
        let mut status = berth.status().await;
        let allowance = credential(&status, "b")["allowance"].as_array();
        let mut allowance = allowance.unwrap().clone();
        for meter in &mut allowance {
            assert!(meter["age_s"].take().as_u64().unwrap() < 60);
            meter["resets_in_s"].take();
        }
        (status["refusals"].take(), allowance)
    };
    let before = told().await;
    assert_eq!((before.0.as_array().unwrap().len(), before.1.len()), (1, 2));
    berth.reload().await;
    assert_eq!(told().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_summed_up_by_label_route_and_upstream() {
    let upstream = upstream().await;
    let labelled = |id: &str| format!("id: {id}, labels: {{cohort: new-{id}}}");
    let text = config(&upstream.url(), "ab", "").replace("id: a", &labelled("a"));
    let berth = Berth::start(&text.replace("id: b", &labelled("b"))).await;
    assert_eq!(berth.ask(responses()).await.status, 200);
    berth.last_audit(1).await;
    let by = |kind: &str| {
        let shown = berth.command(&["status", "--by", kind]);
        let text = [shown.stdout, shown.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        let lines = text.lines().skip_while(|line| !line.is_empty()).skip(1);
        let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        (lines.collect::<Vec<_>>().join("\n"), text)
    };
    let heads = "MODEL READY IN FLIGHT REF/ADM 15M 1H 24H";
    let cohorts = "new-a gpt-sim 1 of 1 0 1/0 1/0 1/0\nnew-b gpt-sim 1 of 1 0 0/1 0/1 0/1";
    assert_eq!(by("label:cohort").0, format!("COHORT {heads}\n{cohorts}"));
    let all = "up gpt-sim 2 of 2 0 1/1 1/1 1/1";
    assert_eq!(by("upstream").0, format!("UPSTREAM {heads}\n{all}"));
    let none = "no route in the secret gpt-sim 2 of 2 0 1/1 1/1 1/1";
    assert_eq!(by("route").0, format!("ROUTE {heads}\n{none}"));
    let (_, told) = by("label:region");
    assert!(
        told.contains("no credential has the label `region`; there are: cohort"),
        "{told}"
    );
    let page = berth.get("/?by=label%3Acohort").await.text();
    assert!(page.contains(">new-a</th>"), "{page}");
    assert_eq!(berth.get("/?by=nonsense").await.status, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_shows_its_route_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    // {"alg":"none"}, {"host":"eu.api.test","sub":"alice"}
    let claims = "eyJob3N0IjoiZXUuYXBpLnRlc3QiLCJzdWIiOiJhbGljZSJ9";
    std::fs::write(&file, format!("eyJhbGciOiJub25lIn0.{claims}.c2ln")).unwrap();
    let text = config("http://127.0.0.1:9/v1", "a", "");
    let secret = format!("{{file: {}}}", file.display());
    let berth = Berth::start(&text.replace("{env: SK_A}", &secret)).await;
    let status = berth.status().await;
    assert_eq!(credential(&status, "a")["route"], "host eu.api.test");
    assert!(!status.to_string().contains("alice"));
}

/// `berth status --watch` in a terminal of 80 columns and 24 rows.
struct Watching {
    script: std::process::Child,
    shown: Arc<Mutex<String>>,
}

impl Watching {
    fn of(berth: &Berth) -> Watching {
        let (program, file) = (berth.program(), berth.config_file());
        let line = format!(
            "trap : INT; stty cols 80 rows 24; {} status --watch -c {}; echo it ended: $?",
            program.display(),
            file.display()
        );
        let mut script = Command::new("script")
            .args(["-qefc", &line, "/dev/null"])
            .env("RUNTIME_DIRECTORY", berth.folder())
            .env("ADMIN_TOKEN", TOKEN)
            .env("SK_A", "sk-a")
            .env("SK_B", "sk-b")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let shown = Arc::<Mutex<String>>::default();
        let (mut out, kept) = (script.stdout.take().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = out.read(&mut piece) {
                let text = String::from_utf8_lossy(&piece[..length]);
                kept.lock().unwrap().push_str(&text);
            }
        });
        Watching { script, shown }
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    fn types(&mut self, text: &str) {
        let stdin = self.script.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watching_goes_on_while_berth_is_away_and_leaves_the_terminal_as_it_was() {
    let (mut berth, _upstream) = met().await;
    let mut watching = Watching::of(&berth);
    let tables = |watching: &Watching| watching.shown().matches("CREDENTIAL").count();
    until("it is shown twice", || tables(&watching) >= 2).await;
    signal("KILL", berth.pid());
    berth.ends().await;
    until("it says that nobody is there", || {
        watching.shown().contains("no berth is running")
    })
    .await;
    let before = tables(&watching);
    berth.again().await;
    until("it is shown again", || tables(&watching) > before).await;
    watching.types("\u{3}");
    until("it ends", || watching.shown().contains("it ended: 0")).await;

    let shown = watching.shown();
    let (enter, leave) = ("\u{1b}[?1049h\u{1b}[?25l", "\u{1b}[?25h\u{1b}[?1049l");
    let at = |what: &str| {
        shown
            .find(what)
            .unwrap_or_else(|| panic!("{what:?} in {shown:?}"))
    };
    assert!(at(enter) < at("CREDENTIAL") && at(leave) < at("it ended"));
    assert_eq!(
        (shown.matches(enter).count(), shown.matches(leave).count()),
        (1, 1)
    );
    // Drawn over, never wiped: that would flicker, or be found in what can be scrolled back.
    assert!(
        !shown.contains("\u{1b}[2J") && !shown.contains("\u{1b}[3J"),
        "{shown:?}"
    );
    let drawn = shown.matches("\u{1b}[H").count();
    let lines = shown
        .split("\u{1b}[H")
        .skip(1)
        .map(|it| it.matches('\n').count());
    assert!(drawn >= 4 && lines.max() < Some(24));
}
