//! The next process: it knows what the one before knew, of the credentials that it has too.

use super::*;
use crate::pool::Lineage;

fn with_affinity(specs: &[&str]) -> Pool {
    order::resident(Balance::LeastInFlight, specs)
}

fn settle(pool: &Pool, session: u64, refused: &[&str], admitted: Option<&str>, now: Instant) {
    let index = |name: &str| pool.credential(&id(name)).unwrap().index().0;
    let refused: Vec<_> = refused.iter().map(|name| index(name)).collect();
    order::settle(pool, session, &refused, admitted.map(index), now);
}

/// What is said of everybody but whom, by name.
fn said(pool: &Pool, but: &str, now: Instant) -> Vec<(String, String, PairState, String)> {
    let views = pool.snapshot(now).into_iter();
    let mut said: Vec<_> = views
        .filter(|it| it.credential.as_str() != but)
        .map(|it| {
            let millis = |span: Option<Duration>| span.map(|it| it.as_millis());
            let (since, left) = (millis(it.since), millis(it.left));
            let time = format!("{since:?} {left:?} {:.3}", it.score);
            (it.credential.to_string(), it.model, it.state, time)
        })
        .collect();
    said.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    said
}

#[test]
fn the_next_pool_knows_all_of_it_by_name() {
    let now = Instant::now();
    let old = with_affinity(&["gone", "a", "b", "c", "d"]);
    for session in 0..6 {
        settle(&old, session, &["a"], Some("b"), now);
    }
    settle(&old, 70, &["gone", "c", "d"], None, now);
    old.hold_out(&id("c"), Some("n"), Duration::from_secs(600), now);
    old.drain(&id("d"), now);
    let later = now + Duration::from_secs(20);

    let told = serde_json::to_string(&old.hand_over(later)).unwrap();
    let new = with_affinity(&["d", "new", "c", "b", "a"]);
    new.take_over(&serde_json::from_str(&told).unwrap(), later);

    let states: Vec<_> = said(&new, "new", later);
    assert_eq!(states, said(&old, "gone", later));
    let has = |name: &str, state| states.iter().any(|it| it.0 == name && it.2 == state);
    assert!(has("a", PairState::Shunned) && has("c", PairState::HeldOut));
    assert!(has("d", PairState::Drained));
    // Refused everywhere twenty seconds ago: one attempt, and a quarter of the time on top.
    let attempts = |pool: &Pool| pool.allowance(Some("m"), Some(70), None, later).attempts;
    assert_eq!((attempts(&old), attempts(&new)), (1, 1));
    let waits = |secs| {
        let later = now + Duration::from_secs(secs);
        new.retry_after(Some(70), Some("m"), None, later)
    };
    assert!(waits(80) >= Duration::from_secs(20));
}

#[test]
fn a_session_that_lives_off_the_ring_still_does() {
    let now = Instant::now();
    let old = with_affinity(&["a", "b"]);
    let at = |pool: &Pool, session: u64| {
        let ask = Ask {
            session: Some(Lineage::root(session)),
            ..ask("m")
        };
        name(&take(pool, &ask, now)).to_owned()
    };
    // Admitted where the ring did not put them, without a refusal: they were displaced, and stay.
    let moved: Vec<u64> = (0..40).filter(|it| at(&old, *it) == "a").collect();
    assert!(moved.len() > 5);
    for session in &moved {
        settle(&old, *session, &[], Some("b"), now);
    }
    let new = with_affinity(&["a", "b"]);
    new.take_over(&old.hand_over(now), now);
    for session in &moved {
        assert_eq!(at(&new, *session), "b");
    }
}
