//! The world: what upstreams refuse, and what clients do.
//!
//! A situation is a handful of numbers and one function, the probability that an attempt is refused.
//! The numbers are those of the simulation that the policy's rules came out of (`docs/policy.md` says
//! which were measured and which invented).

use berth::admission::dice::Dice;

/// Credentials in one situation, at most.
pub const MOST: usize = 16;

/// A situation.
#[derive(Clone, Debug)]
pub struct World {
    pub name: &'static str,
    /// By credential.
    pub weights: Vec<u32>,
    pub models: usize,
    pub sessions: usize,
    /// The whole time, and from when to when something is wrong, in seconds.
    pub length: f64,
    pub from: f64,
    pub to: f64,
    /// Requests in flight per unit of weight from which a credential refuses for want of seats.
    pub knee: Option<f64>,
    /// Mean time between two turns of a session, seconds.
    pub think: f64,
    /// Times at which the model is full, where that comes in waves.
    waves: Vec<(f64, f64)>,
    /// By credential: the probability of its own that some situations use.
    own: Vec<f64>,
    bad: Vec<bool>,
    fault: Fault,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Bad credentials refuse nine of ten.
    Bad,
    /// Half of many credentials refuse more than the others.
    Gradual,
    /// Everybody refuses nearly everything.
    Full,
    /// The same, in waves.
    Waves,
    /// One refuses newcomers and never a warm session.
    Newcomers,
    /// One client's requests are refused by one credential, or by every one.
    PoisonOne,
    PoisonAll,
    /// Half of the credentials refuse every other twenty seconds.
    Flapping,
    /// Nothing but what load does.
    Nothing,
    /// One model on one credential.
    OneModel,
    /// The largest credential refuses two of five.
    Heavy,
    /// Everybody refuses three of five.
    Everybody,
}

/// What an attempt meets.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub credential: usize,
    pub model: usize,
    pub time: f64,
    pub warm: bool,
    pub in_flight: usize,
    pub poisoned: bool,
}

/// Refusals that mean nothing: one in a hundred.
const NOISE: f64 = 0.01;

/// Every situation by name, with a factor on its number of sessions.
pub const ALL: [(&str, f64); 19] = [
    ("a", 1.0),
    ("b", 1.0),
    ("b", 6.0),
    ("c", 1.0),
    ("c2", 1.0),
    ("d", 1.0),
    ("e", 1.0),
    ("e2", 1.0),
    ("f", 1.0),
    ("f", 3.0),
    ("g", 1.0),
    ("h", 1.0),
    ("i", 1.0),
    ("j", 1.0),
    ("k", 1.0),
    ("l", 1.0),
    ("m", 1.0),
    ("n", 1.0),
    ("o", 1.0),
];
impl World {
    /// The situation of this name; its chances come from `dice`.
    pub fn new(name: &'static str, load: f64, dice: &mut Dice) -> World {
        let mut world = World {
            name,
            weights: vec![1; 6],
            models: 1,
            sessions: 120,
            length: 8_400.0,
            from: 600.0,
            to: 6_600.0,
            knee: None,
            think: 60.0,
            waves: Vec::new(),
            own: vec![NOISE; MOST],
            bad: vec![false; MOST],
            fault: Fault::Bad,
        };
        world.set(name, dice);
        world.sessions = (world.sessions as f64 * load) as usize;
        world
    }

    fn set(&mut self, name: &str, dice: &mut Dice) {
        let bad = |world: &mut World, count: usize| world.bad[..count].fill(true);
        match name {
            "a" => bad(self, 1),
            "b" => {
                self.fault = Fault::Gradual;
                self.many(14, 280);
                for credential in 0..14 {
                    self.bad[credential] = credential < 7;
                    self.own[credential] = match credential < 7 {
                        true => 0.17 + 0.53 * credential as f64 / 6.0,
                        false => 0.001 + 0.002 * dice.fraction(),
                    };
                }
            }
            "c" => {
                self.fault = Fault::Full;
                self.times(600.0, 1_200.0, 2_400.0);
            }
            "c2" => {
                self.fault = Fault::Waves;
                self.times(600.0, 4_200.0, 4_200.0);
                let mut at = 600.0;
                while at < 4_200.0 {
                    let length = log_normal(dice, 17.0, 0.8);
                    self.waves.push((at, at + length));
                    at += length + exponential(dice, 60.0);
                }
            }
            "d" => {
                self.fault = Fault::Newcomers;
                bad(self, 1);
            }
            "e" | "e2" => {
                self.fault = match name {
                    "e" => Fault::PoisonOne,
                    _ => Fault::PoisonAll,
                };
                self.times(600.0, 2_400.0, 3_600.0);
            }
            "f" => {
                self.fault = Fault::Flapping;
                self.times(600.0, 3_600.0, 4_200.0);
            }
            "g" => {
                self.fault = Fault::Nothing;
                self.many(14, 500);
                self.times(60.0, 60.0, 1_500.0);
                self.knee = Some(30.0);
            }
            "h" => {
                self.many(2, 40);
                bad(self, 1);
            }
            "i" => {
                self.sessions = 3;
                self.think = 400.0;
                self.times(600.0, 26_000.0, 30_000.0);
                bad(self, 2);
            }
            "j" => {
                self.sessions = 200;
                self.knee = Some(22.0);
                bad(self, 1);
            }
            "k" => {
                self.fault = Fault::OneModel;
                self.models = 2;
                bad(self, 1);
            }
            "l" => {
                self.fault = Fault::Heavy;
                self.weights = vec![8, 1, 1, 1, 1];
                self.sessions = 180;
                self.knee = Some(10.0);
                bad(self, 1);
            }
            "m" => {
                self.fault = Fault::Nothing;
                self.sessions = 3_000;
                self.times(600.0, 1_800.0, 1_800.0);
            }
            "n" => {
                self.fault = Fault::Everybody;
                self.times(600.0, 1_200.0, 2_400.0);
            }
            "o" => {
                self.many(3, 60);
                bad(self, 2);
            }
            _ => panic!("no situation is called {name}"),
        }
    }

