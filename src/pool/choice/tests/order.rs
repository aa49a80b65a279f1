//! What refusals make of the order, and that they exclude nobody.

use super::*;

pub(super) fn resident(balance: Balance, specs: &[&str]) -> Pool {
    let specs: Vec<_> = specs.iter().map(|words| spec(words)).collect();
    let route = RouteMembers {
        name: "/v1".into(),
        credentials: specs.iter().map(|spec| spec.id.clone()).collect(),
        balance,
        affinity: Some(Duration::from_secs(3600)),
    };
    Pool::new(specs, vec![route], (&Policy::default(), 1), Instant::now()).unwrap()
}

fn of(session: u64) -> Ask<'static> {
    Ask {
        session: Some(Lineage::root(session)),
        ..ask("m")
    }
}

pub(super) fn settle(
    pool: &Pool,
    session: u64,
    refused: &[usize],
    admitted: Option<usize>,
    now: Instant,
) {
    let refused = refused.iter().map(|at| Refused {
        credential: CredentialIndex(*at),
        stated: None,
    });
    let settlement = Settlement {
        route: RouteIndex(0),
        model: Some("m"),
        session: Some(Lineage::root(session)),
        refused: &refused.collect::<Vec<_>>(),
        admitted: admitted.map(CredentialIndex),
        began: now,
    };
    pool.settle(&settlement, now);
}

/// So many newcomers are refused by `bad` and admitted by `good`.
fn blame(pool: &Pool, (bad, good): (usize, usize), sessions: u64, now: Instant) {
    for session in 0..sessions {
        settle(pool, 1_000_000 + session, &[bad], Some(good), now);
    }
}

fn at(pool: &Pool, session: u64, now: Instant) -> usize {
    take(pool, &of(session), now).credential().index().0
}

#[test]
fn a_session_lives_at_one_place_that_its_credentials_name_decides() {
    let now = Instant::now();
    let six = ["a", "b", "c", "d", "e", "f"];
    let one = resident(Balance::LeastInFlight, &six);
    let mut other = six;
    other.reverse();
    let other = resident(Balance::RoundRobin, &other);
    let fewer = resident(Balance::LeastInFlight, &six[..5]);
    let (mut moved, mut homes) = (0, [0; 6]);
    for session in 0..1_000 {
        let home = take(&one, &of(session), now);
        homes[home.credential().index().0] += 1;
        assert_eq!(name(&home), name(&take(&other, &of(session), now)));
        let left = take(&fewer, &of(session), now);
        moved += usize::from(name(&home) != name(&left));
    }
    assert_eq!(moved, homes[5], "only those of the one taken away move");
    assert!(
        homes.iter().all(|home| (90..250).contains(home)),
        "{homes:?}"
    );
}

#[test]
fn a_detour_is_no_new_home() {
    let pool = resident(Balance::LeastInFlight, &["a", "b", "c"]);
    let now = Instant::now();
    let home = at(&pool, 1, now);
    settle(&pool, 1, &[], Some(home), now);
    let id = pool.credentials()[home].id().clone();
    pool.hold_out(&id, None, Duration::from_secs(10), now);
    let detour = at(&pool, 1, now);
    assert_ne!(detour, home);
    settle(&pool, 1, &[], Some(detour), now);
    assert_eq!(at(&pool, 1, now + Duration::from_secs(11)), home);
}

#[test]
fn a_new_session_that_finds_its_home_crowded_stays_where_it_was_put() {
    let pool = resident(Balance::LeastInFlight, &["a", "b", "c"]);
    let now = Instant::now();
    let home = at(&pool, 1, now);
    // The home takes two, whatever its share; then it is crowded.
    let crowd: Vec<_> = (0..2)
        .map(|_| {
            let only = Some(CredentialIndex(home));
            take(&pool, &Ask { only, ..of(1) }, now)
        })
        .collect();
    let other = at(&pool, 1, now);
    assert_ne!(other, home);
    settle(&pool, 1, &[], Some(other), now);
    drop(crowd);
    assert_eq!(at(&pool, 1, now), other);
    // The exception is forgotten when the session is.
    assert_eq!(at(&pool, 1, now + Duration::from_secs(3601)), home);
}

