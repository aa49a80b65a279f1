use super::*;
use crate::observe::record::Rewrote;
use crate::observe::record::tests::failed_over;
use crate::observe::safe::SafeCode;
use crate::observe::scrape::tests::pool;
use crate::observe::words::Outcome;

fn value(text: &str, series: &str) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| line.rsplit_once(' ').is_some_and(|(s, _)| s == series))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn the_text_is_as_promised() {
    let metrics = Metrics::new("0.0.0-test").unwrap();
    let mut record = failed_over();
    let (from, to) = (SafeCode::new("slow_down"), SafeCode::new("server_error"));
    record.rewrote = Some(Rewrote { from, to, times: 1 });
    record.terminal_synthesised = Some(Dialect::OpenAi);
    record.blocked = Some(Blocked::OutputStarted);
    metrics.record(&record);
    let golden = include_str!("../../../tests/golden/metrics.txt");
    assert_eq!(metrics.render(&pool(), 3), golden);
}

#[test]
fn a_model_refused_first_and_admitted_later_in_a_request_has_its_name_in_both_attempts() {
    let metrics = Metrics::new("v").unwrap();
    metrics.record(&failed_over());
    let text = metrics.render(&Snapshot::default(), 0);
    let refused =
        r#"berth_attempts_total{credential="campus-a",model="gpt-5.6-sol",verdict="capacity"}"#;
    let admitted =
        r#"berth_attempts_total{credential="campus-b",model="gpt-5.6-sol",verdict="admitted"}"#;
    assert_eq!(
        (value(&text, refused), value(&text, admitted)),
        (Some(1.0), Some(1.0))
    );
}

#[test]
fn a_fallback_is_counted_once_and_under_the_models_of_its_attempts() {
    let metrics = Metrics::new("v").unwrap();
    let mut record = failed_over();
    record.attempts[0].then = Then::FallBack;
    record.attempts[1].model = Some(SafeText::new("gpt-b"));
    metrics.record(&record);
    let text = metrics.render(&Snapshot::default(), 0);
    for (series, count) in [
        (
            r#"berth_failovers_total{reason="fallback_model",route="/v1"}"#,
            Some(1.0),
        ),
        (
            r#"berth_failovers_total{reason="capacity",route="/v1"}"#,
            None,
        ),
        (
            r#"berth_attempts_total{credential="campus-b",model="gpt-b",verdict="admitted"}"#,
            Some(1.0),
        ),
        (
            r#"berth_tokens_total{client="lab-7",kind="output",model="gpt-b"}"#,
            Some(50.0),
        ),
    ] {
        assert_eq!(value(&text, series), count, "{series}");
    }
    // The client's own model was never admitted, and has no name here.
    assert!(text.contains(r#"berth_requests_total{model="other",outcome="ok",route="/v1"} 1"#));
}

#[test]
fn status_and_meaning_are_counted_apart_and_no_upstream_invents_a_series() {
    let metrics = Metrics::new("v").unwrap();
    let mut record = failed_over();
    metrics.record(&record);
    for status in (100..1_000).map(Some).chain([None]) {
        record.attempts[0].status = status;
        record.attempts.truncate(1);
        metrics.record(&record);
    }
    let text = metrics.render(&Snapshot::default(), 0);
    let of = |status: &str| {
        let series =
            format!(r#"berth_upstream_responses_total{{credential="campus-a",status="{status}"}}"#);
        value(&text, &series)
    };
    // One refusal that was a 200, and each code once.
    assert_eq!(
        (of("200"), of("503"), of("529")),
        (Some(2.0), Some(1.0), Some(1.0))
    );
    assert_eq!((of("299"), of("other")), (None, Some(400.0)));
    let refused =
        r#"berth_attempts_total{credential="campus-a",model="gpt-5.6-sol",verdict="capacity"}"#;
    assert_eq!(value(&text, refused), Some(902.0));
    let series = text.matches("berth_upstream_responses_total{").count();
    assert!(series < 80, "{series}");
}

#[test]
fn a_made_up_model_never_becomes_a_label() {
    let metrics = Metrics::new("v").unwrap();
    let mut record = failed_over();
    record.attempts.truncate(1);
    record.outcome = Outcome::RefusedAll;
    record.usage = None;
    for number in 0..1_000 {
        let model = SafeText::new(&format!("made-up-{number}"));
        record.model = Some(model.clone());
        record.attempts[0].model = Some(model);
        metrics.record(&record);
    }
    let text = metrics.render(&Snapshot::default(), 0);
    assert!(!text.contains("made-up"));
    let other = r#"berth_requests_total{model="other",outcome="refused_all",route="/v1"}"#;
    assert_eq!(value(&text, other), Some(1_000.0));
}

#[test]
fn a_hostile_model_name_is_escaped_in_the_text() {
    let metrics = Metrics::new("v").unwrap();
    let mut record = failed_over();
    for attempt in &mut record.attempts {
        attempt.model = Some(SafeText::new("a\"} 1\nberth_fake 7"));
    }
    metrics.record(&record);
    let text = metrics.render(&Snapshot::default(), 0);
    assert!(text.contains(r#"model="a\"} 1?berth_fake 7""#));
    assert!(!text.lines().any(|line| line.starts_with("berth_fake")));
}
