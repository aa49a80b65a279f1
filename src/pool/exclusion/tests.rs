use super::*;
use crate::admission::PairState::{HeldOut, Limited, Rejected, Spent, Unreachable, Unsupported};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const MILLI: Duration = Duration::from_millis(1);

/// One credential and a clock.
struct Story {
    exclusions: Exclusions,
    start: Instant,
    now: Instant,
}

impl Story {
    fn new() -> Story {
        let now = Instant::now();
        Story {
            exclusions: Exclusions::default(),
            start: now,
            now,
        }
    }

    fn at(&mut self, since_start: Duration) -> &mut Story {
        self.now = self.start + since_start;
        self
    }

    /// A request that was under way anyway comes to this.
    fn hear(&mut self, model: &str, verdict: Verdict, stated: Option<Stated>) {
        let lesson = Lesson {
            model,
            verdict,
            stated,
            probe: None,
        };
        self.exclusions.learn(lesson, self.now);
    }

    fn probe_hears(&mut self, token: ProbeToken, model: &str, verdict: Verdict) {
        let lesson = Lesson {
            model,
            verdict,
            stated: None,
            probe: Some((token, model)),
        };
        self.exclusions.learn(lesson, self.now);
    }

    fn passage(&self, model: &str) -> Passage {
        self.exclusions.passage(model, self.now)
    }

    fn is_out(&self, model: &str) -> bool {
        matches!(self.passage(model), Passage::Out { .. })
    }

    fn is_free(&self, model: &str) -> bool {
        self.passage(model) == Passage::Free
    }

    /// Claims the probe that must be due.
    fn probe(&mut self, model: &str) -> ProbeToken {
        assert_eq!(self.passage(model), Passage::Probe);
        let token = self.exclusions.claim(model, self.now);
        assert!(self.is_out(model));
        token
    }

    fn shown(&self) -> Option<(PairState, Duration, Basis)> {
        let shown = self.exclusions.shown(self.now)?;
        Some((shown.state, shown.left?, shown.basis))
    }

    fn shown_pair(&self, model: &str) -> Option<(PairState, Duration, Basis)> {
        let pairs = self.exclusions.shown_pairs(self.now);
        let (_, shown) = pairs.into_iter().find(|(name, _)| *name == model)?;
        Some((shown.state, shown.left?, shown.basis))
    }
}

fn after(after: Duration) -> Option<Stated> {
    Some(Stated {
        after,
        basis: "retry_after",
        pair_only: false,
    })
}

#[test]
fn a_rate_limit_excludes_the_pair_and_nothing_else() {
    let mut story = Story::new();
    story.hear("m", Verdict::RateLimit, None);
    assert_eq!(
        story.shown_pair("m"),
        Some((Limited, 5 * SECOND, "default"))
    );
    assert!(story.is_out("m") && story.is_free("other") && story.is_free(""));
    assert_eq!(story.shown(), None);
    assert!(story.at(5 * SECOND - MILLI).is_out("m"));
    assert!(story.at(5 * SECOND).is_free("m"));
    assert_eq!(story.shown_pair("m"), None);
}

#[test]
fn of_two_deadlines_the_later_holds_whichever_comes_first() {
    for (first, second) in [(30, 10), (10, 30)] {
        let mut story = Story::new();
        story.hear("m", Verdict::RateLimit, after(first * SECOND));
        story.hear("m", Verdict::RateLimit, after(second * SECOND));
        assert!(story.at(30 * SECOND - MILLI).is_out("m"));
        assert!(story.at(30 * SECOND).is_free("m"));
    }
}

#[test]
fn a_deadline_without_words_does_not_shorten_one_with_words() {
    let mut story = Story::new();
    story.hear("m", Verdict::RateLimit, after(MINUTE));
    story.at(SECOND).hear("m", Verdict::RateLimit, None);
    assert_eq!(
        story.shown_pair("m"),
        Some((Limited, 59 * SECOND, "retry_after"))
    );
}

