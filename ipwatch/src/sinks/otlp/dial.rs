//! Connects to a collector over TCP or a Unix socket, with or without TLS. Used by both protocols.

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::OtlpError;
use super::route::{Place, Route};

/// A connection.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// How to connect.
#[derive(Clone)]
pub(super) struct Dial {
    place: Place,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Dial {
    pub(super) fn new(route: &Route) -> Result<Self, OtlpError> {
        let tls = match (&route.tls, &route.target.place) {
            (Some(config), Place::Tcp(host, _)) => {
                let wrong = |_| OtlpError::Endpoint {
                    endpoint: route.target.url.clone(),
                    why: format!("{host:?} is no name that a certificate can bear"),
                };
                let name = ServerName::try_from(host.clone()).map_err(wrong)?;
                Some((TlsConnector::from(Arc::clone(config)), name))
            }
            _ => None,
        };
        Ok(Self { place: route.target.place.clone(), tls })
    }

    /// Connects. The caller bounds how long it may take.
    pub(super) async fn connect(&self) -> io::Result<Box<dyn Io>> {
        let (host, port) = match &self.place {
            Place::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            Place::Tcp(host, port) => (host.as_str(), *port),
        };
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            Some((connector, name)) => Ok(Box::new(connector.connect(name.clone(), stream).await?)),
            None => Ok(Box::new(stream)),
        }
    }
}
