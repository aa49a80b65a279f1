//! Keys of clients: who is let in, and that a key goes nowhere.

mod common;

use std::time::Instant;

use common::keys::{Speaks, bearer, digest, key, list, section, start};
use common::until_async;
use common::wire::{Client2, body, post};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_told_so_and_nobody_is_asked() {
    for speaks in Speaks::ALL {
        let (mut berth, upstream, _) = start(speaks, &section(&[("lab", "")])).await;
        let kind = match speaks {
            Speaks::OpenAi => "invalid_api_key",
            Speaks::Anthropic => "authentication_error",
        };
        let strange = format!("authorization: Bearer {}\r\n", key("nobody"));
        let mixed = format!("{}x-api-key: {}\r\n", bearer("lab"), key("nobody"));
        let twice = format!("{}authorization: Bearer other\r\n", bearer("lab"));
        let asked = [
            ("", "needs a key"),
            ("authorization: Bearer \r\n", "needs a key"),
            ("authorization: Basic bGFi\r\n", "is not `Bearer KEY`"),
            (&strange, "does not know this key"),
            (&mixed, "different keys"),
            (&twice, "different keys"),
        ];
        for (headers, part) in asked {
            let answer = berth.ask(speaks.request(headers)).await;
            assert_eq!(answer.status, 401, "{headers}");
            let (said, message) = speaks.error(&answer);
            assert_eq!(said, kind);
            assert!(message.contains(part), "{message}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        // A large body of a stranger is not waited for.
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: b\r\ncontent-length: 60000000\r\n\r\n",
            speaks.path()
        );
        assert_eq!(berth.ask(head).await.status, 401);
        assert_eq!(upstream.accepted(), 0);
        let count = asked.len() as f64 + 1.0;
        let only = r#"berth_client_requests_total{client="none",outcome="unauthorized"}"#;
        berth.metric_becomes(only, count).await;
        let series = berth.series("berth_client_requests_total").await;
        assert_eq!(series, [(only.to_owned(), count)]);
        assert!(!berth.log().contains("nobody"));
        berth.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_lets_in_by_either_header_and_goes_no_further() {
    for speaks in Speaks::ALL {
        for mode in ["enforce", "observe", "off"] {
            let more = format!("{}admission: {{mode: {mode}}}\n", section(&[("lab", "")]));
            let (mut berth, _upstream, _) = start(speaks, &more).await;
            let both = format!("{}x-api-key: {}\r\n", bearer("lab"), key("lab"));
            let plain = format!("x-api-key: {}\r\n", key("lab"));
            // One connection, and each request proves itself anew.
            let mut client = berth.connect().await;
            for headers in [&bearer("lab"), &plain, &both] {
                client.send(speaks.request(headers)).await;
                assert_eq!(client.answer().await.status, 200, "{mode} {speaks:?}");
            }
            client.send(speaks.request("")).await;
            assert_eq!(client.answer().await.status, 401);
            let http2 = Client2::connect(berth.addr).await;
            let (path, body) = (speaks.path(), body(speaks.path(), false));
            let key = key("lab");
            let served = http2.ask(path, &[("x-api-key", &key)], body.clone()).await;
            assert_eq!(served.status, 200);
            assert_eq!(http2.ask(path, &[], body).await.status, 401);

            let lines = berth.audit(6).await;
            let named = lines.iter().filter(|line| line["client"] == "lab").count();
            assert_eq!(named, 4, "{lines:#?}");
            let tokens =
                berth.metric(r#"berth_tokens_total{client="lab",kind="input",model="gpt-sim"}"#);
            let counted = if mode == "off" { None } else { Some(28.0) };
            assert_eq!(tokens.await, counted, "{mode}");
            let status = berth.status().await;
            let today = if mode == "off" { 0 } else { 48 };
            assert_eq!(status["clients"][0]["tokens_today"], today, "{mode}");
            assert_eq!(status["clients"][0]["requests"], 4);
            let metrics = berth.get("/metrics").await.text();
            let page = berth.get("/").await.text();
            let told = format!("{lines:?} {metrics} {status} {page} {}", berth.log());
            for secret in [&key[6..], &digest(&key)] {
                assert!(!told.contains(secret), "{told}");
            }
            berth.is_well().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_with_one_name_of_a_session_have_two() {
    let (berth, _upstream, _) = start(Speaks::OpenAi, &section(&[("a", ""), ("b", "")])).await;
    let mut sessions = Vec::new();
    for id in ["a", "b", "a"] {
        let headers = format!("{}session-id: mine\r\n", bearer(id));
        let answer = berth.ask(Speaks::OpenAi.request(&headers)).await;
        sessions.push(berth.audit_of(answer.id()).await["session"].clone());
    }
    assert!(sessions[0].is_string());
    assert_eq!(sessions[0], sessions[2]);
    assert_ne!(sessions[0], sessions[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_changes_while_berth_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clients.yaml");
    std::fs::write(&file, list(&[("first", "")])).unwrap();
    let more = format!("clients_file: {}\n", file.display());
    let (mut berth, _upstream, ends) = start(Speaks::OpenAi, &more).await;
    let status = async |key: &str| {
        let headers = format!("x-api-key: {key}\r\n");
        berth.ask(Speaks::OpenAi.request(&headers)).await.status
    };
    assert_eq!(status(&key("first")).await, 200);

    let added = berth.order(&["client", "add", "second"]).await;
    assert!(added.status.success(), "{added:?}");
    let second = String::from_utf8(added.stdout).unwrap().trim().to_owned();
    let since = Instant::now();
    until_async("the new key works", async || status(&second).await == 200).await;
    eprintln!("a new key worked after {:?}", since.elapsed());

    // A list that is broken changes nothing, and is complained of in log and status.
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{good}- {{id: third}}\n")).unwrap();
    until_async("the status says it", async || {
        let status = berth.status().await;
        let mut warnings = status["warnings"].as_array().unwrap().iter();
        warnings.any(|it| {
            it.as_str()
                .unwrap()
                .contains("clients.yaml:4:3: `key_sha256` is missing")
        })
    })
    .await;
    assert!(
        berth.log().contains("the clients from before stay"),
        "{}",
        berth.log()
    );
    assert_eq!(
        (status(&key("first")).await, status(&second).await),
        (200, 200)
    );
    std::fs::write(&file, good).unwrap();

    // What runs when its key is taken away goes on to its end.
    let mut running = berth.connect().await;
    let headers = format!("x-api-key: {second}\r\n");
    running
        .send(post("/v1/responses", &headers, body("/v1/responses", true)))
        .await;
    until_async("it is in flight", async || {
        let status = berth.status().await;
        let mut clients = status["clients"].as_array().unwrap().iter();
        clients.any(|it| it["id"] == "second" && it["in_flight"] == 1)
    })
    .await;
    let revoked = berth.order(&["client", "revoke", "second"]).await;
    assert!(revoked.status.success(), "{revoked:?}");
    until_async("the key works no more", async || {
        status(&second).await == 401
    })
    .await;
    ends.add_permits(1);
    assert!(running.answer().await.text().contains("response.completed"));
    assert_eq!(status(&key("first")).await, 200);
    let listed = berth.order(&["client", "list"]).await;
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("first") && !listed.contains("second"),
        "{listed}"
    );
    berth.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_in_the_place_of_the_list_is_complained_of_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clients.yaml");
    std::fs::write(&file, list(&[("first", "")])).unwrap();
    let more = format!("clients_file: {}\n", file.display());
    let (mut berth, _upstream, _) = start(Speaks::OpenAi, &more).await;
    std::fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success());
    until_async("the log says it", async || {
        berth.log().contains("this is no regular file")
    })
    .await;
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, list(&[("second", "")])).unwrap();
    let headers = bearer("second");
    until_async("the new list is read", async || {
        berth.ask(Speaks::OpenAi.request(&headers)).await.status == 200
    })
    .await;
    berth.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_parsers_may_read_differently_is_on_no_list() {
    let more = section(&[("lab", ", models: [gpt-sim]")]);
    for mode in ["enforce", "observe", "off"] {
        let more = format!("{more}admission: {{mode: {mode}}}\n");
        let (berth, _upstream, _) = start(Speaks::OpenAi, &more).await;
        for (body, status) in [
            (r#"{"model":"gpt-sim","input":"hi"}"#, 200),
            (
                r#"{"model":"gpt-other","input":"hi","model":"gpt-sim"}"#,
                404,
            ),
            (
                r#"{"Model":"gpt-other","input":"hi","model":"gpt-sim"}"#,
                404,
            ),
        ] {
            let request = post("/v1/responses", &bearer("lab"), body);
            let answer = berth.ask(request).await;
            assert_eq!(answer.status, status, "{mode} {body}: {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_do_not_fill_the_disk() {
    let (berth, _upstream, _) = start(Speaks::OpenAi, &section(&[("lab", "")])).await;
    let since = Instant::now();
    let mut client = berth.connect().await;
    // Without a body the connection goes on.
    let get = "GET /v1/models HTTP/1.1\r\nhost: b\r\n\r\n";
    for _ in 0..300 {
        client.send(get).await;
        assert_eq!(client.answer().await.status, 401);
    }
    let took = since.elapsed().as_secs() as usize;
    let answer = berth.ask(Speaks::OpenAi.request(&bearer("lab"))).await;
    berth.audit_of(answer.id()).await;
    let lines = berth.audit(1).await.len();
    assert!(lines <= 10 * (took + 1) + 1, "{lines} lines in {took} s");
    let all = r#"berth_client_requests_total{client="none",outcome="unauthorized"}"#;
    assert_eq!(berth.metric(all).await, Some(300.0));
}
