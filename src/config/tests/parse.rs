//! What a good configuration becomes.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use super::super::leaf::Choice;
use super::super::{Config, check_text, load, parse};
use super::examples;
use crate::admission::day::Day;
use crate::admission::policy::{ClientErrorCode, Mode, OnHoldTimeout};
use crate::admission::rules::{Origin, Rule, Then};
use crate::admission::{Dialect, Verdict};
use crate::edge::spec::{Auth, Http2, Limits, OpenPaths, WebSocket};
use crate::pool::{Balance, HeaderSource, SecretSource};

const MINIMAL: &str = "upstreams: { openai: { base_url: https://api.openai.com/v1 } }\n\
                       credentials: [{ id: main, upstream: openai, secret: { env: KEY } }]\n";

fn good(text: &str) -> Config {
    parse("f", text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// One credential with more keys, and the rest of the file.
fn with(credential: &str, rest: &str) -> Config {
    good(&format!(
        "upstreams: {{ openai: {{ base_url: https://api.openai.com/v1 }} }}\n\
         credentials: [{{ id: main, upstream: openai, secret: {{ env: KEY }}, {credential} }}]\n{rest}"
    ))
}

#[test]
fn every_example_is_good() {
    let examples = examples();
    for (path, text) in &examples {
        let name = path.to_string_lossy();
        assert!(
            parse(&name, text).is_ok(),
            "{}",
            parse(&name, text).unwrap_err()
        );
    }
    assert_eq!(examples.len(), 7, "files in conf");
}

#[test]
fn everything_states_the_defaults() {
    let (_, text) = examples()
        .into_iter()
        .find(|(path, _)| path.ends_with("everything.yaml"))
        .unwrap();
    let (written, default) = (good(&text), good(MINIMAL));
    assert_eq!(
        format!("{:?}", written.policy),
        format!("{:?}", default.policy)
    );
    // How many connections there may be is the machine's to say.
    let of_machine = Limits {
        connections: default.limits.connections,
        connections_per_address: default.limits.connections_per_address,
        ..written.limits
    };
    assert_eq!(of_machine, default.limits);
    assert_eq!(written.disclose, default.disclose);
    let (w, d) = (&written.upstreams["openai"], &default.upstreams["openai"]);
    assert_eq!(
        (&w.auth, w.http2, w.idle_timeout),
        (&d.auth, d.http2, d.idle_timeout)
    );
    assert_eq!(w.header_timeout, d.header_timeout);
    assert_eq!(w.non_stream_timeout, d.non_stream_timeout);
    assert_eq!(w.connect_timeout, d.connect_timeout);
    let (w, d) = (&written.routes[0], &default.routes[0]);
    assert_eq!(
        (w.balance, w.affinity, w.websocket),
        (d.balance, d.affinity, d.websocket)
    );
    assert_eq!(written.process.drain_timeout, default.process.drain_timeout);
    assert_eq!(
        written.process.max_generations,
        default.process.max_generations
    );
    assert_eq!(
        written.credentials[0].max_in_flight,
        default.credentials[0].max_in_flight
    );
}

#[test]
fn the_minimum_gets_the_defaults_of_the_contract() {
    let config = good(MINIMAL);
    assert_eq!(config.listeners[0].address.to_string(), "127.0.0.1:8080");
    let admin = config.admin.unwrap();
    assert_eq!(
        (admin.address.to_string().as_str(), admin.token),
        ("127.0.0.1:9090", None)
    );
    let upstream = &config.upstreams["openai"];
    assert_eq!((upstream.base_url.tls, upstream.base_url.port), (true, 443));
    assert_eq!(upstream.base_url.host, "api.openai.com");
    assert_eq!(upstream.base_url.path, "/v1");
    assert_eq!(
        (&upstream.auth, upstream.dialect),
        (&Auth::Bearer, Dialect::OpenAi)
    );
    assert_eq!(upstream.http2, Http2::Auto);
    let credential = &config.credentials[0];
    assert_eq!(credential.secret, SecretSource::Env("KEY".into()));
    assert_eq!((credential.weight, credential.tier), (NonZeroU32::MIN, 0));
    assert_eq!(credential.max_in_flight, NonZeroU32::new(64));
    assert_eq!(credential.realm, "openai");
    assert!(credential.models.serve(Some("any/model")));
    let route = &config.routes[0];
    assert_eq!(route.path_prefix, "/v1");
    assert_eq!(route.credentials, std::slice::from_ref(&credential.id));
    assert_eq!(
        (route.balance, route.websocket),
        (Balance::LeastInFlight, WebSocket::Refuse)
    );
    assert_eq!(route.affinity, Some(Duration::from_secs(3600)));
    assert!(matches!(route.paths, OpenPaths::Defaults));
    let policy = &config.policy;
    assert_eq!((policy.mode, policy.max_attempts.get()), (Mode::Enforce, 3));
    assert_eq!(policy.on_hold_timeout, OnHoldTimeout::FailOver);
    assert_eq!(policy.hold.max_bytes, 4 << 20);
    assert_eq!(
        policy.client_error_code,
        ClientErrorCode::Replace("server_error".into())
    );
    assert_eq!(config.limits.replay_body, 64 << 20);
    assert!(config.limits.memory > 0);
    assert!(config.audit.is_none() && !config.disclose);
}

#[test]
fn durations_and_sizes_have_the_written_length() {
    let config = with(
        "weight: 2",
        "admission: { hold: { max_bytes: 64KiB, max_time: 300ms, request_max_time: 1h30m }, wait: { max_time: 0s } }\n\
         limits: { request_body: 4096, memory: 512MiB }\n",
    );
    assert_eq!(config.policy.hold.max_bytes, 65_536);
    assert_eq!(config.policy.hold.max_time, Duration::from_millis(300));
    assert_eq!(
        config.policy.hold.request_max_time,
        Duration::from_secs(5400)
    );
    assert_eq!(config.policy.wait.max_time, Duration::ZERO);
    assert_eq!(
        (config.limits.request_body, config.limits.replay_body),
        (4096, 4096)
    );
    assert_eq!(config.limits.memory, 512 << 20);
}

#[test]
fn mode_off_is_a_word_and_not_a_boolean() {
    assert_eq!(
        with("tier: 1", "admission: { mode: off }").policy.mode,
        Mode::Off
    );
}

#[test]
fn a_list_that_only_excludes_begins_with_everything() {
    let config = with(r#"models: ["!codex-*"]"#, "");
    let models = &config.credentials[0].models;
    assert!(models.serve(Some("gpt-5")) && !models.serve(Some("codex-auto-review")));
    let config = with(r#"models: ["gpt-*", "!gpt-4*", "gpt-4o"]"#, "");
    let models = &config.credentials[0].models;
    assert!(models.serve(Some("gpt-4o")) && !models.serve(Some("gpt-4")));
    assert!(!models.serve(Some("claude")));
}

#[test]
fn path_globs_cross_slashes_and_may_begin_with_one() {
    let config = with(
        "tier: 0",
        "routes: [{ path_prefix: /, paths: [/files*, models] }]",
    );
    assert_eq!(config.routes[0].path_prefix, "");
    let OpenPaths::Globs(globs) = &config.routes[0].paths else {
        panic!("globs were written");
    };
    assert!(globs.is_match("files/a/b") && globs.is_match("models"));
    assert!(!globs.is_match("responses"));
}

#[test]
fn more_special_prefixes_may_stand_beside_a_general_one() {
    let config = with(
        "tier: 0",
        "routes: [{ path_prefix: /v1 }, { path_prefix: /v1/beta }]",
    );
    assert_eq!(config.routes.len(), 2);
}

#[test]
fn header_values_may_be_written_or_kept_elsewhere() {
    let config = with(
        "headers: { X-Org: a, x-key: { file: /k }, x-api-key: { env: B } }",
        "",
    );
    let headers = &config.credentials[0].headers;
    let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["x-org", "x-key", "x-api-key"]);
    assert!(matches!(&headers[0].1, HeaderSource::Literal(value) if value == "a"));
    assert_eq!(
        headers[1].1,
        HeaderSource::Secret(SecretSource::File("/k".into()))
    );
}

#[test]
fn the_usual_auth_follows_the_dialect() {
    let config = good(
        "upstreams: { a: { base_url: 'http://[::1]:8000/', dialect: anthropic } }\n\
         credentials: [{ id: a, upstream: a, secret: { env: A }, max_in_flight: 0 }]\n",
    );
    let upstream = &config.upstreams["a"];
    assert_eq!(upstream.auth, Auth::Header("x-api-key".parse().unwrap()));
    assert_eq!(
        (upstream.base_url.host.as_str(), upstream.base_url.port),
        ("::1", 8000)
    );
    assert_eq!(upstream.base_url.path, "");
    assert_eq!(config.credentials[0].max_in_flight, None);
}

fn ruled(rules: &str) -> Vec<Rule> {
    let text = format!("admission: {{ rules: [{rules}] }}");
    let config = with("tier: 0", &text);
    let of_operator = |rule: &&Rule| matches!(rule.origin, Origin::Configured(_));
    config
        .policy
        .rules
        .all()
        .filter(of_operator)
        .cloned()
        .collect()
}

#[test]
fn a_condition_is_a_value_or_a_list_of_values() {
    let one = ruled(
        "{ name: a, when: { status: 400, upstream: openai, dialect: openai, code: x, type: y, message_prefix: \"No  Seat\" }, \
         verdict: quota, hold: 90s, then: pass_through, expires: 2027-03-01 }",
    );
    let many = ruled(
        "{ name: a, when: { status: [400], upstream: [openai], dialect: [openai], code: [x], type: [y], message_prefix: [no seat] }, \
         verdict: quota, hold: 1m30s, then: pass_through, expires: \"2027-03-01\" }",
    );
    assert_eq!(one, many);
    let [rule] = one.as_slice() else {
        panic!("{one:?}");
    };
    assert_eq!((&*rule.name, rule.verdict), ("a", Verdict::Quota));
    assert_eq!(rule.hold, Some(Duration::from_secs(90)));
    assert_eq!(rule.then, Some(Then::PassThrough));
    assert_eq!(rule.expires(), Day::parse("2027-03-01"));
    assert_eq!(rule.when.status, [400..=400]);
    assert_eq!(rule.when.message_prefix, ["no seat"]);
}

#[test]
fn what_is_listed_of_a_rule_can_be_written_again() {
    let rules = ruled(
        r##"{ name: a, when: { status: [400, 200], dialect: [openai, anthropic], upstream: openai, code: ["true", "7", "a: b", "it's \"x\"", "#x", "ü", NO, busy], type: "-", message_prefix: ["- [no seat], {", "* é"] }, verdict: capacity, permanent: true, reason: r }"##,
    );
    let conditions = rules[0].when.conditions();
    assert_eq!(conditions.len(), 6, "{conditions:?}");
    let written: Vec<String> = conditions.iter().map(ToString::to_string).collect();
    let again = ruled(&format!(
        "{{ name: a, when: {{ {} }}, verdict: capacity, permanent: true, reason: r }}",
        written.join(", ")
    ));
    assert_eq!(again, rules);
}

#[test]
fn the_verdicts_that_a_rule_may_state_have_the_names_of_the_audit() {
    for (word, verdict) in <Verdict as Choice>::WORDS {
        assert_eq!(*word, verdict.as_str());
    }
    assert_eq!(<Verdict as Choice>::WORDS.len(), 12);
    for (word, then) in <Then as Choice>::WORDS {
        assert_eq!(*word, then.as_str());
    }
}

#[test]
fn an_anchor_may_spare_repetition() {
    let config = good(
        "upstreams:\n  a: &usual { base_url: http://h, idle_timeout: 7s }\n  \
         b: { <<: *usual, connect_timeout: 1s }\n\
         credentials: [{ id: a, upstream: b, secret: { env: A } }]\n",
    );
    assert_eq!(config.upstreams["b"].idle_timeout, Duration::from_secs(7));
}

#[test]
fn an_alias_bomb_is_refused_and_not_expanded() {
    let mut text = String::from("shared:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        text += &format!("  a{level}: &a{level} [{}]\n", vec![below; 10].join(", "));
    }
    let said = parse("f", &text).unwrap_err().to_string();
    assert!(said.contains("too many aliases"), "{said}");
}

#[test]
fn a_file_is_read_within_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("berth.yaml");
    std::fs::write(&path, MINIMAL).unwrap();
    let summary = check_text(&path, Day::default()).unwrap();
    assert_eq!((summary.listeners, summary.upstreams), (1, 1));
    assert_eq!((summary.credentials, summary.routes), (1, 1));
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    assert!(
        load(&path)
            .unwrap_err()
            .to_string()
            .contains("larger than 1 MiB")
    );
    std::fs::write(&path, b"a: 1\nb: \xff\n").unwrap();
    assert!(load(&path).unwrap_err().to_string().contains(":2:4: "));
    let absent = Path::new("/nonexistent/berth.yaml");
    assert!(
        load(absent)
            .unwrap_err()
            .to_string()
            .contains("cannot be read")
    );
}
