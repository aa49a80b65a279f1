//! What operators see of a running berth: traces in the audit, a log that neither an outage nor a lost file
//! floods, and counters that a reload does not reset.

mod common;

use std::sync::{Arc, Mutex};

use berth::sim::{Program, Refuse, Sim, Step, Then};
use common::upstream::{Conn, Raw, answer};
use common::wire::{body, post, responses};
use common::{Berth, config, signal, until, until_async};
use serde_json::Value;

const PATH: &str = "/v1/responses";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test]
async fn a_trace_goes_on_upstream_and_into_the_audit_if_it_is_one() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let of_upstream = heard.clone();
    let upstream = Raw::start(move |mut conn: Conn| {
        let heard = of_upstream.clone();
        async move {
            while let Some(request) = conn.request().await {
                let trace = request.header("traceparent").map(str::to_owned);
                heard.lock().unwrap().push(trace);
                let json = "content-type: application/json\r\n";
                let whole = r#"{"object":"response","status":"completed","output":[]}"#;
                if !conn.send(answer(200, json, whole)).await {
                    return;
                }
            }
        }
    })
    .await;
    let good = format!("00-{TRACE}-b7ad6b7169203331-01");
    let cases = [
        (Some(good.clone()), Value::from(TRACE)),
        (
            Some(format!("00-{}-b7ad6b7169203331-01", "0".repeat(32))),
            Value::Null,
        ),
        (Some("my-own-words".to_owned()), Value::Null),
        (None, Value::Null),
    ];
    let mut seen = 0;
    for mode in ["enforce", "observe"] {
        let more = format!("admission: {{mode: {mode}}}\n");
        let berth = Berth::start(&config(&upstream.url(), "a", &more)).await;
        for (sent, recorded) in &cases {
            let header = sent.as_ref().map(|it| format!("traceparent: {it}\r\n"));
            let request = post(PATH, &header.unwrap_or_default(), body(PATH, false));
            let answer = berth.ask(request).await;
            assert_eq!(answer.status, 200);
            let line = berth.audit_of(answer.id()).await;
            assert_eq!(line["trace_id"], *recorded, "{mode} {sent:?}");
            assert_eq!(heard.lock().unwrap().last(), Some(sent), "{mode}");
            seen += 1;
        }
    }
    assert_eq!(seen, 8);
}

#[tokio::test]
async fn an_outage_is_a_few_lines_of_the_log_and_a_count() {
    let refusing = Step::Refuse(Refuse::default());
    let program = Program::default()
        .with("sk-a", "a", [refusing], Then::Last)
        .with("sk-b", "b", [] as [Step; 0], Then::Admit);
    let sim = Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap();
    // No cooling: `a` is asked first each time.
    let more = "admission: {retry_budget: {ratio: 100.0, min_per_second: 10000}, score: {cool_at: 1000, shun_at: 2000, ceiling: 3000}}\n";
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "ab", more)).await;
    let refusals = |log: &str| log.matches(" verdict=capacity shape=").count();
    let began = std::time::Instant::now();
    let asked = 200;
    for _ in 0..asked {
        assert_eq!(berth.ask(responses()).await.status, 200);
    }
    let refused = r#"berth_attempts_total{credential="a",model="gpt-sim",verdict="capacity"}"#;
    assert!(berth.metric(refused).await.unwrap() > 100.0);
    // Ten in each second, and in the one that has begun.
    let most = 10 * (began.elapsed().as_secs() as usize + 1);
    let said = refusals(&berth.log());
    assert!(
        (10..=most).contains(&said),
        "{said} of at most {most}\n{}",
        berth.log()
    );
    // No other line has to come.
    until_async("the count of what was left out", async || {
        berth
            .log()
            .contains("more lines of this kind were left out lines=")
    })
    .await;
}

#[tokio::test]
async fn each_order_is_in_the_log_and_none_that_was_not_done() {
    let nobody = format!("http://{}/v1", common::free_port());
    let berth = Berth::start(&config(&nobody, "a", "")).await;
    let unknown = berth.operate("POST", "/credentials/nosuch/drain").await;
    assert_eq!(unknown.status, 404);
    for _ in 0..15 {
        berth.reset("a").await;
    }
    let log = berth.whole_log();
    let done = |what: &str| format!("an operator gave an order order={what}\n");
    let reset = log.matches(&done("reset credential=a")).count();
    assert_eq!(reset, 15, "{log}");
    assert!(!log.contains(&done("drain credential=nosuch")), "{log}");
    let unknown =
        "an order is for no credential of this configuration order=drain credential=nosuch";
    assert!(log.contains(unknown), "{log}");
}

