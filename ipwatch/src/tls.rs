//! TLS to a server: trusted CAs, and our own certificate. Shared by all clients; the caller formulates errors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::bounded;

/// Maximum size in bytes of a file of certificates or of a key. A system's CA bundle has about 200 KiB.
const LIMIT: usize = 1 << 20;

/// Our certificate chain and its key.
pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// What is wrong with the parameters. Contains nothing of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// One of the configured CAs is not a valid certificate.
    Authority(String),
    /// The system trusts no CA.
    NoAuthority,
    /// The certificate and its key do not match, or have an unsupported type.
    Identity(String),
    /// TLS cannot be set up.
    Setup(String),
}

/// Builds a client's configuration. `authorities`: the trusted CAs; `None`: the system's. `protocols`: for ALPN; empty:
/// no ALPN. May read the system's files, so never call it on an async worker.
pub(crate) fn client(
    authorities: Option<Vec<CertificateDer<'static>>>,
    identity: Option<Identity>,
    protocols: &[&[u8]],
) -> Result<Arc<ClientConfig>, Wrong> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Wrong::Setup(error.to_string()))?
        .with_root_certificates(roots(authorities)?);
    let mut config = match identity {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| Wrong::Identity(error.to_string()))?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
    Ok(Arc::new(config))
}

fn roots(authorities: Option<Vec<CertificateDer<'static>>>) -> Result<RootCertStore, Wrong> {
    let mut roots = RootCertStore::empty();
    if let Some(named) = authorities {
        for one in named {
            roots.add(one).map_err(|error| Wrong::Authority(error.to_string()))?;
        }
        return Ok(roots);
    }
    // A certificate that cannot be parsed is skipped.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(Wrong::NoAuthority) } else { Ok(roots) }
}

/// The files of a client, in PEM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    /// Trusted CAs; `None`: the system's.
    pub(crate) authorities: Option<&'a Path>,
    /// Our certificate, and its key.
    pub(crate) identity: Option<(&'a Path, &'a Path)>,
}

/// Why a client cannot be built from its files. Contains nothing of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// This file cannot be read, or not be used.
    File { path: PathBuf, why: String },
    /// The system trusts no CA.
    NoAuthority,
    /// TLS cannot be set up.
    Setup(String),
}

impl Files<'_> {
    /// As [`client`], with one protocol. Reads files, so never call it on an async worker.
    pub(crate) fn client(self, protocol: &[u8]) -> Result<Arc<ClientConfig>, Unusable> {
        let authorities = self.authorities.map(certificates_of).transpose()?;
        let identity = match self.identity {
            Some((certificate, path)) => {
                let none = || unusable(path, "it holds no private key in PEM");
                let key = key(&read(path)?).ok_or_else(none)?;
                Some((certificates_of(certificate)?, key))
            }
            None => None,
        };
        let of = |path: Option<&Path>, why: String| match path {
            Some(path) => unusable(path, why),
            None => Unusable::Setup(why),
        };
        client(authorities, identity, &[protocol]).map_err(|wrong| match wrong {
            Wrong::Authority(why) => of(self.authorities, why),
            Wrong::Identity(why) => of(self.identity.map(|(_, key)| key), why),
            Wrong::Setup(why) => Unusable::Setup(why),
            Wrong::NoAuthority => Unusable::NoAuthority,
        })
    }
}

fn certificates_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let none = || unusable(path, "it holds no certificate in PEM");
    certificates(&read(path)?).ok_or_else(none)
}

fn read(path: &Path) -> Result<Vec<u8>, Unusable> {
    let read =
        bounded::read_linked(path, LIMIT).map_err(|error| unusable(path, error.to_string()))?;
    match read.truncated {
        true => Err(unusable(path, "it is larger than 1 MiB")),
        false => Ok(read.bytes),
    }
}

fn unusable(path: &Path, why: impl Into<String>) -> Unusable {
    Unusable::File { path: path.to_owned(), why: why.into() }
}

/// All certificates in a PEM text. `None`: it is not PEM, or has none.
pub(crate) fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok().filter(|all| !all.is_empty())
}

/// The first private key in a PEM text: PKCS#8, PKCS#1 or SEC1.
pub(crate) fn key(pem: &[u8]) -> Option<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_and_its_key_are_taken_from_one_pem() {
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let pem = format!("{}{}", made.signing_key.serialize_pem(), made.cert.pem());
        let chain = certificates(pem.as_bytes()).unwrap();
        assert_eq!(chain, [made.cert.der().clone()]);
        let identity = (chain.clone(), key(pem.as_bytes()).unwrap());
        let config = client(Some(chain), Some(identity), &[b"h2"]).unwrap();
        assert!(config.client_auth_cert_resolver.has_certs());
        assert_eq!(config.alpn_protocols, [b"h2"]);
    }

    #[test]
    fn what_is_none_is_told_apart() {
        assert_eq!(certificates(b"hunter2"), None);
        assert_eq!(key(b"hunter2"), None);
        let none = CertificateDer::from(b"hunter2".to_vec());
        let wrong = client(Some(vec![none]), None, &[]).unwrap_err();
        assert!(matches!(wrong, Wrong::Authority(_)), "{wrong:?}");
        let pair = || rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let (one, other) = (pair(), pair());
        let other = key(other.signing_key.serialize_pem().as_bytes()).unwrap();
        let identity = (vec![one.cert.der().clone()], other);
        let wrong = client(Some(Vec::new()), Some(identity), &[]).unwrap_err();
        assert!(matches!(wrong, Wrong::Identity(_)), "{wrong:?}");
    }
}
