//! The schema and the reference say the same.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::schema;

/// Every key of `schema`, as `routes[].affinity.ttl` and `upstreams.NAME.base_url`.
fn keys(schema: &Value, node: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(target) = node["$ref"].as_str() {
        let target = target.trim_start_matches('#');
        keys(schema, schema.pointer(target).unwrap(), path, found);
    }
    for (key, below) in node["properties"].as_object().into_iter().flatten() {
        let path = match path {
            "" => key.clone(),
            _ => format!("{path}.{key}"),
        };
        keys(schema, below, &path, found);
        found.insert(path);
    }
    if node["items"].is_object() {
        keys(schema, &node["items"], &format!("{path}[]"), found);
    }
    if node["additionalProperties"].is_object() {
        keys(
            schema,
            &node["additionalProperties"],
            &format!("{path}.NAME"),
            found,
        );
    }
}

#[test]
fn the_reference_has_every_key_of_the_schema() {
    let schema = schema();
    let mut found = BTreeSet::new();
    keys(&schema, &schema, "", &mut found);
    let text = include_str!("../../../docs/configuration.md");
    let absent: Vec<_> = found
        .iter()
        .filter(|key| !text.contains(&format!("`{key}`")))
        .collect();
    assert!(
        absent.is_empty(),
        "not in docs/configuration.md: {absent:?}"
    );
    assert!(found.len() > 80, "only {} keys found", found.len());
    let headings = text.lines().filter_map(|line| line.strip_prefix("### `"));
    let extra: Vec<_> = headings
        .map(|rest| rest.trim_end_matches('`'))
        .filter(|key| !found.contains(*key))
        .collect();
    assert!(extra.is_empty(), "in docs/configuration.md only: {extra:?}");
}

#[test]
fn the_schema_describes_every_key_and_hides_what_is_not_built() {
    let schema = schema();
    let text = schema.to_string();
    assert!(!text.contains("\"shared\":"));
    assert_eq!(
        schema["required"],
        serde_json::json!(["upstreams", "credentials"])
    );
    let credential = &schema["properties"]["credentials"]["items"];
    assert_eq!(credential["additionalProperties"], Value::Bool(false));
    for (key, value) in credential["properties"].as_object().unwrap() {
        assert!(value["description"].is_string(), "{key} has no description");
    }
    let hold = "/properties/admission/properties/hold/properties/max_time/pattern";
    let pattern = schema.pointer(hold).unwrap();
    assert_eq!(pattern, "^([0-9]+(ms|s|m|h))+$");
}
