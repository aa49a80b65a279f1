//! A case and its variants: each variant is a small delta, merged into the base as JSON.
//!
//! The merge follows the format's page: `upstream` replaces, `setup` and `client` merge (`null`
//! removes; `client_replace: true` replaces), `expect` replaces key by key.

use serde_json::{Map, Value, json};

use super::disputed;
use super::format::Case;
use super::special;

/// Keys that speak to people only.
const FOR_PEOPLE: [&str; 9] = [
    "title",
    "priority",
    "source",
    "symptom",
    "why",
    "adjusted",
    "assumptions",
    "notes",
    "note",
];

/// The base case, then its variants.
pub fn expand(mut whole: Value) -> Result<Vec<Case>, String> {
    let map = whole.as_object_mut().ok_or("a case is a map")?;
    for key in FOR_PEOPLE {
        map.remove(key);
    }
    let variants = map.remove("variants").unwrap_or(json!([]));
    let base = Value::Object(map.clone());
    let mut cases = vec![read(base.clone())?];
    for variant in variants.as_array().ok_or("`variants` is a list")? {
        let name = variant["name"].as_str().ok_or("a variant has a name")?;
        let mut merged = merge(&base, variant).map_err(|e| format!("{name}: {e}"))?;
        special::complete(&mut merged);
        cases.push(read(merged).map_err(|e| format!("{name}: {e}"))?);
    }
    if base["client"]["body_gen"]["kind"] == "json_padded" && base["id"] == "BIG-01" {
        // The format asks for one run with the model after the padding.
        let mut last = base.clone();
        last["variant"] = json!("model_last");
        last["client"]["body_gen"]["model_last"] = json!(true);
        cases.push(read(last)?);
    }
    Ok(cases)
}

/// The case as a type, with the design's word where the two differ.
fn read(mut case: Value) -> Result<Case, String> {
    disputed::apply(&mut case);
    serde_json::from_value(case).map_err(|e| e.to_string())
}

fn merge(base: &Value, variant: &Value) -> Result<Value, String> {
    let mut case = base.clone();
    let delta = variant.as_object().ok_or("a variant is a map")?;
    for (key, value) in delta {
        match key.as_str() {
            "name" => case["variant"] = value.clone(),
            "note" | "source" | "client_replace" => {}
            "setup" => deep(&mut case["setup"], value),
            "client" if delta.contains_key("client_replace") => case["client"] = value.clone(),
            "client" => deep(&mut case["client"], value),
            "upstream" => case["upstream"] = value.clone(),
            "expect" | "expect_override" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    case["expect"][key] = value.clone();
                }
            }
            "status" => status(
                first(&mut case),
                value,
                variant["name"].as_str().unwrap_or(""),
            ),
            "end" => first(&mut case)["end"]["how"] = value.clone(),
            "replace_newline" => newline(first(&mut case), value.as_str().unwrap_or("\n")),
            "b64_single_write" => {
                first(&mut case)["writes"] = json!([{ "at_ms": 0, "b64": value }]);
            }
            "headers" => headers(first(&mut case), value),
            other => return Err(format!("`{other}` is no key of a variant")),
        }
    }
    Ok(case)
}

fn first(case: &mut Value) -> &mut Value {
    &mut case["upstream"][0]["response"]
}

/// `over` wins; `null` removes.
pub fn deep(under: &mut Value, over: &Value) {
    let Value::Object(over) = over else {
        *under = over.clone();
        return;
    };
    if !under.is_object() {
        *under = Value::Object(Map::new());
    }
    for (key, value) in over {
        if value.is_null() {
            if let Some(map) = under.as_object_mut() {
                map.remove(key);
            }
        } else {
            deep(&mut under[key], value);
        }
    }
}

/// Another status; a variant called `..._html` is a page as well.
fn status(response: &mut Value, status: &Value, name: &str) {
    let status = status
        .as_str()
        .map_or_else(|| status.to_string(), str::to_owned);
    let head = response["head"].as_str().unwrap_or_default();
    let rest = head.split_once("\r\n").map_or("", |(_, rest)| rest);
    let mut head = format!("HTTP/1.1 {status} Test\r\n{rest}");
    if name.ends_with("_html") {
        head = head.replace("content-type: text/plain", "content-type: text/html");
    }
    response["head"] = json!(head);
}

fn newline(response: &mut Value, newline: &str) {
    for write in response["writes"].as_array_mut().into_iter().flatten() {
        let bytes = write["bytes"].as_str().unwrap_or_default();
        write["bytes"] = json!(bytes.replace("\r\n", "\n").replace('\n', newline));
    }
}

/// Header lines that take the place of those with the same name.
fn headers(response: &mut Value, lines: &Value) {
    let mut head = response["head"].as_str().unwrap_or_default().to_owned();
    for line in lines
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        let name = line.split(':').next().unwrap_or_default();
        let kept: Vec<&str> = head
            .trim_end()
            .split("\r\n")
            .filter(|old| !old.to_lowercase().starts_with(&format!("{name}:")))
            .collect();
        head = format!("{}\r\n{line}\r\n\r\n", kept.join("\r\n"));
    }
    response["head"] = json!(head);
}
