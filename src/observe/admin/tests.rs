use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::observe::audit::Audit;
use crate::observe::otlp::Spans;
use crate::observe::scrape::tests::pool;
use crate::observe::snapshot::Snapshot;

#[derive(Default)]
struct Fake {
    draining: bool,
    orders: Mutex<Vec<(String, Order)>>,
}

impl Control for Fake {
    fn snapshot(&self) -> Snapshot {
        pool()
    }
    fn ready(&self) -> bool {
        !self.draining
    }
    fn order(&self, credential: &CredentialId, order: &Order) -> Result<(), UnknownCredential> {
        if !credential.as_str().starts_with("campus") {
            return Err(UnknownCredential);
        }
        self.orders
            .lock()
            .unwrap()
            .push((credential.to_string(), order.clone()));
        Ok(())
    }
}

struct Desk {
    fake: Arc<Fake>,
    admin: Admin,
}

const LOCAL: (&str, &str) = ("host", "127.0.0.1:9090");
const TOKEN: (&str, &str) = ("authorization", "Bearer let-me-in");

fn desk(token: Option<&str>) -> Desk {
    desk_of(token, Fake::default())
}

fn desk_of(token: Option<&str>, fake: Fake) -> Desk {
    let fake = Arc::new(fake);
    let spans = Spans::from_environment().unwrap();
    let trail = Arc::new(Trail::new((Audit::to_log().unwrap(), spans), Instant::now()).unwrap());
    let admin = Admin::new(fake.clone(), trail, token.map(str::as_bytes));
    Desk { fake, admin }
}

impl Desk {
    fn ask_at(&self, door: Door, request: &str, headers: &[(&str, &str)]) -> Response<Vec<u8>> {
        let (method, uri) = request.split_once(' ').unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(
                header::HeaderName::try_from(*name).unwrap(),
                value.parse().unwrap(),
            );
        }
        let (method, uri) = (method.parse().unwrap(), uri.parse().unwrap());
        self.admin
            .respond(door, &method, &uri, &map, Instant::now())
    }

    fn ask(&self, request: &str, headers: &[(&str, &str)]) -> Response<Vec<u8>> {
        self.ask_at(Door::Network, request, headers)
    }

    fn status(&self, request: &str, headers: &[(&str, &str)]) -> u16 {
        self.ask(request, headers).status().as_u16()
    }
}

fn body(response: &Response<Vec<u8>>) -> &str {
    std::str::from_utf8(response.body()).unwrap()
}

#[test]
fn health_needs_neither_token_nor_host() {
    for token in [None, Some("let-me-in")] {
        let desk = desk(token);
        assert_eq!(desk.status("GET /healthz", &[]), 200);
        assert_eq!(desk.status("GET /readyz", &[]), 200);
    }
}

#[test]
fn a_draining_process_lives_but_is_not_ready() {
    let desk = desk_of(
        None,
        Fake {
            draining: true,
            ..Fake::default()
        },
    );
    assert_eq!(desk.status("GET /healthz", &[]), 200);
    assert_eq!(desk.status("GET /readyz", &[]), 503);
}

#[test]
fn every_answer_is_whole_uncached_and_not_sniffed() {
    let desk = desk(None);
    let requests = [
        "GET /",
        "GET /status",
        "GET /metrics",
        "GET /healthz",
        "GET /nothing",
        "POST /",
        "PUT /status",
    ];
    for request in requests {
        let response = desk.ask(request, &[LOCAL]);
        let headers = response.headers();
        assert_eq!(
            headers["content-length"],
            response.body().len().to_string().as_str(),
            "{request}"
        );
        assert_eq!(headers["cache-control"], "no-store", "{request}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{request}");
        assert!(
            headers["content-security-policy"]
                .to_str()
                .unwrap()
                .starts_with("default-src 'none'")
        );
    }
    assert!(desk.ask("HEAD /status", &[LOCAL]).body().is_empty());
}

#[test]
fn what_is_read_is_what_the_pool_says() {
    let desk = desk(None);
    let status = desk.ask("GET /status", &[LOCAL]);
    let json: serde_json::Value = serde_json::from_slice(status.body()).unwrap();
    assert_eq!(json["credentials"][0]["id"], "campus-a");
    assert_eq!(status.headers()["content-type"], "application/json");
    assert!(
        body(&desk.ask("GET /metrics", &[LOCAL]))
            .contains("berth_in_flight{credential=\"campus-a\"} 2")
    );
    assert!(body(&desk.ask("GET /", &[LOCAL])).starts_with("<!doctype html>"));
}

