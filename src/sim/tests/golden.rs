//! Whole answers against golden texts, which are also what to read to learn the formats.
//!
//! After a deliberate change: `BERTH_BLESS=1 cargo test --lib sim`, then read the difference.

use super::*;
use crate::sim::step::{Call, Early503, Quota};
use crate::sim::streams::Endpoint;

fn asked(endpoint: Endpoint, stream: bool) -> Asked {
    Asked {
        endpoint,
        model: "gpt-sim".into(),
        stream,
        include_usage: true,
        input_tokens: 12,
        inputs: 1,
        base64: false,
        credential: "campus-a".into(),
        id: "0000000000000001".into(),
        now: 1_767_225_600,
    }
}

/// A script as text: what is written as it is, everything else on lines that begin with `=`.
fn shown(script: &Script) -> String {
    let mut text = String::new();
    for act in &script.acts {
        match act {
            Act::Write(bytes) => text.push_str(&String::from_utf8_lossy(bytes).replace('\r', "")),
            Act::Pause(span) => text.push_str(&format!("= silence of {span:?}\n")),
            Act::Repeat(bytes, gap) => text.push_str(&format!(
                "= for ever, {gap:?} apart:\n{}",
                String::from_utf8_lossy(bytes).replace('\r', "")
            )),
            Act::Silence => text.push_str("= silence\n"),
        }
    }
    text + &format!("= {:?}\n", script.end)
}

fn cases() -> Vec<(&'static str, Asked, Step)> {
    let slow = Admit {
        delta_gap: Duration::from_millis(20),
        first_output_after: Duration::from_secs(1),
        rate_limits: true,
        ..Admit::default()
    };
    let call = Admit {
        deltas: 2,
        call: Some(Call {
            name: "exec_command".into(),
            arguments: r#"{"cmd":"echo hi"}"#.into(),
        }),
        ..Admit::default()
    };
    let hesitant = Refuse {
        after: Duration::from_secs(2),
        lifecycle: 4,
        ..Refuse::default()
    };
    vec![
        (
            "responses_admit",
            asked(Endpoint::Responses, true),
            Step::Admit(slow),
        ),
        (
            "responses_call",
            asked(Endpoint::Responses, true),
            Step::Admit(call.clone()),
        ),
        (
            "responses_document",
            asked(Endpoint::Responses, false),
            Step::admit(),
        ),
        (
            "responses_refuse",
            asked(Endpoint::Responses, true),
            Step::Refuse(hesitant),
        ),
        (
            "responses_quota",
            asked(Endpoint::Responses, true),
            Step::Quota(Quota::default()),
        ),
        ("chat_admit", asked(Endpoint::Chat, true), Step::admit()),
        ("chat_call", asked(Endpoint::Chat, true), Step::Admit(call)),
        (
            "chat_refuse",
            asked(Endpoint::Chat, true),
            Step::refuse(Shape::Sse),
        ),
        (
            "messages_admit",
            asked(Endpoint::Messages, true),
            Step::admit(),
        ),
        (
            "messages_refuse",
            asked(Endpoint::Messages, true),
            Step::refuse(Shape::Sse),
        ),
        (
            "messages_529",
            asked(Endpoint::Messages, true),
            Step::refuse(Shape::Http529),
        ),
        (
            "early_503",
            asked(Endpoint::Chat, true),
            Step::Early503(Early503::default()),
        ),
    ]
}

#[test]
fn answers_are_as_their_golden_texts() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sim/tests/golden");
    let bless = std::env::var_os("BERTH_BLESS").is_some();
    let mut wrong = Vec::new();
    for (name, asked, step) in cases() {
        let path = format!("{folder}/{name}.txt");
        let is = shown(&script(&step, &asked));
        if bless {
            std::fs::write(&path, &is).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        if golden != is {
            wrong.push(format!("{name}: golden text:\n{golden}\nthe answer:\n{is}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), cases().len());
}
