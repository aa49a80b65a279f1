//! Whatever the text, reading it does not panic and says no secret.

use proptest::prelude::*;

use super::super::parse;
use super::examples;

/// Stands where a secret could stand. Not a name and not a key, as a secret usually is not.
const PLANTED: &str = "sk-Pl4nted_SECRET+value";

/// The places of a planted secret, in a file that is otherwise good.
const PLANTS: &[&str] = &[
    "secret: PLANT",
    "secret: { env: PLANT }",
    "secret: { PLANT: }",
    "secret: { PLANT: PLANT }",
    "secret: { systemd: PLANT/x }",
    "secret: { env: A, file: PLANT }",
    "secret: [PLANT]",
    "secret: *PLANT",
    "secret: !!int PLANT",
    "secret: !PLANT x",
    "secret: { env: A }\n    headers: { authorization: PLANT }",
    "secret: { env: A }\n    headers: { x-a: { PLANT: x } }",
    "secret: { env: A }\n    headers: { \"x-a\": \"PLANT\\n\" }",
    "secret: { env: A }\n    headers: PLANT",
    "secret: { env: A }\n    PLANT: x",
    "secret: { env: A }\n    PLANT: x\n    PLANT: x",
    "secret: { env: A }\n    weight: PLANT",
    "secret: { env: A }\n    id: PLANT",
    "secret: { env: A }\n    models: PLANT",
    "secret: { env: A }\n    models: [\"[PLANT\"]",
    "secret: { env: A }\n    labels: { PLANT: PLANT }",
    "secret: { env: A }\n    token: PLANT",
    "secret: { env: A }\nadmin: { token: PLANT }",
    "secret: { env: A }\nadmin: PLANT",
    "secret: { env: A }\nadmin: { address: \"PLANT:1\" }",
    "secret: { env: A }\nPLANT",
    "secret: { env: A }\naudit: { path: x, PLANT: x }",
    "secret: { env: A }\nroutes: [ { path_prefix: PLANT } ]",
    "secret: { env: A }\nroutes: [ { path_prefix: /v1, credentials: [PLANT] } ]",
    "secret: { env: A }\nadmission: { mode: PLANT, client_error_code: PLANT }",
    "secret: { env: A }\nadmission: { rules: [PLANT] }",
    "secret: { env: A }\nadmission: { rules: [{ name: PLANT, when: { code: [PLANT, 1], upstream: PLANT }, verdict: PLANT }] }",
    "secret: { env: A }\nadmission: { rules: [{ name: x, hold: PLANT, then: PLANT, expires: PLANT, reason: PLANT }] }",
    "secret: { env: A }\nlimits: { memory: PLANT, request_body: PLANT }",
];

fn planted(plant: &str) -> String {
    let plant = plant.replace("PLANT", PLANTED);
    format!(
        "upstreams:\n  a: {{ base_url: \"http://user:{PLANTED}@host/\" }}\n  \
         b: {{ base_url: http://host, proxy: {{ url: http://h:1, password: {PLANTED} }} }}\n\
         credentials:\n  - upstream: b\n    {plant}\n"
    )
}

#[test]
fn no_message_tells_a_planted_secret() {
    for plant in PLANTS {
        let problems = parse("f", &planted(plant)).unwrap_err().to_string();
        assert!(!problems.contains("Pl4nted"), "{plant}\n{problems}");
        assert!(!problems.contains("SECRET"), "{plant}\n{problems}");
    }
}

#[test]
fn the_debug_form_of_a_configuration_tells_no_header_value() {
    let text = "upstreams: { a: { base_url: http://h, headers: { x-a: Pl4nted } } }\n\
                credentials: [{ id: a, upstream: a, secret: { env: A }, headers: { x-b: Pl4nted } }]";
    let config = parse("f", text).unwrap();
    assert!(!format!("{config:?}").contains("Pl4nted"));
}

/// A change to a text: at a share of its length, some characters go and some come.
fn mutation() -> impl Strategy<Value = (f64, usize, String)> {
    let piece = prop_oneof![
        "[ \\n\\t:\\-{}\\[\\],&*!|>'\"%@`#?~<=0-9a-z]{0,6}",
        Just("\n".to_owned()),
        Just("  ".to_owned()),
        Just("<<: *a".to_owned()),
        Just("&a ".to_owned()),
        Just(PLANTED.to_owned()),
        "\\PC{0,4}",
    ];
    (0.0..1.0f64, 0..12usize, piece)
}

fn mutated(text: &str, mutations: &[(f64, usize, String)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for (share, gone, come) in mutations {
        let at = (chars.len() as f64 * share) as usize;
        let end = (at + gone).min(chars.len());
        chars.splice(at..end, come.chars());
    }
    chars.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_text_is_answered(text in "\\PC{0,200}|[ \\n:\\-{}\\[\\]&*!|>'\"#a-c0-9]{0,200}") {
        let _ = parse("f", &text);
    }

    #[test]
    fn a_damaged_example_is_answered_and_tells_nothing(
        which in any::<prop::sample::Index>(),
        mutations in prop::collection::vec(mutation(), 1..5),
    ) {
        let mut texts: Vec<String> = examples().into_iter().map(|(_, text)| text).collect();
        texts.extend(PLANTS.iter().map(|plant| planted(plant)));
        let text = mutated(which.get::<String>(&texts), &mutations);
        if let Err(problems) = parse("f", &text) {
            let said = problems.to_string();
            prop_assert!(!said.contains("Pl4nted"), "{said}");
            prop_assert!(!said.contains("SECRET"), "{said}");
            prop_assert!(said.lines().all(|line| line.starts_with("f:")), "{said}");
        }
    }
}
