//! What a process tells its successor of scores and sessions.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::super::elapsed::FromNow;
use super::pair::{Cooling, Evidence, Pair, Shunned};
use super::session::Meeting;
use super::{Credential, MAX_MODELS, MAX_PAIRS, Memory, Model, Peers, Scores};

/// Scores and what sessions remember. Credentials are numbered as the one who tells numbers them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScoresHandover {
    /// By name, with how many pairs it has in all and what they weigh.
    models: Vec<(String, (usize, u64), Vec<PairHandover>)>,
    sessions: Vec<(u64, Vec<MeetingHandover>)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PairHandover {
    credential: Credential,
    weight: u32,
    score: f64,
    warm: f64,
    cooling: Option<(FromNow, FromNow)>,
    shunned: Option<ShunnedHandover>,
    doublings: u32,
    doubled: Option<FromNow>,
    refused: u64,
    admitted: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ShunnedHandover {
    since: FromNow,
    due: FromNow,
    allowed: u32,
    in_a_row: u32,
}

/// Credential, admitted, refused, refused as a newcomer: many, so without names.
type MeetingHandover = (
    Credential,
    Option<FromNow>,
    Option<FromNow>,
    Option<FromNow>,
);

impl Scores {
    /// Everything that is known.
    pub fn hand_over(&mut self, now: Instant) -> ScoresHandover {
        let numbers = &self.numbers;
        let models = self.models.iter_mut().map(|(name, model)| {
            model.refresh(numbers, now);
            let pairs = model.pairs().iter().map(|pair| pair.hand_over(now));
            let Peers { count, weight } = model.peers;
            (name.to_string(), (count, weight), pairs.collect())
        });
        let episode = self.numbers.marks.episode;
        let sessions = self.sessions.iter();
        let sessions = sessions.filter(|(_, memory)| memory.is_worth_something(episode, now));
        let sessions = sessions.map(|(key, memory)| {
            let meetings = memory.meetings().iter().map(|it| it.hand_over(now));
            (*key, meetings.collect())
        });
        ScoresHandover {
            models: models.collect(),
            sessions: sessions.collect(),
        }
    }

    /// Knows from now on what another process knew; `here` is the number of a credential here, where
    /// there is such a one.
    pub fn take_over(
        &mut self,
        told: &ScoresHandover,
        here: impl Fn(Credential) -> Option<Credential>,
        now: Instant,
    ) {
        for (name, (count, weight), pairs) in told.models.iter().take(MAX_MODELS - 1) {
            let (count, weight) = (*count, *weight);
            let mut model = Model::new(Peers { count, weight }, now);
            for told in pairs {
                let Some(credential) = here(told.credential) else {
                    continue;
                };
                if self.pairs >= MAX_PAIRS {
                    break;
                }
                self.serial += 1;
                let (ceiling, serial) = (self.numbers.marks.ceiling, self.serial);
                model.with(credential, told.weight, |pair| {
                    pair.take_over(told, (ceiling, serial), now);
                });
                self.pairs += 1;
            }
            if model.len() > 0 {
                self.models.insert(name.as_str().into(), model);
            }
        }
        self.count_all(now);
        for (key, meetings) in &told.sessions {
            let meetings = meetings
                .iter()
                .filter_map(|told| Some(Meeting::taken_over(told, here(told.0)?, now)));
            let memory = Memory::of(meetings);
            self.sessions.entry(*key, || memory);
        }
    }
}

impl Pair {
    fn hand_over(&self, now: Instant) -> PairHandover {
        let from_now = |time| FromNow::of(time, now);
        PairHandover {
            credential: self.credential,
            weight: self.weight,
            score: self.score,
            warm: self.warm,
            cooling: self
                .cooling
                .map(|it| (from_now(it.since), from_now(it.until))),
            shunned: self.shunned.map(|it| ShunnedHandover {
                since: from_now(it.since),
                due: from_now(it.due),
                allowed: it.allowed,
                in_a_row: it.in_a_row,
            }),
            doublings: self.doublings,
            doubled: self.doubled.map(from_now),
            refused: self.evidence.refused,
            admitted: self.evidence.admitted,
        }
    }

    fn take_over(&mut self, told: &PairHandover, (ceiling, serial): (f64, u64), now: Instant) {
        let sane = |score: f64| match score.is_finite() {
            true => score.clamp(0.0, ceiling),
            false => 0.0,
        };
        self.score = sane(told.score);
        self.warm = sane(told.warm);
        self.cooling = told.cooling.map(|(since, until)| Cooling {
            since: since.at(now),
            until: until.at(now),
        });
        // The probes that are under way are the other process's: it tells what they come to.
        self.shunned = told.shunned.as_ref().map(|it| Shunned {
            since: it.since.at(now),
            serial,
            due: it.due.at(now),
            allowed: it.allowed.max(1),
            under_way: 0,
            in_a_row: it.in_a_row,
        });
        self.doublings = told.doublings;
        self.doubled = told.doubled.map(|it| it.at(now));
        self.evidence = Evidence {
            refused: told.refused,
            admitted: told.admitted,
        };
    }
}

impl Meeting {
    fn hand_over(&self, now: Instant) -> MeetingHandover {
        let from_now = |time| FromNow::of(time, now);
        (
            self.credential,
            self.admitted.map(from_now),
            self.refused.map(from_now),
            self.episode.map(from_now),
        )
    }

    fn taken_over(told: &MeetingHandover, credential: Credential, now: Instant) -> Meeting {
        let (_, admitted, refused, episode) = *told;
        Meeting {
            credential,
            admitted: admitted.map(|it| it.at(now)),
            refused: refused.map(|it| it.at(now)),
            episode: episode.map(|it| it.at(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::{Refusal, Settled, Standing};
    use super::*;
    use crate::admission::Policy;

    fn scores() -> Scores {
        let policy = Policy::default();
        Scores::new(policy.score, policy.cooldown, policy.probe, 1)
    }

    const PEERS: Peers = Peers {
        count: 3,
        weight: 3,
    };

    /// Without the last bit of a score, which its decimals may lose.
    fn about(standing: Standing) -> Standing {
        match standing {
            Standing::Last { score } => Standing::Last {
                score: (score * 1e9).round(),
            },
            it => it,
        }
    }

    proptest! {
        #[test]
        fn a_successor_orders_the_pairs_as_its_predecessor_did(
            history in vec((0..4_u64, 0..2_usize, 0..3_usize, 0..3_usize, 0..90_u64), 0..80),
        ) {
            const MODELS: [&str; 2] = ["m", "n"];
            let (mut old, mut now) = (scores(), Instant::now());
            for (session, model, refused, admitted, secs) in history {
                now += Duration::from_secs(secs);
                let refusal = Refusal { credential: refused, weight: 1, stated: None };
                let settled = Settled {
                    model: MODELS[model],
                    peers: PEERS,
                    session: Some(session),
                    refused: &[refusal][..usize::from(refused != admitted)],
                    admitted: Some(admitted),
                    full: false,
                };
                old.settle(&settled, now);
            }
            let told = serde_json::to_string(&old.hand_over(now)).unwrap();
            let told: ScoresHandover = serde_json::from_str(&told).unwrap();
            let mut new = scores();
            new.take_over(&told, |it| Some(it + 10), now);
            for model in MODELS {
                for session in 0..5 {
                    let before = old.outlook(model, PEERS, Some(session), now);
                    let after = new.outlook(model, PEERS, Some(session), now);
                    for credential in 0..3 {
                        let same = about(before.standing(credential));
                        prop_assert_eq!(about(after.standing(credential + 10)), same);
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_told_of_strangers_and_in_nonsense_changes_nothing() {
        let told = r#"{"models":[["m",[2,2],[{"credential":0,"weight":1,"score":1e300,"warm":-5.0,
            "cooling":null,"shunned":null,"doublings":4294967295,"doubled":null,"refused":1,
            "admitted":0},{"credential":7,"weight":1,"score":50.0,"warm":0.0,"cooling":null,
            "shunned":null,"doublings":0,"doubled":null,"refused":1,"admitted":0}]]],
            "sessions":[[1,[[7,-1,null,null]]]]}"#;
        let told: ScoresHandover = serde_json::from_str(told).unwrap();
        let (mut new, now) = (scores(), Instant::now());
        new.take_over(&told, |it| (it == 0).then_some(0), now);
        let pairs = new.pairs(now);
        let known: Vec<_> = pairs.iter().map(|it| (it.credential, it.score)).collect();
        assert_eq!(known, [(0, 60.0)]);
        assert_eq!(pairs.first().map(|it| it.warm), Some(0.0));
    }
}
