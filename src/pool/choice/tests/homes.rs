//! Where sessions live: subagents with their root, and nobody away from the realm of their state.

use super::order::resident;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Two realms, so that each session has somewhere to go in both.
const TWO_REALMS: [&str; 4] = ["a in:one", "b in:one", "c in:two", "d in:two"];

fn root(root: u64) -> Lineage {
    Lineage::root(root)
}

fn of(session: Lineage, reach: Reach) -> Ask<'static> {
    Ask {
        session: Some(session),
        reach,
        ..ask("m")
    }
}

fn at(pool: &Pool, session: Lineage, now: Instant) -> usize {
    let lease = take(pool, &of(session, Reach::Anywhere), now);
    lease.credential().index().0
}

/// `session` is refused by its home where `refused`, and admitted by `admitted`.
fn answered(
    pool: &Pool,
    (session, model): (Lineage, &str),
    refused: &[usize],
    admitted: usize,
    now: Instant,
) {
    let refused = refused.iter().map(|at| Refused {
        credential: CredentialIndex(*at),
        stated: None,
    });
    let settlement = Settlement {
        route: RouteIndex(0),
        model: Some(model),
        session: Some(session),
        refused: &refused.collect::<Vec<_>>(),
        admitted: Some(CredentialIndex(admitted)),
        began: now,
    };
    pool.settle(&settlement, now);
}

fn realm(pool: &Pool, at: usize) -> &str {
    &pool.credentials()[at].spec().realm
}

/// One of the other realm.
fn abroad(pool: &Pool, home: usize) -> usize {
    let all = 0..pool.credentials().len();
    let mut others = all.filter(|it| realm(pool, *it) != realm(pool, home));
    others.next().unwrap()
}

#[test]
fn an_answer_from_another_realm_moves_the_session_there_for_as_long_as_it_is_in_use() {
    for session in (0..50).map(root) {
        for established in [false, true] {
            let pool = resident(Balance::LeastInFlight, &TWO_REALMS);
            let now = Instant::now();
            let home = at(&pool, session, now);
            if established {
                answered(&pool, (session, "m"), &[], home, now);
            }
            let abroad = abroad(&pool, home);
            answered(&pool, (session, "m"), &[home], abroad, now);
            // Beyond the time in which it would avoid its home anyway.
            let mut later = now;
            for _ in 0..3 {
                later += HOUR;
                assert_eq!(at(&pool, session, later), abroad);
            }
            assert_eq!(at(&pool, session, later + HOUR * 2), home);
        }
    }
}

#[test]
fn a_refusal_within_the_realm_is_a_detour() {
    let pool = resident(Balance::LeastInFlight, &TWO_REALMS);
    let now = Instant::now();
    let home = at(&pool, root(1), now);
    let sibling = home ^ 1;
    assert_eq!(realm(&pool, home), realm(&pool, sibling));
    answered(&pool, (root(1), "m"), &[home], sibling, now);
    assert_eq!(at(&pool, root(1), now + HOUR / 2), home);
}

#[test]
fn encrypted_content_stays_in_its_realm_also_on_the_first_attempt() {
    for session in (0..50).map(root) {
        let pool = resident(Balance::LeastInFlight, &TWO_REALMS);
        let now = Instant::now();
        let home = at(&pool, session, now);
        let bound = of(session, Reach::Realm);
        let out = |at: usize| {
            pool.hold_out(&id(["a", "b", "c", "d"][at]), None, HOUR, now);
        };
        out(home);
        let next = take(&pool, &bound, now).credential().index().0;
        assert_eq!(next, home ^ 1);
        out(home ^ 1);
        let none = why(&pool, &bound, now);
        assert_eq!(none.reason, NoneReason::AllExcluded);
        assert!(none.other_realm && none.earliest.is_some());
        // Whoever moved has its content there.
        let abroad = abroad(&pool, home);
        answered(&pool, (session, "m"), &[], abroad, now);
        assert_eq!(take(&pool, &bound, now).credential().index().0, abroad);
        let tried = [CredentialIndex(abroad), CredentialIndex(abroad ^ 1)];
        let stuck = Ask {
            tried: &tried,
            ..bound
        };
        let none = why(&pool, &stuck, now);
        assert_eq!(
            (none.reason, none.other_realm),
            (NoneReason::AllTried, false)
        );
    }
}

#[test]
fn an_exception_in_a_backup_tier_is_kept() {
    let pool = resident(Balance::LeastInFlight, &["a in:one", "b t1 in:two"]);
    let now = Instant::now();
    pool.hold_out(&id("a"), None, HOUR / 2, now);
    assert_eq!(at(&pool, root(1), now), 1);
    answered(&pool, (root(1), "m"), &[], 1, now);
    assert_eq!(at(&pool, root(1), now + HOUR), 1);
    assert_eq!(at(&pool, root(2), now + HOUR), 0);
}

#[test]
fn a_subagent_lands_with_its_root_wherever_that_lives() {
    for session in 0..50 {
        let pool = resident(Balance::LeastInFlight, &TWO_REALMS);
        let now = Instant::now();
        let names = |parent, thread| Names {
            parent,
            session: parent.is_none().then_some(session),
            thread: Some(thread),
        };
        let of_root = pool.lineage(names(None, 1_000), now).unwrap();
        let child = pool.lineage(names(Some(1_000), 1_001), now).unwrap();
        assert_eq!((of_root.root, child.root), (session, session));
        let home = at(&pool, of_root, now);
        assert_eq!(at(&pool, child, now), home);
        let abroad = abroad(&pool, home);
        answered(&pool, (of_root, "m"), &[home], abroad, now);
        assert_eq!(at(&pool, child, now), abroad);
        // What one subagent has elsewhere is its own affair.
        answered(&pool, (child, "m"), &[abroad], home, now);
        let later = now + HOUR / 2;
        assert_eq!(
            (at(&pool, child, later), at(&pool, of_root, later)),
            (home, abroad)
        );
    }
}

#[test]
fn a_model_that_the_roots_home_does_not_serve_is_a_detour_and_moves_nobody() {
    let pool = resident(Balance::LeastInFlight, &["a in:one !r", "b in:two"]);
    let now = Instant::now();
    let at_a = (0..).map(root).find(|it| at(&pool, *it, now) == 0).unwrap();
    let child = Lineage {
        branch: Some(9),
        ..at_a
    };
    for session in [at_a, child] {
        let review = Ask {
            model: Some("r"),
            ..of(session, Reach::Realm)
        };
        assert_eq!(name(&take(&pool, &review, now)), "b");
        answered(&pool, (session, "r"), &[], 1, now);
        assert_eq!(at(&pool, at_a, now), 0);
    }
}
