//! Programs: what can be written, what is refused, and which step comes when.

use super::*;

fn refused(yaml: &str) -> String {
    Program::parse(yaml).unwrap_err().to_string()
}

/// The names that an error says would have been right.
fn listed(why: &str) -> Vec<&str> {
    let list = why.lines().next().unwrap().split("expected one of ").nth(1);
    list.unwrap().split(", ").collect()
}

#[test]
fn every_name_is_a_step_and_every_step_has_a_name() {
    for name in Step::NAMES {
        let written = match name {
            "lying_length" => "lying_length: more".to_owned(),
            "flap" => "flap: {period: 5s}".to_owned(),
            "chance" => "chance: {percent: 5}".to_owned(),
            "seats" => "seats: {count: 5}".to_owned(),
            bare => bare.to_owned(),
        };
        let program = Program::parse(&format!(
            "credentials:\n  k:\n    name: a\n    steps:\n      - {written}\n"
        ));
        let program = program.unwrap_or_else(|why| panic!("{written}: {why}"));
        assert_eq!(program.credentials["k"].steps[0].name(), name);
    }
    // serde lists every variant when it knows none of that name: the list is the enum's own.
    let why = refused("credentials: {k: {name: a, steps: [nothing_known]}}");
    assert_eq!(listed(&why), Step::NAMES);
}

#[test]
fn every_shape_is_read_by_its_name() {
    for (name, shape) in Shape::ALL {
        let yaml =
            format!("credentials: {{k: {{name: a, steps: [{{refuse: {{shape: {name}}}}}]}}}}");
        let program = Program::parse(&yaml).unwrap();
        assert_eq!(program.credentials["k"].steps, [Step::refuse(shape)]);
    }
    let why = refused("credentials: {k: {name: a, steps: [{refuse: {shape: nothing_known}}]}}");
    assert_eq!(listed(&why), Shape::ALL.map(|(name, _)| name));
}

#[test]
fn a_program_comes_back_as_it_was_sent() {
    let program = Program::built_in()
        .with("sk-x", "x", [Step::admit(), Step::Reset], Then::Cycle)
        .for_model("sk-x", "gpt-b", [Step::Auth], Then::Admit);
    assert_eq!(Program::parse(&program.to_json()).unwrap(), program);
    let any = Program {
        accept_any: true,
        default: Some(Track::default()),
        ..Program::default()
    };
    assert_eq!(Program::parse(&any.to_json()).unwrap(), any);
}

#[test]
fn mistakes_are_named() {
    let wrong = [
        (
            "credentials: {k: {name: a, steps: [{admit: {delta: 3}}]}}",
            "delta",
        ),
        (
            "credentials: {k: {name: a, steps: [{admit: {delta_gap: 3}}]}}",
            "300ms, 5s or 10m",
        ),
        (
            "credentials: {k: {name: a, steps: [{admit: {bytes: many}}]}}",
            "64KiB",
        ),
        (
            "credentials: {k: {name: a, steps: [{admit: {bytes: 1GiB}}]}}",
            "`bytes` is at most",
        ),
        (
            "credentials: {k: {name: a, steps: [{admit: {deltas: 200000}}]}}",
            "step 1 (`admit`)",
        ),
        (
            "credentials: {k: {name: a, steps: [{refuse: {after: 2d}}]}}",
            "at most one day",
        ),
        (
            "credentials: {k: {name: a, steps: [{admit: {headers: {\"a b\": c}}}]}}",
            "a b",
        ),
        (
            "credentials: {k: {name: a, steps: [{admit: {}, hang: }]}}",
            "`hang` stands beside",
        ),
        (
            "credentials: {k: {name: a, steps: [{chance: {percent: 101}}]}}",
            "0 to 100",
        ),
        ("credentials: {k: {name: a, steps: [flap]}}", "period"),
        (
            "credentials: {k: {name: a, steps: [{flap: {period: 0s}}]}}",
            "more than 0s",
        ),
        (
            "credentials: {k: {name: a, steps: [{chance: {percent: 1, refuse: {chance: {percent: 1}}}}]}}",
            "inside each other",
        ),
        (
            "credentials: {k: {name: a, steps: [{chance: {percent: 1, refuse: early_503}}]}}",
            "early_503",
        ),
        (
            "credentials: {k: {name: a, steps: [early_503], by_model: {m: {}}}}",
            "before the model is known",
        ),
        (
            "credentials: {k: {name: a}, l: {name: a}}",
            "two credentials",
        ),
        ("credentials: {k: {name: 'a b'}}", "name `a b`"),
        (
            "credentials: {'k k': {name: a}}",
            "cannot arrive in a header",
        ),
        ("default: {steps: [admit]}", "accept_any"),
        ("surprise: 1", "surprise"),
    ];
    for (yaml, expected) in wrong {
        let why = refused(yaml);
        assert!(why.contains(expected), "{yaml}: {why}");
    }
    assert_eq!(wrong.len(), 19);
}

