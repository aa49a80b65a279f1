//! An operator's own rules, through the front door: what the client gets, what is tried, and that audit,
//! metrics, status and `berth rules` name the rule that decided.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use berth::sim::{Program, Shape, Sim, Step, Then};
use common::upstream::{Conn, LAST_CHUNK, Raw, STREAM_HEAD, answer, chunk};
use common::wire::{Answer, responses};
use common::{Berth, credentials, story};
use serde_json::{Value, json};

const JSON: &str = "content-type: application/json\r\nx-up: 1\r\n";

/// A new way to say that there is no seat, under a status that is the client's fault by itself.
const NO_SEAT: &str =
    "{\"error\": {\"message\":\"No  seat for you today\", \"code\":\"server_is_overloaded_x\"}}";

/// The same inside a stream, before and after output.
const FAILED: &str = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"r\",\"error\":{\"code\":\"slow_down\",\"message\":\"no seat\"},\"output\":[]}}\n\n";
const DELTA: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n";
const COMPLETED: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"status\":\"completed\"}}\n\n";

fn stream(frames: &[&str]) -> Vec<u8> {
    let mut bytes = STREAM_HEAD.as_bytes().to_vec();
    bytes.extend(frames.iter().flat_map(|frame| chunk(frame.as_bytes())));
    bytes.extend_from_slice(LAST_CHUNK);
    bytes
}

/// An upstream that answers `a` with these bytes, and the others with an answer.
async fn refusing(refusal: impl Into<Vec<u8>>) -> Raw {
    let refusal: Vec<u8> = refusal.into();
    Raw::start(move |mut conn: Conn| {
        let refusal = refusal.clone();
        async move {
            while let Some(heard) = conn.request().await {
                let bytes = match heard.credential() {
                    "a" => refusal.clone(),
                    _ => stream(&[DELTA, COMPLETED]),
                };
                if !conn.send(bytes).await {
                    return;
                }
            }
        }
    })
    .await
}

/// Two credentials of one upstream, asked in their order, and these rules.
fn config(upstream: &str, rules: &str) -> String {
    let credentials = credentials("vendor-x", "ab");
    format!(
        "upstreams: {{vendor-x: {{base_url: \"{upstream}\"}}, other: {{base_url: \"http://127.0.0.1:9\"}}}}\n\
         {credentials}\
         routes: [{{path_prefix: /v1, balance: fill_first, affinity: {{enabled: false}}}}]\n\
         admission: {{retry_budget: {{ratio: 100.0, min_per_second: 10000}}, rules: [{rules}]}}\n"
    )
}

/// One request to a berth with these rules, and what came of it.
struct Told {
    berth: Berth,
    answer: Answer,
    audit: Value,
    _upstream: Raw,
}

async fn ask(refusal: impl Into<Vec<u8>>, rules: &str) -> Told {
    let upstream = refusing(refusal).await;
    let berth = Berth::start(&config(&upstream.url(), rules)).await;
    let answer = berth.ask(responses()).await;
    let audit = berth.last_audit(1).await;
    Told {
        berth,
        answer,
        audit,
        _upstream: upstream,
    }
}

