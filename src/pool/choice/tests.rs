use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use globset::Glob;
use http::HeaderName;

use super::super::spec::{HeaderSource, ModelPatterns, SecretSource};
use super::*;
use crate::admission::PairState;
use crate::admission::Verdict;
use crate::pool::{PairView, Stated};

mod handover;
mod histories;
mod homes;
mod order;
mod refusals;

/// A credential with one word of options: `a w3 t1 max2 !m in:realm`.
fn spec(words: &str) -> CredentialSpec {
    let mut words = words.split(' ');
    let mut spec = CredentialSpec {
        id: CredentialId::new(words.next().unwrap()).unwrap(),
        upstream: "one-for-all".into(),
        // Set by cargo for every test.
        secret: SecretSource::Env("CARGO_PKG_NAME".into()),
        models: models(&["*"]),
        weight: NonZeroU32::MIN,
        tier: 0,
        max_in_flight: None,
        headers: Vec::new(),
        realm: "one-for-all".into(),
        labels: BTreeMap::new(),
    };
    for word in words {
        if let Some(model) = word.strip_prefix('!') {
            spec.models = models(&["*", &format!("!{model}")]);
        } else if let Some(realm) = word.strip_prefix("in:") {
            spec.realm = realm.into();
        } else if let Some(max) = word.strip_prefix("max") {
            spec.max_in_flight = Some(max.parse().unwrap());
        } else if let Some(tier) = word.strip_prefix('t') {
            spec.tier = tier.parse().unwrap();
        } else {
            spec.weight = word.strip_prefix('w').unwrap().parse().unwrap();
        }
    }
    spec
}

fn models(patterns: &[&str]) -> ModelPatterns {
    let pattern = |text: &&str| {
        let glob = Glob::new(text.trim_start_matches('!')).unwrap();
        (!text.starts_with('!'), glob.compile_matcher())
    };
    ModelPatterns::new(patterns.iter().map(pattern).collect())
}

fn try_pool(balance: Balance, specs: Vec<CredentialSpec>) -> Result<Pool, PoolError> {
    let route = RouteMembers {
        name: "/v1".into(),
        credentials: specs.iter().map(|spec| spec.id.clone()).collect(),
        balance,
        affinity: None,
    };
    Pool::new(specs, vec![route], (&Policy::default(), 1), Instant::now())
}

fn pool(balance: Balance, specs: &[&str]) -> Pool {
    try_pool(balance, specs.iter().map(|words| spec(words)).collect()).unwrap()
}

fn ask(model: &str) -> Ask<'_> {
    Ask {
        route: RouteIndex(0),
        model: Some(model),
        tried: &[],
        only: None,
        session: None,
        reach: Reach::Anywhere,
    }
}

fn id(name: &str) -> CredentialId {
    CredentialId::new(name).unwrap()
}

fn take(pool: &Pool, ask: &Ask, now: Instant) -> Lease {
    match pool.choose(ask, now) {
        Choice::Take(lease) => lease,
        Choice::None(why) => panic!("{why:?}"),
    }
}

fn why(pool: &Pool, ask: &Ask, now: Instant) -> Why {
    match pool.choose(ask, now) {
        Choice::Take(lease) => panic!("took {}", lease.credential().id()),
        Choice::None(why) => why,
    }
}

fn name(lease: &Lease) -> &str {
    lease.credential().id().as_str()
}

const ALL: [Balance; 3] = [
    Balance::RoundRobin,
    Balance::LeastInFlight,
    Balance::FillFirst,
];

/// How often each is taken in `picks`, each request over before the next.
fn shares(pool: &Pool, picks: u32) -> BTreeMap<String, u32> {
    let now = Instant::now();
    let mut shares = BTreeMap::new();
    for _ in 0..picks {
        let lease = take(pool, &ask("m"), now);
        *shares.entry(name(&lease).to_owned()).or_default() += 1;
    }
    shares
}

#[test]
fn weights_are_honoured_over_ten_thousand_picks() {
    for balance in [Balance::RoundRobin, Balance::LeastInFlight] {
        let pool = pool(balance, &["a w1", "b w2", "c w7"]);
        let shares = shares(&pool, 10_000);
        for (name, due) in [("a", 1_000), ("b", 2_000), ("c", 7_000)] {
            assert!(shares[name].abs_diff(due) <= 10, "{balance:?} {shares:?}");
        }
    }
}

