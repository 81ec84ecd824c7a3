//! TLS to a collector: certificate authorities and client certificate. The files are read once, at start-up.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;

use super::OtlpError;
use super::route::Protocol;
use crate::tls::{self, Unusable};

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
    let identity = match (files.certificate.as_deref(), files.key.as_deref()) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
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
    let files = tls::Files { authorities: files.ca.as_deref(), identity };
    files.client(agreed).map_err(|unusable| match unusable {
        Unusable::File { path, why } => OtlpError::File { path, why },
        Unusable::Setup(why) => OtlpError::Setting(format!("TLS: {why}")),
        Unusable::NoAuthority => {
            let why = "this system trusts no certificate at all: install ca-certificates, or name a \
                       file with otlp.ca_file";
            OtlpError::Setting(why.to_owned())
        }
    })
}