#[tokio::test]
async fn steps_come_in_order_and_then_as_told() {
    let steps = || [Step::admit(), Step::refuse(Shape::Http503), Step::Auth];
    for (then, expected) in [
        (Then::Last, [200, 503, 401, 401, 401]),
        (Then::Cycle, [200, 503, 401, 200, 503]),
        (Then::Admit, [200, 503, 401, 200, 200]),
    ] {
        let sim = sim(Program::default().with("sk-a", "a", steps(), then));
        let mut got = Vec::new();
        for _ in expected {
            got.push(ask(&sim, "/v1/responses", true).await.status.unwrap());
        }
        assert_eq!(got, expected, "{then:?}");
    }
}

#[tokio::test]
async fn a_model_may_have_a_track_of_its_own() {
    let program = Program::default()
        .with("sk-a", "a", [Step::refuse(Shape::Http503)], Then::Admit)
        .for_model("sk-a", "gpt-b", [Step::Auth], Then::Admit);
    let sim = sim(program);
    let mut peer = Peer::connect(&sim).await;
    let mut got = Vec::new();
    for model in ["gpt-b", "gpt-sim", "gpt-b", "gpt-sim"] {
        let body = body(true).replace("gpt-sim", model);
        peer.send(&request("POST", "/v1/responses", "sk-a", &body))
            .await;
        got.push(peer.answer().await.status.unwrap());
    }
    assert_eq!(got, [401, 503, 200, 200]);
}

#[tokio::test]
async fn unknown_keys_are_refused_or_have_counts_of_their_own() {
    let strict = one([]);
    let mut peer = Peer::connect(&strict).await;
    peer.send(&request("POST", "/v1/responses", "sk-nobody", &body(true)))
        .await;
    let answer = peer.answer().await;
    assert_eq!(answer.status, Some(401));
    assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
    let default = Some(Track {
        steps: vec![Step::Auth],
        then: Then::Admit,
    });
    let open = sim(Program {
        accept_any: true,
        default,
        ..Program::default()
    });
    let mut peer = Peer::connect(&open).await;
    let mut got = Vec::new();
    for key in ["k1", "k2", "k1", "k2"] {
        peer.send(&request("POST", "/v1/responses", key, &body(false)))
            .await;
        got.push(peer.answer().await.status.unwrap());
    }
    assert_eq!(got, [401, 401, 200, 200]);
    let names: std::collections::BTreeSet<String> = open
        .log()
        .into_iter()
        .filter_map(|each| each.credential)
        .collect();
    assert_eq!(names.len(), 2);
    assert!(
        names.iter().all(|name| name.starts_with("unknown-")),
        "{names:?}"
    );
}

#[tokio::test]
async fn the_same_seed_gives_the_same_answers() {
    let mut answers = Vec::new();
    for seed in [5, 5, 6] {
        let sim = sim(Program {
            seed,
            ..Program::default()
        }
        .with("sk-a", "a", [], Then::Last));
        answers.push(ask(&sim, "/v1/chat/completions", false).await.json()["id"].clone());
    }
    assert_eq!(answers[0], answers[1]);
    assert_ne!(answers[0], answers[2]);
}
