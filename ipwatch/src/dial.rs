//! Connections to servers: over TCP, with TLS or without, and HTTP/1.1 on any of them.

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

/// A connection.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// TLS to one server.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// `name`: what the server's certificate must be for.
    pub(crate) fn new(config: Arc<ClientConfig>, name: ServerName<'static>) -> Self {
        Self { connector: TlsConnector::from(config), name }
    }

    /// `host`: a name, or an IP.
    pub(crate) fn to(config: &Arc<ClientConfig>, host: &str) -> Result<Self, InvalidDnsNameError> {
        Ok(Self::new(Arc::clone(config), ServerName::try_from(host.to_owned())?))
    }
}

/// Connects. The caller bounds how long it may take.
pub(crate) async fn tcp(host: &str, port: u16, tls: Option<&Tls>) -> io::Result<Box<dyn Io>> {
    let stream = TcpStream::connect((host, port)).await?;
    // What changes is to be seen at once.
    stream.set_nodelay(true)?;
    secured(stream, tls).await
}

/// The connection, with TLS on it if there is to be any.
pub(crate) async fn secured(stream: TcpStream, tls: Option<&Tls>) -> io::Result<Box<dyn Io>> {
    match tls {
        Some(Tls { connector, name }) => {
            Ok(Box::new(connector.connect(name.clone(), stream).await?))
        }
        None => Ok(Box::new(stream)),
    }
}

/// Drives an HTTP connection, and ends with whoever reads from that.
pub(crate) struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// HTTP/1.1 on a connection. `buffer`: the longest head of a response, hyper's own bound if that is `None`.
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
        // What goes wrong here shows in the request or in the body of its response.
        let _ = connection.await;
    });
    Ok((sender, Driver(driver)))
}
