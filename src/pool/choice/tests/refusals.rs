//! Whatever was refused before: somebody is always found, and only what may count has counted.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// One request of a session, told to the pool, and the time that passes after it.
#[derive(Clone, Debug)]
struct Told {
    session: u64,
    model: usize,
    refused: [bool; 4],
    admitted: Option<usize>,
    backwards: bool,
    millis: u64,
}

const MODELS: [&str; 3] = ["m", "n", "o"];
const SPECS: [&str; 4] = ["a", "b w3", "c", "d t1"];

fn told() -> impl Strategy<Value = Told> {
    let refused = any::<[bool; 4]>();
    let admitted = prop::option::weighted(0.8, 0..4_usize);
    let time = (prop::bool::weighted(0.1), 0..60_000_u64);
    (0..40_u64, 0..3_usize, refused, admitted, time).prop_map(
        |(session, model, refused, admitted, (backwards, millis))| Told {
            session,
            model,
            refused,
            admitted,
            backwards,
            millis,
        },
    )
}

fn tell(pool: &Pool, told: &Told, now: Instant) {
    let refused = (0..4).filter(|at| told.refused[*at] && told.admitted != Some(*at));
    let refused = refused.map(|at| Refused {
        credential: CredentialIndex(at),
        stated: None,
    });
    let settlement = Settlement {
        route: RouteIndex(0),
        model: Some(MODELS[told.model]),
        session: Some(Lineage::root(told.session)),
        refused: &refused.collect::<Vec<_>>(),
        admitted: told.admitted.map(CredentialIndex),
        began: now,
    };
    pool.settle(&settlement, now);
}

/// A pool with this history, and a time after all of it.
fn after(balance: Balance, affinity: bool, history: &[Told]) -> (Pool, Instant) {
    let specs: Vec<_> = SPECS.iter().map(|words| spec(words)).collect();
    let route = RouteMembers {
        name: "/v1".into(),
        credentials: specs.iter().map(|spec| spec.id.clone()).collect(),
        balance,
        affinity: affinity.then_some(Duration::from_secs(3600)),
    };
    let start = Instant::now();
    let pool = Pool::new(specs, vec![route], (&Policy::default(), 1), start).unwrap();
    let (mut now, mut latest) = (start, start);
    for told in history {
        let time = Duration::from_millis(told.millis);
        match told.backwards {
            true => now = (now - time).max(start),
            false => now += time,
        }
        latest = latest.max(now);
        tell(&pool, told, now);
    }
    (pool, latest)
}

/// Every score that is one: a pair whose last trace is gone has no row any more, which changes nothing.
fn scores(pool: &Pool, now: Instant) -> Vec<(String, String, u64)> {
    let views = pool.snapshot(now).into_iter().filter(|it| it.score >= 0.01);
    let score = |it: PairView| (it.credential.to_string(), it.model, it.score.to_bits());
    views.map(score).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn each_pair_can_be_reached_by_whoever_tried_the_others(
        balance in prop::sample::select(ALL.to_vec()),
        affinity in any::<bool>(),
        history in vec(told(), 0..150),
        session in prop::option::of(0..50_u64),
    ) {
        let (pool, now) = after(balance, affinity, &history);
        for model in MODELS {
            let mut tried: Vec<CredentialIndex> = Vec::new();
            for _ in 0..4 {
                let session = session.map(Lineage::root);
                let ask = Ask { tried: &tried, session, ..ask(model) };
                let lease = match pool.choose(&ask, now) {
                    Choice::Take(lease) => lease,
                    Choice::None(why) => panic!("{model} after {tried:?}: {why:?}"),
                };
                let index = lease.credential().index();
                prop_assert!(!tried.contains(&index));
                tried.push(index);
            }
        }
    }

    #[test]
    fn what_is_the_clients_own_fault_or_nobodys_changes_no_score(
        history in vec(told(), 0..150),
        session in 0..50_u64,
    ) {
        let (pool, now) = after(Balance::LeastInFlight, true, &history);
        let before = scores(&pool, now);
        let silent = [
            Verdict::ClientError,
            Verdict::Policy,
            Verdict::State,
            Verdict::ClientGone,
            Verdict::Transient,
            Verdict::TruncatedAfterCommit,
        ];
        for verdict in silent {
            let ask = Ask { session: Some(Lineage::root(session)), ..ask("m") };
            take(&pool, &ask, now).learn(Some("m"), verdict, None, now);
            let nothing = Told {
                session, model: 0, refused: [false; 4], admitted: None, backwards: false, millis: 0,
            };
            tell(&pool, &nothing, now);
        }
        prop_assert_eq!(&scores(&pool, now), &before);
        // Nor does what everybody refused.
        let everybody = Told {
            session, model: 0, refused: [true; 4], admitted: None, backwards: false, millis: 0,
        };
        tell(&pool, &everybody, now);
        prop_assert_eq!(&scores(&pool, now), &before);
    }

    #[test]
    fn a_success_of_a_warm_session_clears_nothing(
        history in vec(told(), 0..150),
        admitted in 0..4_usize,
    ) {
        let (pool, now) = after(Balance::LeastInFlight, true, &history);
        let success = Told {
            session: 1_000, model: 0, refused: [false; 4], admitted: Some(admitted),
            backwards: false, millis: 0,
        };
        // The first one is a newcomer's and counts.
        tell(&pool, &success, now);
        let before = scores(&pool, now);
        for _ in 0..30 {
            tell(&pool, &success, now);
        }
        prop_assert_eq!(scores(&pool, now), before);
    }

    #[test]
    fn a_score_never_leaves_its_bounds_and_only_falls_by_itself(
        history in vec(told(), 1..150),
    ) {
        let (pool, now) = after(Balance::LeastInFlight, true, &history);
        let score = |now| -> Vec<f64> { pool.snapshot(now).iter().map(|it| it.score).collect() };
        let then = score(now);
        prop_assert!(then.iter().all(|it| (0.0..=60.0).contains(it)));
        let sum = |scores: Vec<f64>| scores.iter().sum::<f64>();
        let before = sum(then);
        let later = sum(score(now + Duration::from_secs(900)));
        prop_assert!(later <= before / 2.0 + 1e-9, "{before} {later}");
        // Asked about an earlier time, it does not rise again.
        prop_assert!(sum(score(now)) <= later + 1e-9);
    }
}
