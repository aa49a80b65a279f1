//! Listeners with TLS: HTTP/1.1 and HTTP/2, clients' certificates, and a renewed certificate that comes
//! into use with a reload that cuts nobody.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth::sim::{Admit, Program, Sim, Step, Then};
use common::wire::{Ends, body, post};
use common::{Berth, config, within};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const PATH: &str = "/v1/responses";

/// A CA of this test, and the files of a server that it vouches for.
struct Authority {
    folder: PathBuf,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(folder: &Path) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join("ca.pem"), ca.pem()).unwrap();
        Authority {
            folder: folder.to_owned(),
            ca,
        }
    }

    /// Writes `NAME.pem` and `NAME.key`, in the place of what was there.
    fn issue(&self, name: &str) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let issuer: &Issuer<'_, KeyPair> = &self.ca;
        let certificate = params.signed_by(&key, issuer).unwrap();
        std::fs::write(self.folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        certificate.der().clone()
    }

    async fn connect(
        &self,
        berth: &Berth,
        alpn: &[u8],
        shown: Option<&str>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let builder = ClientConfig::builder().with_root_certificates(self.roots());
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let file = |end: &str| self.folder.join(format!("{name}.{end}"));
                let chain = vec![CertificateDer::from_pem_file(file("pem")).unwrap()];
                let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        shake_hands(berth, config).await
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.der().clone()).unwrap();
        roots
    }
}

async fn shake_hands(berth: &Berth, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(berth.addr).await?;
    let name = ServerName::try_from("localhost").unwrap();
    within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

fn certificate(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0]
        .clone()
        .into_owned()
}

/// One request on a connection of its own; what came until its end.
async fn ask(mut stream: TlsStream<TcpStream>) -> std::io::Result<String> {
    let request = post(PATH, "connection: close\r\n", body(PATH, true));
    within(stream.write_all(&request)).await?;
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn sim() -> Sim {
    let slow = Step::Admit(Admit {
        deltas: 20,
        delta_gap: Duration::from_millis(50),
        ..Admit::default()
    });
    let program = Program::default().with("sk-a", "a", [slow], Then::Last);
    Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap()
}

/// A berth whose listener came to TLS by a reload.
async fn berth(sim: &Sim, more: &str) -> (Berth, Authority) {
    berth_within(sim, more, "").await
}

/// The same, with other limits.
async fn berth_within(sim: &Sim, more: &str, limits: &str) -> (Berth, Authority) {
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "a", limits)).await;
    let authority = Authority::new(&berth.folder());
    authority.issue("server");
    let plain = format!("{{address: \"{}\"}}", berth.addr);
    let folder = berth.folder();
    let shown = folder.display();
    let tls = format!(
        "{{address: \"{}\", tls: {{certificate: {shown}/server.pem, private_key: {shown}/server.key{more}}}}}",
        berth.addr
    );
    berth.reconfigure(&plain, &tls);
    berth.reload().await;
    (berth, authority)
}

#[tokio::test]
async fn a_renewed_certificate_comes_with_a_reload_that_cuts_nobody() {
    let sim = sim();
    let (berth, authority) = berth(&sim, "").await;
    let first = authority.connect(&berth, b"http/1.1", None).await.unwrap();
    let old = certificate(&first);
    let stream = tokio::spawn(ask(first));
    let one = |_: &[_], stats: &berth::sim::Stats| stats.credentials.contains_key("a");
    assert!(sim.until(common::DEADLINE, one).await);

    let renewed = authority.issue("server");
    berth.reload().await;
    let second = authority.connect(&berth, b"http/1.1", None).await.unwrap();
    assert_eq!(certificate(&second), renewed);
    assert_ne!(certificate(&second), old);
    let whole = |answer: String| answer.matches("event: response.completed").count() == 1;
    assert!(whole(ask(second).await.unwrap()));
    assert!(whole(stream.await.unwrap().unwrap()));

    // A key that is another certificate's: the reload fails, and what serves goes on.
    let key = berth.folder().join("server.key");
    std::fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let refused = berth.order(&["reload"]).await;
    assert!(!refused.status.success());
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("listeners[0].tls: `private_key`"), "{why}");
    let third = authority.connect(&berth, b"http/1.1", None).await.unwrap();
    assert_eq!(certificate(&third), renewed);
}

#[tokio::test]
async fn http2_is_spoken_where_the_client_offers_it_and_plain_text_gets_nothing() {
    let sim = sim();
    let (berth, authority) = berth(&sim, "").await;
    let stream = authority.connect(&berth, b"h2", None).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(format!("https://localhost{PATH}"))
        .header("content-type", "application/json")
        .body(())
        .unwrap();
    let (response, mut sending) = send.send_request(request, false).unwrap();
    sending.send_data(body(PATH, true).into(), true).unwrap();
    let mut response = within(response).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut text = Vec::new();
    while let Some(piece) = within(response.body_mut().data()).await {
        text.extend_from_slice(&piece.unwrap());
    }
    assert!(String::from_utf8_lossy(&text).contains("response.completed"));

    let mut plain = berth.connect().await;
    plain.send(post(PATH, "", body(PATH, true))).await;
    let answer = plain.answer().await;
    assert_eq!((answer.status, answer.ends), (0, Ends::Broken));
}

