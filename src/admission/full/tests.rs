use super::super::policy::Policy;
use super::*;

fn model() -> Fullness {
    Fullness::new(Policy::default().full)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const NOW: Turn = Turn {
    waiting: None,
    ticket: 5,
};

/// Three sessions are refused by two of two each, a second apart.
fn fill(model: &mut Fullness, start: Instant) -> Instant {
    for session in 0..3 {
        model.refused_everywhere(session, (2, 2), start + millis(1_000 * session));
    }
    start + millis(2_000)
}

#[test]
fn three_sessions_refused_by_everything_fill_a_model() {
    let (mut model, start) = (model(), Instant::now());
    let now = fill(&mut model, start);
    assert_eq!(model.full_since(), Some(now));
    assert!(matches!(model.try_start(NOW, now), Start::WaitUntil(at) if at > now + PACE));
}

#[test]
fn one_session_alone_never_fills_a_model() {
    let (mut model, start) = (model(), Instant::now());
    for second in 0..100 {
        model.refused_everywhere(7, (3, 6), start + millis(1_000 * second));
    }
    assert_eq!(model.full_since(), None);
}

#[test]
fn one_credential_of_several_does_not_fill_a_model() {
    let (mut model, start) = (model(), Instant::now());
    for session in 0..9 {
        model.refused_everywhere(session, (1, 2), start);
    }
    assert_eq!(model.full_since(), None);
    for session in 0..3 {
        model.refused_everywhere(session, (1, 1), start);
    }
    assert!(model.full_since().is_some());
}

#[test]
fn refusals_far_apart_and_a_fresh_admission_keep_it_open() {
    let (mut model, start) = (model(), Instant::now());
    for session in 0..9 {
        model.refused_everywhere(session, (2, 2), start + millis(10_001 * session));
    }
    assert_eq!(model.full_since(), None);
    let now = start + millis(200_000);
    model.admitted(now - millis(3_000), now);
    fill(&mut model, now - millis(1_000));
    assert_eq!(model.full_since(), None);
    // One that took long to answer says nothing about now.
    let now = start + millis(400_000);
    model.admitted(now - millis(60_000), now);
    fill(&mut model, now - millis(1_000));
    assert!(model.full_since().is_some());
}

#[test]
fn one_attempt_a_second_starts_and_two_more_per_admission() {
    let (mut model, start) = (model(), Instant::now());
    let full = fill(&mut model, start);
    let starts = |model: &mut Fullness, now| {
        let goes = (0..20).take_while(|_| model.try_start(NOW, now) == Start::Go);
        goes.count()
    };
    assert_eq!(starts(&mut model, full + millis(999)), 0);
    assert_eq!(starts(&mut model, full + millis(1_000)), 1);
    model.admitted(full + millis(1_000), full + millis(1_500));
    assert_eq!(starts(&mut model, full + millis(1_500)), 2);
    model.refused(full + millis(1_500));
    model.admitted(full + millis(1_500), full + millis(1_800));
    assert!(model.full_since().is_some());
    model.admitted(full + millis(1_500), full + millis(1_900));
    assert_eq!(model.full_since(), None);
}

#[test]
fn an_attempt_begun_before_neither_opens_nor_closes() {
    let (mut model, start) = (model(), Instant::now());
    let full = fill(&mut model, start);
    for _ in 0..5 {
        model.admitted(start, full + millis(100));
    }
    assert!(model.full_since().is_some());
}

#[test]
fn those_that_waited_start_spread_over_five_seconds() {
    let (mut model, start) = (model(), Instant::now());
    let full = fill(&mut model, start);
    let end = full + millis(3_000);
    model.admitted(full + millis(1), end);
    model.admitted(full + millis(1), end);
    let waited = |ticket| Turn {
        waiting: Some(full),
        ticket,
    };
    let mut later = 0;
    for ticket in 0..100 {
        match model.try_start(waited(ticket), end) {
            Start::Go => {}
            Start::WaitUntil(at) => {
                assert!(at <= end + LET_GO_OVER);
                assert_eq!(model.try_start(waited(ticket), at), Start::Go);
                later += 1;
            }
        }
    }
    assert!(later > 90, "{later}");
    // Whoever comes now has not waited.
    assert_eq!(model.try_start(NOW, end), Start::Go);
}
