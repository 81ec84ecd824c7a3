//! Connects to a collector over TCP or a Unix socket, with or without TLS. Used by both protocols.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::route::{Endpoint, Route};
use super::{NAME, OtlpError};
use crate::dial::{self, Io, Tls};
use crate::reading::Readings;
use crate::sources::socket::{Paused, SocketPath};

/// How to connect.
#[derive(Clone)]
pub(super) struct Dial {
    to: To,
    tls: Option<Tls>,
}

/// The Unix sockets of the routes. Signals with the same socket share its [`Way`].
pub(super) struct Ways {
    readings: Readings,
    known: Vec<SocketPath>,
}

impl Ways {
    pub(super) fn new(readings: &Readings) -> Self {
        Self { readings: readings.clone(), known: Vec::new() }
    }

    fn to(&mut self, path: &Path) -> SocketPath {
        if let Some(way) = self.known.iter().find(|way| way.path() == path) {
            return way.clone();
        }
        let way = SocketPath::new(path, NAME, &self.readings);
        self.known.push(way.clone());
        way
    }
}

#[derive(Clone)]
enum To {
    Tcp(String, u16),
    Unix(SocketPath),
}

impl Dial {
    pub(super) fn new(route: &Route, ways: &mut Ways) -> Result<Self, OtlpError> {
        let tls = match (&route.tls, &route.target.endpoint) {
            (Some(config), Endpoint::Tcp(host, _)) => {
                let wrong = |_| OtlpError::Endpoint {
                    endpoint: route.target.url.clone(),
                    why: format!("{host:?} is not a name that a certificate can have"),
                };
                Some(Tls::to(config, host).map_err(wrong)?)
            }
            _ => None,
        };
        let to = match &route.target.endpoint {
            Endpoint::Tcp(host, port) => To::Tcp(host.clone(), *port),
            Endpoint::Unix(path) => To::Unix(ways.to(path)),
        };
        Ok(Self { to, tls })
    }

    /// Waits before the next attempt; returns early if a call that hung on a Unix socket's path has returned.
    pub(super) async fn pause(&self, pause: Duration) -> Paused {
        match &self.to {
            To::Unix(way) => way.pause(pause).await,
            To::Tcp(..) => {
                tokio::time::sleep(pause).await;
                Paused::Over
            }
        }
    }

    /// Connects. The caller sets the timeout.
    pub(super) async fn connect(&self) -> io::Result<Box<dyn Io>> {
        match &self.to {
            To::Unix(way) => Ok(Box::new(way.connect().await?)),
            To::Tcp(host, port) => dial::tcp(host, *port, self.tls.as_ref()).await,
        }
    }
}
