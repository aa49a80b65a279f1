//! What is counted, and the table.

/// What one run counted.
#[derive(Debug, Default)]
pub struct Tally {
    pub requests: u64,
    pub turns: u64,
    pub lost: u64,
    pub turned_away: u64,
    pub attempts: u64,
    pub refusals: u64,
    pub moved_cold: u64,
    pub healthy: f64,
    pub withheld: f64,
    /// Seconds from the first try to the answer, without the upstream's own time.
    pub waits: Vec<f64>,
}

/// The columns: name, decimals, and by how much two numbers may differ and still be as good.
pub const COLUMNS: [(&str, usize, f64); 6] = [
    ("seen", 2, 0.05),
    ("lost", 2, 0.05),
    ("att", 2, 0.01),
    ("withheld", 1, 0.5),
    ("cold", 1, 0.2),
    ("wait p95", 1, 0.5),
];

/// One number per column; the less, the better.
pub type Figures = [f64; COLUMNS.len()];

impl Tally {
    pub fn figures(mut self) -> Figures {
        let requests = self.requests.max(1) as f64;
        [
            100.0 * self.turned_away as f64 / requests,
            1_000.0 * self.lost as f64 / self.turns.max(1) as f64,
            self.attempts as f64 / requests,
            100.0 * self.withheld / self.healthy.max(1.0),
            100.0 * self.moved_cold as f64 / requests,
            quantile(&mut self.waits, 0.95),
        ]
    }
}

/// Mean, least and most over the seeds.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub mean: f64,
    pub least: f64,
    pub most: f64,
}

/// Over the runs of one policy in one situation.
pub fn cells(runs: &[Figures]) -> [Cell; COLUMNS.len()] {
    std::array::from_fn(|column| {
        let values = || runs.iter().map(|run| run[column]);
        Cell {
            mean: values().sum::<f64>() / runs.len().max(1) as f64,
            least: values().fold(f64::MAX, f64::min),
            most: values().fold(0.0, f64::max),
        }
    })
}

/// Whether `value` is the least of `all` or within a tenth of it.
pub fn is_as_good(column: usize, value: f64, all: impl Iterator<Item = f64>) -> bool {
    let best = all.fold(f64::MAX, f64::min);
    value <= (best * 1.1).max(best + COLUMNS[column].2)
}

fn quantile(values: &mut [f64], part: f64) -> f64 {
    let at = (values.len().saturating_sub(1) as f64 * part) as usize;
    match values.is_empty() {
        true => 0.0,
        false => *values.select_nth_unstable_by(at, f64::total_cmp).1,
    }
}
