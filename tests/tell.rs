//! `berth explain` and `berth audit`, from the command line: what is printed is compared with golden
//! files. `BERTH_BLESS=1` writes these anew; read the diff.

use std::path::Path;
use std::process::{Command, Output};

const LOG: &str = "tests/golden/tell/audit.jsonl";
const CONFIG: &str = "tests/golden/tell/berth.yaml";

/// Failed over, refused by all, none available, a timeout and a broken answer, passed on.
const IDS: [&str; 5] = [
    "br-01kn4embkvabcdefghjkmnpqrs",
    "br-01kn4frzc0abcdefghjkmnpqrs",
    "br-01kn4j28jwabcdefghjkmnpqrs",
    "br-01kn4ks4y0abcdefghjkmnpqrs",
    "br-01kn6qjyh0abcdefghjkmnpqrs",
];

fn berth(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(arguments).env_clear().output().unwrap()
}

/// Standard output of a command that succeeds, and what it said beside it.
fn told(arguments: &[&str]) -> (String, String) {
    let output = berth(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}\n{said}");
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(!told.contains('\x1b'), "colours without a terminal: {told}");
    (told, said)
}

/// What a command that fails said, with its exit code.
fn failed(arguments: &[&str]) -> (i32, String) {
    let output = berth(arguments);
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let code = output.status.code().unwrap();
    (code, String::from_utf8(output.stderr).unwrap())
}