#[test]
fn a_shunned_pair_goes_last_and_is_never_out_of_reach() {
    for balance in ALL {
        for pool in [
            pool(balance, &["a", "b", "c"]),
            resident(balance, &["a", "b", "c"]),
        ] {
            let now = Instant::now();
            blame(&pool, (0, 1), 6, now);
            for session in 0..100 {
                assert_ne!(at(&pool, session, now), 0, "{balance:?}");
            }
            let tried = [CredentialIndex(1), CredentialIndex(2)];
            let last = Ask {
                tried: &tried,
                ..of(5)
            };
            assert_eq!(name(&take(&pool, &last, now)), "a");
            // Its siblings being out, it is all there is.
            pool.drain(&id("b"), now);
            pool.drain(&id("c"), now);
            assert_eq!(at(&pool, 5, now), 0);
        }
    }
}

#[test]
fn of_those_that_go_last_the_lowest_score_is_first() {
    let pool = resident(Balance::LeastInFlight, &["a", "b", "c", "d", "e"]);
    let now = Instant::now();
    blame(&pool, (0, 3), 6, now);
    for session in 0..4 {
        settle(&pool, 2_000_000 + session, &[1], Some(4), now);
    }
    let tried = [2, 3, 4].map(CredentialIndex);
    let ask = Ask {
        tried: &tried,
        ..of(5)
    };
    let first = take(&pool, &ask, now);
    let again = take(&pool, &ask, now);
    assert_eq!((name(&first), name(&again)), ("b", "b"));
}

#[test]
fn shunning_does_not_push_the_siblings_over_twice_their_share() {
    for pool in [
        pool(Balance::LeastInFlight, &["a w8", "b", "c"]),
        resident(Balance::LeastInFlight, &["a w8", "b", "c"]),
    ] {
        let now = Instant::now();
        blame(&pool, (0, 1), 6, now);
        let leases: Vec<_> = (0..100)
            .map(|session| take(&pool, &of(session), now))
            .collect();
        let on = |id: &str| leases.iter().filter(|it| name(it) == id).count();
        assert!(on("b") <= 21 && on("c") <= 21, "{} {}", on("b"), on("c"));
        assert!(on("a") >= 58);
    }
}

#[test]
fn a_backup_tier_that_is_ready_comes_before_a_shunned_one() {
    let pool = resident(Balance::LeastInFlight, &["a", "backup t1"]);
    let now = Instant::now();
    assert_eq!(at(&pool, 1, now), 0);
    blame(&pool, (0, 1), 6, now);
    assert_eq!(at(&pool, 1, now), 1);
}

#[test]
fn a_probe_is_let_in_and_its_verdict_or_its_end_frees_the_place() {
    for pool in [
        pool(Balance::LeastInFlight, &["a", "b", "c"]),
        resident(Balance::LeastInFlight, &["a", "b", "c"]),
    ] {
        let start = Instant::now();
        blame(&pool, (0, 1), 6, start);
        let due = start + Duration::from_secs(73);
        let probe = |now| {
            (0..200)
                .map(|at| take(&pool, &of(at), now))
                .find(Lease::is_trial)
        };
        let first = probe(due).expect("somebody lives there");
        assert_eq!(name(&first), "a");
        assert!(probe(due).is_none());
        drop(first);
        let second = probe(due).expect("the place is free again");
        second.learn(Some("m"), Verdict::Capacity, None, due);
        drop(second);
        assert!(probe(due + Duration::from_secs(119)).is_none());
        let due = due + Duration::from_secs(145);
        for _ in 0..5 {
            let probe = probe(due).expect("probes go on");
            probe.learn(Some("m"), Verdict::Admitted, None, due);
        }
        let views = pool.snapshot(due);
        let a = views.iter().find(|it| it.model == "m").unwrap();
        assert_eq!((a.state, a.evidence.refused), (PairState::Ready, 6));
        assert!(a.score < 18.0);
    }
}

#[test]
fn a_full_model_gives_one_attempt_and_makes_the_others_wait() {
    let pool = resident(Balance::LeastInFlight, &["a", "b", "c"]);
    let now = Instant::now();
    let allowed = |session, now| pool.allowance(Some("m"), Some(session), None, now);
    assert_eq!(allowed(1, now).attempts, 3);
    for session in 0..3 {
        settle(&pool, session, &[0, 1, 2], None, now);
    }
    assert!(pool.is_full(Some("m")) && !pool.is_full(Some("n")));
    assert_eq!(pool.full_models(now).len(), 1);
    let told = allowed(9, now);
    assert_eq!(told.attempts, 1);
    assert!(matches!(told.start, crate::admission::full::Start::WaitUntil(at) if at > now));
    // Nobody was blamed.
    assert!(pool.snapshot(now).iter().all(|it| it.score == 0.0));
}