#[test]
fn stated_times_are_kept_within_bounds() {
    let month = 30 * 24 * 60 * MINUTE;
    let cases = [
        (Verdict::RateLimit, Duration::ZERO, 1_000 * MILLI),
        (Verdict::RateLimit, Duration::MAX, month),
        (Verdict::Forbidden, Duration::ZERO, SECOND),
        (Verdict::ModelUnsupported, 7 * SECOND, 7 * SECOND),
    ];
    for (verdict, said, kept) in cases {
        let mut story = Story::new();
        story.hear("m", verdict, after(said));
        let (_, left, _) = story.shown_pair("m").unwrap();
        assert_eq!(left, kept, "{verdict:?}");
    }
}

#[test]
fn a_spent_quota_excludes_every_model_unless_the_answer_names_one() {
    let mut story = Story::new();
    story.hear("m", Verdict::Quota, None);
    assert_eq!(story.shown(), Some((Spent, 10 * MINUTE, "default")));
    assert!(story.is_out("m") && story.is_out("other"));

    let mut story = Story::new();
    let one = Stated {
        after: MINUTE,
        basis: "upstream_reset",
        pair_only: true,
    };
    story.hear("m", Verdict::Quota, Some(one));
    assert_eq!(
        story.shown_pair("m"),
        Some((Spent, MINUTE, "upstream_reset"))
    );
    assert!(story.is_out("m") && story.is_free("other"));
}

#[test]
fn a_spent_quota_is_probed_every_half_hour_and_an_admission_ends_it() {
    let mut story = Story::new();
    story.hear("m", Verdict::Quota, after(300 * MINUTE));
    assert!(story.at(30 * MINUTE - MILLI).is_out("m"));
    let token = story.at(30 * MINUTE).probe("m");
    story
        .at(31 * MINUTE)
        .probe_hears(token, "m", Verdict::Quota);
    // Refused: the later deadline stays, and the next probe is half an hour on.
    assert_eq!(story.shown().unwrap().1, 269 * MINUTE);
    assert!(story.at(61 * MINUTE - MILLI).is_out("m"));
    let token = story.at(61 * MINUTE).probe("other");
    story.probe_hears(token, "other", Verdict::Admitted);
    assert!(story.is_free("m") && story.shown().is_none());
}

#[test]
fn an_admission_begun_before_the_quota_was_spent_does_not_end_it() {
    let mut story = Story::new();
    story.hear("m", Verdict::Quota, after(60 * MINUTE));
    story.at(SECOND).hear("m", Verdict::Admitted, None);
    assert!(story.is_out("m"));
}

#[test]
fn a_quota_probe_without_an_answer_leaves_the_next_one_due() {
    let mut story = Story::new();
    story.hear("m", Verdict::Quota, after(60 * MINUTE));
    let token = story.at(30 * MINUTE).probe("m");
    story.exclusions.release(token, "m");
    let token = story.probe("m");
    // Busy is an answer, but says nothing about the quota.
    story.probe_hears(token, "m", Verdict::Capacity);
    assert!(story.is_out("m") && story.at(60 * MINUTE).is_free("m"));
}

#[test]
fn a_rejected_secret_is_probed_after_times_that_double_to_half_an_hour() {
    let mut story = Story::new();
    story.hear("m", Verdict::Auth, None);
    assert_eq!(story.shown(), Some((Rejected, MINUTE, "doubling")));
    let mut time = Duration::ZERO;
    for minutes in [1, 2, 4, 8, 16, 30, 30] {
        time += minutes * MINUTE;
        assert!(story.at(time - MILLI).is_out("m"), "before {minutes}");
        let token = story.at(time).probe("m");
        story.probe_hears(token, "m", Verdict::Auth);
        assert!(story.is_out("m"));
    }
}

#[test]
fn any_other_answer_to_the_probe_ends_a_rejection_and_its_doubling() {
    let mut tried = 0;
    for verdict in [Verdict::Admitted, Verdict::ClientError, Verdict::Transient] {
        let mut story = Story::new();
        story.hear("m", Verdict::Auth, None);
        let token = story.at(MINUTE).probe("m");
        story.probe_hears(token, "m", Verdict::Deactivated);
        let token = story.at(3 * MINUTE).probe("m");
        story.probe_hears(token, "m", verdict);
        assert!(story.is_free("m"), "{verdict:?}");
        story.hear("m", Verdict::Auth, None);
        assert_eq!(story.shown().unwrap().1, MINUTE);
        tried += 1;
    }
    assert_eq!(tried, 3);
}