async fn rule_of(berth: &Berth, name: &str) -> Value {
    let status = berth.status().await;
    let rules = status["rules"].as_array().unwrap();
    let found = rules.iter().find(|rule| rule["name"] == name);
    found.unwrap_or_else(|| panic!("{status:#}")).clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_berth_does_not_know_fails_over_by_a_rule_and_every_trail_names_it() {
    let refusal = answer(400, JSON, NO_SEAT);
    let without = ask(refusal.clone(), "").await;
    assert_eq!(
        (without.answer.status, story(&without.audit)),
        (400, vec![("a", "client_error")])
    );

    let rule = "{name: no-seat, when: {status: [400, 200], message_prefix: \"no SEAT\"}, \
                verdict: capacity, expires: 9999-12-31}";
    let told = ask(refusal, rule).await;
    assert_eq!(told.answer.status, 200, "{:?}", told.answer);
    assert_eq!(story(&told.audit), [("a", "capacity"), ("b", "admitted")]);
    assert_eq!(told.audit["attempts"][0]["rule"], "no-seat");
    let hits = "berth_rule_hits_total{rule=\"no-seat\"}";
    told.berth.metric_becomes(hits, 1.0).await;
    let never = "berth_rule_hits_total{rule=\"too_many_requests\"}";
    assert_eq!(told.berth.metric(never).await, Some(0.0));
    let mut status = rule_of(&told.berth, "no-seat").await;
    let last = status["last_hit"].take();
    assert!(
        humantime::parse_rfc3339(last.as_str().unwrap()).is_ok(),
        "{last}"
    );
    let expected = json!({
        "name": "no-seat", "source": "configured", "verdict": "capacity", "hits": 1,
        "last_hit": null, "expires": "9999-12-31", "expired": false,
    });
    assert_eq!(status, expected);
    assert!(
        told.berth.log().contains(" rule=no-seat"),
        "{}",
        told.berth.log()
    );

    let listed = told.berth.command(&["rules"]);
    let text = String::from_utf8(listed.stdout).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("no-seat "))
        .unwrap();
    assert!(
        line.contains(&format!("  1     {}", last.as_str().unwrap())),
        "{text}"
    );
    assert_eq!(String::from_utf8_lossy(&listed.stderr), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_rule_passes_through_is_the_upstreams_byte_for_byte() {
    let rule = |when: &str, verdict: &str| {
        format!(
            "{{name: ours, when: {when}, verdict: {verdict}, then: pass_through, expires: 9999-12-31}}"
        )
    };
    let overloaded = "{ \"error\": {\"code\":\"server_is_overloaded\",  \"message\":\"m\"}}";
    let told = ask(
        answer(503, JSON, overloaded),
        &rule("{status: 503}", "transient"),
    )
    .await;
    assert_eq!(
        (told.answer.status, &*told.answer.text()),
        (503, overloaded)
    );
    assert_eq!(told.answer.header("x-up"), Some("1"));
    assert_eq!(told.answer.header("x-berth-rewrote"), None);
    assert_eq!(story(&told.audit), [("a", "transient")]);
    assert_eq!(told.audit["commit_reason"], "error_passed_on");
    assert_eq!(told.audit["rewrote"], Value::Null);

    let told = ask(stream(&[FAILED]), &rule("{code: slow_down}", "quota")).await;
    assert_eq!((told.answer.status, &*told.answer.text()), (200, FAILED));
    assert_eq!(story(&told.audit), [("a", "quota")]);
    assert_eq!(told.audit["attempts"][0]["rule"], "ours");
    assert_eq!(told.audit["blocked"], Value::Null);
    // What its verdict excludes is out all the same.
    let out = told.berth.exclusions().await;
    assert!(out.iter().any(|it| it["state"] == "spent"), "{out:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_the_clients_fault_by_itself_is_asked_elsewhere_where_a_rule_says_so() {
    let rule = "{name: elsewhere, when: {status: 422}, verdict: client_error, then: fail_over, \
                permanent: true, reason: one account has a feature less}";
    let told = ask(answer(422, JSON, "{\"error\":{\"message\":\"no\"}}"), rule).await;
    assert_eq!(told.answer.status, 200);
    assert_eq!(
        story(&told.audit),
        [("a", "client_error"), ("b", "admitted")]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_decides_in_a_stream_and_after_output() {
    let rule = "{name: ours, when: {code: slow_down}, verdict: rate_limit, hold: 30m, expires: 9999-12-31}";
    let told = ask(stream(&[FAILED]), rule).await;
    assert_eq!(told.answer.text(), [DELTA, COMPLETED].concat());
    assert_eq!(story(&told.audit), [("a", "rate_limit"), ("b", "admitted")]);

    let told = ask(stream(&[DELTA, FAILED]), rule).await;
    assert!(told.answer.text().starts_with(DELTA), "{:?}", told.answer);
    assert_eq!(story(&told.audit), [("a", "truncated_after_commit")]);
    assert_eq!(told.audit["attempts"][0]["rule"], "ours");
    let out = told.berth.exclusions().await;
    let minutes = out[0]["left_ms"].as_u64().unwrap() / 60_000;
    assert_eq!(
        (&out[0]["state"], minutes),
        (&json!("limited"), 29),
        "{out:#?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_holds_as_long_as_it_says_and_never_against_the_answers_own_word() {
    let rule = "{name: daily, when: {status: 400}, verdict: quota, hold: 3h, expires: 9999-12-31}";
    for (more, hours, basis) in [("", 2, "rule"), ("retry-after: 7300\r\n", 2, "retry_after")] {
        let told = ask(answer(400, &format!("{JSON}{more}"), NO_SEAT), rule).await;
        let out = told.berth.exclusions().await;
        let spent = out.iter().find(|it| it["basis"] == basis);
        let spent = spent.unwrap_or_else(|| panic!("{basis}: {out:#?}"));
        assert_eq!(spent["state"], "spent");
        assert_eq!(
            spent["left_ms"].as_u64().unwrap() / 3_600_000,
            hours,
            "{spent}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_is_over_or_of_another_upstream_changes_nothing_and_says_so() {
    let rules = "{name: over, when: {status: 400}, verdict: capacity, expires: 2020-01-01}, \
                 {name: elsewhere, when: {upstream: other, status: 400}, verdict: capacity, expires: 9999-12-31}, \
                 {name: tongue, when: {dialect: anthropic, status: 400}, verdict: capacity, expires: 9999-12-31}";
    let told = ask(answer(400, JSON, NO_SEAT), rules).await;
    assert_eq!((told.answer.status, &*told.answer.text()), (400, NO_SEAT));
    assert_eq!(story(&told.audit), [("a", "client_error")]);
    assert_eq!(told.audit["attempts"][0]["rule"], "client_error");
    let over = rule_of(&told.berth, "over").await;
    assert_eq!((&over["expired"], &over["hits"]), (&json!(true), &json!(0)));
    let said = "the rule over has expired: its last day was 2020-01-01";
    let warnings = told.berth.status().await["warnings"].to_string();
    assert!(warnings.contains(said), "{warnings}");
    assert!(
        told.berth.log().contains("the rule `over` has expired"),
        "{}",
        told.berth.log()
    );
    let checked = told.berth.command(&["check"]);
    let warned = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(
        checked.status.success() && warned.contains("the rule `over` has expired"),
        "{warned}"
    );
}

/// Every shape in which the simulated upstream says that it is full is a rule's to name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_comes_before_the_built_in_ones_in_every_shape() {
    let mut count = 0;
    for (name, shape) in Shape::ALL {
        let program = Program::default()
            .with("sk-a", "a", [Step::refuse(shape)], Then::Last)
            .with("sk-b", "b", [], Then::Last);
        let sim = Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap();
        let rule = "{name: mine, when: {upstream: vendor-x, status: [200, 400, 429, 500, 503, 529]}, verdict: forbidden, hold: 20m, expires: 9999-12-31}";
        let berth = Berth::start(&config(&format!("{}/v1", sim.url()), rule)).await;
        assert_eq!(berth.ask(responses()).await.status, 200, "{name}");
        let audit = berth.last_audit(1).await;
        assert_eq!(
            story(&audit),
            [("a", "forbidden"), ("b", "admitted")],
            "{name}"
        );
        assert_eq!(audit["attempts"][0]["rule"], "mine", "{name}");
        count += 1;
    }
    assert_eq!(count, 9);
}

fn berth(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(arguments).output().unwrap()
}

/// `BERTH_BLESS=1` writes the text anew; read the diff.
fn is_as_written_down(text: &[u8], golden: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(golden);
    let text = std::str::from_utf8(text).unwrap();
    if std::env::var_os("BERTH_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap();
    assert!(
        text == wanted,
        "{golden}\n--- wanted\n{wanted}--- said\n{text}"
    );
}

#[test]
fn the_built_in_table_is_listed_in_the_form_of_the_configuration() {
    let listed = berth(&["rules"]);
    assert!(
        listed.status.success() && listed.stderr.is_empty(),
        "{listed:?}"
    );
    is_as_written_down(&listed.stdout, "rules.txt");
}

#[test]
fn the_operators_rules_are_listed_first() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("berth.yaml");
    let rules = "{name: over, when: {upstream: [vendor-x, other], status: [400, 200], code: [busy, \"7\"], type: [], message_prefix: \"No  Seat: \"}, verdict: capacity, hold: 1m30s, expires: 2020-01-01}, \
                 {name: lasting, when: {dialect: openai}, verdict: transient, then: pass_through, permanent: true, reason: r}";
    let admin = common::free_port();
    let text = format!(
        "{}admin: {{address: \"{admin}\"}}\n",
        config("http://127.0.0.1:9", rules)
    );
    std::fs::write(&file, text).unwrap();
    let listed = berth(&["rules", "-c", file.to_str().unwrap()]);
    assert!(listed.status.success(), "{listed:?}");
    let said = format!("berth: without hits: no berth is running at {admin}\n");
    assert_eq!(String::from_utf8_lossy(&listed.stderr), said);
    is_as_written_down(&listed.stdout, "rules_configured.txt");

    std::fs::write(&file, "upstreams: []\n").unwrap();
    let refused = berth(&["rules", "-c", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
