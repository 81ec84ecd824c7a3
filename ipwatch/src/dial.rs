//! Connections to servers: TCP with or without TLS, and HTTP/1.1 over them.

pub(crate) mod names;

use std::io;
use std::sync::Arc;

use hyper::body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// TLS to one server.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// `name`: the name for which the server's certificate must be valid.
    pub(crate) fn new(config: Arc<ClientConfig>, name: ServerName<'static>) -> Self {
        Self { connector: TlsConnector::from(config), name }
    }

    /// `host`: a name, or an IP.
    pub(crate) fn to(config: &Arc<ClientConfig>, host: &str) -> Result<Self, InvalidDnsNameError> {
        Ok(Self::new(Arc::clone(config), ServerName::try_from(host.to_owned())?))
    }
}

/// Connects. The caller must set a timeout.
pub(crate) async fn tcp(host: &str, port: u16, tls: Option<&Tls>) -> io::Result<Box<dyn Io>> {
    let addresses = names::lookup(host, port).await?;
    let stream = TcpStream::connect(&addresses[..]).await?;
    // Short messages should arrive at once.
    stream.set_nodelay(true)?;
    secured(stream, tls).await
}

/// Adds TLS to a connection, if configured.
pub(crate) async fn secured(stream: TcpStream, tls: Option<&Tls>) -> io::Result<Box<dyn Io>> {
    match tls {
        Some(Tls { connector, name }) => {
            Ok(Box::new(connector.connect(name.clone(), stream).await?))
        }
        None => Ok(Box::new(stream)),
    }
}

/// Drives an HTTP connection until it is dropped.
pub(crate) struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// HTTP/1.1 over a connection. `buffer`: maximum size in bytes of a response's head; `None`: hyper's default.
pub(crate) async fn http1<B>(
    stream: impl Io + 'static,
    buffer: Option<usize>,
) -> hyper::Result<(http1::SendRequest<B>, Driver)>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let mut builder = http1::Builder::new();
    if let Some(buffer) = buffer {
        builder.max_buf_size(buffer);
    }
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(async move {
        // An error also appears in the request or in the body of its response.
        let _ = connection.await;
    });
    Ok((sender, Driver(driver)))
}
