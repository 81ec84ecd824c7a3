//! TLS to a collector: certificate authorities and client certificate. The files are read once, at start-up.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use super::OtlpError;
use super::route::Protocol;
use crate::bounded;
use crate::tls::{self, Wrong};

/// Maximum size of a certificate file. A system's CA bundle has some 200 KiB.
const MAX_BYTES: usize = 1 << 20;

/// The files of the configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Files {
    /// Certificate authorities.
    pub(super) ca: Option<PathBuf>,
    /// Client certificate.
    pub(super) certificate: Option<PathBuf>,
    /// Its private key.
    pub(super) key: Option<PathBuf>,
}

/// The TLS configuration of a client. ALPN offers HTTP/2 for gRPC and HTTP/1.1 otherwise.
pub(super) fn client(files: &Files, protocol: Protocol) -> Result<Arc<ClientConfig>, OtlpError> {
    let of = |path: &Option<PathBuf>, why| match path {
        Some(path) => OtlpError::File { path: path.clone(), why },
        None => OtlpError::Setting(format!("TLS: {why}")),
    };
    let authorities = files.ca.as_deref().map(certificates).transpose()?;
    let identity = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let none = || of(&files.key, "it holds no private key in PEM".to_owned());
            let key = tls::key(&read(key)?).ok_or_else(none)?;
            Some((certificates(certificate)?, key))
        }
        (None, None) => None,
        _ => {
            let why = "a client's certificate and its key go together: name both";
            return Err(OtlpError::Setting(why.to_owned()));
        }
    };
    let agreed: &[u8] = match protocol {
        Protocol::Grpc => b"h2",
        Protocol::Http => b"http/1.1",
    };
    tls::client(authorities, identity, &[agreed]).map_err(|wrong| match wrong {
        Wrong::Authority(why) => of(&files.ca, why),
        Wrong::Identity(why) => of(&files.key, why),
        Wrong::Setup(why) => of(&None, why),
        Wrong::NoAuthority => {
            let why = "this system trusts no certificate at all: install ca-certificates, or name a \
                       file with otlp.ca_file";
            OtlpError::Setting(why.to_owned())
        }
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, OtlpError> {
    let wrong = || OtlpError::File {
        path: path.to_owned(),
        why: "it holds no certificate in PEM".to_owned(),
    };
    tls::certificates(&read(path)?).ok_or_else(wrong)
}

fn read(path: &Path) -> Result<Vec<u8>, OtlpError> {
    let wrong = |why: String| OtlpError::File { path: path.to_owned(), why };
    let read = bounded::read_linked(path, MAX_BYTES).map_err(|error| wrong(error.to_string()))?;
    if read.truncated {
        return Err(wrong("it is larger than 1 MiB".to_owned()));
    }
    Ok(read.bytes)
}
