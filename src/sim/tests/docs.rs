//! The manual is true: its programs parse, and it names every step and shape.

use super::*;

const MANUAL: &str = include_str!("../../../docs/sim.md");

#[test]
fn every_program_in_the_manual_parses() {
    let blocks: Vec<&str> = MANUAL
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    for block in &blocks {
        // A block is a whole program, or steps of one credential.
        let parsed = if block.starts_with("- ") {
            let indented: String = block
                .lines()
                .map(|line| format!("      {line}\n"))
                .collect();
            Program::parse(&format!(
                "credentials:\n  k:\n    name: a\n    steps:\n{indented}"
            ))
        } else {
            Program::parse(block)
        };
        assert!(parsed.is_ok(), "{block}\n{parsed:?}");
    }
    assert_eq!(blocks.len(), 5);
}

#[test]
fn the_manual_names_every_step_and_shape() {
    for name in Step::NAMES
        .into_iter()
        .chain(Shape::ALL.map(|(name, _)| name))
    {
        assert!(
            MANUAL.contains(&format!("`{name}")),
            "docs/sim.md says nothing of `{name}`"
        );
    }
}
