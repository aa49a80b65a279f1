//! Lengths of time for people: two units, the larger first, and nothing finer than matters.

/// `4 s`, `12 min`, `3 h 5 min`, `2 d 4 h`; what is left is rounded up, so that it is never "0 s" early.
pub fn brief(ms: u64) -> String {
    let secs = ms.div_ceil(1_000);
    let (minutes, hours) = (secs.div_ceil(60), secs / 3_600);
    match secs {
        0..=99 => format!("{secs} s"),
        100..=5_940 => format!("{minutes} min"),
        5_941..=172_799 => two((hours, "h"), (secs % 3_600 / 60, "min")),
        _ => two((hours / 24, "d"), (hours % 24, "h")),
    }
}

fn two((large, unit): (u64, &str), (small, part): (u64, &str)) -> String {
    match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_as_fine_as_it_matters() {
        let said = [
            (0, "0 s"),
            (1, "1 s"),
            (3_500, "4 s"),
            (99_000, "99 s"),
            (100_000, "2 min"),
            (5_940_000, "99 min"),
            (7_200_000, "2 h"),
            (11_100_000, "3 h 5 min"),
            (187_200_000, "2 d 4 h"),
            (u64::MAX, "213503982334 d 14 h"),
        ];
        for (ms, expected) in said {
            assert_eq!(brief(ms), expected, "{ms}");
        }
    }
}