#[test]
fn with_a_token_everything_else_needs_it() {
    let desk = desk(Some("let-me-in"));
    let wrong = [
        "Bearer let-me-out",
        "Bearer",
        "Bearer ",
        "let-me-in",
        "Basic let-me-in",
        "Bearer let-me-in2",
        "é",
    ];
    let mut asked = 0;
    for request in [
        "GET /",
        "GET /status",
        "GET /metrics",
        "GET /nothing",
        "POST /credentials/campus-a/drain",
    ] {
        for value in wrong {
            let response = desk.ask(request, &[LOCAL, ("authorization", value)]);
            assert_eq!(response.status(), 401, "{request} {value}");
            let asks = response.headers()["www-authenticate"].to_str().unwrap();
            let for_a_person = asks.starts_with("Basic realm");
            assert_eq!(for_a_person, request.starts_with("GET"), "{request} {asks}");
            asked += 1;
        }
        assert_eq!(desk.status(request, &[LOCAL]), 401);
        assert_ne!(desk.status(request, &[LOCAL, TOKEN]), 401);
    }
    assert_eq!(asked, 35);
    assert_eq!(
        desk.status(
            "GET /status",
            &[LOCAL, ("authorization", "bearer let-me-in")]
        ),
        200
    );
}

#[test]
fn a_browser_reads_with_the_password_and_never_orders_with_it() {
    use base64::Engine as _;
    let basic = |pair: &[u8]| {
        let pair = base64::engine::general_purpose::STANDARD.encode(pair);
        format!("Basic {pair}")
    };
    let desk = desk(Some("let:me-in"));
    for pair in [&b":let:me-in"[..], b"anybody:let:me-in"] {
        let sent = basic(pair);
        let sent = [LOCAL, ("authorization", &*sent)];
        assert_eq!(desk.status("GET /", &sent), 200);
        assert_eq!(desk.status("GET /status", &sent), 200);
        assert_eq!(desk.status("POST /credentials/campus-a/drain", &sent), 401);
    }
    let wrong: [&[u8]; 6] = [
        b"",
        b"let:me-in",
        b"a:me-in",
        b"a:let:me-in ",
        b"\xff:\xff",
        b":",
    ];
    for pair in wrong {
        let sent = basic(pair);
        assert_eq!(
            desk.status("GET /", &[LOCAL, ("authorization", &*sent)]),
            401
        );
    }
    for value in ["Basic", "Basic ", "Basic !!!", "Basic bGV0Om1lLWlu="] {
        assert_eq!(
            desk.status("GET /", &[LOCAL, ("authorization", value)]),
            401
        );
    }
    assert_eq!(desk.fake.orders.lock().unwrap().len(), 0);
}

