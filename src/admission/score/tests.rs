use super::super::policy::Policy;
use super::*;

const PEERS: Peers = Peers {
    count: 4,
    weight: 4,
};

fn scores() -> Scores {
    let policy = Policy::default();
    Scores::new(policy.score, policy.cooldown, policy.probe, 1)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn refusal(credential: Credential) -> Refusal {
    Refusal {
        credential,
        weight: 1,
        stated: None,
    }
}

/// `session` was refused by `refused` and admitted by `admitted`.
fn settle(
    scores: &mut Scores,
    model: &str,
    session: u64,
    refused: &[Credential],
    admitted: Option<Credential>,
    now: Instant,
) {
    let refused: Vec<_> = refused.iter().copied().map(refusal).collect();
    let settled = Settled {
        model,
        peers: PEERS,
        session: Some(session),
        refused: &refused,
        admitted,
        full: false,
    };
    scores.settle(&settled, now);
}

/// So many sessions, from `first` on, are refused by 0 and admitted by 1.
fn blame(scores: &mut Scores, model: &str, first: u64, sessions: u64, now: Instant) {
    for session in first..first + sessions {
        settle(scores, model, session, &[0], Some(1), now);
    }
}

fn score(scores: &mut Scores, credential: Credential, now: Instant) -> f64 {
    let pairs = scores.pairs(now);
    let pair = pairs.iter().find(|it| it.credential == credential);
    pair.map_or(0.0, |it| it.score)
}

fn state(scores: &mut Scores, now: Instant) -> PairState {
    let pairs = scores.pairs(now);
    let pair = pairs.iter().find(|it| it.credential == 0);
    pair.map_or(PairState::Ready, |it| it.state)
}

fn stands(scores: &mut Scores, session: u64, now: Instant) -> Standing {
    let outlook = scores.outlook("m", PEERS, Some(session), now);
    outlook.standing(0)
}

const READY: Standing = Standing::Ready { familiar: false };

#[test]
fn a_refusal_counts_only_where_another_admits() {
    let (mut scores, now) = (scores(), Instant::now());
    for session in 0..100 {
        settle(&mut scores, "m", session, &[0, 1, 2], None, now);
    }
    assert!(scores.pairs(now).is_empty());
    blame(&mut scores, "m", 100, 1, now);
    assert_eq!(score(&mut scores, 0, now), 10.0);
    // An isolated one closes nothing.
    assert_eq!(stands(&mut scores, 999, now), READY);
}

#[test]
fn a_session_counts_once_per_episode_and_goes_elsewhere_meanwhile() {
    let (mut scores, start) = (scores(), Instant::now());
    for minute in 0..5 {
        blame(&mut scores, "m", 7, 1, start + secs(minute * 60));
    }
    assert!(score(&mut scores, 0, start + secs(240)) <= 10.0);
    let avoided = Standing::Avoided {
        since: start + secs(240),
    };
    assert_eq!(stands(&mut scores, 7, start + secs(241)), avoided);
    assert_eq!(stands(&mut scores, 8, start + secs(241)), READY);
    assert_eq!(stands(&mut scores, 7, start + secs(541)), READY);
    // A new episode counts again.
    blame(&mut scores, "m", 7, 1, start + secs(600));
    assert!(score(&mut scores, 0, start + secs(600)) > 10.0);
}

#[test]
fn two_refusals_cool_and_four_shun() {
    let (mut scores, now) = (scores(), Instant::now());
    blame(&mut scores, "m", 0, 2, now);
    assert_eq!(state(&mut scores, now), PairState::Cooling);
    assert!(matches!(
        stands(&mut scores, 99, now),
        Standing::Last { .. }
    ));
    assert_eq!(state(&mut scores, now + secs(7)), PairState::Ready);
    blame(&mut scores, "m", 2, 1, now + secs(7));
    // From 27 on it is ten seconds, and a fifth at most more.
    assert_eq!(state(&mut scores, now + secs(16)), PairState::Cooling);
    assert_eq!(state(&mut scores, now + secs(20)), PairState::Ready);
    blame(&mut scores, "m", 3, 1, now + secs(20));
    assert_eq!(state(&mut scores, now + secs(20)), PairState::Shunned);
}

#[test]
fn the_refusals_own_time_is_kept_up_to_a_minute() {
    for (stated, cools_at, ready_at) in [(30, 29, 37), (600, 59, 73)] {
        let (mut scores, now) = (scores(), Instant::now());
        blame(&mut scores, "m", 0, 1, now);
        let refused = Refusal {
            stated: Some(secs(stated)),
            ..refusal(0)
        };
        let settled = Settled {
            model: "m",
            peers: PEERS,
            session: Some(1),
            refused: &[refused],
            admitted: Some(1),
            full: false,
        };
        scores.settle(&settled, now);
        assert_eq!(state(&mut scores, now + secs(cools_at)), PairState::Cooling);
        assert_eq!(state(&mut scores, now + secs(ready_at)), PairState::Ready);
    }
}

#[test]
fn what_all_have_in_common_is_no_excess() {
    let (mut scores, now) = (scores(), Instant::now());
    for session in 0..40 {
        let refused = session as usize % 4;
        settle(
            &mut scores,
            "m",
            session,
            &[refused],
            Some((refused + 1) % 4),
            now,
        );
    }
    assert!(score(&mut scores, 0, now) > 36.0);
    assert_eq!(state(&mut scores, now), PairState::Ready);
}

#[test]
fn cooling_is_ignored_while_less_than_half_is_ready() {
    let (mut scores, now) = (scores(), Instant::now());
    let two = Peers {
        count: 2,
        weight: 5,
    };
    let heavy = Refusal {
        weight: 3,
        ..refusal(0)
    };
    for session in 0..2 {
        let settled = Settled {
            model: "m",
            peers: two,
            session: Some(session),
            refused: &[heavy],
            admitted: Some(1),
            full: false,
        };
        scores.settle(&settled, now);
    }
    assert_eq!(state(&mut scores, now), PairState::Cooling);
    let outlook = scores.outlook("m", two, None, now);
    assert_eq!(outlook.standing(0), READY);
}

#[test]
fn warm_sessions_pass_and_their_success_clears_nothing() {
    let (mut scores, start) = (scores(), Instant::now());
    settle(&mut scores, "m", 500, &[], Some(0), start);
    blame(&mut scores, "m", 0, 5, start);
    let before = score(&mut scores, 0, start);
    assert_eq!(
        stands(&mut scores, 500, start),
        Standing::Ready { familiar: true }
    );
    for _ in 0..50 {
        settle(&mut scores, "m", 500, &[], Some(0), start);
    }
    assert_eq!(score(&mut scores, 0, start), before);
    assert_eq!(state(&mut scores, start), PairState::Shunned);
    // Warmth ends after ten minutes, and where warm sessions are turned away too.
    for session in 600..602 {
        settle(&mut scores, "m", session, &[], Some(0), start);
        settle(&mut scores, "m", session, &[0], Some(1), start);
    }
    assert!(!matches!(
        stands(&mut scores, 500, start),
        Standing::Ready { .. }
    ));
}

#[test]
fn five_probes_in_a_row_bring_a_pair_back_and_a_refused_one_doubles_the_wait() {
    let (mut scores, start) = (scores(), Instant::now());
    blame(&mut scores, "m", 0, 6, start);
    assert_eq!(scores.probe("m", 0, start + secs(59)), None);
    let due = start + secs(72);
    assert_eq!(stands(&mut scores, 99, due), Standing::Probe);
    let probe = scores.probe("m", 0, due).unwrap();
    assert_eq!(scores.probe("m", 0, due), None);
    assert_eq!(state(&mut scores, due), PairState::Probing);
    scores.probed("m", 0, probe, Probed::Nothing, due);
    let probe = scores.probe("m", 0, due).unwrap();
    scores.probed("m", 0, probe, Probed::Refused, due);
    assert_eq!(scores.probe("m", 0, due + secs(119)), None);

    let due = due + secs(144);
    let first = scores.probe("m", 0, due).unwrap();
    scores.probed("m", 0, first, Probed::Admitted, due);
    let pair: Vec<_> = (0..3).map_while(|_| scores.probe("m", 0, due)).collect();
    assert_eq!(pair.len(), 2);
    for probe in pair {
        scores.probed("m", 0, probe, Probed::Admitted, due);
    }
    let more: Vec<_> = (0..20).map_while(|_| scores.probe("m", 0, due)).collect();
    assert_eq!(more.len(), 8);
    scores.probed("m", 0, more[0], Probed::Admitted, due);
    assert_eq!(state(&mut scores, due), PairState::Probing);
    scores.probed("m", 0, more[1], Probed::Admitted, due);
    assert_eq!(state(&mut scores, due), PairState::Ready);
    assert_eq!(score(&mut scores, 0, due), 17.0);
    // One that comes too late changes nothing.
    scores.probed("m", 0, more[2], Probed::Refused, due);
    assert_eq!(state(&mut scores, due), PairState::Ready);
}

#[test]
fn shunning_ends_by_itself_when_the_excess_has_fallen() {
    let (mut scores, start) = (scores(), Instant::now());
    blame(&mut scores, "m", 0, 4, start);
    assert_eq!(state(&mut scores, start + secs(900)), PairState::Shunned);
    assert_eq!(state(&mut scores, start + secs(1_100)), PairState::Ready);
    blame(&mut scores, "m", 10, 4, start + secs(1_100));
    assert_eq!(state(&mut scores, start + secs(1_100)), PairState::Shunned);
    scores.forget(0);
    assert_eq!(state(&mut scores, start + secs(1_100)), PairState::Ready);
}

#[test]
fn a_credential_shunned_with_two_models_goes_last_with_every_model() {
    let (mut scores, now) = (scores(), Instant::now());
    blame(&mut scores, "m", 0, 4, now);
    assert_eq!(scores.outlook("other", PEERS, None, now).standing(0), READY);
    blame(&mut scores, "n", 0, 4, now);
    let outlook = scores.outlook("other", PEERS, None, now);
    assert_eq!(outlook.standing(0), Standing::Last { score: 0.0 });
    assert_eq!(outlook.standing(1), READY);
    let later = now + secs(1_100);
    assert_eq!(
        scores.outlook("other", PEERS, None, later).standing(0),
        READY
    );
}

#[test]
fn while_the_model_is_full_nobody_is_blamed() {
    let (mut scores, now) = (scores(), Instant::now());
    for session in 0..20 {
        let settled = Settled {
            model: "m",
            peers: PEERS,
            session: Some(session),
            refused: &[refusal(0)],
            admitted: Some(1),
            full: true,
        };
        scores.settle(&settled, now);
    }
    assert!(scores.pairs(now).is_empty());
}

#[test]
fn a_million_sessions_and_models_stay_within_the_bounds() {
    let (mut scores, start) = (scores(), Instant::now());
    for number in 0..1_000_000_u64 {
        let now = start + Duration::from_millis(number);
        let model = format!("model-{}", number % 5_000);
        let refused = [(number % 50) as usize];
        settle(&mut scores, &model, number, &refused, Some(60), now);
        if number % 10_000 == 0 {
            assert!(scores.models.len() <= MAX_MODELS);
            assert!(scores.sessions.len() <= MAX_SESSIONS);
            let pairs: usize = scores.models.values().map(Model::len).sum();
            assert!(pairs <= MAX_PAIRS);
            assert!(scores.shunned.len() <= MAX_PAIRS);
        }
    }
}

#[test]
fn a_clock_that_runs_backwards_changes_nothing() {
    let (mut scores, start) = (scores(), Instant::now() + secs(1_000));
    blame(&mut scores, "m", 0, 4, start);
    let before = score(&mut scores, 0, start);
    let earlier = start - secs(900);
    assert_eq!(score(&mut scores, 0, earlier), before);
    assert_eq!(state(&mut scores, earlier), PairState::Shunned);
    assert_eq!(score(&mut scores, 0, start), before);
}
