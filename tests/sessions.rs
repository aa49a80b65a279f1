//! Where sessions go: subagents to their root, and nobody away from the realm of their state.

mod common;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use common::upstream::{Raw, answer};
use common::wire::{Answer, post};
use common::{ADMISSION, Berth, story};
use serde_json::Value;

const STREAM: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"status\":\"completed\"}}\n\n";

/// An upstream, and the credentials that it has broken down for.
struct Upstream {
    raw: Raw,
    down: Arc<Mutex<String>>,
}

impl Upstream {
    async fn start() -> Upstream {
        let down = Arc::new(Mutex::new(String::new()));
        let shared = down.clone();
        let raw = Raw::start(move |mut conn| {
            let down = shared.clone();
            async move {
                while let Some(heard) = conn.request().await {
                    let broken = down.lock().unwrap().contains(heard.credential());
                    let answer = match broken {
                        // A fault of its own: nothing is held against the credential.
                        true => answer(500, "content-type: application/json\r\n", "{\"error\":{}}"),
                        false => answer(200, "content-type: text/event-stream\r\n", STREAM),
                    };
                    if !conn.send(answer).await {
                        return;
                    }
                }
            }
        })
        .await;
        Upstream { raw, down }
    }

    fn breaks_down_for(&self, credentials: &str) {
        *self.down.lock().unwrap() = credentials.to_owned();
    }
}

/// Credentials, each with its realm and more of its configuration, and affinity as it is by default.
fn config(upstream: &Upstream, credentials: &[(char, &str, &str)]) -> String {
    let mut text = format!(
        "upstreams: {{up: {{base_url: \"{}\"}}}}\n",
        upstream.raw.url()
    );
    text.push_str("credentials:\n");
    for (id, realm, more) in credentials {
        let variable = id.to_ascii_uppercase();
        text.push_str(&format!(
            "- {{id: {id}, upstream: up, secret: {{env: SK_{variable}}}, realm: {realm}{more}}}\n"
        ));
    }
    text + "routes: [{path_prefix: /v1}]\n" + ADMISSION
}

const SIX: [(char, &str, &str); 6] = [
    ('a', "one", ""),
    ('b', "one", ""),
    ('c', "one", ""),
    ('d', "one", ""),
    ('e', "one", ""),
    ('f', "one", ""),
];

const TWO_REALMS: [(char, &str, &str); 4] = [
    ('a', "one", ""),
    ('b', "one", ""),
    ('c', "two", ""),
    ('d', "two", ""),
];

