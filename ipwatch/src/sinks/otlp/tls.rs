//! TLS to a collector: whom to trust, and who we are. Reads the files once, at the start.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::OtlpError;
use super::route::Protocol;
use crate::bounded;

/// No file of certificates is longer than this; the system's list of all has some 200 KiB.
const MAX_BYTES: usize = 1 << 20;

/// The files that may be named.
#[derive(Debug, Clone, Default)]
pub(super) struct Files {
    /// Whom to trust.
    pub(super) ca: Option<PathBuf>,
    /// Our own certificate.
    pub(super) certificate: Option<PathBuf>,
    /// Its key.
    pub(super) key: Option<PathBuf>,
}

/// What a client needs. HTTP/2 is agreed upon for gRPC only.
pub(super) fn client(files: &Files, protocol: Protocol) -> Result<Arc<ClientConfig>, OtlpError> {
    let roots = match &files.ca {
        Some(path) => named(path)?,
        None => system()?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| OtlpError::Setting(format!("TLS: {error}")))?
        .with_root_certificates(roots);
    let mut config = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let wrong = |why: String| OtlpError::File { path: key.clone(), why };
            let private = PrivateKeyDer::from_pem_slice(&read(key)?)
                .map_err(|_| wrong("it holds no private key in PEM".to_owned()))?;
            builder
                .with_client_auth_cert(certificates(certificate)?, private)
                .map_err(|error| wrong(error.to_string()))?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => {
            let why = "a client's certificate and its key go together: name both";
            return Err(OtlpError::Setting(why.to_owned()));
        }
    };
    config.alpn_protocols = match protocol {
        Protocol::Grpc => vec![b"h2".to_vec()],
        Protocol::Http => vec![b"http/1.1".to_vec()],
    };
    Ok(Arc::new(config))
}

fn named(path: &Path) -> Result<RootCertStore, OtlpError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let wrong = |error| OtlpError::File { path: path.to_owned(), why: format!("{error}") };
        roots.add(certificate).map_err(wrong)?;
    }
    Ok(roots)
}

fn system() -> Result<RootCertStore, OtlpError> {
    let mut roots = RootCertStore::empty();
    // One that cannot be read does not make the others worth less.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let why = "this system trusts no certificate at all: install ca-certificates, or name a \
                   file with otlp.ca_file";
        return Err(OtlpError::Setting(why.to_owned()));
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, OtlpError> {
    let wrong = || OtlpError::File {
        path: path.to_owned(),
        why: "it holds no certificate in PEM".to_owned(),
    };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or_else(wrong)
}

fn read(path: &Path) -> Result<Vec<u8>, OtlpError> {
    let wrong = |why: String| OtlpError::File { path: path.to_owned(), why };
    let read = bounded::read_linked(path, MAX_BYTES).map_err(|error| wrong(error.to_string()))?;
    if read.truncated {
        return Err(wrong("it is larger than 1 MiB".to_owned()));
    }
    Ok(read.bytes)
}
