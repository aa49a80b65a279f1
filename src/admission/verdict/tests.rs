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

#[test]
fn a_status_beyond_http_has_the_shape_of_a_failure_and_not_of_a_bad_request() {
    let shape = |status| Shape::of_status(status).as_str();
    assert_eq!(
        [400, 418, 429, 500, 503, 529, 599, 600, 999].map(shape),
        [
            "http_400", "http_400", "http_429", "http_500", "http_503", "http_529", "http_500",
            "http_500", "http_500",
        ]
    );
}