fn golden(name: &str, told: &str) {
    let path = Path::new("tests/golden/tell").join(name);
    if std::env::var_os("BERTH_BLESS").is_some() {
        std::fs::write(&path, told).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(told, wanted, "{}", path.display());
}

#[test]
fn a_request_is_told_attempt_by_attempt() {
    let stories: Vec<String> = IDS
        .iter()
        .map(|id| told(&["explain", id, "--audit", LOG]).0)
        .collect();
    golden("explain.txt", &stories.join("\n"));
    // As a person types it: without its prefix, in capitals.
    let typed = IDS[0].trim_start_matches("br-").to_uppercase();
    assert_eq!(told(&["explain", &typed, "--audit", LOG]).0, stories[0]);
    let widest = stories.iter().flat_map(|it| it.lines()).map(str::len).max();
    assert!(widest <= Some(100), "{widest:?}");
}

#[test]
fn a_ticket_holds_nothing_private() {
    let (ticket, note) = told(&["explain", IDS[1], "--audit", LOG, "--ticket"]);
    golden("ticket.txt", &ticket);
    assert!(note.contains("these attempts used 3 credentials"), "{note}");
    for private in [
        "campus",
        "annex",
        "lab-9",
        "d15409d0a54565ed",
        "01kn4frzc0",
        "512",
        "max_attempts",
    ] {
        let log = std::fs::read_to_string(LOG).unwrap();
        assert!(log.contains(private), "{private} proves nothing");
        assert!(!ticket.contains(private), "{private} in\n{ticket}");
    }
    let (code, said) = failed(&["explain", IDS[2], "--audit", LOG, "--ticket"]);
    assert_eq!(code, 1);
    assert!(said.contains("no upstream was asked"), "{said}");
}

#[test]
fn a_request_that_is_not_there_is_said_with_where_was_looked() {
    let other = "br-01kn4embkvabcdefghjkmnpqrt";
    let (code, said) = failed(&["explain", other, "--audit", LOG]);
    assert_eq!(code, 1);
    golden("explain_nothing.txt", &said);
    for (arguments, expected) in [
        (
            &["explain", "nonsense", "--audit", LOG][..],
            "that is no request id",
        ),
        (&["explain", other], "--audit FILE, or -c FILE"),
        (&["explain", other, "-c", CONFIG], "has no `audit.path`"),
    ] {
        let (code, said) = failed(arguments);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let (code, said) = failed(&["explain", other, "--audit", "tests/golden/tell/none"]);
    assert_eq!(code, 1);
    assert!(said.contains("cannot be read: No such file"), "{said}");
}

#[test]
fn a_request_is_found_after_its_line_was_moved_away() {
    let folder = tempfile::tempdir().unwrap();
    let (log, older) = (
        folder.path().join("a.jsonl"),
        folder.path().join("a.jsonl.1"),
    );
    std::fs::copy(LOG, &older).unwrap();
    std::fs::write(&log, "").unwrap();
    let log = log.to_str().unwrap();
    let (story, _) = told(&["explain", IDS[0], "--audit", log]);
    assert!(story.starts_with(IDS[0]), "{story}");
    assert_eq!(told(&["audit", "--audit", log]).0.lines().count(), 5);
}

#[test]
fn lines_are_given_out_as_they_are() {
    let lines: Vec<String> = std::fs::read_to_string(LOG)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    let (all, warning) = told(&["audit", "--audit", LOG]);
    let whole = [&lines[0], &lines[3], &lines[4], &lines[5], &lines[6]];
    assert_eq!(all.lines().collect::<Vec<_>>(), whole);
    assert!(
        warning.contains("lines: 1; the first is tests/golden/tell/audit.jsonl, line 2"),
        "{warning}"
    );
    let some = [
        "audit",
        "--audit",
        LOG,
        "--since",
        "2026-04-01T13:00:00Z",
        "--until",
        "2026-04-02",
    ];
    assert_eq!(
        told(&some).0.lines().collect::<Vec<_>>(),
        [&lines[4], &lines[5]]
    );
    let some = [
        "audit",
        "--audit",
        LOG,
        "--credential",
        "annex",
        "--verdict",
        "rate_limit",
    ];
    assert_eq!(told(&some).0.lines().collect::<Vec<_>>(), [&lines[3]]);
    let none = [
        "audit",
        "--audit",
        LOG,
        "--credential",
        "annex",
        "--verdict",
        "capacity",
    ];
    assert_eq!(told(&none).0, "");
}

#[test]
fn lines_are_summed_up_by_what_was_asked() {
    let mut all = String::new();
    let by = [
        "hour",
        "day",
        "client",
        "model",
        "credential",
        "verdict",
        "shape",
        "label:cohort",
        "upstream",
    ];
    for by in by {
        let (table, _) = told(&["audit", "--audit", LOG, "-c", CONFIG, "--by", by]);
        all.push_str(&table);
        all.push('\n');
    }
    // The question of the operator: refusals of campus-a by hour.
    let (table, _) = told(&[
        "audit",
        "--audit",
        LOG,
        "--credential",
        "campus-a",
        "--by",
        "hour",
    ]);
    all.push_str(&table);
    golden("audit.txt", &all);
    for (by, expected) in [
        ("label:cohort", "add -c FILE"),
        ("colour", "there are: hour, day,"),
    ] {
        let (code, said) = failed(&["audit", "--audit", LOG, "--by", by]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let unknown = [
        "audit",
        "--audit",
        LOG,
        "-c",
        CONFIG,
        "--by",
        "label:region",
    ];
    let (code, said) = failed(&unknown);
    assert_eq!(code, 2);
    assert!(
        said.contains("no credential has the label `region`; there are: cohort"),
        "{said}"
    );
}

#[test]
fn the_route_of_a_token_is_a_group_and_the_token_stays_secret() {
    use base64::Engine as _;
    let part = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let claims = r#"{"host":"eu.api.test","sub":"planted-subject"}"#;
    let token = format!("{}.{}.planted", part("{}"), part(claims));
    let output = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["audit", "--audit", LOG, "-c", CONFIG, "--by", "route"])
        .env_clear()
        .env("TELL_A", &token)
        .env("TELL_B", "sk-planted-key")
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    for group in [
        "host eu.api.test ",
        "no route in the secret ",
        "secret not readable here ",
    ] {
        assert!(told.contains(group), "{told}");
    }
    assert!(
        !told.contains("planted") && !told.contains(&part(claims)),
        "{told}"
    );
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    use std::io::Read as _;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("a.jsonl");
    std::fs::write(&log, std::fs::read_to_string(LOG).unwrap().repeat(1000)).unwrap();
    let mut berth = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["audit", "--audit", log.to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut out = berth.stdout.take().unwrap();
    out.read_exact(&mut [0; 100]).unwrap();
    drop(out);
    assert!(berth.wait().unwrap().success());
}
