use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn evidence<'a>(status: u16, code: &'a str, kind: &'a str, message: &'a str) -> Evidence<'a> {
    let some = |s: &'a str| (!s.is_empty()).then_some(s);
    Evidence {
        status,
        dialect: Dialect::OpenAi,
        upstream: "vendor-x",
        code: some(code),
        kind: some(kind),
        message: some(message),
        page: false,
        spent: false,
    }
}

fn verdict(status: u16, code: &str, kind: &str, message: &str) -> Verdict {
    let evidence = evidence(status, code, kind, message);
    Rules::default().rule_on(&evidence, today()).verdict
}

fn today() -> Day {
    day("2026-11-29")
}

fn day(text: &str) -> Day {
    Day::parse(text).unwrap()
}

/// The built-in table, for an upstream of this dialect.
pub(crate) fn reading(dialect: Dialect) -> Reading {
    Reading {
        withheld: Default::default(),
        rules: Arc::default(),
        today: today(),
        dialect,
        upstream: "vendor-x".into(),
    }
}

/// An operator's rule, in force.
fn rule(name: &str, when: When, verdict: Verdict) -> Rule {
    Rule {
        name: name.into(),
        when,
        verdict,
        hold: None,
        then: None,
        origin: Origin::Configured(Term::Until(day("2027-03-01"))),
    }
}

fn code(code: &str) -> When {
    When {
        code: vec![code.to_owned()],
        ..When::default()
    }
}

fn rules(configured: impl IntoIterator<Item = Rule>) -> Rules {
    Rules::new(configured.into_iter().collect())
}

#[test]
fn each_kind_of_refusal_gets_its_verdict() {
    let at_capacity = "Selected model is at capacity. Please try a different model.";
    for (status, code, kind, message, expected) in [
        (
            400,
            "",
            "invalid_request_error",
            at_capacity,
            Verdict::Capacity,
        ),
        (200, "server_error", "", at_capacity, Verdict::Capacity),
        (
            200,
            "",
            "",
            "Our servers are currently\u{2028}overloaded.",
            Verdict::Capacity,
        ),
        (429, "slow_down", "", "", Verdict::Capacity),
        (529, "", "", "", Verdict::Capacity),
        (200, "", "overloaded_error", "Overloaded", Verdict::Capacity),
        (429, "", "", "", Verdict::RateLimit),
        (200, "rate_limit_exceeded", "", "", Verdict::RateLimit),
        (429, "", "usage_limit_reached", "", Verdict::Quota),
        (401, "", "", "", Verdict::Auth),
        (402, "", "", "", Verdict::Deactivated),
        (404, "model_not_found", "", "", Verdict::ModelUnsupported),
        (
            404,
            "",
            "not_found_error",
            "model: claude-x",
            Verdict::ModelUnsupported,
        ),
        (
            400,
            "",
            "",
            "The 'gpt-5' model is not supported when using a plan",
            Verdict::ModelUnsupported,
        ),
        (
            400,
            "",
            "",
            "Unsupported parameter: max_output_tokens",
            Verdict::ClientError,
        ),
        (
            400,
            "context_length_exceeded",
            "",
            at_capacity,
            Verdict::ClientError,
        ),
        (
            404,
            "",
            "not_found_error",
            "model: claude-x",
            Verdict::ModelUnsupported,
        ),
        (
            404,
            "",
            "not_found_error",
            "Not found",
            Verdict::ClientError,
        ),
        (403, "cyber_policy", "", "", Verdict::Policy),
        (
            400,
            "",
            "invalid_request_error",
            "Output blocked by content filtering policy",
            Verdict::Policy,
        ),
        (403, "", "forbidden", "Forbidden", Verdict::Forbidden),
        (400, "invalid_encrypted_content", "", "", Verdict::State),
        (408, "", "", "", Verdict::Transient),
        (503, "", "", "upstream connect error", Verdict::Transient),
        (200, "invalid_value", "", "", Verdict::ClientError),
        (200, "whatever", "", "", Verdict::Transient),
    ] {
        let found = verdict(status, code, kind, message);
        assert_eq!(found, expected, "{status} {code} {kind} {message}");
    }
}