#[tokio::test]
async fn what_broke_and_whose_it_was_is_in_the_log() {
    let nobody = format!("http://{}/v1", common::free_port());
    let berth = Berth::start(&config(&nobody, "a", "")).await;
    assert_eq!(berth.ask(responses()).await.status, 503);
    let line = " credential=a failure=ConnectRefused";
    until_async("the line", async || berth.log().contains(line)).await;
    assert!(berth.log().contains("WARN"), "{}", berth.log());
}

#[tokio::test]
async fn handovers_are_counted_and_a_reload_resets_no_counter() {
    let sim = Sim::start(
        ([127, 0, 0, 1], 0).into(),
        Program::default().with("sk-a", "a", [] as [Step; 0], Then::Admit),
    )
    .unwrap();
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "a", "")).await;
    let (ok, failed) = (
        r#"berth_handovers_total{outcome="ok"}"#,
        r#"berth_handovers_total{outcome="failed"}"#,
    );
    assert_eq!(berth.metric(failed).await, Some(0.0));
    assert_eq!(berth.ask(responses()).await.status, 200);
    berth.reconfigure("path_prefix: /v1", "path_prefix: nonsense");
    signal("HUP", berth.pid());
    berth.metric_becomes(failed, 1.0).await;
    assert_eq!(berth.metric(ok).await, Some(0.0));
    berth.reconfigure("path_prefix: nonsense", "path_prefix: /v1");
    berth.reload().await;
    berth.metric_becomes(ok, 1.0).await;
    for counted in [
        failed,
        r#"berth_client_requests_total{client="none",outcome="ok"}"#,
        r#"berth_upstream_responses_total{credential="a",status="200"}"#,
    ] {
        berth.metric_becomes(counted, 1.0).await;
    }
}

#[tokio::test]
async fn a_secret_that_cannot_be_read_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = |id: &str| folder.path().join(id);
    let mut text = "upstreams: {up: {base_url: \"http://127.0.0.1:9\"}}\ncredentials:\n".to_owned();
    for id in ["a", "b"] {
        std::fs::write(file(id), "sk-secret").unwrap();
        let path = file(id).display().to_string();
        text += &format!("- {{id: {id}, upstream: up, secret: {{file: {path}}}}}\n");
    }
    let berth = Berth::start(&text).await;
    let told = |id: &str| {
        let line = format!("the old value stays in use credential={id} ");
        berth.log().matches(&line).count()
    };
    // The second is told of at a later look than the first, which sees both.
    for id in ["a", "b"] {
        std::fs::remove_file(file(id)).unwrap();
        until("it is told", || told(id) > 0).await;
    }
    assert_eq!((told("a"), told("b")), (1, 1), "{}", berth.log());
}

#[tokio::test]
async fn in_the_journal_a_line_has_a_level_and_no_time_of_its_own() {
    let text = config("http://127.0.0.1:9/v1", "a", "");
    let journal = "export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); exec \"$@\"";
    for (shell, begins) in [(journal, "<6>berth::"), ("exec \"$@\"", "[")] {
        let berth = Berth::start_by(shell, std::process::Stdio::null(), &text).await;
        let log = berth.log();
        let serving = log
            .lines()
            .find(|line| line.contains("serving listener=http://"));
        assert!(
            serving.is_some_and(|line| line.starts_with(begins)),
            "{log}"
        );
        let all = log.lines().all(|line| line.starts_with(['<', '[']));
        assert!(all, "{log}");
    }
}

#[tokio::test]
async fn a_secret_that_the_upstream_echoes_reaches_no_operator() {
    const SECRET: &str = "hunter2hunter";
    let upstream = Raw::start(|mut conn: Conn| async move {
        while conn.request().await.is_some() {
            let head = format!("content-type: application/json\r\nx-request-id: of-{SECRET}\r\n");
            let code = format!("no_seat_for_{SECRET}");
            let body = format!(
                r#"{{"error":{{"code":"{code}","message":"Selected model is at capacity"}}}}"#
            );
            if !conn.send(answer(503, &head, body)).await {
                return;
            }
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, SECRET).unwrap();
    let text = format!(
        "upstreams: {{up: {{base_url: \"{}\"}}}}\n\
         credentials: [{{id: a, upstream: up, secret: {{file: {}}}}}]\n",
        upstream.url(),
        file.display()
    );
    let berth = Berth::start(&text).await;
    berth.ask(responses()).await;
    let line = &berth.audit(1).await[0];
    let attempt = &line["attempts"][0];
    assert_eq!(attempt["verdict"], "capacity", "{line:#}");
    assert_eq!(attempt["code"], "other");
    assert_eq!(attempt["upstream_request_id"], Value::Null);
    for path in ["/status", "/", "/metrics"] {
        let told = berth.get(path).await.text();
        assert!(!told.contains(SECRET), "{path}: {told}");
    }
    assert!(!line.to_string().contains(SECRET) && !berth.log().contains(SECRET));
}
