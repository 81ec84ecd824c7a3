//! gRPC over a Unix socket, as the kubelet and container runtimes speak it: the connection, and what a failure means.

use std::error::Error as _;

use hyper_util::rt::TokioIo;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::errors::{Unconnected, chain, cut};
use super::socket::SocketPath;

/// Why a call failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The server does not implement this API.
    NotOffered,
    /// The answer is larger than the limit, in MiB.
    TooLarge(usize),
    /// The connection failed, or the answer could not be decoded.
    Broken(String),
    /// The server returned this status.
    Said(Code, String),
}

impl Refusal {
    /// `limit`: maximum size of the answer in bytes.
    pub(super) fn of(limit: usize, status: &Status) -> Self {
        match status.code() {
            Code::Unimplemented => Self::NotOffered,
            Code::OutOfRange => Self::TooLarge(limit >> 20),
            // A source means that the connection or our own decoding failed, not that the server returned this status.
            _ if status.source().is_some() => Self::Broken(chain(status)),
            code => Self::Said(code, cut(&format!("{code:?}: {}", status.message()))),
        }
    }
}

/// Connects. `queue`: number of requests that may wait for the connection.
pub(super) async fn connect(way: &SocketPath, queue: usize) -> Result<Channel, Unconnected> {
    let failed = |error: tonic::transport::Error| Unconnected::of(way.path(), &error);
    // The URI that tonic itself sends to a Unix socket (0.14, `Endpoint::new_uds`).
    let endpoint = Endpoint::from_static("http://tonic")
        .user_agent(concat!("ipwatch/", env!("CARGO_PKG_VERSION")))
        .map_err(failed)?;
    let on_it = way.clone();
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let way = on_it.clone();
        async move { way.connect().await.map(TokioIo::new) }
    });
    endpoint.buffer_size(queue).connect_with_connector(connector).await.map_err(failed)
}

/// A client for one call, whose answer has at most `limit` bytes. `Err`: how the connection failed.
pub(super) async fn ready(channel: &Channel, limit: usize) -> Result<Grpc<Channel>, String> {
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(limit);
    grpc.ready().await.map_err(|error| chain(&error))?;
    Ok(grpc)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::reading::Readings;

    #[tokio::test]
    async fn a_socket_without_a_listener_is_told_from_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let way = |path: &Path| SocketPath::new(path, "runtimes", &Readings::default());
        let missing = connect(&way(&path), 1).await.unwrap_err();
        assert_eq!(missing, Unconnected::Missing(path.display().to_string()));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let refused = connect(&way(&path), 1).await.unwrap_err().to_string();
        assert!(refused.ends_with("socket: nobody listens on the socket"), "{refused}");
        let below = connect(&way(&path.join("socket")), 1).await.unwrap_err().to_string();
        assert!(below.contains("Not a directory"), "{below}");
    }

    #[test]
    fn what_broke_on_the_way_is_not_the_servers_word() {
        let refusal = |status| Refusal::of(4 << 20, &status);
        assert_eq!(refusal(Status::unimplemented("no")), Refusal::NotOffered);
        assert_eq!(refusal(Status::out_of_range("no")), Refusal::TooLarge(4));
        let said = refusal(Status::unavailable("later\n"));
        assert_eq!(said, Refusal::Said(Code::Unavailable, "Unavailable: later ".to_owned()));
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert!(matches!(refusal(broken), Refusal::Broken(why) if why.contains("reset")));
    }
}
