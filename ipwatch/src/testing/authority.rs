//! A certificate authority for tests, and servers with certificates from it.

use std::sync::Arc;

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// A CA with its certificate and key.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn sign(&self, name: &str) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// The server side of TLS for this name; with `asks`, it requires a client certificate from this CA.
    pub(crate) fn server(&self, name: &str, asks: bool, protocols: &[&[u8]]) -> TlsAcceptor {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (certificate, key) = self.sign(name);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if asks {
            let mut roots = RootCertStore::empty();
            roots.add(self.0.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}
