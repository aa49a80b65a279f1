//! Where a case and the design differ, the design holds.
//!
//! Each entry says what the design expects, and takes the place of those keys of `expect`; so the
//! design's word is judged, and nothing is left unjudged. `tests/cases/DISPUTED.md` says why, for
//! people; the two lists must name the same cases.

use std::path::Path;

use serde_json::{Value, json};

/// Case (or `CASE/variant`) and what takes the place of keys of its `expect`.
fn entries() -> Vec<(&'static str, Value)> {
    vec![
        (
            "CLS-14",
            json!({
                "metrics": [
                    "attempt{credential=A,model=gpt-5.6-sol,outcome=deactivated} +1",
                    "attempt{credential=B,model=gpt-5.6-sol,outcome=ok} +1",
                    "failover{from=A,to=B,reason=deactivated} +1",
                ],
                "audit": { "must": [
                    "A -> deactivated, B -> ok", "committed=false on the failed attempt",
                ] },
            }),
        ),
        (
            "AMP-02",
            json!({
                "client": {
                    "timing": "within 200 ms (or within the configured wait, if one is set)",
                    "status": 503,
                    "content_type": "application/json",
                    "body": { "json": { "error.code": "server_error" } },
                    "headers": { "must": ["retry-after: integer 4..7"] },
                },
            }),
        ),
    ]
}

/// The name that a case has in the list.
fn name(case: &Value) -> String {
    let id = case["id"].as_str().unwrap_or_default();
    case["variant"]
        .as_str()
        .map_or(id.to_owned(), |variant| format!("{id}/{variant}"))
}

pub fn apply(case: &mut Value) {
    let name = name(case);
    let found = entries()
        .into_iter()
        .find(|(disputed, _)| *disputed == name);
    for (key, value) in found
        .iter()
        .filter_map(|(_, patch)| patch.as_object())
        .flatten()
    {
        case["expect"][key] = value.clone();
    }
}

pub fn is_disputed(name: &str) -> bool {
    entries().iter().any(|(disputed, _)| *disputed == name)
}

/// Whether the page for people and the list above name the same cases.
pub fn agree(page: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(page).map_err(|e| format!("{}: {e}", page.display()))?;
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut listed: Vec<String> = rows
        .filter_map(|row| {
            let mut cells = row.split('|').map(str::trim).skip(1);
            let (case, variant) = (cells.next()?, cells.next()?);
            Some(if variant == "-" {
                case.to_owned()
            } else {
                format!("{case}/{variant}")
            })
        })
        .collect();
    let mut known: Vec<String> = entries()
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    listed.sort();
    known.sort();
    if listed == known {
        return Ok(());
    }
    Err(format!(
        "{} lists {listed:?}, the runner applies {known:?}",
        page.display()
    ))
}
