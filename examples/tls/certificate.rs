//! Certificates and what TLS is to be used with.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::Outcome;

/// The application's protocol (RFC 7301).
pub(crate) const HTTP: &[u8] = b"http/1.1";
/// The name that a certificate is for, besides an address.
pub(crate) const NAME: &str = "server.test";

/// A certificate that vouches for itself, with its key.
pub(crate) struct SelfSigned {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
    /// The certificate as clients take it.
    pub(crate) pem: String,
}

impl SelfSigned {
    /// Makes one for [`NAME`] and an address.
    pub(crate) fn new(address: &str) -> Outcome<SelfSigned> {
        let names = vec![NAME.to_owned(), address.to_owned()];
        let made = rcgen::generate_simple_self_signed(names)?;
        Ok(SelfSigned {
            certificate: made.cert.der().clone(),
            key: PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()),
            pem: made.cert.pem(),
        })
    }

    /// What a server is to use. `clients`: whose certificates clients need; `None`: they need none.
    pub(crate) fn server(&self, clients: Option<RootCertStore>) -> Outcome<Arc<ServerConfig>> {
        let builder = ServerConfig::builder();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let key = self.key.clone_key().into();
        let mut config = builder.with_single_cert(vec![self.certificate.clone()], key)?;
        config.alpn_protocols = vec![HTTP.to_vec()];
        Ok(Arc::new(config))
    }

    /// Trusts this certificate alone.
    pub(crate) fn roots(&self) -> Outcome<RootCertStore> {
        read_roots(self.pem.as_bytes())
    }
}

/// What a client is to use without a certificate of its own. `tls12`: not TLS 1.3.
pub(crate) fn client(roots: RootCertStore, tls12: bool) -> ClientConfig {
    let versions: &[_] = match tls12 {
        true => &[&rustls::version::TLS12],
        false => rustls::ALL_VERSIONS,
    };
    let mut config = ClientConfig::builder_with_protocol_versions(versions)
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP.to_vec()];
    config
}

/// The certificates that are trusted, from PEM.
pub(crate) fn read_roots(pem: &[u8]) -> Outcome<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate?)?;
    }
    if roots.is_empty() {
        return Err("there is no certificate".into());
    }
    Ok(roots)
}
