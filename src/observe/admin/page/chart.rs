//! A span of time as a small chart: admitted upwards, refused downwards.
//!
//! The direction says what the colour says, the label says what the picture says, and the numbers
//! stand beside it.

use std::fmt;

use crate::observe::brief::brief;
use crate::observe::status::Pieces;

/// The chart of one span.
pub(super) struct Chart<'p>(pub &'p Pieces);

impl fmt::Display for Chart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pieces {
            refused, admitted, ..
        } = self.0;
        let most = refused.iter().chain(admitted).copied().max().unwrap_or(0);
        let width = PIECE * refused.len();
        write!(
            f,
            "<svg class=\"chart\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width} 24\" \
             preserveAspectRatio=\"none\"><path class=\"axis\" d=\"M0 12h{width}\"/>",
            Label(self.0)
        )?;
        bars(f, "admitted", admitted, most, '-')?;
        bars(f, "refused", refused, most, ' ')?;
        f.write_str("</svg>")
    }
}

/// One path for all bars of a kind; `sign` is their direction.
fn bars(
    f: &mut fmt::Formatter<'_>,
    class: &str,
    counts: &[u32],
    most: u32,
    sign: char,
) -> fmt::Result {
    if counts.iter().all(|count| *count == 0) {
        return Ok(());
    }
    write!(f, "<path class=\"{class}\" d=\"")?;
    for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let height = (u64::from(*count) * 11).div_ceil(u64::from(most.max(1)));
        write!(f, "M{} 12v{sign}{height}h3V12z", at * PIECE)?;
    }
    f.write_str("\"/>")
}

/// What the eye takes from the chart: when it was worst.
struct Label<'p>(&'p Pieces);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused = &self.0.refused;
        let latest_first = refused.iter().rev().enumerate();
        let worst = latest_first.max_by_key(|(age, count)| (**count, std::cmp::Reverse(*age)));
        let piece = brief(self.0.piece_s * 1_000);
        match worst {
            None | Some((_, 0)) => f.write_str("none refused"),
            Some((0, count)) => write!(f, "most refused in {piece}: {count}, just now"),
            Some((age, count)) => {
                let ago = brief(self.0.piece_s * 1_000 * age as u64);
                write!(f, "most refused in {piece}: {count}, {ago} ago")
            }
        }
    }
}

/// Width of a bar and its gap.
const PIECE: usize = 4;