#[tokio::test]
async fn a_client_without_a_certificate_stays_outside_where_one_is_asked_for() {
    let sim = sim();
    let folder = tempfile::tempdir().unwrap();
    let clients = Authority::new(folder.path());
    clients.issue("somebody");
    let ca = folder.path().join("ca.pem");
    let more = format!(", client_ca: {}", ca.display());
    let (berth, authority) = berth(&sim, &more).await;

    // With TLS 1.3 the client learns of it when it reads.
    let stranger = authority.connect(&berth, b"http/1.1", None).await;
    let refused = match stranger {
        Ok(stream) => ask(stream).await,
        Err(error) => Err(error),
    };
    assert!(refused.is_err(), "{refused:?}");
    for end in ["pem", "key"] {
        let name = format!("somebody.{end}");
        std::fs::copy(folder.path().join(&name), berth.folder().join(&name)).unwrap();
    }
    let known = authority
        .connect(&berth, b"http/1.1", Some("somebody"))
        .await;
    let answer = ask(known.unwrap()).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // Only the one that was let in has reached an upstream.
    assert_eq!(sim.stats().credentials["a"].requests, 1);
}

/// A greeting of TLS that offers `version` and these suites, and nothing else.
fn client_hello(version: [u8; 2], suites: &[[u8; 2]]) -> Vec<u8> {
    let mut hello = version.to_vec();
    hello.extend([7; 32]);
    hello.push(0);
    hello.extend((2 * suites.len() as u16).to_be_bytes());
    hello.extend(suites.concat());
    hello.extend([1, 0]);
    let message = [&[1, 0, 0, hello.len() as u8][..], &hello].concat();
    [&[0x16, 3, 1, 0, message.len() as u8][..], &message].concat()
}

#[tokio::test]
async fn only_versions_and_suites_that_are_sound_are_spoken() {
    let sim = sim();
    let (berth, authority) = berth(&sim, "").await;
    // TLS 1.0 and 1.1 with the best they have; 1.2 without forward secrecy, with CBC, with RC4.
    let weak = [
        client_hello([3, 1], &[[0xc0, 0x13], [0xc0, 0x09]]),
        client_hello([3, 2], &[[0xc0, 0x13], [0xc0, 0x09]]),
        client_hello([3, 3], &[[0x00, 0x9c], [0x00, 0x2f]]),
        client_hello([3, 3], &[[0xc0, 0x13], [0xc0, 0x09]]),
        client_hello([3, 3], &[[0xc0, 0x11], [0xc0, 0x07]]),
    ];
    for hello in weak {
        let mut client = berth.connect().await;
        client.send(&hello).await;
        let mut told = Vec::new();
        let _ = within(client.stream.read_to_end(&mut told)).await;
        // A fatal alert.
        assert_eq!(
            (told.first(), told.get(5)),
            (Some(&0x15), Some(&2)),
            "{hello:?}"
        );
    }
    for (version, named) in [(&TLS12, "TLSv1_2"), (&TLS13, "TLSv1_3")] {
        let config = ClientConfig::builder_with_protocol_versions(&[version])
            .with_root_certificates(authority.roots())
            .with_no_client_auth();
        let stream = shake_hands(&berth, config).await.unwrap();
        let (_, spoken) = stream.get_ref();
        assert_eq!(format!("{:?}", spoken.protocol_version().unwrap()), named);
        let suite = format!("{:?}", spoken.negotiated_cipher_suite().unwrap().suite());
        let sound = ["TLS13_", "TLS_ECDHE_"]
            .iter()
            .any(|it| suite.starts_with(it));
        assert!(
            sound && (suite.contains("GCM") || suite.contains("CHACHA20")),
            "{suite}"
        );
        assert!(ask(stream).await.unwrap().starts_with("HTTP/1.1 200 "));
    }
}

#[tokio::test]
async fn a_handshake_that_does_not_end_costs_only_itself() {
    let sim = sim();
    let limits = "limits: {client_timeout: 1s}\n";
    let (berth, authority) = berth_within(&sim, "", limits).await;
    let since = std::time::Instant::now();
    let hello = client_hello([3, 3], &[[0xc0, 0x2b]]);
    let mut clients = Vec::new();
    for opening in [
        &b""[..],
        &hello[..1],
        &hello[..20],
        b"\x16\x03\x01\x40\x00\x01",
        b"nonsense",
    ] {
        let mut client = berth.connect().await;
        client.send(opening).await;
        clients.push(client);
    }
    let mut dripping = berth.connect().await.stream.into_split();
    let drip = tokio::spawn(async move {
        for byte in hello.iter().cycle() {
            if dripping.1.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    // One whose handshake is good, and who says nothing by HTTP/2.
    let mut silent = authority.connect(&berth, b"h2", None).await.unwrap();
    let good = authority.connect(&berth, b"http/1.1", None).await.unwrap();
    assert!(ask(good).await.unwrap().starts_with("HTTP/1.1 200 "));
    for mut client in clients {
        let _ = within(client.stream.read_to_end(&mut Vec::new())).await;
    }
    let _ = within(silent.read_to_end(&mut Vec::new())).await;
    let _ = within(dripping.0.read_to_end(&mut Vec::new())).await;
    within(drip).await.unwrap();
    let took = since.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    let good = authority.connect(&berth, b"http/1.1", None).await.unwrap();
    assert!(ask(good).await.unwrap().starts_with("HTTP/1.1 200 "));
    let refused = "berth_connections_refused_total{reason=\"handshake\"}";
    assert!(berth.metric(refused).await >= Some(6.0));
    berth.metric_becomes("berth_connections", 0.0).await;
}
