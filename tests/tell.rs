//! `berth explain` and `berth audit`, from the command line: what is printed is compared with golden
//! files. `BERTH_BLESS=1` writes these anew; read the diff.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

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

fn packed(text: &str) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(text.as_bytes()).unwrap();
    to.finish().unwrap()
}

/// Three days, each in a file of its own, as logrotate leaves them; and the ids, the oldest first.
fn three_days() -> (tempfile::TempDir, String, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("a.jsonl").to_str().unwrap().to_owned();
    let line = std::fs::read_to_string(LOG).unwrap();
    let line = line.lines().next().unwrap();
    let ids = ["1", "2", "3"].map(|n| format!("br-01kn4embkvabcdefghjkmnpq0{n}"));
    let days = [1, 2, 3].map(|day| {
        let line = line.replace("2026-04-01T", &format!("2026-04-0{day}T"));
        line.replace(IDS[0], &ids[day - 1]) + "\n"
    });
    std::fs::write(format!("{log}.2.gz"), packed(&days[0])).unwrap();
    std::fs::write(format!("{log}.1"), &days[1]).unwrap();
    std::fs::write(&log, &days[2]).unwrap();
    (folder, log, ids.to_vec())
}

#[test]
fn what_a_rotation_has_moved_away_is_read_as_far_as_it_is_needed() {
    let (_folder, log, ids) = three_days();
    let days = |since: &str| {
        let (table, said) = told(&["audit", "--audit", &log, "--since", since, "--by", "day"]);
        (table.matches("2026-04-0").count(), said)
    };
    let (all, said) = days("2026-03-29");
    assert_eq!(all, 3, "{said}");
    let read = format!("read: {log}.2.gz, {log}.1, {log}; its first request came at 2026-04-01T");
    assert!(said.starts_with(&read), "{said}");
    let (some, said) = days("2026-04-03");
    assert_eq!(some, 1, "{said}");
    assert!(!said.contains(".gz"), "{said}");
    // A packed file alone, too.
    let packed = format!("{log}.2.gz");
    assert_eq!(told(&["audit", "--audit", &packed]).0.lines().count(), 1);
    let (story, said) = told(&["explain", &ids[0], "--audit", &log]);
    assert!(story.starts_with(&ids[0]), "{story}");
    assert_eq!(said, format!("found in {packed}\n"));
}

/// What a command told and said of what came through a pipe.
fn piped(arguments: &[&str], input: &[u8]) -> (String, String) {
    let mut berth = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(arguments)
        .args(["--audit", "/dev/stdin"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    berth.stdin.take().unwrap().write_all(input).unwrap();
    let output = berth.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn the_log_of_the_process_is_read_through_a_pipe() {
    let lines = std::fs::read_to_string(LOG).unwrap();
    let head = "Nov 29 22:02:18 edge berth[7]: [2026-11-29T22:02:18Z INFO  berth::audit] ";
    let whole = lines.lines().filter(|line| line.ends_with('}'));
    let mut journal = String::from("Nov 29 22:02:17 edge berth[7]: serving on http://[::1]:80\n");
    whole.for_each(|line| journal.push_str(&format!("{head}{line}\n")));
    for input in [journal.as_bytes().to_vec(), packed(&journal)] {
        for id in IDS {
            let (story, said) = piped(&["explain", id], &input);
            assert!(story.starts_with(id), "{story}{said}");
        }
        let (told, said) = piped(&["audit"], &input);
        assert_eq!(told.lines().count(), 5, "{said}");
        assert!(told.lines().all(|line| line.starts_with("{\"ts\":")));
        assert!(said.contains("not of an audit log, left out: 1"), "{said}");
        assert!(!said.contains("full disk"), "{said}");
    }
    let half = format!("{head}{}", &lines[..100]);
    let (_, said) = piped(&["explain", IDS[0]], half.as_bytes());
    assert!(said.contains("is there and cannot be read"), "{said}");
}

#[test]
fn a_slip_of_the_fingers_is_said() {
    let slip = [
        "audit",
        "--audit",
        LOG,
        "-c",
        CONFIG,
        "--credential",
        "campus-c",
    ];
    let (code, said) = failed(&slip);
    assert_eq!(code, 2);
    assert_eq!(
        said,
        "berth: no such credential; there are: campus-a, campus-b, annex; did you mean `campus-a`?\n"
    );
    let (none, said) = told(
        &slip
            .map(|it| if it == "-c" { "--since" } else { it })
            .map(|it| if it == CONFIG { "2020-01-01" } else { it }),
    );
    assert_eq!(none, "");
    assert!(said.contains("no request is what was asked for"), "{said}");
}

#[test]
fn a_line_that_somebody_edited_does_not_steer_a_terminal() {
    let lines = std::fs::read_to_string(LOG).unwrap();
    let line = lines.lines().next().unwrap();
    let edited = line.replacen("gpt-5.6-sol", "\u{9b}31m\u{202e}", 1);
    let (told, _) = piped(&["audit"], edited.as_bytes());
    assert!(told.is_ascii(), "{told}");
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(read(&told), read(&edited));
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
