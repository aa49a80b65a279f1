//! What the tests of fallback models share.

use super::{ADMISSION, credentials};

/// A route with these `fallback_models`. `more` is YAML at the top level.
pub fn config(url: &str, ids: &str, fallbacks: &str, more: &str) -> String {
    let admission = match more.contains("admission:") {
        true => "",
        false => ADMISSION,
    };
    format!(
        "upstreams: {{up: {{base_url: \"{url}\"}}}}\n{}\
         routes: [{{path_prefix: /v1, balance: fill_first, affinity: {{enabled: false}}, \
         fallback_models: {fallbacks}}}]\n{admission}{more}",
        credentials("up", ids),
    )
}

/// A body that no parser would write: odd spaces and numbers, and `model` in other places too.
pub fn odd_body(path: &str, stream: bool, model: &str) -> String {
    let what = match path.rsplit('/').next() {
        Some("responses") => r#""input" :[{"role":"user","content":"\"model\":\"gpt-a\""}]"#,
        _ => r#""messages":[{"role":"user","content":"say \"model\":\"gpt-a\""}],"max_tokens":1e2"#,
    };
    format!(
        "{{ \"metadata\":{{\"model\":\"gpt-a\"}},\n\t\"model\" : \"{model}\" ,\"stream\":{stream},{what}}}\n"
    )
}
