//! The configuration: any text is read or refused, and what is wrong has a place in the text.

use crate::config;

/// Panics if a problem has no place, or a message could break a line of a terminal or log.
pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match config::parse("berth.yaml", text) {
        Ok(config) => {
            assert!(!config.listeners.is_empty() && !config.upstreams.is_empty());
            assert!(!config.credentials.is_empty() && !config.routes.is_empty());
            config
                .warnings
                .iter()
                .for_each(|warning| check(warning, text));
        }
        Err(problems) => {
            assert!(problems.iter().next().is_some(), "refused without a reason");
            problems.iter().for_each(|problem| check(problem, text));
        }
    }
}

fn check(problem: &config::Problem, text: &str) {
    let place = problem.place();
    // Every character that YAML may take for a line break, and the line after the last one.
    let breaks = |c: &char| matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let lines = text.chars().filter(breaks).count() as u64 + 2;
    assert!((1..=lines).contains(&place.line), "{problem}");
    assert!(
        (1..=text.len() as u64 + 2).contains(&place.column),
        "{problem}"
    );
    assert!(!problem.text().is_empty() && problem.file() == "berth.yaml");
    let said = problem.to_string();
    assert!(!said.contains(char::is_control), "{said:?}");
}
