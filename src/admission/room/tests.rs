use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::super::share::ASKED_LATELY;
use super::*;

fn client(number: u64) -> Client {
    Client::hashed(number)
}

/// Enters, and gets a place.
fn enter(room: &mut Room, who: u64, now: Instant) -> Ticket {
    match room.enter("m", client(who), now) {
        Entry::In(ticket, _) => ticket,
        Entry::Refused => panic!("client {who} gets no place: {room:?}"),
    }
}

/// Lets everybody go in turn.
fn served(room: &mut Room, model: &str) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(ticket) = room.next(model) {
        assert_eq!(room.standing(model, ticket), Standing::Next);
        room.starts(model, ticket);
        assert_eq!(room.standing(model, ticket), Standing::Out);
        order.push(ticket.client.hash());
    }
    order
}

#[test]
fn clients_take_turns_and_a_flood_delays_nobody_else() {
    let (mut room, now) = (Room::new(100), Instant::now());
    for _ in 0..5 {
        enter(&mut room, 1, now);
    }
    for who in [2, 3, 2] {
        enter(&mut room, who, now);
    }
    assert_eq!(room.waiting("m"), 8);
    assert_eq!(served(&mut room, "m"), [1, 2, 3, 1, 2, 1, 1, 1]);
    assert!(room.lines.is_empty() && room.of.is_empty());
}

#[test]
fn whoever_comes_back_goes_to_the_end() {
    let (mut room, now) = (Room::new(10), Instant::now());
    for who in [1, 2, 3] {
        enter(&mut room, who, now);
    }
    for expected in [1, 2, 3, 1, 2, 3] {
        let next = room.next("m").unwrap();
        assert_eq!(next.client, client(expected));
        room.starts("m", next);
        enter(&mut room, expected, now);
    }
}

#[test]
fn the_client_with_the_most_makes_room_for_others_with_its_latest_place() {
    let (mut room, now) = (Room::new(4), Instant::now());
    let first: Vec<_> = (0..4).map(|_| enter(&mut room, 1, now)).collect();
    assert_eq!(room.enter("m", client(1), now), Entry::Refused);
    // The room is one for all models.
    let Entry::In(second, given_up) = room.enter("other", client(2), now) else {
        panic!("{room:?}");
    };
    assert_eq!(given_up, Some(first[3]));
    assert_eq!(room.standing("m", first[3]), Standing::Out);
    assert_eq!(room.standing("m", first[2]), Standing::Behind);
    assert_eq!(room.standing("other", second), Standing::Next);
    enter(&mut room, 2, now);
    for who in [1, 2] {
        assert_eq!(room.enter("m", client(who), now), Entry::Refused, "{who}");
    }
    enter(&mut room, 3, now);
    enter(&mut room, 4, now);
    // Four clients have one each.
    assert_eq!(room.enter("m", client(5), now), Entry::Refused);
    assert_eq!(room.taken, 4);
}

#[test]
fn half_is_the_end_while_others_ask() {
    let (mut room, mut now) = (Room::new(10), Instant::now());
    let other = enter(&mut room, 2, now);
    for _ in 0..5 {
        enter(&mut room, 1, now);
    }
    assert_eq!(room.enter("m", client(1), now), Entry::Refused);
    // It waits still, however long ago it asked.
    now += 2 * ASKED_LATELY;
    assert_eq!(room.enter("m", client(1), now), Entry::Refused);
    room.leaves("m", other);
    enter(&mut room, 1, now);
}

#[test]
fn a_room_without_places_refuses_everybody() {
    let mut room = Room::new(0);
    assert_eq!(room.enter("m", client(1), Instant::now()), Entry::Refused);
}

#[derive(Clone, Debug)]
enum Step {
    Enter(u64, bool),
    Start(bool),
    Leave(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u64..6, any::<bool>()).prop_map(|(who, model)| Step::Enter(who, model)),
        2 => any::<bool>().prop_map(Step::Start),
        1 => (0_usize..100).prop_map(Step::Leave),
        1 => (0_u64..9_000).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_the_promises_hold(
        limit in 1_usize..12,
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let (mut room, mut now) = (Room::new(limit), Instant::now());
        let model = |it: bool| if it { "m" } else { "n" };
        // What a reader of the promises would keep: places in order of arrival, and for each client of
        // a line, whom it has seen go since its own last turn.
        let mut places: Vec<(bool, Ticket)> = Vec::new();
        let mut passed: BTreeMap<(bool, u64), Vec<u64>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Wait(millis) => now += Duration::from_millis(millis),
                Step::Leave(at) if !places.is_empty() => {
                    let (line, ticket) = places.remove(at % places.len());
                    room.leaves(model(line), ticket);
                }
                Step::Leave(_) => {}
                Step::Enter(who, line) => {
                    let count = |it: u64| places.iter().filter(|p| p.1.client == client(it)).count();
                    let counts: Vec<_> = (0..6).map(count).collect();
                    let most = counts.iter().copied().max().unwrap_or_default();
                    match room.enter(model(line), client(who), now) {
                        Entry::In(ticket, given_up) => {
                            if let Some(out) = given_up {
                                prop_assert!(count(out.client.hash()) == most && most > counts[who as usize] + 1);
                                prop_assert_eq!(places.len(), limit);
                                places.retain(|it| it.1 != out);
                            }
                            places.push((line, ticket));
                        }
                        Entry::Refused => {
                            let mine = counts[who as usize];
                            let full = places.len() == limit && most <= mine + 1;
                            prop_assert!(full || mine as u64 >= half(limit as u64), "{:?}", counts);
                            prop_assert!(mine > 0 || counts.iter().all(|it| *it <= 1));
                        }
                    }
                }
                Step::Start(line) => {
                    let Some(ticket) = room.next(model(line)) else {
                        prop_assert!(places.iter().all(|it| it.0 != line));
                        continue;
                    };
                    let who = ticket.client;
                    // First come first served within a client.
                    let first = places.iter().find(|it| it.0 == line && it.1.client == who);
                    prop_assert_eq!(first.map(|it| it.1), Some(ticket));
                    room.starts(model(line), ticket);
                    places.retain(|it| it.1 != ticket);
                    // Nobody who still waits has seen the same client go twice.
                    passed.remove(&(line, who.hash()));
                    let others: BTreeSet<_> = places
                        .iter()
                        .filter(|it| it.0 == line && it.1.client != who)
                        .map(|it| it.1.client.hash())
                        .collect();
                    for other in others {
                        let seen = passed.entry((line, other)).or_default();
                        prop_assert!(!seen.contains(&who.hash()), "{:?}", seen);
                        seen.push(who.hash());
                    }
                }
            }
            // Who left altogether starts afresh.
            let waits = |key: &(bool, u64)| places.iter()
                .any(|it| it.0 == key.0 && it.1.client == client(key.1));
            passed.retain(|key, _| waits(key));
            prop_assert!(places.len() <= limit);
            prop_assert_eq!(room.taken, places.len());
            for line in [false, true] {
                let waiting = places.iter().filter(|it| it.0 == line).count();
                prop_assert_eq!(room.waiting(model(line)), waiting);
            }
        }
    }
}