#[test]
fn least_in_flight_counts_what_is_in_flight_by_weight() {
    let pool = pool(Balance::LeastInFlight, &["a w1", "b w3"]);
    let now = Instant::now();
    let leases: Vec<_> = (0..40).map(|_| take(&pool, &ask("m"), now)).collect();
    let count = |id: &str| leases.iter().filter(|lease| name(lease) == id).count();
    assert_eq!((count("a"), count("b")), (10, 30));
}

#[test]
fn two_credentials_of_one_upstream_both_get_traffic() {
    for balance in [Balance::RoundRobin, Balance::LeastInFlight] {
        let shares = shares(&pool(balance, &["a", "b"]), 100);
        assert_eq!((shares["a"], shares["b"]), (50, 50), "{balance:?}");
    }
}

#[test]
fn the_share_of_an_excluded_one_falls_to_all_the_others() {
    for balance in [Balance::RoundRobin, Balance::LeastInFlight] {
        let pool = pool(balance, &["a", "b", "c"]);
        pool.drain(&id("a"), Instant::now());
        let shares = shares(&pool, 3_000);
        assert!(shares["b"].abs_diff(1_500) <= 10, "{balance:?} {shares:?}");
        assert_eq!(shares["b"] + shares["c"], 3_000);
    }
}

#[test]
fn fill_first_goes_in_the_order_listed() {
    let pool = pool(Balance::FillFirst, &["z max2", "a max1", "m"]);
    let now = Instant::now();
    let leases: Vec<_> = (0..5).map(|_| take(&pool, &ask("m"), now)).collect();
    let names: Vec<_> = leases.iter().map(name).collect();
    assert_eq!(names, ["z", "z", "a", "m", "m"]);
    drop(leases);
    assert_eq!(name(&take(&pool, &ask("m"), now)), "z");
}

#[test]
fn a_tier_is_used_only_when_nobody_of_a_lower_one_can() {
    for balance in ALL {
        let pool = pool(balance, &["backup t1", "a max1", "b max1", "last t7"]);
        let now = Instant::now();
        let leases: Vec<_> = (0..3).map(|_| take(&pool, &ask("m"), now)).collect();
        let mut names: Vec<_> = leases.iter().map(name).collect();
        names[..2].sort_unstable();
        assert_eq!(names, ["a", "b", "backup"], "{balance:?}");
    }
}

#[test]
fn only_who_serves_the_model_and_was_not_tried_is_taken() {
    for balance in ALL {
        let pool = pool(balance, &["a !gpt", "b", "c"]);
        let now = Instant::now();
        let tried = [CredentialIndex(1)];
        let ask = Ask {
            tried: &tried,
            ..ask("gpt")
        };
        for _ in 0..10 {
            assert_eq!(name(&take(&pool, &ask, now)), "c", "{balance:?}");
        }
        let no_model = Ask {
            model: None,
            tried: &[CredentialIndex(1), CredentialIndex(2)],
            ..ask
        };
        assert_eq!(name(&take(&pool, &no_model, now)), "a");
    }
}

#[test]
fn a_request_that_belongs_to_one_goes_nowhere_else() {
    let pool = pool(Balance::LeastInFlight, &["a", "b max1"]);
    let now = Instant::now();
    let ask = Ask {
        only: Some(CredentialIndex(1)),
        ..ask("m")
    };
    let lease = take(&pool, &ask, now);
    assert_eq!(name(&lease), "b");
    assert_eq!(why(&pool, &ask, now).reason, NoneReason::AllBusy);
    drop(lease);
    pool.drain(&id("b"), now);
    assert_eq!(why(&pool, &ask, now).reason, NoneReason::DrainedAll);
}

#[test]
fn max_in_flight_is_never_exceeded_by_sixteen_threads() {
    for balance in ALL {
        let pool = pool(balance, &["a max3", "b max5"]);
        let (peak, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let choice = pool.choose(&ask("m"), Instant::now());
                        let in_flight = |at: usize| pool.credentials()[at].in_flight();
                        assert!(in_flight(0) <= 3 && in_flight(1) <= 5);
                        peak.fetch_max(in_flight(0) + in_flight(1), Ordering::Relaxed);
                        std::thread::yield_now();
                        match choice {
                            Choice::Take(_) => taken.fetch_add(1, Ordering::Relaxed),
                            Choice::None(why) => {
                                assert_eq!(why.reason, NoneReason::AllBusy);
                                0
                            }
                        };
                    }
                });
            }
        });
        assert!(taken.into_inner() > 0 && peak.into_inner() > 1);
        assert!(pool.credentials().iter().all(|it| it.in_flight() == 0));
    }
}