    fn many(&mut self, credentials: usize, sessions: usize) {
        self.weights = vec![1; credentials];
        self.sessions = sessions;
    }

    fn times(&mut self, from: f64, to: f64, length: f64) {
        (self.from, self.to, self.length) = (from, to, length);
    }

    /// Whether one client's loop begins with the fault.
    pub fn has_poison(&self) -> bool {
        matches!(self.fault, Fault::PoisonOne | Fault::PoisonAll)
    }

    /// Requests in flight that a credential takes at most.
    pub fn most_in_flight(&self, credential: usize) -> usize {
        match self.sessions < 1_000 {
            true => 64 * self.weights[credential].max(1) as usize,
            false => usize::MAX,
        }
    }

    /// The probability that an attempt is refused.
    pub fn refusal(&self, attempt: &Attempt) -> f64 {
        let Attempt {
            credential, time, ..
        } = *attempt;
        let is_bad = self.bad[credential];
        let calm = match (self.fault, is_bad) {
            (Fault::Gradual, true) => 0.002,
            (Fault::Gradual, false) => self.own[credential],
            _ => NOISE,
        };
        let fault = match self.fault {
            Fault::Bad => is_bad.then_some(0.92),
            Fault::Gradual => Some(self.own[credential]),
            Fault::Full => Some(0.97),
            Fault::Waves => self.is_wave(time).then_some(0.95),
            Fault::Newcomers => is_bad.then_some(if attempt.warm { 0.0 } else { 0.8 }),
            Fault::PoisonOne => (attempt.poisoned && credential == 0).then_some(1.0),
            Fault::PoisonAll => attempt.poisoned.then_some(1.0),
            Fault::Flapping => self.is_flapping(credential, time).then_some(0.95),
            Fault::OneModel => (is_bad && attempt.model == 1).then_some(0.9),
            Fault::Heavy => is_bad.then_some(0.4),
            Fault::Everybody => Some(0.6),
            Fault::Nothing => None,
        };
        let chance = fault.filter(|_| self.is_on(time)).unwrap_or(calm);
        let Some(knee) = self.knee else { return chance };
        let load = attempt.in_flight as f64 / (knee * f64::from(self.weights[credential]));
        match load > 1.0 {
            true => chance.max(((load - 1.0) * 2.0).min(0.95)),
            false => chance,
        }
    }

    /// Whether a pair would serve newcomers as well as any other.
    pub fn is_healthy(&self, credential: usize, model: usize, time: f64) -> bool {
        if !self.is_on(time) {
            return true;
        }
        match self.fault {
            Fault::Full | Fault::Everybody => false,
            Fault::Waves => !self.is_wave(time),
            Fault::Flapping => !self.is_flapping(credential, time),
            Fault::OneModel => !(self.bad[credential] && model == 1),
            Fault::Bad
            | Fault::Gradual
            | Fault::Newcomers
            | Fault::Heavy
            | Fault::PoisonOne
            | Fault::PoisonAll
            | Fault::Nothing => !self.bad[credential],
        }
    }

    fn is_on(&self, time: f64) -> bool {
        (self.from..self.to).contains(&time)
    }

    fn is_wave(&self, time: f64) -> bool {
        self.waves
            .iter()
            .any(|(from, to)| (*from..*to).contains(&time))
    }

    fn is_flapping(&self, credential: usize, time: f64) -> bool {
        credential < 3 && ((time / 20.0) as u64).is_multiple_of(2)
    }
}

/// Of this mean.
pub fn exponential(dice: &mut Dice, mean: f64) -> f64 {
    -mean * (1.0 - dice.fraction()).ln()
}

/// Of this median and width.
pub fn log_normal(dice: &mut Dice, median: f64, width: f64) -> f64 {
    let radius = (-2.0 * (1.0 - dice.fraction()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * dice.fraction()).cos();
    median * (width * normal).exp()
}

/// At least one, with a tail.
pub fn several(dice: &mut Dice, mean: f64) -> u32 {
    1 + exponential(dice, mean) as u32
}