#[test]
fn a_session_refused_by_everything_gets_one_attempt_on_those_it_has_not_tried() {
    let pool = resident(Balance::LeastInFlight, &["a", "b", "c", "d"]);
    let now = Instant::now();
    settle(&pool, 1, &[0, 1, 2], None, now);
    let later = now + Duration::from_secs(10);
    assert_eq!(pool.allowance(Some("m"), Some(1), None, later).attempts, 1);
    assert_eq!(at(&pool, 1, later), 3);
    settle(&pool, 1, &[3], None, later);
    // Then on the one that refused it longest ago, and not on the same one each time.
    let again = later + Duration::from_secs(10);
    let next = at(&pool, 1, again);
    assert_ne!(next, 3);
    settle(&pool, 1, &[next], None, again);
    assert!(![3, next].contains(&at(&pool, 1, again + Duration::from_secs(10))));
    let told = pool.retry_after(Some(1), Some("m"), None, now + Duration::from_secs(60));
    assert!(told > Duration::from_secs(14), "{told:?}");
}

#[test]
fn the_snapshot_says_why_a_pair_goes_last() {
    let pool = resident(Balance::LeastInFlight, &["a", "b"]);
    let now = Instant::now();
    blame(&pool, (0, 1), 4, now);
    let views = pool.snapshot(now + Duration::from_secs(10));
    let pair = views.iter().find(|it| it.model == "m").unwrap();
    assert_eq!(
        (pair.credential.as_str(), pair.state, pair.basis),
        ("a", PairState::Shunned, Some("score"))
    );
    assert_eq!(pair.since, Some(Duration::from_secs(10)));
    assert!(pair.score > 36.0 && pair.evidence.refused == 4);
    // What it says itself comes first; its score is shown with it.
    pool.hold_out(&id("a"), Some("m"), Duration::from_secs(60), now);
    let views = pool.snapshot(now);
    let pair = views.iter().find(|it| it.model == "m").unwrap();
    assert_eq!(pair.state, PairState::HeldOut);
    assert!(pair.score > 36.0);
    pool.reset(&id("a"));
    assert!(pool.snapshot(now).iter().all(|it| it.model == "*"));
}

#[test]
fn a_pair_is_never_shown_better_than_its_credential() {
    let pool = resident(Balance::LeastInFlight, &["a", "b"]);
    let now = Instant::now();
    blame(&pool, (0, 1), 1, now);
    let cooled = now + Duration::from_secs(60);
    let shown = || {
        let views = pool.snapshot(cooled);
        let pair = views.into_iter().find(|it| it.model == "m").unwrap();
        (pair.state, pair.score > 5.0)
    };
    assert_eq!(shown(), (PairState::Ready, true));
    let of_a = Ask {
        only: Some(CredentialIndex(0)),
        ..ask("n")
    };
    let lease = take(&pool, &of_a, now);
    let spent = Stated {
        after: Duration::from_secs(7_200),
        basis: "retry_after",
        pair_only: false,
    };
    lease.learn(Some("n"), Verdict::Quota, Some(spent), now);
    assert_eq!(shown(), (PairState::Spent, true));
    // Its own word stands where it outlasts the credential's.
    pool.hold_out(&id("a"), Some("m"), Duration::from_secs(9_000), now);
    assert_eq!(shown(), (PairState::HeldOut, true));
    pool.drain(&id("a"), now);
    assert_eq!(shown(), (PairState::Drained, true));
}

#[test]
fn requests_without_a_model_are_one_pair_with_one_name() {
    let pool = pool(Balance::LeastInFlight, &["a"]);
    let now = Instant::now();
    let ask = Ask {
        model: None,
        ..ask("m")
    };
    pool.hold_out(&id("a"), Some(NO_MODEL), Duration::from_secs(60), now);
    assert!(matches!(pool.choose(&ask, now), Choice::None(_)));
    let views = pool.snapshot(now).into_iter();
    let models: Vec<_> = views.map(|it| it.model).collect();
    assert_eq!(models, ["*", NO_MODEL]);
}