#[test]
fn one_probe_at_a_time_is_let_in_and_a_dropped_one_frees_its_place() {
    for balance in ALL {
        let pool = pool(balance, &["a"]);
        let now = Instant::now();
        take(&pool, &ask("m"), now).learn(Some("m"), Verdict::Auth, None, now);
        let none = why(&pool, &ask("m"), now);
        assert_eq!(none.reason, NoneReason::AllExcluded);
        assert_eq!(none.earliest, Some(Duration::from_secs(60)));
        let now = now + Duration::from_secs(60);
        let probe = take(&pool, &ask("m"), now);
        assert!(probe.is_probe());
        let none = why(&pool, &ask("m"), now);
        assert_eq!(
            (none.reason, none.earliest),
            (NoneReason::AllExcluded, None)
        );
        drop(probe);
        let probe = take(&pool, &ask("other"), now);
        assert!(probe.is_probe());
        probe.learn(Some("other"), Verdict::Admitted, None, now);
        assert!(!take(&pool, &ask("m"), now).is_probe());
    }
}

#[test]
fn why_says_what_stands_in_the_way_and_when_it_ends() {
    let pool = pool(Balance::LeastInFlight, &["a !x", "b !x"]);
    let now = Instant::now();
    let reason = |ask: &Ask| why(&pool, ask, now).reason;
    assert_eq!(reason(&ask("x")), NoneReason::NoCredentialServesModel);
    let elsewhere = Ask {
        route: RouteIndex(1),
        ..ask("m")
    };
    assert_eq!(reason(&elsewhere), NoneReason::NoCredentialServesModel);
    let tried = [CredentialIndex(0), CredentialIndex(1)];
    let again = Ask {
        tried: &tried,
        ..ask("m")
    };
    assert_eq!(reason(&again), NoneReason::AllTried);
    pool.hold_out(&id("a"), None, Duration::from_secs(40), now);
    pool.hold_out(&id("b"), Some("m"), Duration::from_secs(20), now);
    let none = why(&pool, &ask("m"), now);
    assert_eq!(none.reason, NoneReason::AllExcluded);
    assert_eq!(none.earliest, Some(Duration::from_secs(20)));
    pool.drain(&id("b"), now);
    let none = why(&pool, &ask("m"), now);
    assert_eq!(none.reason, NoneReason::AllExcluded);
    assert_eq!(none.earliest, Some(Duration::from_secs(40)));
    pool.drain(&id("a"), now);
    assert_eq!(reason(&ask("m")), NoneReason::DrainedAll);
}

#[test]
fn operators_are_told_whether_the_credential_exists() {
    let pool = pool(Balance::LeastInFlight, &["a"]);
    let now = Instant::now();
    let tell = |name: &str| {
        let id = id(name);
        [
            pool.hold_out(&id, None, Duration::from_secs(1), now),
            pool.drain(&id, now),
            pool.enable(&id),
            pool.reset(&id),
        ]
    };
    assert_eq!(tell("a"), [true; 4]);
    assert_eq!(tell("nobody"), [false; 4]);
}

#[test]
fn the_snapshot_has_one_line_per_credential_and_per_excluded_pair() {
    let pool = pool(Balance::LeastInFlight, &["a", "b"]);
    let now = Instant::now();
    let stated = Stated {
        after: Duration::from_secs(30),
        basis: "retry_after",
        pair_only: false,
    };
    let lease = take(&pool, &ask("m"), now);
    lease.learn(Some("m"), Verdict::RateLimit, Some(stated), now);
    pool.drain(&id("b"), now);
    let views = pool.snapshot(now + Duration::from_secs(10));
    let lines: Vec<_> = views
        .iter()
        .map(|it| {
            let left = it.left.map(|left| left.as_secs());
            let since = it.since.map(|since| since.as_secs());
            (
                it.credential.as_str(),
                &*it.model,
                it.state,
                since,
                left,
                it.basis,
            )
        })
        .collect();
    let expected = [
        ("a", "*", PairState::Ready, None, None, None),
        (
            "a",
            "m",
            PairState::Limited,
            Some(10),
            Some(20),
            Some("retry_after"),
        ),
        (
            "b",
            "*",
            PairState::Drained,
            Some(10),
            None,
            Some("operator"),
        ),
    ];
    assert_eq!(lines, expected);
    assert_eq!(pool.credentials()[0].in_flight(), 1);
}