#[test]
fn no_answer_to_the_probe_frees_its_place_and_changes_nothing() {
    let mut story = Story::new();
    story.hear("m", Verdict::Auth, None);
    let token = story.at(MINUTE).probe("m");
    story.probe_hears(token, "m", Verdict::ClientGone);
    let token = story.probe("m");
    story.probe_hears(token, "m", Verdict::Timeout);
    let token = story.probe("m");
    story.exclusions.release(token, "m");
    let token = story.probe("m");
    // Two minutes, not sixteen: nothing of this has doubled it.
    story.probe_hears(token, "m", Verdict::Auth);
    assert_eq!(story.shown().unwrap().1, 2 * MINUTE);
}

#[test]
fn rejections_of_requests_already_under_way_do_not_double() {
    let mut story = Story::new();
    for _ in 0..10 {
        story.hear("m", Verdict::Auth, None);
    }
    story.at(SECOND).hear("m", Verdict::Deactivated, None);
    assert_eq!(story.shown().unwrap().1, MINUTE);
    story.at(2 * SECOND).hear("m", Verdict::Admitted, None);
    assert!(story.is_out("m"));
}

#[test]
fn a_late_release_does_not_free_the_place_of_the_next_probe() {
    let mut story = Story::new();
    story.hear("m", Verdict::Auth, None);
    let old = story.at(MINUTE).probe("m");
    story.probe_hears(old, "m", Verdict::ClientGone);
    story.probe("m");
    story.exclusions.release(old, "m");
    assert!(story.is_out("m"));
}

#[test]
fn a_probe_from_before_a_reset_is_not_taken_for_a_later_one() {
    let mut story = Story::new();
    story.hear("m", Verdict::Auth, None);
    let old = story.at(MINUTE).probe("m");
    story.exclusions.reset();
    story.hear("m", Verdict::Auth, None);
    story.at(2 * MINUTE).probe("m");
    story.exclusions.release(old, "m");
    assert!(story.is_out("m"));
}

#[test]
fn a_new_secret_ends_what_was_said_about_the_old_one_only() {
    let mut story = Story::new();
    story.hear("m", Verdict::Auth, None);
    story.hear("m", Verdict::Forbidden, None);
    story.exclusions.secret_changed();
    assert_eq!(story.shown(), None);
    assert!(story.is_out("m") && story.is_free("other"));
}

#[test]
fn three_failures_without_an_answer_between_make_unreachable() {
    let mut story = Story::new();
    story.hear("m", Verdict::Transport, None);
    story.at(10 * SECOND).hear("m", Verdict::Timeout, None);
    assert!(story.is_free("m"));
    story.at(20 * SECOND).hear("m", Verdict::Capacity, None);
    story.hear("m", Verdict::Transport, None);
    story.hear("m", Verdict::ClientGone, None);
    story.hear("m", Verdict::TruncatedAfterCommit, None);
    story.hear("m", Verdict::Transport, None);
    assert!(story.is_free("m"));
    story.hear("other", Verdict::Transport, None);
    assert_eq!(story.shown(), Some((Unreachable, SECOND, "unreachable")));
    assert!(story.is_out("m"));
}

#[test]
fn failures_more_than_thirty_seconds_apart_do_not_add_up() {
    let mut story = Story::new();
    for second in [0, 16, 31, 47] {
        story
            .at(second * SECOND)
            .hear("m", Verdict::Transport, None);
        assert!(story.is_free("m"), "{second}");
    }
    story.at(61 * SECOND).hear("m", Verdict::Transport, None);
    assert!(story.is_out("m"));
}

