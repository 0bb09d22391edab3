//! Certificates, and the TLS configurations of the examples.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::Outcome;

/// The application's protocol (RFC 7301).
pub(crate) const HTTP: &[u8] = b"http/1.1";
/// The name in a certificate, beside an address.
pub(crate) const NAME: &str = "server.test";

/// A self-signed certificate with its key.
pub(crate) struct SelfSigned {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
    /// The certificate in PEM, for clients.
    pub(crate) pem: String,
}

impl SelfSigned {
    /// Makes a certificate for [`NAME`] and an address.
    pub(crate) fn new(address: &str) -> Outcome<SelfSigned> {
        let names = vec![NAME.to_owned(), address.to_owned()];
        let made = rcgen::generate_simple_self_signed(names)?;
        Ok(SelfSigned {
            certificate: made.cert.der().clone(),
            key: PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()),
            pem: made.cert.pem(),
        })
    }

    /// The configuration of a server. `clients`: roots of the certificates that clients must
    /// show; `None`: clients need none.
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

    /// Roots that contain this certificate alone.
    pub(crate) fn roots(&self) -> Outcome<RootCertStore> {
        read_roots(self.pem.as_bytes())
    }
}

/// The configuration of a client without a certificate. `tls12`: TLS 1.2 instead of 1.3.
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

/// Reads trusted certificates from PEM.
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
