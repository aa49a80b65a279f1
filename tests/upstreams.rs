//! The ways to an upstream: HTTP/2, TLS, a CONNECT proxy, several addresses, pooled connections.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::upstream::{Conn, Raw, answer};
use common::wire::{Answer, Client2, Ends, body, post, responses};
use common::{ADMISSION, Berth, config, credentials, story, with_upstream};
use http::{HeaderMap, Response};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

const STREAM: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"status\":\"completed\"}}\n\n";

const BUSY: &str = r#"{"error":{"code":"server_is_overloaded","message":"busy"}}"#;

/// An HTTP/2 upstream. Credential `a` is refused, the others get a stream with trailers.
struct Upstream2 {
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Upstream2 {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Upstream2 {
    async fn start(tls: Option<TlsAcceptor>) -> Upstream2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                match &tls {
                    None => drop(tokio::spawn(serve2(stream))),
                    Some(tls) => {
                        let tls = tls.clone();
                        tokio::spawn(async move {
                            let Ok(stream) = tls.accept(stream).await else {
                                return;
                            };
                            match stream.get_ref().1.alpn_protocol() {
                                Some(b"h2") => serve2(stream).await,
                                _ => serve1(stream).await,
                            }
                        });
                    }
                }
            }
        });
        Upstream2 {
            addr,
            connections,
            serving,
        }
    }
}

async fn serve2(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tokio::spawn(async move {
            let secret = request.headers()["authorization"].clone();
            let mut body = request.into_body();
            while let Some(Ok(piece)) = body.data().await {
                let _ = body.flow_control().release_capacity(piece.len());
            }
            let head = Response::builder().header("x-protocol", "h2");
            if secret == "Bearer sk-a" {
                let head = head.status(503).header("content-type", "application/json");
                let mut sending = respond
                    .send_response(head.body(()).unwrap(), false)
                    .unwrap();
                sending.send_data(Bytes::from(BUSY), true).unwrap();
                return;
            }
            let head = head.header("content-type", "text/event-stream");
            let mut sending = respond
                .send_response(head.body(()).unwrap(), false)
                .unwrap();
            // A frame is cut in two, so that pieces are not frames.
            let (one, two) = STREAM.split_at(50);
            sending.send_data(Bytes::from(one), false).unwrap();
            sending.send_data(Bytes::from(two), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-end", "yes".parse().unwrap());
            sending.send_trailers(trailers).unwrap();
        });
    }
}

async fn serve1(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut got = Vec::new();
    while !got.ends_with(b"}") {
        if stream.read_buf(&mut got).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let more = "content-type: text/event-stream\r\nx-protocol: h1\r\n";
    let _ = stream.write_all(&answer(200, more, STREAM)).await;
    let _ = stream.read_buf(&mut got).await;
}

/// A server's side of TLS for `localhost`, and the file that trusts it.
fn certificate(alpn: &[&str]) -> (TlsAcceptor, tempfile::NamedTempFile) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    (TlsAcceptor::from(Arc::new(config)), file)
}

