//! `berth probe` against the simulated upstream: what it says, what it sends, what it never shows.

use std::path::PathBuf;
use std::process::Output;

use berth::sim::{Program, Shape, Sim, Step, Then};

mod common;

use common::within;

/// An upstream, a configuration for it, and secrets to plant.
struct Scene {
    sim: Sim,
    folder: tempfile::TempDir,
    token: String,
}

/// The payload of the token of `tokened`, which must not be seen.
const CLAIMS: &str = r#"{"host":"eu.api.test","iss":"https://auth.test","sub":"planted-subject"}"#;

impl Scene {
    /// `refused` has no seat, `admitted` and `tokened` have one, `spent` is out of quota.
    fn set() -> Scene {
        use base64::Engine as _;
        let part = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
        let token = format!("{}.{}.planted-signature", part("{}"), part(CLAIMS));
        let refuse = [Step::refuse(Shape::Sse)];
        let program = Program::default()
            .with("sk-planted-1", "refused", refuse, Then::Last)
            .with("sk-planted-2", "admitted", [], Then::Admit)
            .with(&token, "tokened", [], Then::Admit)
            .with("sk-planted-3", "unused", [], Then::Admit);
        let sim = Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let yaml = format!(
            "upstreams: {{up: {{base_url: \"{}/v1\"}}}}\n\
             credentials:\n\
             - {{id: refused, upstream: up, secret: {{env: K1}}, labels: {{cohort: new}}}}\n\
             - {{id: admitted, upstream: up, secret: {{env: K2}}, labels: {{cohort: old}}}}\n\
             - {{id: tokened, upstream: up, secret: {{env: K3}}, labels: {{cohort: old}}}}\n\
             - {{id: unused, upstream: up, secret: {{env: K4}}, models: [other]}}\n",
            sim.url()
        );
        std::fs::write(folder.path().join("berth.yaml"), yaml).unwrap();
        Scene { sim, folder, token }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("berth.yaml")
    }

