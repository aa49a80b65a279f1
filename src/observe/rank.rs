//! Which pairs of a credential are shown where not all can be.
//!
//! Clients make models up, and where an upstream answers each of them there are as many pairs as they like.
//! A limit on a whole table would leave the last credentials out of it, which is where an operator may
//! have to look. So each credential has its own rows, the worst and then the busiest first: a made-up
//! name is never busy. The rest is one row, so that the sums are still those of the credential.

use std::cmp::Reverse;

use super::status::SpanCounts;

/// Rows of a whole table, as long as each credential has some. Chosen: more are read by nobody.
const MOST: usize = 500;
/// Rows of one credential: at most as many models as anybody serves, and never nothing.
const EACH: std::ops::RangeInclusive<usize> = 5..=25;

/// What decides about the place of a pair.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'p> {
    /// Its model, `*` for the credential itself.
    pub model: &'p str,
    /// Its state.
    pub state: &'p str,
    /// Attempts refused.
    pub refused: SpanCounts,
    /// Attempts admitted.
    pub admitted: SpanCounts,
}

/// The pairs that have no row of their own, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// How many.
    pub pairs: usize,
    /// Attempts refused.
    pub refused: SpanCounts,
    /// Attempts admitted.
    pub admitted: SpanCounts,
}

/// Those of one credential's `pairs` that have a row, in their order, and the rest, if there is one.
pub fn shown<'p, P>(
    pairs: impl Iterator<Item = &'p P>,
    credentials: usize,
    facts: impl Fn(&P) -> Facts<'_>,
) -> (Vec<&'p P>, Option<Rest>) {
    let mut shown: Vec<&P> = pairs.collect();
    shown.sort_by_key(|pair| place(&facts(pair)));
    let each = (MOST / credentials.max(1)).clamp(*EACH.start(), *EACH.end());
    let rest = shown.split_off(each.min(shown.len()));
    let summed = rest.iter().fold(Rest::default(), |sum, pair| {
        let facts = facts(pair);
        Rest {
            pairs: sum.pairs + 1,
            refused: sum.refused.plus(facts.refused),
            admitted: sum.admitted.plus(facts.admitted),
        }
    });
    (shown, (summed.pairs > 0).then_some(summed))
}

fn place(facts: &Facts<'_>) -> (u8, Reverse<u64>) {
    let group = match (facts.model, facts.state) {
        ("*", _) => 0,
        // A model that does not exist ends here.
        (_, "unsupported") => 3,
        (_, "ready") => 2,
        _ => 1,
    };
    let counts = [facts.refused, facts.admitted];
    let asked = counts.map(|it| u64::from(it.day)).iter().sum();
    (group, Reverse(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_and_then_the_busiest_have_a_row_and_the_rest_one_together() {
        let pair = |model: &str, state, day| (model.to_owned(), state, day);
        let mut pairs: Vec<(String, &'static str, u32)> = (0..800)
            .map(|number| pair(&format!("made-up-{number}"), "unsupported", 1))
            .chain((0..100).map(|number| pair(&format!("taken-{number}"), "ready", 2)))
            .collect();
        pairs.push(pair("real", "ready", 900));
        pairs.push(pair("cooling", "cooling", 3));
        pairs.push(pair("*", "drained", 0));
        let of = |credentials| {
            let (shown, rest) = shown(pairs.iter(), credentials, |it| Facts {
                model: &it.0,
                state: it.1,
                refused: SpanCounts::default(),
                admitted: SpanCounts {
                    day: it.2,
                    ..SpanCounts::default()
                },
            });
            (
                shown.len(),
                shown[..3].iter().map(|it| it.0.clone()).collect::<Vec<_>>(),
                rest.unwrap(),
            )
        };
        let (rows, first, rest) = of(3);
        assert_eq!((rows, rest.pairs), (25, 878));
        assert_eq!(first, ["*", "cooling", "real"]);
        assert_eq!(rest.admitted.day, 800 + 2 * 78);
        assert_eq!(of(1_000).0, 5);
    }
}
