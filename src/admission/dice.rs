//! Numbers that are spread evenly and can be had again from the same seed.
//!
//! Jitter keeps things from happening at once; nothing secret hangs on it. So the generator is the
//! plainest good one (SplitMix64), and a test or the laboratory gets the same story from the same seed.

/// A source of even numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The same seed, the same numbers.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// The next number, at least 0 and below 1.
    pub fn fraction(&mut self) -> f64 {
        fraction(self.roll())
    }
}

/// Spreads the bits of `z` over all of a number (the finisher of SplitMix64).
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A number as a fraction, at least 0 and below 1.
pub fn fraction(number: u64) -> f64 {
    // 53 bits are what an f64 holds exactly.
    (number >> 11) as f64 / (1_u64 << 53) as f64
}

/// Of a name, for keys of tables that live as long as the process (FNV-1a, then spread).
pub fn hash(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    mix(name.bytes().fold(0xCBF2_9CE4_8422_2325, step))
}

/// The golden ratio in 64 bits, the step of SplitMix64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_even_and_repeat_from_the_seed() {
        let mut dice = Dice::new(7);
        let rolls: Vec<f64> = (0..10_000).map(|_| dice.fraction()).collect();
        assert!(rolls.iter().all(|it| (0.0..1.0).contains(it)));
        let mean = rolls.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert_eq!(Dice::new(7).fraction(), rolls[0]);
        assert_ne!(hash("gpt-a"), hash("gpt-b"));
    }
}
