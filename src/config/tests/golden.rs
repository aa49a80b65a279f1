//! Every message an operator can meet, as text: `tests/golden/config/NAME.yaml` gives exactly
//! `NAME.txt`. `BERTH_BLESS=1` writes the texts anew; read the diff.

use super::super::parse;
use super::texts;
use crate::admission::day::Day;

/// The number of bad examples; a lost file must not go unnoticed.
const CASES: usize = 53;

#[test]
fn each_bad_example_gives_exactly_its_text() {
    let cases = texts("tests/golden/config", "yaml");
    let bless = std::env::var_os("BERTH_BLESS").is_some();
    let mut wrong = String::new();
    for (path, yaml) in &cases {
        let name = path.file_name().unwrap().to_string_lossy();
        let said = match parse(&name, yaml) {
            Err(problems) => format!("{problems}\n"),
            Ok(config) => {
                let today = Day::parse("2026-11-29").unwrap();
                let all = config.warnings.iter().chain(config.expired(today));
                let lines = all.map(|w| format!("warning: {w}\n"));
                lines.collect()
            }
        };
        assert!(!said.is_empty(), "{name} is good, without a warning");
        let golden = path.with_extension("txt");
        if bless {
            std::fs::write(&golden, &said).unwrap();
        }
        let wanted = std::fs::read_to_string(&golden).unwrap_or_default();
        if said != wanted {
            wrong += &format!("{name}\n--- wanted\n{wanted}--- said\n{said}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(cases.len(), CASES, "the number of bad examples");
}
