//! What a listener with TLS shows its clients, and whose certificates it asks them for.
//!
//! Everything is read and checked before anything listens, since pingora's own loading panics. A
//! renewed certificate is read by the next process: a reload is how it comes into use. TLS 1.2 and 1.3,
//! HTTP/2 by ALPN.

use std::path::Path;
use std::sync::Arc;

use pingora::listeners::tls::{Acceptor, TlsSettings};
use pingora::tls::sign::{CertifiedKey, SingleCertAndKey};
use pingora::tls::{
    CertificateDer, ClientCertVerifier, CryptoProvider, PrivateKeyDer, RootCertStore,
    WebPkiClientVerifier,
};
use rustls_pki_types::pem::PemObject;

use super::spec::TlsSpec;

/// A certificate with its key, and who may come.
#[derive(Clone, Debug)]
pub struct Certificates {
    shown: Arc<SingleCertAndKey>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Which file cannot be used, and why.
    pub fn load(spec: &TlsSpec) -> Result<Certificates, String> {
        pingora::tls::install_default_crypto_provider();
        let provider = CryptoProvider::get_default().ok_or("no cryptography is there")?;
        let chain = certificates("certificate", &spec.certificate)?;
        let shown = spec.private_key.display();
        let key = PrivateKeyDer::from_pem_file(&spec.private_key)
            .map_err(|e| format!("`private_key` {shown} cannot be read as a PEM key: {e}"))?;
        let certified = CertifiedKey::from_der(chain, key, provider).map_err(|e| {
            let certificate = spec.certificate.display();
            format!("`private_key` {shown} does not go with `certificate` {certificate}: {e}")
        })?;
        let clients = spec.client_ca.as_deref().map(verifier).transpose()?;
        Ok(Certificates {
            shown: Arc::new(SingleCertAndKey::from(certified)),
            clients,
        })
    }

    /// What shakes hands with clients.
    ///
    /// # Errors
    ///
    /// pingora refuses settings without files; none are given here.
    pub fn acceptor(&self) -> pingora::Result<Acceptor> {
        let mut settings = TlsSettings::intermediate("", "")?;
        settings.set_cert_resolver(self.shown.clone());
        if let Some(clients) = &self.clients {
            settings.set_client_cert_verifier(clients.clone());
        }
        settings.enable_h2();
        Ok(settings.build())
    }
}

fn verifier(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let shown = path.display();
    let mut roots = RootCertStore::empty();
    for certificate in certificates("client_ca", path)? {
        roots
            .add(certificate)
            .map_err(|e| format!("`client_ca` {shown} holds something that is no CA: {e}"))?;
    }
    WebPkiClientVerifier::builder(Arc::new(roots))
        .build()
        .map(|verifier| verifier as Arc<dyn ClientCertVerifier>)
        .map_err(|e| format!("`client_ca` {shown} cannot be used: {e}"))
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| format!("`{key}` {shown} cannot be read as PEM certificates: {e}"))?;
    match all.is_empty() {
        true => Err(format!("`{key}` {shown} holds no certificate in PEM form")),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn each_file_that_cannot_be_used_is_named_with_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let one = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let spec = TlsSpec {
            certificate: write(folder, "one.pem", &one.cert.pem()),
            private_key: write(folder, "one.key", &one.signing_key.serialize_pem()),
            client_ca: Some(write(folder, "ca.pem", &other.cert.pem())),
        };
        Certificates::load(&spec).unwrap().acceptor().unwrap();

        let key = write(folder, "other.key", &other.signing_key.serialize_pem());
        let empty = write(folder, "empty", "");
        let gone = folder.join("gone");
        let wrong = |spec: TlsSpec| Certificates::load(&spec).unwrap_err();
        let error = wrong(TlsSpec {
            private_key: key,
            ..spec.clone()
        });
        assert!(error.contains("does not go with `certificate`"), "{error}");
        let error = wrong(TlsSpec {
            certificate: empty.clone(),
            ..spec.clone()
        });
        assert!(error.contains("holds no certificate"), "{error}");
        let error = wrong(TlsSpec {
            private_key: empty,
            ..spec.clone()
        });
        assert!(error.contains("`private_key`"), "{error}");
        let error = wrong(TlsSpec {
            client_ca: Some(gone),
            ..spec
        });
        assert!(error.contains("`client_ca`"), "{error}");
    }
}
