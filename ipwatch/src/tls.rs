//! TLS to a server: whom to trust, and who we are. One way for all clients; who calls says in its own words what is
//! wrong.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::bounded;

/// Longest file of certificates, or of a key. A system's CA bundle has some 200 KiB.
const LIMIT: usize = 1 << 20;

/// Our own certificate with those between it and its authority, and its key.
pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// What cannot be used. Nothing of a key is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Of the authorities that were named, one is none.
    Authority(String),
    /// The system trusts nobody.
    NoAuthority,
    /// The certificate and its key do not go together, or are of no kind that is known.
    Identity(String),
    /// All of it.
    Setup(String),
}

/// What a client needs. `authorities`: whom to trust, the system's own if that is `None`. `protocols`: what is agreed
/// upon (ALPN), nothing if that is empty. May read the system's files, so never on an async worker.
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
    // One that cannot be read does not make the others worth less.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(Wrong::NoAuthority) } else { Ok(roots) }
}

/// The files of a client, in PEM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    /// Whom to trust; the system's own authorities if that is `None`.
    pub(crate) authorities: Option<&'a Path>,
    /// Our own certificate, and its key.
    pub(crate) identity: Option<(&'a Path, &'a Path)>,
}

/// Why a client cannot be made of its files. Nothing of a file is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// This file cannot be read, or not be used.
    File { path: PathBuf, why: String },
    /// The system trusts nobody.
    NoAuthority,
    /// All of it.
    Setup(String),
}

impl Files<'_> {
    /// As [`client`], with one protocol. Reads files, so never on an async worker.
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

/// All certificates of a PEM. `None`: it is no PEM, or has none.
pub(crate) fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok().filter(|all| !all.is_empty())
}

/// The first private key of a PEM: PKCS#8, PKCS#1 or SEC1.
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