#[test]
fn a_message_that_quotes_a_refusal_is_none() {
    for quoting in [
        "Invalid value: 'Selected model is at capacity'",
        "Unknown parameter: 'model not found'.",
        "Overloaded function names are not allowed.",
    ] {
        assert_eq!(
            verdict(400, "", "", quoting),
            Verdict::ClientError,
            "{quoting}"
        );
    }
    assert_eq!(verdict(400, "", "", "Overloaded"), Verdict::Capacity);
}

#[test]
fn names_are_unique_and_the_last_rule_matches_everything() {
    let mut names: Vec<_> = BUILT_IN.iter().map(|rule| &rule.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), BUILT_IN.len());
    let last = BUILT_IN.last().unwrap();
    assert_eq!((&last.when, &*last.name), (&When::default(), LAST.0));
    assert_eq!(last.verdict, LAST.1);
}

#[test]
fn an_operators_rule_comes_before_the_built_in_ones_and_the_first_of_them_wins() {
    let rules = rules([
        rule("first", code("slow_down"), Verdict::Quota),
        rule("second", code("slow_down"), Verdict::Auth),
    ]);
    let ruling = rules.rule_on(&evidence(429, "slow_down", "", ""), today());
    assert_eq!((ruling.verdict, &*ruling.rule), (Verdict::Quota, "first"));
    let ruling = rules.rule_on(&evidence(429, "", "", ""), today());
    assert_eq!(&*ruling.rule, "too_many_requests");
}

#[test]
fn a_rule_matches_through_its_last_day_and_no_longer() {
    let rules = rules([rule("short", code("busy"), Verdict::Capacity)]);
    let busy = evidence(500, "busy", "", "");
    for (on, by) in [
        ("2020-01-01", "short"),
        ("2027-02-28", "short"),
        ("2027-03-01", "short"),
        ("2027-03-02", "server_error"),
        ("2030-01-01", "server_error"),
    ] {
        assert_eq!(&*rules.rule_on(&busy, day(on)).rule, by, "{on}");
        let expired: Vec<_> = rules
            .expired(day(on))
            .map(|(rule, _)| &*rule.name)
            .collect();
        assert_eq!(expired.is_empty(), by == "short", "{on}");
    }
    let mut lasting = rule("lasting", code("busy"), Verdict::Capacity);
    lasting.origin = Origin::Configured(Term::Permanent("vendor's word".into()));
    let rules = Rules::new(vec![lasting]);
    assert_eq!(&*rules.rule_on(&busy, day("9999-12-31")).rule, "lasting");
}

#[test]
fn all_conditions_must_hold_and_within_one_any_alternative_is_enough() {
    let all = When {
        status: vec![400..=400, 200..=200],
        dialect: vec![Dialect::OpenAi],
        upstream: vec!["vendor-y".into(), "vendor-x".into()],
        code: vec!["a".into(), "busy".into()],
        kind: vec!["error".into()],
        message_prefix: vec![folded("No  SEAT")],
        ..When::default()
    };
    let rules = rules([rule("all", all, Verdict::Capacity)]);
    let matching = evidence(200, "busy", "error", "no seat\tfor you");
    let by = |evidence: Evidence<'_>| &*rules.rule_on(&evidence, today()).rule == "all";
    assert!(by(matching));
    let other = Dialect::Anthropic;
    for (what, evidence) in [
        (
            "status",
            Evidence {
                status: 500,
                ..matching
            },
        ),
        (
            "dialect",
            Evidence {
                dialect: other,
                ..matching
            },
        ),
        (
            "upstream",
            Evidence {
                upstream: "vendor-z",
                ..matching
            },
        ),
        (
            "code",
            Evidence {
                code: Some("Busy"),
                ..matching
            },
        ),
        (
            "no code",
            Evidence {
                code: None,
                ..matching
            },
        ),
        (
            "a type for a code",
            Evidence {
                code: None,
                kind: Some("busy"),
                ..matching
            },
        ),
        (
            "type",
            Evidence {
                kind: Some("busy"),
                ..matching
            },
        ),
        (
            "message",
            Evidence {
                message: Some("there is no seat"),
                ..matching
            },
        ),
    ] {
        assert!(!by(evidence), "{what}");
    }
}

