//! Medians and percentiles, and how figures are written.

/// The middle of some figures; of an even number, the mean of the two in the middle.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The time in milliseconds below which the share `part` of some times in nanoseconds lies.
pub fn percentile(times: &[u64], part: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * part) as usize;
    let time = sorted.get(at.min(sorted.len().saturating_sub(1)));
    time.map_or(f64::NAN, |time| *time as f64 / 1e6)
}

/// The medians of what pairs of rounds have in common, and each pair's.
pub fn ratio(of: &[f64], to: &[f64]) -> f64 {
    let pairs: Vec<f64> = of.iter().zip(to).map(|(a, b)| a / b).collect();
    median(&pairs)
}

/// The median of the differences, pair by pair.
pub fn difference(of: &[f64], to: &[f64]) -> f64 {
    let pairs: Vec<f64> = of.iter().zip(to).map(|(a, b)| a - b).collect();
    median(&pairs)
}

/// A figure in three digits or a little more.
pub fn written(figure: f64) -> String {
    match figure.abs() {
        _ if figure.is_nan() => "-".to_owned(),
        0.0..10.0 => format!("{figure:.2}"),
        10.0..100.0 => format!("{figure:.1}"),
        100.0..10_000.0 => format!("{figure:.0}"),
        _ => format!("{:.1} k", figure / 1000.0),
    }
}

/// The median, and from where to where the rounds went.
pub fn spread(figures: &[f64]) -> String {
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let most = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match figures.len() {
        0 => "-".to_owned(),
        1 => written(figures[0]),
        _ => format!(
            "{} ({} to {})",
            written(median(figures)),
            written(least),
            written(most)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_in_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
        let times: Vec<u64> = (0..100).map(|n| n * 1_000_000).collect();
        assert!((percentile(&times, 0.99) - 99.0).abs() < f64::EPSILON);
        assert_eq!(spread(&[12_345.0]), "12.3 k");
    }
}
