use super::*;
use std::fmt::Write as _;

#[test]
fn every_column_of_every_verdict_is_as_written_down() {
    let mut matrix = String::new();
    for verdict in Verdict::ALL {
        let (rank, telling) = verdict.telling();
        writeln!(
            matrix,
            "{}: {:?}; switch {:?}; scored {}; unreachable {}; answer {}; admitted {}; another model {}; told {telling:?}, rank {rank}",
            verdict.as_str(),
            verdict.hold_out(),
            verdict.switch(),
            verdict.moves_score(),
            verdict.counts_as_unreachable(),
            verdict.is_answer(),
            verdict.was_admitted(),
            verdict.asks_another_model(),
        )
        .unwrap();
    }
    if std::env::var_os("BERTH_BLESS").is_some() {
        std::fs::write("tests/golden/verdicts.txt", &matrix).unwrap();
    }
    let golden = std::fs::read_to_string("tests/golden/verdicts.txt").unwrap();
    assert_eq!(matrix, golden);
}