fn is_stream(answer: &Answer, protocol: &str) {
    assert_eq!(
        (answer.status, answer.ends),
        (200, Ends::Whole),
        "{answer:?}"
    );
    assert_eq!(answer.text(), STREAM);
    assert_eq!(answer.header("x-protocol"), Some(protocol), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http2_upstream_is_spoken_to_by_prior_knowledge_and_failed_over() {
    let upstream = Upstream2::start(None).await;
    let up = format!("base_url: \"http://{}/v1\", http2: always", upstream.addr);
    let mut berth = Berth::start(&with_upstream(&up, "ab", "")).await;
    let mut client = berth.connect().await;
    for n in 0..20 {
        client.send(responses()).await;
        is_stream(&client.answer().await, "h2");
        let line = berth.last_audit(n + 1).await;
        assert_eq!(story(&line), [("a", "capacity"), ("b", "admitted")]);
    }
    // Kept, and one per credential.
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 2);
    berth.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_pass_from_http2_to_http2() {
    let upstream = Upstream2::start(None).await;
    let up = format!("base_url: \"http://{}/v1\", http2: always", upstream.addr);
    let berth = Berth::start(&with_upstream(&up, "ab", "")).await;
    let client = Client2::connect(berth.addr).await;
    let answer = client
        .ask("/v1/responses", &[], body("/v1/responses", true))
        .await;
    is_stream(&answer, "h2");
    let expected = [("x-end".to_owned(), "yes".to_owned())];
    assert_eq!(answer.trailers, expected, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_the_protocol_is_what_both_sides_agree_on() {
    for (alpn, http2, protocol) in [
        (&["h2", "http/1.1"][..], "auto", "h2"),
        (&["http/1.1"][..], "auto", "h1"),
        (&["h2", "http/1.1"][..], "never", "h1"),
        (&[][..], "auto", "h1"),
    ] {
        let (tls, file) = certificate(alpn);
        let upstream = Upstream2::start(Some(tls)).await;
        let up = format!(
            "base_url: \"https://localhost:{}/v1\", http2: {http2}, ca_file: {}",
            upstream.addr.port(),
            file.path().display()
        );
        let berth = Berth::start(&with_upstream(&up, "b", "")).await;
        let answer = berth.ask(responses()).await;
        is_stream(&answer, protocol);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_nobody_vouches_for_is_no_upstream() {
    let (tls, _) = certificate(&["h2"]);
    let upstream = Upstream2::start(Some(tls)).await;
    let up = format!(
        "base_url: \"https://localhost:{}/v1\"",
        upstream.addr.port()
    );
    let mut berth = Berth::start(&with_upstream(&up, "b", "")).await;
    let answer = berth.ask(responses()).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(story(&berth.last_audit(1).await), [("b", "transport")]);
    berth.is_well().await;
}

/// What a proxy of the tests does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Proxying {
    Tunnels,
    Refuses,
    IsSilent,
    Closes,
    SaysNonsense,
}

/// A CONNECT proxy; the heads that it was asked with.
async fn proxy(how: Proxying) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = heads.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let seen = seen.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else {
                        return;
                    };
                    head.push(byte);
                }
                let head = String::from_utf8(head).unwrap();
                let target = head.split(' ').nth(1).unwrap().to_owned();
                seen.lock().unwrap().push(head);
                match how {
                    Proxying::Tunnels => {
                        let mut up = TcpStream::connect(&target).await.unwrap();
                        let said = b"HTTP/1.1 200 Connection established\r\nx: y\r\n\r\n";
                        stream.write_all(said).await.unwrap();
                        let _ = tokio::io::copy_bidirectional(&mut stream, &mut up).await;
                    }
                    Proxying::Refuses => {
                        let said = answer(407, "proxy-authenticate: Basic\r\n", "no");
                        stream.write_all(&said).await.unwrap();
                    }
                    Proxying::IsSilent => {
                        let _ = stream.read_u8().await;
                    }
                    Proxying::Closes => {}
                    Proxying::SaysNonsense => {
                        stream.write_all(b"hello\r\n\r\n").await.unwrap();
                    }
                }
            });
        }
    });
    (addr, heads)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connect_proxy_is_asked_with_user_and_password_and_tunnels() {
    let (proxy, heads) = proxy(Proxying::Tunnels).await;
    let (tls, file) = certificate(&["h2"]);
    let plain = Upstream2::start(None).await;
    let secure = Upstream2::start(Some(tls)).await;
    let with_proxy =
        format!("proxy: {{url: \"http://{proxy}\", user: {{env: SK_S}}, password: {{env: SK_T}}}}");
    let ca = file.path().display();
    for (up, target) in [
        (
            format!(
                "base_url: \"http://{}/v1\", http2: always, {with_proxy}",
                plain.addr
            ),
            plain.addr.to_string(),
        ),
        (
            format!(
                "base_url: \"https://localhost:{}/v1\", ca_file: {ca}, {with_proxy}",
                secure.addr.port()
            ),
            format!("localhost:{}", secure.addr.port()),
        ),
    ] {
        heads.lock().unwrap().clear();
        let berth = Berth::start(&with_upstream(&up, "ab", "")).await;
        for n in 0..3 {
            is_stream(&berth.ask(responses()).await, "h2");
            let line = berth.last_audit(n + 1).await;
            assert_eq!(story(&line), [("a", "capacity"), ("b", "admitted")]);
        }
        let heads = heads.lock().unwrap();
        // Kept, and one per credential.
        assert_eq!(heads.len(), 2, "{heads:?}");
        for head in heads.iter() {
            assert!(
                head.starts_with(&format!("CONNECT {target} HTTP/1.1\r\n")),
                "{head}"
            );
            assert!(head.contains(&format!("Host: {target}\r\n")), "{head}");
            // sk-s:sk-t
            assert!(
                head.contains("Proxy-Authorization: Basic c2stczpzay10\r\n"),
                "{head}"
            );
            assert!(!head.contains("sk-a"), "{head}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_does_not_tunnel_costs_an_attempt_and_never_a_hang() {
    let good = Raw::start(|mut conn: Conn| async move {
        while conn.request().await.is_some() {
            let more = "content-type: text/event-stream\r\nx-protocol: h1\r\n";
            conn.send(answer(200, more, STREAM)).await;
        }
    })
    .await;
    for how in [
        Proxying::Refuses,
        Proxying::IsSilent,
        Proxying::Closes,
        Proxying::SaysNonsense,
    ] {
        let (proxy, heads) = proxy(how).await;
        let text = format!(
            "upstreams:\n  far: {{base_url: \"http://127.0.0.1:9/v1\", proxy: \"http://{proxy}\", connect_timeout: 500ms}}\n  \
             up: {{base_url: \"{}\"}}\n{}{}\
             routes: [{{path_prefix: /v1, balance: fill_first, affinity: {{enabled: false}}}}]\n{ADMISSION}",
            good.url(),
            credentials("far", "a"),
            credentials("up", "b").replace("credentials:\n", ""),
        );
        let mut berth = Berth::start(&text).await;
        let since = Instant::now();
        let answer = berth.ask(responses()).await;
        is_stream(&answer, "h1");
        assert!(since.elapsed() < Duration::from_secs(5), "{how:?}");
        let line = berth.last_audit(1).await;
        assert_eq!(story(&line)[1], ("b", "admitted"), "{how:?}");
        assert_eq!(story(&line)[0], ("a", "transport"), "{how:?}: {line:#}");
        assert_eq!(line["attempts"][0]["possible_duplicate"], false, "{how:?}");
        assert_eq!(heads.lock().unwrap().len(), 1, "{how:?}");
        berth.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_refuses_is_followed_by_the_next_of_the_same_name() {
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host(("localhost", 80))
        .await
        .unwrap()
        .collect();
    if !addresses.iter().any(SocketAddr::is_ipv6) || !addresses.iter().any(SocketAddr::is_ipv4) {
        eprintln!(
            "skipped: here `localhost` is {addresses:?}, and a name with two addresses is needed"
        );
        return;
    }
    let good = Raw::start(|mut conn: Conn| async move {
        if conn.request().await.is_some() {
            let more = "content-type: text/event-stream\r\nx-protocol: h1\r\n";
            conn.send(answer(200, more, STREAM)).await;
            // A new connection each time, so that each request has to find its way.
            conn.close().await;
        }
    })
    .await;
    let url = format!("http://localhost:{}/v1", good.addr.port());
    let berth = Berth::start(&config(&url, "a", "")).await;
    for n in 0..6 {
        is_stream(&berth.ask(responses()).await, "h1");
        assert_eq!(story(&berth.last_audit(n + 1).await), [("a", "admitted")]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_pooled_connection_is_replaced_and_counts_as_no_attempt() {
    let (served, mut told) = tokio::sync::mpsc::unbounded_channel();
    let upstream = Raw::start(move |mut conn: Conn| {
        let served = served.clone();
        async move {
            let Some(_) = conn.request().await else {
                return;
            };
            let more = "content-type: text/event-stream\r\nx-protocol: h1\r\n";
            conn.send(answer(200, more, STREAM)).await;
            // The next request on it meets an end after it was read: nothing is answered.
            let next = conn.request().await;
            let _ = served.send(next.is_some());
        }
    })
    .await;
    let mut berth = Berth::start(&config(&upstream.url(), "ab", "")).await;
    for n in 0..10 {
        for path in ["/v1/responses", "/v1/chat/completions"] {
            let request = post("/v1/responses", "", body(path, n % 2 == 0));
            is_stream(&berth.ask(request).await, "h1");
        }
    }
    let mut met_its_end = 0;
    while let Ok(next) = told.try_recv() {
        met_its_end += usize::from(next);
    }
    assert!(
        met_its_end > 5,
        "{met_its_end} requests on a dying connection"
    );
    for line in berth.audit(20).await {
        assert_eq!(story(&line), [("a", "admitted")], "{line:#}");
    }
    assert_eq!(berth.exclusions().await, Vec::<serde_json::Value>::new());
    berth.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_credentials_never_share_a_connection() {
    let mixed = Arc::new(AtomicUsize::new(0));
    let count = mixed.clone();
    let upstream = Raw::start(move |mut conn: Conn| {
        let count = count.clone();
        async move {
            let mut first = None;
            while let Some(heard) = conn.request().await {
                let credential = heard.credential().to_owned();
                if *first.get_or_insert_with(|| credential.clone()) != credential {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                if credential == "c" {
                    let more = "content-type: text/event-stream\r\nx-protocol: h1\r\n";
                    conn.send(answer(200, more, STREAM)).await;
                } else {
                    let json = "content-type: application/json\r\n";
                    conn.send(answer(503, json, BUSY)).await;
                }
            }
        }
    })
    .await;
    let berth = Berth::start(&config(&upstream.url(), "abc", "")).await;
    for n in 0..20 {
        is_stream(&berth.ask(responses()).await, "h1");
        let line = berth.last_audit(n + 1).await;
        assert_eq!(story(&line).len(), 3);
    }
    assert_eq!(mixed.load(Ordering::SeqCst), 0);
    // pingora's pool sometimes gives up a connection that is put back and wanted in the same moment, and says so.
    let log = berth.log();
    let given_up = log.matches("failed to acquire reusable stream").count();
    let accepted = upstream.accepted();
    assert_eq!(accepted, 3 + given_up, "kept, and one per credential");
}

/// HTTP/2 takes a length without a body for a broken connection, and ends what others have on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_has_no_body_has_no_length() {
    let upstream = Raw::start(|mut conn: Conn| async move {
        while conn.request().await.is_some() {
            conn.send("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n")
                .await;
        }
    })
    .await;
    let berth = Berth::start(&config(&upstream.url(), "a", "")).await;
    let client = Client2::connect(berth.addr).await;
    for _ in 0..2 {
        let answer = client
            .ask("/v1/messages/count_tokens", &[], b"{}".to_vec())
            .await;
        assert_eq!(answer.status, 204);
        assert!(answer.header("content-length").is_none(), "{answer:?}");
    }
    let plain = berth.ask(post("/v1/messages/count_tokens", "", "{}")).await;
    assert_eq!(plain.status, 204);
    assert!(plain.header("content-length").is_none(), "{plain:?}");
    assert!(plain.header("transfer-encoding").is_none(), "{plain:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_goes_the_ways_of_a_request() {
    let (tls, file) = certificate(&["h2", "http/1.1"]);
    let plain = Upstream2::start(None).await;
    let secure = Upstream2::start(Some(tls)).await;
    let ca = file.path().display();
    let tls = format!(
        "base_url: \"https://localhost:{}/v1\", ca_file: {ca}",
        secure.addr.port()
    );
    // Over HTTP/1.1 this upstream refuses nobody.
    for (up, of_a) in [
        (
            format!("base_url: \"http://{}/v1\", http2: always", plain.addr),
            "capacity",
        ),
        (format!("{tls}, http2: auto"), "capacity"),
        (format!("{tls}, http2: never"), "admitted"),
    ] {
        let config = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(config.path(), with_upstream(&up, "ab", "")).unwrap();
        let mut probe = tokio::process::Command::new(env!("CARGO_BIN_EXE_berth"));
        probe.args(["probe", "--yes", "--model", "gpt-sim", "-c"]);
        probe.arg(config.path()).env_clear().kill_on_drop(true);
        probe.envs([("SK_A", "sk-a"), ("SK_B", "sk-b")]);
        let output = common::within(probe.output()).await.unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{up}\n{told}");
        let answers: Vec<&str> = told
            .lines()
            .skip(1)
            .take(2)
            .filter_map(|row| row.split_whitespace().nth(1))
            .collect();
        assert_eq!(answers, [of_a, "admitted"], "{up}\n{told}");
    }
}
