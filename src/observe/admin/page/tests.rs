use std::time::{Duration, Instant};

use super::*;
use crate::admission::day::Day;
use crate::admission::{PairState, Verdict};
use crate::clients::{ClientId, ClientView};
use crate::observe::allowances::Allowances;
use crate::observe::groups::Kind;
use crate::observe::hits::RuleHits;
use crate::observe::record::tests::failed_over;
use crate::observe::refusals::{RefusalStatus, Refusals};
use crate::observe::safe::SafeText;
use crate::observe::scrape::tests::pool;
use crate::observe::snapshot::Snapshot;
use crate::observe::window::Counts;
use crate::pool::CredentialId;

const HOSTILE: &str = "<script>alert('&\"')</script>";

/// Everything that a page can show.
fn status(snapshot: &Snapshot) -> Status {
    let (counts, refusals, allowances) = (
        Counts::default(),
        Refusals::default(),
        Allowances::default(),
    );
    counts.record(&failed_over(), Duration::ZERO);
    refusals.record(&failed_over());
    let campus_a = CredentialId::new("campus-a").unwrap();
    let head = [
        ("x-codex-primary-used-percent", "83"),
        ("x-codex-primary-window-minutes", "300"),
        ("x-codex-primary-reset-after-seconds", "600"),
        ("x-ratelimit-remaining-tokens", "70"),
    ];
    let head = head.map(|(name, value)| {
        let value = http::HeaderValue::from_static(value);
        (http::HeaderName::from_static(name), value)
    });
    let now = Instant::now();
    allowances.heard(&campus_a, &head.into_iter().collect(), now);
    let spans = counts.spans(Duration::ZERO);
    let mut status = Status::new(
        snapshot,
        spans,
        &RuleHits::default(),
        Duration::from_secs(90),
    );
    status.refusals = refusals.latest();
    status.credentials[0].allowance = allowances.of(&campus_a, now + Duration::from_secs(12));
    status
}

fn page(status: &Status) -> String {
    html(status, Orders::WithToken)
}

#[test]
fn clients_stand_beside_their_limits_where_there_are_any() {
    let mut snapshot = pool();
    assert!(!page(&status(&snapshot)).contains("id=\"clients\""));
    let client = |n: u32| ClientView {
        id: ClientId::new(&format!("lab-{n}")).unwrap(),
        in_flight: n,
        max_in_flight: Some(32),
        requests: 7,
        requests_per_minute: None,
        tokens: 12,
        tokens_per_day: Some(1_000),
        expires: Day::parse("2026-01-31"),
        expired: true,
    };
    snapshot.clients = (0..250).map(client).collect();
    let status = status(&snapshot);
    assert_eq!((status.clients.len(), status.clients_left_out), (200, 50));
    let page = page(&status);
    for part in [
        "lab-249",
        "249 of 32",
        "12 of 1000",
        "2026-01-31, over",
        "And 50 more",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("lab-49<"), "the idlest are left out");
}

#[test]
fn whatever_comes_from_outside_is_text() {
    let mut snapshot = pool();
    snapshot.pairs[0].model = Some(SafeText::new(HOSTILE));
    snapshot.pairs[0].basis = HOSTILE.to_owned();
    snapshot.models[0].model = SafeText::new(HOSTILE);
    snapshot.warnings = vec![HOSTILE.to_owned()];
    snapshot.credentials[0].upstream = HOSTILE.to_owned();
    snapshot.credentials[0]
        .labels
        .insert(HOSTILE.to_owned(), HOSTILE.to_owned());
    let mut status = status(&snapshot);
    status.refusals[0].model = Some(HOSTILE.to_owned());
    status.refusals[0].next = Some(HOSTILE.to_owned());
    let kind = Kind::Label(HOSTILE.to_owned());
    status.groups = Some(status.grouped(&kind));
    let page = page(&status);
    let escaped = "&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;";
    // The pair in its row's name, its head and the sentence; upstream, label twice, basis, warning,
    // full model, refusal twice; the link to the label's groups, the group twice, its model, the group of
    // those without.
    assert_eq!(page.matches(escaped).count(), 16);
    assert_eq!(page.matches("<script").count(), 1);
    assert_eq!(page.matches("</script").count(), 1);
}

#[test]
fn the_policy_names_the_script_and_the_style_that_are_there() {
    let page = page(&status(&pool()));
    let policy = policy();
    let policy = policy.to_str().unwrap();
    let mut found = 0;
    for (element, directive) in [("script", "script-src"), ("style", "style-src")] {
        let (_, rest) = page.split_once(&format!("<{element}>")).unwrap();
        let (inside, _) = rest.split_once(&format!("</{element}>")).unwrap();
        let hash = STANDARD.encode(Sha256::digest(inside));
        assert!(policy.contains(&format!("{directive} 'sha256-{hash}'")));
        found += 1;
    }
    assert_eq!(found, 2);
    assert!(policy.starts_with("default-src 'none'; "));
    for loose in ["unsafe", "http:", "https:", "*"] {
        assert!(!policy.contains(loose), "{loose}");
    }
    // An attribute would need a policy of its own.
    for attribute in [" style=", " onclick=", " onload=", "javascript:"] {
        assert!(!page.contains(attribute), "{attribute}");
    }
}