#[test]
fn without_a_token_orders_come_only_through_the_control_socket() {
    let desk = desk(None);
    let refused = desk.ask("POST /credentials/campus-a/drain", &[LOCAL]);
    assert_eq!(refused.status(), 403);
    assert!(body(&refused).contains("set admin.token, or use the control socket"));
    let done = desk.ask_at(Door::ControlSocket, "POST /credentials/campus-a/drain", &[]);
    assert_eq!(
        (done.status().as_u16(), body(&done)),
        (200, r#"{"credential":"campus-a","done":"drain"}"#)
    );
    assert_eq!(
        *desk.fake.orders.lock().unwrap(),
        [("campus-a".to_owned(), Order::Drain)]
    );
}

#[test]
fn orders_reach_the_pool_as_they_were_given() {
    let desk = desk(Some("let-me-in"));
    let time = Duration::from_secs(30);
    let orders = [
        ("drain", Order::Drain),
        ("enable", Order::Enable),
        ("reset", Order::Reset),
        ("hold-out?for=30s", Order::HoldOut { model: None, time }),
        (
            "hold-out?model=gpt-5&for=30s",
            Order::HoldOut {
                model: Some("gpt-5".to_owned()),
                time,
            },
        ),
    ];
    for (path, order) in &orders {
        assert_eq!(
            desk.status(
                &format!("POST /credentials/campus-b/{path}"),
                &[LOCAL, TOKEN]
            ),
            200
        );
        let given = desk.fake.orders.lock().unwrap().last().cloned();
        assert_eq!(
            given,
            Some(("campus-b".to_owned(), order.clone())),
            "{path}"
        );
    }
    assert_eq!(desk.fake.orders.lock().unwrap().len(), 5);
}

#[test]
fn a_wrong_order_says_what_is_wrong_and_does_nothing() {
    let desk = desk(Some("let-me-in"));
    let cases = [
        ("POST /credentials/nobody/drain", 404),
        ("POST /credentials/NOT-A-NAME/drain", 404),
        ("POST /credentials/campus-a/explode", 404),
        ("POST /credentials/campus-a", 404),
        ("POST /credentials//drain", 404),
        ("GET /credentials/campus-a/drain", 405),
        ("DELETE /status", 405),
        ("POST /healthz", 405),
        ("POST /credentials/campus-a/hold-out", 400),
        ("POST /credentials/campus-a/hold-out?for=31d", 400),
        ("POST /credentials/campus-a/drain?now=1", 400),
    ];
    for (request, expected) in cases {
        let response = desk.ask(request, &[LOCAL, TOKEN]);
        assert_eq!(response.status().as_u16(), expected, "{request}");
        let json: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert!(
            json["error"]["message"]
                .as_str()
                .is_some_and(|m| !m.is_empty()),
            "{request}"
        );
        assert_eq!(
            response.headers().contains_key("allow"),
            expected == 405,
            "{request}"
        );
    }
    assert_eq!(desk.fake.orders.lock().unwrap().len(), 0);
}

#[test]
fn a_rebound_name_can_neither_order_nor_read() {
    let open = desk(None);
    let locked = desk(Some("let-me-in"));
    let drain = "POST /credentials/campus-a/drain";
    for name in [
        "evil.example",
        "evil.example:9090",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[evil]",
        "[::1].evil.example",
        "[::1]evil.example:9090",
        "localhost:evil.example",
        "",
    ] {
        assert_eq!(open.status("GET /status", &[("host", name)]), 403, "{name}");
        assert_eq!(
            locked.status(drain, &[("host", name), TOKEN]),
            403,
            "{name}"
        );
    }
    for name in [
        "127.0.0.1",
        "localhost:9090",
        "LOCALHOST",
        "[::1]:9090",
        "10.1.2.3:80",
    ] {
        assert_eq!(open.status("GET /status", &[("host", name)]), 200, "{name}");
        assert_eq!(
            locked.status(drain, &[("host", name), TOKEN]),
            200,
            "{name}"
        );
    }
    assert_eq!(open.status("GET /status", &[]), 403);
    assert_eq!(
        open.status("GET /status", &[LOCAL, ("host", "evil.example")]),
        403
    );
    assert_eq!(open.status("GET http://evil.example/status", &[LOCAL]), 403);
    // With a token, a monitoring system may read under any name.
    assert_eq!(
        locked.status("GET /metrics", &[("host", "berth.example"), TOKEN]),
        200
    );
}

#[test]
fn a_page_of_another_origin_cannot_give_orders() {
    let desk = desk(Some("let-me-in"));
    let drain = "POST /credentials/campus-a/drain";
    for origin in [
        "https://evil.example",
        "null",
        "http://127.0.0.1:8080",
        "http://127.0.0.1:9090.evil.example",
    ] {
        assert_eq!(
            desk.status(drain, &[LOCAL, TOKEN, ("origin", origin)]),
            403,
            "{origin}"
        );
    }
    assert_eq!(desk.fake.orders.lock().unwrap().len(), 0);
    assert_eq!(
        desk.status(drain, &[LOCAL, TOKEN, ("origin", "http://127.0.0.1:9090")]),
        200
    );
}

#[tokio::test]
async fn pingora_sends_the_answers_whole_and_keeps_the_connection() {
    use pingora::apps::HttpServerApp;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let app = Arc::new(AdminApp::new(Arc::new(desk(None).admin), Door::Network));
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let (_keep, shutdown) = tokio::sync::watch::channel(false);
    let serving = tokio::spawn(async move {
        let mut stream: pingora::protocols::Stream = Box::new(server);
        let mut served = 0;
        loop {
            let session = ServerSession::new_http1(stream);
            let Some(reused) = app.process_new_http(session, &shutdown).await else {
                return served;
            };
            served += 1;
            stream = reused.consume().0;
        }
    });
    let asked = "HEAD /status HTTP/1.1\r\nhost: localhost\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    let head = read_head(&mut client).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let asked = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    let head = read_head(&mut client).await.to_ascii_lowercase();
    assert!(
        head.starts_with("http/1.1 200") && head.contains("content-length: 3\r\n"),
        "{head}"
    );
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "ok\n");
    assert_eq!(serving.await.unwrap(), 1);
}

async fn read_head(from: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::io::AsyncReadExt::read_u8(from).await.unwrap());
    }
    String::from_utf8(head).unwrap()
}