#[test]
fn unreachable_is_probed_one_at_a_time_and_doubles_to_thirty_seconds() {
    let mut story = Story::new();
    for _ in 0..3 {
        story.hear("m", Verdict::Transport, None);
    }
    let mut time = Duration::ZERO;
    for seconds in [1, 2, 4, 8, 16, 30, 30] {
        time += seconds * SECOND;
        assert!(story.at(time - MILLI).is_out("m"), "before {seconds}");
        // Others that were still under way fail too.
        for _ in 0..3 {
            story.hear("m", Verdict::Transport, None);
        }
        let token = story.at(time).probe("m");
        story.probe_hears(token, "m", Verdict::Timeout);
    }
    // Any answer ends it, also that of another request.
    story.hear("m", Verdict::RateLimit, None);
    assert_eq!(story.shown(), None);
    assert!(story.is_free("other"));
    for _ in 0..2 {
        story.hear("other", Verdict::Transport, None);
    }
    assert!(story.is_free("other"));
}

#[test]
fn the_one_that_ends_last_is_shown_and_all_of_them_hold() {
    let mut story = Story::new();
    story.hear("m", Verdict::RateLimit, after(10 * SECOND));
    story.hear("m", Verdict::ModelUnsupported, None);
    story.exclusions.hold_out(Some("m"), MINUTE, story.now);
    assert_eq!(story.shown_pair("m").unwrap().0, Unsupported);
    let now = story.at(29 * MINUTE).now;
    story.exclusions.hold_out(Some("m"), 2 * MINUTE, now);
    assert_eq!(story.shown_pair("m").unwrap().0, HeldOut);
    assert_eq!(
        story.passage("m"),
        Passage::Out {
            left: Some(2 * MINUTE)
        }
    );
    story.exclusions.drain(story.now);
    assert_eq!(
        story.exclusions.shown(story.now).unwrap().state,
        PairState::Drained
    );
    assert_eq!(story.passage("other"), Passage::Drained);
}

#[test]
fn enable_ends_what_operators_did_and_what_waits_for_them() {
    let mut story = Story::new();
    let now = story.now;
    story.exclusions.drain(now);
    story.exclusions.hold_out(None, MINUTE, now);
    story.exclusions.hold_out(Some("m"), MINUTE, now);
    story.hear("m", Verdict::Auth, None);
    story.hear("limited", Verdict::RateLimit, None);
    story.exclusions.enable();
    assert!(story.is_free("m") && story.is_free("other"));
    assert!(story.is_out("limited"));
    story.exclusions.reset();
    assert!(story.is_free("limited"));
}

#[test]
fn reset_forgets_the_failures_counted_so_far() {
    let mut story = Story::new();
    for _ in 0..2 {
        story.hear("m", Verdict::Transport, None);
    }
    story.exclusions.reset();
    for _ in 0..2 {
        story.hear("m", Verdict::Transport, None);
    }
    assert!(story.is_free("m"));
    story.hear("m", Verdict::Transport, None);
    assert!(story.is_out("m"));
}

#[test]
fn a_hold_out_without_end_is_one_of_a_month() {
    let mut story = Story::new();
    story.exclusions.hold_out(None, Duration::MAX, story.now);
    assert_eq!(story.shown().unwrap().1, MAX_STATED);
}

#[test]
fn a_million_model_names_are_not_remembered() {
    let mut story = Story::new();
    story
        .exclusions
        .hold_out(Some("by-hand"), SECOND, story.now);
    story.hear("long", Verdict::ModelUnsupported, after(300 * MINUTE));
    for name in 0..1_000_000 {
        story.hear(&name.to_string(), Verdict::ModelUnsupported, None);
        assert!(story.exclusions.pairs.len() <= MAX_MODELS);
    }
    // An operator's word and the later end outlast the flood; so does the newest name.
    assert!(story.is_out("by-hand") && story.is_out("long") && story.is_out("999999"));
    // Where there is no room, what is over goes first, and all of it.
    story.at(31 * MINUTE);
    let room = MAX_MODELS - story.exclusions.pairs.len();
    for name in 0..=room {
        story.hear(&format!("next-{name}"), Verdict::RateLimit, None);
    }
    assert_eq!(story.exclusions.pairs.len(), room + 2);
    assert!(story.is_out("long") && story.is_out("next-0"));
}
