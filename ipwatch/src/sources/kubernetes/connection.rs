//! Connections to the API server: TCP with TLS, or without TLS on this node only.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::vec;

use http_body_util::Full;
use hyper::Uri;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tower::{BoxError, Service};

use crate::dial::{self, Io, Tls, names};
use crate::tls::{self, Wrong};

/// How long an idle connection is kept, for the next page of a list.
const IDLE: Duration = Duration::from_secs(15);

/// A client that reuses connections.
pub(super) type Http = legacy::Client<Connector, Full<Bytes>>;

/// The server's address, how it is verified, and our identity.
pub(super) struct ServerAddress {
    /// Without a trailing `/`.
    pub(super) url: String,
    /// Whether to use TLS.
    pub(super) secure: bool,
    /// The name or IP for which its certificate must be valid.
    pub(super) name: ServerName<'static>,
    /// The trusted CAs. `None`: those of the system.
    pub(super) authorities: Option<Vec<CertificateDer<'static>>>,
    /// Our certificate and its key, in PEM.
    pub(super) identity: Option<Vec<u8>>,
    /// Headers of every request.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl ServerAddress {
    /// May read the system's files, so never call it on an async worker. `identity`: our certificate and key, if not
    /// those in `self`. `Err`: what is wrong, without the content of any file.
    pub(super) fn open(&self, identity: Option<&[u8]>) -> Result<Http, &'static str> {
        let config = self.config(identity.or(self.identity.as_deref()))?;
        let mut tcp = HttpConnector::new_with_resolver(Names);
        tcp.enforce_http(false);
        // The lines of a watch are short and should arrive at once.
        tcp.set_nodelay(true);
        let tls = self.secure.then(|| Tls::new(config, self.name.clone()));
        Ok(legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(1)
            .build(Connector { tcp, tls }))
    }

    fn config(&self, identity: Option<&[u8]>) -> Result<Arc<ClientConfig>, &'static str> {
        let none = "TLS: the client certificate or its key is no PEM";
        let identity = match identity {
            Some(pem) => Some(tls::certificates(pem).zip(tls::key(pem)).ok_or(none)?),
            None => None,
        };
        tls::client(self.authorities.clone(), identity, &[]).map_err(|wrong| match wrong {
            Wrong::Identity(_) => "TLS: the client certificate and its key do not go together",
            Wrong::Authority(_) | Wrong::NoAuthority => {
                "TLS: no certificate authority is trusted, or one is no certificate: name one in the kubeconfig"
            }
            Wrong::Setup(_) => "TLS: it cannot be set up",
        })
    }
}

impl Connection for Box<dyn Io> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Resolves the server's name as every client of ours does.
#[derive(Clone)]
pub(super) struct Names;

impl Service<Name> for Names {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        // The connector replaces the port.
        Box::pin(async move { Ok(names::lookup(name.as_str(), 0).await?.into_iter()) })
    }
}

/// Opens connections.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector<Names>,
    tls: Option<Tls>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let (connecting, tls) = (self.tcp.call(url), self.tls.clone());
        Box::pin(async move {
            let stream = connecting.await?.into_inner();
            Ok(TokioIo::new(dial::secured(stream, tls.as_ref()).await?))
        })
    }
}

#[cfg(test)]
mod tests;