    async fn probe(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_berth"));
        command
            .arg("probe")
            .arg("-c")
            .arg(self.config())
            .args(arguments);
        command.env_clear().stdin(std::process::Stdio::null());
        command.envs([
            ("K1", "sk-planted-1"),
            ("K2", "sk-planted-2"),
            ("K4", "sk-planted-3"),
        ]);
        command.env("K3", &self.token).kill_on_drop(true);
        let Output {
            status,
            stdout,
            stderr,
        } = within(command.output()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (told, said) = (text(stdout), text(stderr));
        let payload = self.token.split('.').nth(1).unwrap();
        for planted in ["planted", payload] {
            assert!(
                !told.contains(planted) && !said.contains(planted),
                "{told}{said}"
            );
        }
        (status.code().unwrap(), told, said)
    }
}

/// The row of a credential, in columns.
fn row<'a>(told: &'a str, credential: &str) -> Vec<&'a str> {
    let mut rows = told
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = rows.find(|row| row.first() == Some(&credential));
    found.unwrap_or_else(|| panic!("no row of {credential}:\n{told}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_goes_through_each_credential_that_serves_the_model() {
    let scene = Scene::set();
    let (code, told, said) = scene.probe(&["--model", "gpt-sim", "--yes"]).await;
    assert_eq!((code, said.as_str()), (0, ""), "{told}");
    let refused = row(&told, "refused");
    assert_eq!(
        refused[1..5],
        ["capacity", "sse", "200", "server_is_overloaded"],
        "{told}"
    );
    assert!(refused[6].starts_with("req_"), "{told}");
    assert_eq!(
        row(&told, "admitted")[1..5],
        ["admitted", "-", "200", "-"],
        "{told}"
    );
    let tokened = row(&told, "tokened");
    assert_eq!(
        tokened[7..],
        ["host", "eu.api.test,", "iss", "https://auth.test"],
        "{told}"
    );
    assert!(
        told.ends_with(
            "\nThe model has seats, and not for refused: it is a matter of these credentials.\n"
        ),
        "{told}"
    );
    let log = scene.sim.log();
    assert_eq!(log.len(), 3, "{log:?}");
    for request in &log {
        assert_eq!(request.path, "/v1/responses");
        assert_eq!(
            request.body_sha256, log[0].body_sha256,
            "not the same request"
        );
        assert!(request.stream && request.body_bytes < 400, "{request:?}");
        assert_eq!(request.model.as_deref(), Some("gpt-sim"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_of_credentials_are_compared() {
    let scene = Scene::set();
    let asked = ["--model", "gpt-sim", "--yes", "--by", "label:cohort"];
    let (code, told, _) = scene.probe(&asked).await;
    assert_eq!(code, 0);
    assert!(
        told.ends_with(
            "cohort new  0 admitted, 1 refused, 0 other\n\
             cohort old  2 admitted, 0 refused, 0 other\n\n\
             It is a matter of the cohort: refused is new, admitted is old.\n"
        ),
        "{told}"
    );
    let asked = ["--model", "gpt-sim", "--yes", "--by", "route"];
    let (_, told, _) = scene.probe(&asked).await;
    assert!(told.contains("The route alone does not decide"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_without_a_yes_or_with_a_mistake() {
    let scene = Scene::set();
    for (arguments, code, expected) in [
        (&["--model", "gpt-sim"][..], 2, "would send 3 requests"),
        (
            &["--model", "gpt-sim", "--yes", "--credential", "x"],
            2,
            "there are: refused, admitted",
        ),
        (
            &["--model", "gpt-sim", "--yes", "--by", "colour"],
            2,
            "there are: label:NAME",
        ),
        (
            &["--model", "gpt-sim", "--yes", "--by", "label:x"],
            2,
            "there are: cohort",
        ),
    ] {
        let (exit, told, said) = scene.probe(arguments).await;
        assert_eq!((exit, told.as_str()), (code, ""), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    std::fs::write(
        scene.config(),
        std::fs::read_to_string(scene.config())
            .unwrap()
            .replace("env: K2", "env: NOT_SET"),
    )
    .unwrap();
    let (code, _, said) = scene.probe(&["--model", "gpt-sim", "--yes"]).await;
    assert_eq!(code, 1);
    assert!(
        said.contains("NOT_SET is not set") && said.contains("Nothing was sent"),
        "{said}"
    );
    assert!(scene.sim.log().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_credential_is_asked_alone_and_an_upstream_that_is_silent_has_its_time() {
    let scene = Scene::set();
    let program = Program::default()
        .with("sk-planted-3", "unused", [], Then::Admit)
        .with("sk-planted-1", "refused", [Step::Hang], Then::Last);
    scene.sim.set_program(program).unwrap();
    let (code, told, _) = scene
        .probe(&["--model", "gpt-sim", "--yes", "--credential", "unused"])
        .await;
    assert_eq!((code, scene.sim.log().len()), (0, 1));
    assert!(
        told.ends_with("No credential is refused: the model has seats.\n"),
        "{told}"
    );
    let yaml = std::fs::read_to_string(scene.config()).unwrap();
    std::fs::write(
        scene.config(),
        yaml + "admission: {hold: {max_time: 300ms}}\n",
    )
    .unwrap();
    let (code, told, _) = scene
        .probe(&["--model", "gpt-sim", "--yes", "--credential", "refused"])
        .await;
    assert_eq!(code, 0);
    assert_eq!(
        row(&told, "refused")[1..5],
        ["timeout", "-", "-", "-"],
        "{told}"
    );
    assert!(
        told.ends_with("Neither admitted nor refused for want of a seat: refused.\n"),
        "{told}"
    );
    // Nobody listens there any more.
    scene.sim.set_program(Program::default()).unwrap();
    let yaml = std::fs::read_to_string(scene.config()).unwrap();
    let nobody = common::free_port().to_string();
    std::fs::write(
        scene.config(),
        yaml.replace(&scene.sim.addr().to_string(), &nobody),
    )
    .unwrap();
    let (code, told, _) = scene
        .probe(&["--model", "gpt-sim", "--yes", "--credential", "refused"])
        .await;
    assert_eq!(code, 0);
    assert_eq!(
        row(&told, "refused")[1..5],
        ["transport", "-", "-", "ConnectRefused"],
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_of_anthropic_is_asked_in_its_own_words() {
    let scene = Scene::set();
    let yaml = std::fs::read_to_string(scene.config()).unwrap();
    let yaml = yaml.replace(
        "/v1\"}",
        "/v1\", dialect: anthropic, auth: header:x-api-key}",
    );
    std::fs::write(scene.config(), yaml).unwrap();
    let (code, told, said) = scene.probe(&["--model", "claude-sim", "--yes"]).await;
    assert_eq!((code, said.as_str()), (0, ""), "{told}");
    assert_eq!(
        row(&told, "refused")[1..4],
        ["capacity", "sse", "200"],
        "{told}"
    );
    assert_eq!(
        row(&told, "admitted")[1..4],
        ["admitted", "-", "200"],
        "{told}"
    );
    let log = scene.sim.log();
    assert_eq!(log.len(), 3);
    for request in &log {
        assert_eq!(request.path, "/v1/messages");
        let version = ("anthropic-version".to_owned(), "2023-06-01".to_owned());
        assert!(request.headers.contains(&version), "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_output_says_nothing_about_seats() {
    let scene = Scene::set();
    let endless = [Step::EndlessLifecycle];
    let program = Program::default().with("sk-planted-2", "admitted", endless, Then::Last);
    scene.sim.set_program(program).unwrap();
    let asked = ["--model", "gpt-sim", "--yes", "--credential", "admitted"];
    let (code, told, _) = scene.probe(&asked).await;
    assert_eq!(code, 0);
    assert_eq!(
        row(&told, "admitted")[1..4],
        ["unjudged", "-", "200"],
        "{told}"
    );
    assert!(
        told.contains("no output within admission.hold.max_bytes"),
        "{told}"
    );
    assert!(
        told.contains("\nNo answer says anything about seats."),
        "{told}"
    );
}
