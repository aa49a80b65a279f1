//! What the tests configure: upstreams, credentials, a policy under which little is left to chance.

use std::fmt::Write as _;

/// The credentials that a test may name in its configuration; the secret of `a` is `sk-a`, in the
/// variable `SK_A`.
pub const IDS: &str = "abcdefghijklmnopqrst";

/// A configuration of one upstream and some credentials of it, asked in their order.
///
/// `more` is YAML at the top level. Affinity is off and the budget wide, so that which credential is
/// asked follows from the order alone.
pub fn config(upstream: &str, ids: &str, more: &str) -> String {
    with_upstream(&format!("base_url: \"{upstream}\""), ids, more)
}

/// The same, with all that is to be said of the upstream.
pub fn with_upstream(upstream: &str, ids: &str, more: &str) -> String {
    let mut text = format!("upstreams: {{up: {{{upstream}}}}}\n");
    text.push_str(&credentials("up", ids));
    text.push_str(
        "routes: [{path_prefix: /v1, balance: fill_first, affinity: {enabled: false}}]\n",
    );
    if !more.contains("admission:") {
        text.push_str(ADMISSION);
    }
    text.push_str(more);
    text
}

/// What the tests assume of the policy.
pub const ADMISSION: &str = "admission: {retry_budget: {ratio: 100.0, min_per_second: 10000}}\n";

/// The section of some credentials of one upstream.
pub fn credentials(upstream: &str, ids: &str) -> String {
    let mut text = "credentials:\n".to_owned();
    for id in ids.chars() {
        assert!(IDS.contains(id));
        let variable = id.to_ascii_uppercase();
        writeln!(
            text,
            "- {{id: {id}, upstream: {upstream}, secret: {{env: SK_{variable}}}}}"
        )
        .unwrap();
    }
    text
}
