//! `routes[].fallback_models:`.
//!
//! A fallback is another answer than the one that was asked for, so nothing about it is guessed: names
//! are written out, no patterns, and a list that could not mean anything is a mistake. A name that no
//! credential of the route serves may be meant for later, and is a warning.

use std::collections::BTreeMap;

use schemars::{Schema, json_schema};

use super::field::{Fault, Leaf, List, Named, Node, Placed, Slot};
use super::leaf::Text;
use super::problem::{Place, Report};
use crate::admission::ask::{LONGEST_MODEL, is_model_name};

/// The name of a model.
pub struct Model(String);

impl Leaf for Model {
    fn read(node: Node) -> Result<Model, Fault> {
        let name = Text::read(node)?.0;
        match is_one_model(&name) {
            true => Ok(Model(name)),
            false => Err(form().into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": format!("^[!-)+-~]{{1,{LONGEST_MODEL}}}$") })
    }
}

/// The models to try after each one; `serves` says whether the route has a credential for a model.
pub fn fallback_models(
    raw: Named<List<Slot<Model>>>,
    serves: impl Fn(&str) -> bool,
    report: &mut Report,
) -> BTreeMap<String, Vec<String>> {
    let mut fallbacks = BTreeMap::new();
    for (Placed { at, value: model }, list) in raw.entries() {
        if !is_one_model(&model) {
            report.problem(at, form());
        } else if !serves(&model) {
            warn(at, &model, report);
        }
        let models = models(at, list, &model, &serves, report);
        fallbacks.insert(model, models);
    }
    fallbacks
}

fn models(
    key: Place,
    list: List<Slot<Model>>,
    of: &str,
    serves: impl Fn(&str) -> bool,
    report: &mut Report,
) -> Vec<String> {
    let slots = list.0.map(|placed| placed.value).unwrap_or_default();
    if slots.is_empty() {
        let text = "an empty list has no model to fall back to; add one, or remove the key";
        report.problem(key, text);
    }
    let mut models: Vec<String> = Vec::new();
    for slot in slots {
        let Some(Placed { at, value: model }) = slot.take(report) else {
            continue;
        };
        let Model(model) = model;
        if model == of {
            let text = "a model cannot fall back to itself; name another one, or remove this";
            report.problem(at, text);
        } else if models.contains(&model) {
            let text = format!("`{model}` is listed twice for this model; keep one");
            report.problem(at, text);
        } else {
            if !serves(&model) {
                warn(at, &model, report);
            }
            models.push(model);
        }
    }
    models
}

fn warn(at: Place, model: &str, report: &mut Report) {
    let text = format!("no credential of this route serves the model `{model}`");
    report.warning(at, text);
}

fn is_one_model(name: &str) -> bool {
    is_model_name(name) && !name.contains('*')
}

fn form() -> String {
    format!(
        "a model's name is 1 to {LONGEST_MODEL} printable ASCII characters without spaces, and no \
         pattern: write each model out"
    )
}