/// One request; its answer and its line in the audit.
async fn ask(berth: &Berth, model: &str, headers: &[&str], input: &str) -> (Answer, Value) {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let body = format!(r#"{{"model":"{model}","stream":true,"input":{input}}}"#);
    let answer = berth.ask(post("/v1/responses", &headers, body)).await;
    let line = berth.audit_of(answer.id()).await;
    (answer, line)
}

/// The credential that answered.
async fn answered(berth: &Berth, model: &str, headers: &[&str], input: &str) -> (String, Value) {
    let (answer, line) = ask(berth, model, headers, input).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let last = story(&line).last().copied();
    let (credential, verdict) = last.unwrap();
    assert_eq!(verdict, "admitted", "{line:#}");
    (credential.to_owned(), line)
}

const PLAIN: &str = r#""hi""#;
const ENCRYPTED: &str = r#"[{"type":"reasoning","encrypted_content":"gAAA"}]"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subagents_land_where_their_root_is_whatever_of_it_they_name() {
    let upstream = Upstream::start().await;
    let berth = Berth::start(&config(&upstream, &SIX)).await;
    let mut homes = BTreeSet::new();
    for n in 0..12 {
        let root = [
            format!("session-id: root-{n}"),
            format!("thread-id: thread-{n}"),
        ];
        let root: Vec<&str> = root.iter().map(String::as_str).collect();
        let (home, told) = answered(&berth, "gpt-sim", &root, PLAIN).await;
        // Today's reviewer shares the session; an older subagent names only its parent's thread, and
        // one whose direct headers were dropped is known by its metadata, and to its own subagent.
        let family = [
            vec![
                format!("session-id: root-{n}"),
                format!("thread-id: review-{n}"),
                format!("x-codex-parent-thread-id: thread-{n}"),
                "x-openai-subagent: guardian".to_owned(),
            ],
            vec![
                format!("session_id: child-{n}"),
                format!("thread-id: child-{n}"),
                format!("x-codex-parent-thread-id: thread-{n}"),
                "x-openai-subagent: collab_spawn".to_owned(),
            ],
            vec![format!(
                "x-codex-turn-metadata: {{\"turn_id\":\"t\",\"thread_id\":\"grandchild-{n}\",\"parent_thread_id\":\"child-{n}\"}}"
            )],
            vec![format!("x-codex-parent-thread-id: grandchild-{n}")],
        ];
        for (member, model) in family
            .iter()
            .zip(["codex-auto-review", "gpt-sim", "gpt-sim", "x"])
        {
            let headers: Vec<&str> = member.iter().map(String::as_str).collect();
            let (credential, line) = answered(&berth, model, &headers, PLAIN).await;
            assert_eq!(credential, home, "{member:?}");
            assert_eq!(line["session"], told["session"], "{member:?}");
        }
        homes.insert(home);
    }
    assert!(homes.len() > 2, "all at one place prove nothing: {homes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reviewer_whose_model_its_roots_home_does_not_serve_takes_a_detour_alone() {
    let upstream = Upstream::start().await;
    let without = ", models: [\"*\", \"!codex-auto-review\"]";
    let credentials = [('a', "one", without), ('b', "two", "")];
    let berth = Berth::start(&config(&upstream, &credentials)).await;
    let mut detours = 0;
    for n in 0..12 {
        let root = format!("session-id: root-{n}");
        let (home, _) = answered(&berth, "gpt-sim", &[&root], PLAIN).await;
        let parent = format!("x-codex-parent-thread-id: root-{n}");
        let reviewer = [&root, &*parent, "x-openai-subagent: guardian"];
        let (review, _) = answered(&berth, "codex-auto-review", &reviewer, PLAIN).await;
        assert_eq!(review, "b");
        let (after, _) = answered(&berth, "gpt-sim", &[&root], ENCRYPTED).await;
        assert_eq!(after, home, "the reviewer took its root along");
        detours += usize::from(home == "a");
    }
    assert!(detours > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_stays_in_the_realm_that_answered_it() {
    let upstream = Upstream::start().await;
    let berth = Berth::start(&config(&upstream, &TWO_REALMS)).await;
    for n in 0..8 {
        let root = format!("session-id: root-{n}");
        let headers = [&*root];
        upstream.breaks_down_for("");
        let (home, _) = answered(&berth, "gpt-sim", &headers, PLAIN).await;
        let (realm, others) = match &*home {
            "a" | "b" => ("ab", "cd"),
            _ => ("cd", "ab"),
        };
        // Encrypted at home, it never leaves, not even for a refusal.
        upstream.breaks_down_for(realm);
        let (answer, line) = ask(&berth, "gpt-sim", &headers, ENCRYPTED).await;
        assert_eq!(
            (answer.status, &line["blocked"]),
            (503, &"encrypted_content".into())
        );
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
        let tried: Vec<&str> = story(&line)
            .iter()
            .map(|(credential, _)| *credential)
            .collect();
        assert!(
            tried.len() == 2 && tried.iter().all(|it| realm.contains(it)),
            "{tried:?}"
        );
        // Without such content it may, and from then on it lives there.
        let (abroad, _) = answered(&berth, "gpt-sim", &headers, PLAIN).await;
        assert!(others.contains(&abroad));
        upstream.breaks_down_for("");
        for input in [ENCRYPTED, PLAIN] {
            let (credential, line) = answered(&berth, "gpt-sim", &headers, input).await;
            assert_eq!((credential, story(&line).len()), (abroad.clone(), 1));
        }
        // Its subagent goes there too.
        let parent = format!("x-codex-parent-thread-id: root-{n}");
        let (child, _) = answered(&berth, "gpt-sim", &[&parent, "thread-id: child"], PLAIN).await;
        assert_eq!(child, abroad);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_content_leaves_its_realm_not_even_at_first() {
    let upstream = Upstream::start().await;
    let berth = Berth::start(&config(&upstream, &TWO_REALMS)).await;
    let headers = ["session-id: root"];
    let (home, _) = answered(&berth, "gpt-sim", &headers, PLAIN).await;
    for id in match &*home {
        "a" | "b" => ["a", "b"],
        _ => ["c", "d"],
    } {
        berth.hold_out(id, "60s").await;
    }
    let (answer, line) = ask(&berth, "gpt-sim", &headers, ENCRYPTED).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.json()["error"]["code"], "server_error");
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    assert_eq!(story(&line), []);
    assert_eq!(line["blocked"], "encrypted_content");
    let (credential, _) = answered(&berth, "gpt-sim", &headers, PLAIN).await;
    assert_ne!(credential, home);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_is_the_same_after_a_restart_and_in_another_order() {
    let upstream = Upstream::start().await;
    let mut reversed = SIX;
    reversed.reverse();
    let berths = [
        Berth::start(&config(&upstream, &SIX)).await,
        Berth::start(&config(&upstream, &reversed)).await,
    ];
    for n in 0..12 {
        let key = format!(r#""hi","prompt_cache_key":"root-{n}""#);
        let header = format!("session-id: root-{n}");
        let (one, _) = answered(&berths[0], "gpt-sim", &[], &key).await;
        let (other, _) = answered(&berths[1], "x", &[&header], PLAIN).await;
        assert_eq!(one, other);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_no_names_do_no_harm() {
    let upstream = Upstream::start().await;
    let mut berth = Berth::start(&config(&upstream, &SIX)).await;
    let deep = format!("x-codex-turn-metadata: {}", r#"{"a":["#.repeat(3_000));
    let long = format!("x-codex-parent-thread-id: {}", "x".repeat(30_000));
    for odd in [
        &deep,
        &long,
        "x-codex-turn-metadata: {\"parent_thread_id\":{\"x\":[null]},\"thread_id\":7}",
        "x-codex-turn-metadata: \u{ff}\u{fe}",
        "x-codex-parent-thread-id: \u{ff}",
        "session-id:",
    ] {
        answered(&berth, "gpt-sim", &[odd], PLAIN).await;
    }
    berth.is_well().await;
}
