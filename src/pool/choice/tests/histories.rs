//! Whatever has happened before: who is able is found, who is not is not taken, and no deadline
//! comes nearer by itself. The snapshot, which is made without a selection, is the witness.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const MODELS: [&str; 3] = ["m", "n", "o"];

#[derive(Clone, Debug)]
enum Event {
    Pass(u16),
    Choose {
        model: usize,
        tried: [bool; 4],
        verdict: Option<(usize, Option<u16>)>,
        keep: bool,
    },
    End(usize),
    HoldOut(usize, Option<usize>, u8),
    Drain(usize),
    Enable(usize),
    Reset(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let name = 0..NAMES.len();
    let model = 0..MODELS.len();
    let verdict = (0..Verdict::ALL.len(), prop::option::of(0..5_000_u16));
    let choose = (
        model.clone(),
        any::<[bool; 4]>(),
        prop::option::of(verdict),
        any::<bool>(),
    );
    let choose = choose.prop_map(|(model, tried, verdict, keep)| Event::Choose {
        model,
        tried: tried.map(|it| it && keep),
        verdict,
        keep,
    });
    prop_oneof![
        3 => (0..2_000_u16).prop_map(Event::Pass),
        12 => choose,
        3 => (0..8_usize).prop_map(Event::End),
        1 => (name.clone(), prop::option::of(model), any::<u8>())
            .prop_map(|(name, model, time)| Event::HoldOut(name, model, time)),
        1 => name.clone().prop_map(Event::Drain),
        1 => name.clone().prop_map(Event::Enable),
        1 => name.prop_map(Event::Reset),
    ]
}

fn balance() -> impl Strategy<Value = Balance> {
    prop::sample::select(ALL.to_vec())
}

struct World {
    pool: Pool,
    now: Instant,
    leases: Vec<Lease>,
}

impl World {
    /// Whether nothing at all speaks against it.
    fn is_able(&self, index: usize, model: &str, tried: &[CredentialIndex]) -> bool {
        let credential = &self.pool.credentials()[index];
        let has_room = |max: NonZeroU32| credential.in_flight() < max.get();
        self.is_ready(index, model)
            && !tried.contains(&CredentialIndex(index))
            && credential.spec().models.serve(Some(model))
            && credential.spec().max_in_flight.is_none_or(has_room)
    }

    fn is_ready(&self, index: usize, model: &str) -> bool {
        let views = self.pool.snapshot(self.now);
        let of_it = |view: &&PairView| view.credential.as_str() == NAMES[index];
        let against = |view: &PairView| {
            (view.model == "*" || view.model == model) && view.state != PairState::Ready
        };
        !views.iter().filter(of_it).any(against)
    }

    fn choose(&mut self, model: &str, tried: &[bool; 4], verdict: Option<(Verdict, Option<u16>)>) {
        let tried: Vec<_> = (0..4)
            .filter(|at| tried[*at])
            .map(CredentialIndex)
            .collect();
        let able: Vec<_> = (0..4)
            .filter(|at| self.is_able(*at, model, &tried))
            .collect();
        let ask = Ask {
            tried: &tried,
            ..ask(model)
        };
        match self.pool.choose(&ask, self.now) {
            Choice::Take(lease) => {
                let index = lease.credential().index();
                assert!(!tried.contains(&index));
                if !lease.is_probe() {
                    assert!(able.contains(&index.0), "{index:?} of {able:?}");
                }
                if let Some((verdict, secs)) = verdict {
                    let stated = secs.map(|secs| Stated {
                        after: Duration::from_secs(secs.into()),
                        basis: "retry_after",
                        pair_only: secs % 2 == 0,
                    });
                    lease.learn(Some(model), verdict, stated, self.now);
                }
                self.leases.push(lease);
            }
            Choice::None(why) => assert!(able.is_empty(), "{able:?} {why:?}"),
        }
    }

    /// The ends by credential, model, state and beginning.
    fn ends(&self) -> Vec<((String, String, PairState, Instant), Instant)> {
        let views = self.pool.snapshot(self.now).into_iter();
        views
            .filter_map(|view| {
                let key = (
                    view.credential.to_string(),
                    view.model,
                    view.state,
                    self.now - view.since?,
                );
                // One whose probe is due shows an end that moves with the time.
                let left = view.left.filter(|left| !left.is_zero())?;
                Some((key, self.now + left))
            })
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn who_is_able_is_found_and_no_end_comes_nearer(
        balance in balance(),
        events in vec(event(), 1..120),
    ) {
        let specs = ["a max2", "b w3 !n", "c t1 max1", "d t1 w2"];
        let mut world = World {
            pool: pool(balance, &specs),
            now: Instant::now(),
            leases: Vec::new(),
        };
        for event in events {
            let before = world.ends();
            match event {
                Event::Pass(secs) => world.now += Duration::from_secs(secs.into()),
                Event::Choose { model, tried, verdict, keep } => {
                    let verdict = verdict.map(|(at, secs)| (Verdict::ALL[at], secs));
                    world.choose(MODELS[model], &tried, verdict);
                    if !keep {
                        world.leases.pop();
                    }
                }
                Event::End(at) if at < world.leases.len() => {
                    world.leases.swap_remove(at);
                }
                Event::End(_) => {}
                Event::HoldOut(at, model, secs) => {
                    let time = Duration::from_secs(secs.into());
                    let model = model.map(|at| MODELS[at]);
                    world.pool.hold_out(&id(NAMES[at]), model, time, world.now);
                }
                Event::Drain(at) => assert!(world.pool.drain(&id(NAMES[at]), world.now)),
                Event::Enable(at) => assert!(world.pool.enable(&id(NAMES[at]))),
                Event::Reset(at) => assert!(world.pool.reset(&id(NAMES[at]))),
            }
            let after: BTreeMap<_, _> = world.ends().into_iter().collect();
            for (key, end) in before {
                // Another may be shown now, or it is over; but if it is there, it ends no sooner.
                if let Some(then) = after.get(&key) {
                    prop_assert!(*then >= end, "{key:?}");
                }
            }
        }
        world.leases.clear();
        for credential in world.pool.credentials() {
            prop_assert_eq!(credential.in_flight(), 0);
        }
    }
}
