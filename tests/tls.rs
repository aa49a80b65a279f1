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
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.der().clone()).unwrap();
        let builder = ClientConfig::builder().with_root_certificates(roots);
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
        let stream = TcpStream::connect(berth.addr).await?;
        let name = ServerName::try_from("localhost").unwrap();
        within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
    }
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
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "a", "")).await;
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
