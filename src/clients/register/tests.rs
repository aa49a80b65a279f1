use std::num::{NonZeroU32, NonZeroU64};

use super::*;

fn spec(id: &str, key: &str) -> ClientSpec {
    ClientSpec {
        id: ClientId::new(id).unwrap(),
        key: KeyDigest::of(key.as_bytes()),
        requests_per_minute: None,
        max_in_flight: None,
        models: None,
        tokens_per_day: None,
        expires: None,
    }
}

fn clock(text: &str) -> SystemTime {
    humantime::parse_rfc3339(text).unwrap()
}

fn noon() -> SystemTime {
    clock("2026-11-29T12:00:00Z")
}

fn admit(register: &Register, key: &str, now: Instant) -> Result<Permit, Refusal> {
    let key = KeyDigest::of(key.as_bytes());
    register
        .admit(&key, now, noon())
        .map_err(|denied| match denied {
            Denied::Client(_, why) => why,
            Denied::Stranger => panic!("the key is not known"),
        })
}

fn is_stranger(register: &Register, key: &str, now: Instant) -> bool {
    let key = KeyDigest::of(key.as_bytes());
    register.admit(&key, now, noon()).err() == Some(Denied::Stranger)
}

#[test]
fn only_the_whole_key_of_a_client_lets_in() {
    let now = Instant::now();
    let register = Register::new(vec![spec("a", "key-a"), spec("b", "key-b")], now);
    assert_eq!(admit(&register, "key-a", now).unwrap().id().as_str(), "a");
    assert_eq!(admit(&register, "key-b", now).unwrap().id().as_str(), "b");
    for wrong in ["", "key-", "key-a ", "KEY-A", "key-c"] {
        assert!(is_stranger(&register, wrong, now), "{wrong}");
    }
}

#[test]
fn a_key_works_on_its_last_day_and_then_no_more() {
    let now = Instant::now();
    let last = Day::parse("2026-11-29").unwrap();
    let expires = Some(last);
    let register = Register::new(
        vec![ClientSpec {
            expires,
            ..spec("a", "k")
        }],
        now,
    );
    let key = KeyDigest::of(b"k");
    assert!(
        register
            .admit(&key, now, clock("2026-11-29T23:59:59Z"))
            .is_ok()
    );
    let denied = register
        .admit(&key, now, clock("2026-11-30T00:00:00Z"))
        .unwrap_err();
    let id = ClientId::new("a").unwrap();
    assert_eq!(denied, Denied::Client(id, Refusal::Expired { last }));
}

#[test]
fn a_request_is_in_flight_until_its_permit_is_dropped() {
    let now = Instant::now();
    let max_in_flight = NonZeroU32::new(2);
    let register = Register::new(
        vec![ClientSpec {
            max_in_flight,
            ..spec("a", "k")
        }],
        now,
    );
    let first = admit(&register, "k", now).unwrap();
    let _second = admit(&register, "k", now).unwrap();
    let refused = admit(&register, "k", now).unwrap_err();
    assert_eq!(refused, Refusal::Busy { limit: 2 });
    drop(first);
    assert!(admit(&register, "k", now).is_ok());
}

#[test]
fn what_was_refused_takes_no_place_in_the_minute() {
    let now = Instant::now();
    let limits = ClientSpec {
        requests_per_minute: NonZeroU32::new(2),
        max_in_flight: NonZeroU32::new(1),
        ..spec("a", "k")
    };
    let register = Register::new(vec![limits], now);
    let first = admit(&register, "k", now).unwrap();
    for _ in 0..5 {
        assert_eq!(
            admit(&register, "k", now).unwrap_err(),
            Refusal::Busy { limit: 1 }
        );
    }
    drop(first);
    drop(admit(&register, "k", now).unwrap());
    for _ in 0..5 {
        let left = Duration::from_secs(61);
        let refused = admit(&register, "k", now).unwrap_err();
        assert_eq!(refused, Refusal::TooMany { limit: 2, left });
    }
    assert!(admit(&register, "k", now + Duration::from_secs(61)).is_ok());
}

#[test]
fn a_day_of_tokens_ends_at_midnight() {
    let now = Instant::now();
    let tokens_per_day = NonZeroU64::new(100);
    let register = Register::new(
        vec![ClientSpec {
            tokens_per_day,
            ..spec("a", "k")
        }],
        now,
    );
    let today = Day::of(noon());
    register.spent("a", 99, today);
    assert!(admit(&register, "k", now).is_ok());
    register.spent("a", 1, today);
    let left = Duration::from_secs(12 * 3600);
    assert_eq!(
        admit(&register, "k", now).unwrap_err(),
        Refusal::Spent { limit: 100, left }
    );
    let key = KeyDigest::of(b"k");
    assert!(
        register
            .admit(&key, now, clock("2026-11-30T00:00:00Z"))
            .is_ok()
    );
}

#[test]
fn a_new_list_keeps_what_its_clients_do() {
    let now = Instant::now();
    let limited = |key: &str| ClientSpec {
        max_in_flight: NonZeroU32::new(1),
        requests_per_minute: NonZeroU32::new(1),
        ..spec("a", key)
    };
    let register = Register::new(vec![limited("old")], now);
    let running = admit(&register, "old", now).unwrap();
    register.replace(vec![spec("b", "b"), limited("new")], now);
    assert!(is_stranger(&register, "old", now));
    assert_eq!(
        admit(&register, "new", now).unwrap_err(),
        Refusal::Busy { limit: 1 }
    );
    drop(running);
    assert!(matches!(
        admit(&register, "new", now).unwrap_err(),
        Refusal::TooMany { .. }
    ));
    assert_eq!(register.count(), 2);
    register.replace(Vec::new(), now);
    assert!(is_stranger(&register, "new", now));
}

/// The old process has two in flight and one request in its minute that the new one does not see.
#[test]
fn two_processes_keep_one_limit() {
    let now = Instant::now();
    let limited = || ClientSpec {
        max_in_flight: NonZeroU32::new(3),
        requests_per_minute: NonZeroU32::new(4),
        ..spec("a", "k")
    };
    let today = Day::of(noon());
    let (old, new) = (
        Register::new(vec![limited()], now),
        Register::new(vec![limited()], now),
    );
    let first = admit(&old, "k", now).unwrap();
    new.take_over(&through_json(&old.hand_over(now)), now, today);
    // A request that was on its way to the old one.
    let second = admit(&old, "k", now).unwrap();
    old.spent("a", 7, today);
    new.hear(&through_json(&old.news(now)), now, today);
    new.hear(&through_json(&old.news(now)), now, today);
    let view = &new.views(now, today)[0];
    assert_eq!((view.in_flight, view.requests, view.tokens), (2, 2, 7));
    let third = admit(&new, "k", now).unwrap();
    assert_eq!(
        admit(&new, "k", now).unwrap_err(),
        Refusal::Busy { limit: 3 }
    );
    drop((first, second));
    new.hear(&through_json(&old.news(now)), now, today);
    drop(admit(&new, "k", now).unwrap());
    assert!(matches!(
        admit(&new, "k", now).unwrap_err(),
        Refusal::TooMany { .. }
    ));
    new.hears_no_more();
    drop(third);
    assert_eq!(new.views(now, today)[0].in_flight, 0);
}

fn through_json(figures: &ClientFigures) -> ClientFigures {
    serde_json::from_str(&serde_json::to_string(figures).unwrap()).unwrap()
}