#[test]
fn nothing_is_loaded_from_anywhere() {
    let page = page(&status(&pool()));
    for scheme in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(scheme), "{scheme}");
    }
}

#[test]
fn every_pair_has_its_state_its_counts_and_its_allowance_in_words() {
    let page = page(&status(&pool()));
    for shown in [
        "data-pair=\"campus-a with gpt-5.6-sol\" data-state=\"cooling\"",
        "cooling</span>, 4 s left</span>",
        "1 refused, 0 admitted",
        "aria-label=\"most refused in 60 s: 1, just now\"",
        "data-pair=\"campus-b with every model\" data-state=\"drained\"",
        "aria-label=\"Codex, shorter window\"></meter> 17 % left; begins anew in 10 min (the upstream said so 12 s ago)",
        "Tokens: 70 left (",
        "at openai, 2 requests in flight, cohort new",
        "2 of 2 credentials ready, 4 requests in flight",
        "capacity, inside a 200 stream: <code>server_is_overloaded</code>",
        "campus-b was asked",
    ] {
        assert!(page.contains(shown), "{shown}\n{page}");
    }
}

#[test]
fn the_sentence_is_told_by_what_is_the_case() {
    let mut snapshot = pool();
    let all = page(&status(&snapshot));
    for said in [
        "<dd id=\"full\">Yes: every credential that was asked refuses <b>gpt-5.6-sol</b>. 4 requests wait",
        "<dd id=\"streams\">Yes: 1 of the latest 1 refusal for want of a seat",
        "<dd id=\"refused\">Yes, while its siblings are served: <b>campus-a</b> with gpt-5.6-sol (cooling, 4 s left)",
    ] {
        assert!(all.contains(said), "{said}\n{all}");
    }
    snapshot.models.clear();
    snapshot.pairs[0].state = PairState::Limited;
    let mut status = status(&snapshot);
    status.refusals[0].verdict = Verdict::RateLimit.as_str().into();
    let none = page(&status);
    for said in [
        "<dd id=\"full\">No:",
        "<dd id=\"streams\">No:",
        "<dd id=\"refused\">No:",
    ] {
        assert!(none.contains(said), "{said}\n{none}");
    }
}

#[test]
fn credentials_are_compared_by_a_link() {
    let mut status = status(&pool());
    let before = page(&status);
    for link in [
        "<a href=\"./?by=label%3Acohort#groups\">cohort</a>",
        "<a href=\"./?by=upstream#groups\">upstream</a>",
    ] {
        assert!(before.contains(link), "{before}");
    }
    status.groups = Some(status.grouped(&Kind::Label("cohort".to_owned())));
    let grouped = page(&status);
    for part in [
        "#groups\" aria-current=\"true\">cohort</a>",
        "scope=\"row\">new</th>",
        "scope=\"row\">no cohort</th>",
        "data-column=\"Ready\">0 of 1 credential</td>",
        "data-column=\"1 hour\">1/0</td>",
    ] {
        assert!(grouped.contains(part), "{part}\n{grouped}");
    }
}

#[test]
fn the_sentence_does_not_deny_what_is_only_not_proven() {
    let mut snapshot = pool();
    snapshot.models.clear();
    snapshot.pairs.clear();
    let mut status = status(&snapshot);
    let one = RefusalStatus {
        shape: "http_503".into(),
        outcome: "refused_all".into(),
        ..status.refusals[0].clone()
    };
    let of = |request: &str| RefusalStatus {
        request_id: request.to_owned(),
        ..one.clone()
    };
    status.refusals = vec![of("br-2"), of("br-2"), of("br-2"), of("br-1"), of("br-1")];
    let page = page(&status);
    for said in [
        "<dd id=\"full\">Not proven: 2 requests were refused by every credential asked, the last with gpt-5.6-sol",
        "<dd id=\"streams\">No: 5 refusals for want of a seat, and none inside",
        "<dd id=\"refused\">Not proven: no credential is known",
    ] {
        assert!(page.contains(said), "{said}\n{page}");
    }
}

#[test]
fn without_a_token_there_is_no_form() {
    let status = status(&pool());
    let without = html(&status, Orders::ElsewhereOnly);
    assert!(!without.contains("<form") && without.contains("admin.token"));
    assert!(without.contains("control socket") && without.contains("--unix-socket"));
    assert!(page(&status).contains("<form id=\"order\" hidden>"));
}

#[test]
fn a_pool_of_any_size_is_a_page_of_bounded_size() {
    let mut status = status(&pool());
    let mut pair = status.pairs[0].clone();
    pair.state = "unsupported";
    status.pairs.extend(vec![pair; 3_000]);
    let page = page(&status);
    // Both credentials are there, and the rest of the first in one row.
    for (credential, rows) in [("campus-a", 25), ("campus-b", 2)] {
        let pairs = page
            .matches(&format!("data-pair=\"{credential} with"))
            .count();
        assert_eq!(pairs, rows, "{credential}");
    }
    assert!(
        page.contains("data-rest=\"campus-a\"><th role=\"rowheader\" scope=\"row\">2976 more</th>")
    );
    assert!(page.contains("data-state=\"cooling\""));
    assert!(page.len() < 1 << 20, "{}", page.len());
}