#[test]
fn what_a_rule_says_of_the_switch_goes_before_what_its_verdict_says() {
    let ruling = |verdict, then| Ruling {
        verdict,
        rule: "r".into(),
        hold: None,
        then,
    };
    let pass = Some(Then::PassThrough);
    let move_on = Some(Then::FailOver);
    assert_eq!(ruling(Verdict::Capacity, None).switch(), Switch::Yes);
    assert_eq!(ruling(Verdict::Capacity, pass).switch(), Switch::No);
    assert_eq!(ruling(Verdict::ClientError, None).switch(), Switch::No);
    assert_eq!(ruling(Verdict::ClientError, move_on).switch(), Switch::Yes);
    assert!(ruling(Verdict::Capacity, pass).passes_untouched());
    assert!(!ruling(Verdict::ClientError, None).passes_untouched());
}

fn words() -> impl Strategy<Value = Option<String>> {
    let known = vec![
        "slow_down",
        "rate_limit_exceeded",
        "busy",
        "overloaded",
        "x",
    ];
    prop::option::of(prop::sample::select(known).prop_map(str::to_owned))
}

fn whens() -> impl Strategy<Value = When> {
    let dialects = prop::collection::vec(
        prop::sample::select(&[Dialect::OpenAi, Dialect::Anthropic][..]),
        0..2,
    );
    let status = prop::collection::vec((200u16..600).prop_map(|s| s..=s), 0..3);
    (status, dialects, words(), words(), words()).prop_map(
        |(status, dialect, code, kind, prefix)| When {
            status,
            dialect,
            code: code.into_iter().collect(),
            kind: kind.into_iter().collect(),
            message_prefix: prefix.into_iter().collect(),
            ..When::default()
        },
    )
}

proptest! {
    #[test]
    fn a_rule_that_does_not_match_changes_no_verdict(
        table in prop::collection::vec((whens(), 0..60u64), 0..6),
        status in 200u16..600,
        code in words(),
        kind in words(),
        message in words(),
        page in prop::bool::ANY,
        spent in prop::bool::ANY,
    ) {
        let evidence = Evidence {
            code: code.as_deref(),
            kind: kind.as_deref(),
            message: message.as_deref(),
            page,
            spent,
            ..evidence(status, "", "", "")
        };
        let holds = |when: &When| when.holds(&evidence, message.as_deref());
        let configured: Vec<Rule> = table
            .into_iter()
            .enumerate()
            .map(|(at, (when, hold))| Rule {
                hold: Some(Duration::from_secs(hold)),
                then: Some(Then::PassThrough),
                ..rule(&format!("r{at}"), when, Verdict::Quota)
            })
            .collect();
        let first = configured.iter().find(|rule| holds(&rule.when)).map(|rule| rule.name.clone());
        let dead: Vec<Rule> = configured.iter().filter(|rule| !holds(&rule.when)).cloned().collect();
        let without = Rules::default().rule_on(&evidence, today());
        let expected: Arc<str> = first.unwrap_or_else(|| without.rule.clone());
        prop_assert_eq!(Rules::new(configured.clone()).rule_on(&evidence, today()).rule, expected);
        prop_assert_eq!(&Rules::new(dead).rule_on(&evidence, today()), &without);
        let late = day("2027-03-02");
        prop_assert_eq!(&Rules::new(configured).rule_on(&evidence, late), &without);
    }
}
