use super::*;
use serde_json::json;

fn document() -> Vec<u8> {
    let counts = |a: u32, b: u32, c: u32| json!({"15m": a, "1h": b, "24h": c});
    let pair = |credential: &str, model: &str, state: &str, left: Option<u64>| {
        json!({
            "credential": credential, "model": model, "state": state, "left_ms": left,
            "refused": counts(2, 9, 120), "admitted": counts(14, 60, 1_400), "future": [1],
        })
    };
    let credential = |id: &str, in_flight: u32, state: &str| json!({"id": id, "in_flight": in_flight, "state": state});
    let document = json!({
        "version": "0.1.0", "uptime_s": 11_100, "draining": true,
        "credentials": [
            credential("campus-a", 3, "ready"),
            credential("campus-of-the-long-name", 0, "rejected"),
            credential("spare", 0, "ready"),
        ],
        "pairs": [
            pair("campus-a", "*", "ready", None),
            pair("campus-a", "gpt-5.6-sol", "cooling", Some(3_500)),
            pair("campus-a", "gpt-5.6-sol-extended-20260901", "ready", None),
            pair("campus-of-the-long-name", "*", "rejected", Some(900_000)),
        ],
        "models": [
            {"model": "gpt-5.6-sol", "full": true, "waiting": 4},
            {"model": "\u{1b}[2Jx", "full": true, "waiting": 0},
        ],
        "warnings": ["audit: 1 lines lost since the start; the log says why\n\u{7}"],
    });
    document.to_string().into_bytes()
}

#[test]
fn the_table_is_as_promised_at_every_width() {
    let golden = include_str!("../../../tests/golden/status.txt");
    let mut shown = String::new();
    for width in [None, Some(80), Some(60), Some(20)] {
        let table = table(&document(), width).unwrap();
        let name = width.map_or("no terminal".to_owned(), |width| format!("{width} columns"));
        let _ = write!(shown, "--- {name}\n{table}");
    }
    assert_eq!(shown, golden);
}

fn grouped() -> Vec<u8> {
    let mut document: serde_json::Value = serde_json::from_slice(&document()).unwrap();
    let row = |group: &str, model: &str, ready: u32, refused: u32| {
        json!({
            "group": group, "model": model, "credentials": 3, "ready": ready, "in_flight": 7,
            "refused": {"15m": refused, "1h": refused, "24h": refused},
            "admitted": {"15m": 14, "1h": 60, "24h": 1_400},
        })
    };
    document["groups"] = json!({"by": "label:cohort", "rows": [
        row("new", "gpt-5.6-sol", 0, 120),
        row("new", "gpt-5.6-sol-extended-20260901", 3, 0),
        row("no cohort\u{1b}", "*", 3, 0),
    ]});
    document["credentials"][0]["labels"] = json!({"cohort": "new"});
    document.to_string().into_bytes()
}

#[test]
fn the_table_of_groups_is_as_promised() {
    let golden = include_str!("../../../tests/golden/status_by.txt");
    let mut shown = String::new();
    for width in [None, Some(60)] {
        shown += &table(&grouped(), width).unwrap();
    }
    assert_eq!(shown, golden);
    let text = String::from_utf8(grouped()).unwrap();
    let other = text.replace("label:cohort", "label:region");
    let problem = "no credential has the label `region`; there are: cohort";
    assert_eq!(table(other.as_bytes(), None), Err(problem.to_owned()));
}

#[test]
fn whoever_answers_may_count_as_far_as_numbers_go() {
    let most = u64::MAX.to_string();
    let text = String::from_utf8(document()).unwrap();
    let text = text.replace("\"in_flight\":0", &format!("\"in_flight\":{most}"));
    let table = table(text.as_bytes(), None).unwrap();
    assert!(table.contains(&format!("{most} in flight\n")), "{table}");
}

#[test]
fn made_up_models_of_one_credential_do_not_push_the_others_off_the_table() {
    let mut document: serde_json::Value = serde_json::from_slice(&document()).unwrap();
    let pairs = document["pairs"].as_array_mut().unwrap();
    for number in 0..900 {
        let mut pair = pairs[1].clone();
        pair["model"] = format!("made-up-{number}").into();
        pair["state"] = "unsupported".into();
        pairs.insert(1, pair);
    }
    let text = table(document.to_string().as_bytes(), None).unwrap();
    assert_eq!(text.lines().count(), 7 + 26 + 2, "{text}");
    for shown in [
        "gpt-5.6-sol ",
        "and 877 more",
        "campus-of-the-long-name",
        "spare",
    ] {
        assert!(text.contains(shown), "{shown}\n{text}");
    }
}

#[test]
fn no_line_of_the_table_is_wider_than_the_terminal() {
    let mut asked = 0;
    for width in 44..140 {
        let text = table(&document(), Some(width)).unwrap();
        let (_, table) = text.split_once("\n\n").unwrap();
        assert!(
            table.lines().all(|line| line.len() <= width),
            "{width}\n{table}"
        );
        asked += table.lines().count();
    }
    assert_eq!(asked, 96 * 5);
}

#[test]
fn nothing_that_a_terminal_obeys_is_printed() {
    let text = table(&document(), None).unwrap();
    assert!(
        text.chars()
            .all(|c| c == '\n' || c == ' ' || c.is_ascii_graphic())
    );
    assert!(
        json(&document())
            .unwrap()
            .chars()
            .all(|c| c == '\n' || !c.is_control())
    );
    for other in [&b""[..], b"{}", b"[]", b"\xff"] {
        assert_eq!(table(other, None), Err(OTHER.to_owned()));
    }
}