#[test]
fn a_pool_that_cannot_be_says_what_to_mend() {
    let told = |specs: Vec<CredentialSpec>| {
        let error = try_pool(Balance::RoundRobin, specs).unwrap_err();
        error.to_string()
    };
    let mut missing = spec("a");
    missing.secret = SecretSource::Env("NO_SUCH_KEY".into());
    let mut header = spec("b");
    let gone = HeaderSource::Secret(SecretSource::File("no/such/file".into()));
    header.headers = vec![(HeaderName::from_static("x-account"), gone)];
    let message = told(vec![missing, header]);
    assert!(message.contains("credential a, secret: environment variable NO_SUCH_KEY is not set"));
    assert!(message.contains("credential b, header x-account: file no/such/file cannot be read"));
    assert_eq!(
        told(vec![spec("a"), spec("a")]),
        "two credentials are named a: rename one of them"
    );
    assert!(told(vec![spec("a w1001")]).contains("weight 1001 is above 1000"));
    assert!(told(vec![]).contains("route /v1 has no credentials"));
    let route = |ids: &[&str]| RouteMembers {
        name: "/v1".into(),
        credentials: ids.iter().map(|name| id(name)).collect(),
        balance: Balance::FillFirst,
        affinity: None,
    };
    let with = |ids: &[&str]| {
        let made = Pool::new(
            vec![spec("a")],
            vec![route(ids)],
            (&Policy::default(), 1),
            Instant::now(),
        );
        made.unwrap_err().to_string()
    };
    assert!(with(&["b"]).contains("lists b, which is no credential"));
    assert!(with(&["a", "a"]).contains("lists a twice"));
}

#[test]
fn a_new_secret_is_used_and_a_bad_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    write("sk-old\n");
    let mut from_file = spec("a");
    from_file.secret = SecretSource::File(path.clone());
    let pool = try_pool(Balance::LeastInFlight, vec![from_file, spec("b")]).unwrap();
    let now = Instant::now();
    let of_a = Ask {
        only: Some(CredentialIndex(0)),
        ..ask("m")
    };
    let lease = take(&pool, &of_a, now);
    assert_eq!(lease.secrets().bearer(), "Bearer sk-old");
    assert!(lease.secrets().plain().is_sensitive());
    assert!(!format!("{lease:?} {pool:?}").contains("sk-old"));
    lease.learn(Some("m"), Verdict::Auth, None, now);
    assert_eq!(why(&pool, &of_a, now).reason, NoneReason::AllExcluded);

    let nothing = pool.reload_secrets();
    assert!(nothing.changed.is_empty() && nothing.errors.is_empty());
    write("two\nlines");
    let bad = pool.reload_secrets();
    assert!(bad.changed.is_empty());
    assert!(
        bad.errors[0]
            .to_string()
            .starts_with("credential a, secret: file ")
    );
    assert_eq!(pool.credentials()[0].secrets().plain(), "sk-old");
    assert_eq!(why(&pool, &of_a, now).reason, NoneReason::AllExcluded);

    write("sk-brand-new\n");
    assert_eq!(pool.reload_secrets().changed, [id("a")]);
    let fresh = take(&pool, &of_a, now);
    assert!(!fresh.is_probe());
    assert_eq!(fresh.secrets().plain(), "sk-brand-new");
    // The answer to a request that was sent with the old secret says nothing about the new one.
    assert_eq!(lease.secrets().plain(), "sk-old");
    lease.learn(Some("m"), Verdict::Auth, None, now);
    take(&pool, &of_a, now);
    fresh.learn(Some("m"), Verdict::Auth, None, now);
    assert_eq!(why(&pool, &of_a, now).reason, NoneReason::AllExcluded);
}
