//! TLS: with a CA of our own, with a client certificate, and with a certificate that does not match.

use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::{Collector, Otlp, settings, until};
use crate::reading::Readings;
use crate::sinks::tests::{node, opened};
use crate::testing::authority::Authority;
use crate::testing::serve_grpc;

impl Authority {
    fn write(&self, dir: &Path) {
        std::fs::write(dir.join("ca.pem"), self.pem()).unwrap();
        let (certificate, key) = self.sign("node-17");
        std::fs::write(dir.join("client.pem"), certificate.pem()).unwrap();
        std::fs::write(dir.join("client.key"), key.serialize_pem()).unwrap();
    }
}

/// A collector behind TLS, and its port.
async fn collector(acceptor: TlsAcceptor) -> (Collector, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let collector = Collector::default();
    let service = super::TraceServiceServer::new(collector.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(serve_grpc(stream, service.clone()));
            }
        }
    });
    (collector, port)
}

fn start(port: u16, dir: &Path, more: &str) -> Otlp {
    let ca = dir.join("ca.pem");
    let file = format!("endpoint = \"https://localhost:{port}\"\nca_file = {ca:?}\n{more}");
    Otlp::start(settings(&file).unwrap(), &node(), &Readings::default()).unwrap()
}

#[tokio::test]
async fn a_collector_behind_tls_gets_spans_over_grpc() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.write(dir.path());
    let (collector, port) = collector(authority.server("localhost", true, &[b"h2"])).await;

    let stranger = start(port, dir.path(), "");
    stranger.tell(&opened("a"));
    until("one without a certificate fails", || stranger.counters().failures > 0).await;
    assert_eq!(stranger.shutdown().await.total().dropped, 1);

    let (own, key) = (dir.path().join("client.pem"), dir.path().join("client.key"));
    let client = format!("client_cert_file = {own:?}\nclient_key_file = {key:?}");
    let otlp = start(port, dir.path(), &client);
    otlp.tell(&opened("b"));
    until("one with a certificate does not", || otlp.findings().exported == 1).await;
    assert_eq!(collector.spans.lock().unwrap().len(), 1);
    assert_eq!(otlp.trouble(), None);
}

#[tokio::test]
async fn a_collector_behind_tls_gets_spans_over_http() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.write(dir.path());
    let acceptor = authority.server("localhost", false, &[b"http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        let mut head = [0; 19];
        stream.read_exact(&mut head).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        stream.flush().await.unwrap();
        (head, stream)
    });
    let otlp = start(port, dir.path(), "protocol = \"http/protobuf\"");
    otlp.tell(&opened("a"));
    until("it is exported", || otlp.findings().exported == 1).await;
    assert_eq!(&server.await.unwrap().0, b"POST /v1/traces HTT");
}

#[tokio::test]
async fn a_certificate_that_does_not_match_is_trouble_that_is_shown() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.write(dir.path());
    // Another name, and another issuer.
    let elsewhere = authority.server("elsewhere", false, &[b"h2"]);
    let unknown = Authority::new().server("localhost", false, &[b"h2"]);
    for (acceptor, says) in [(elsewhere, "NotValidForName"), (unknown, "UnknownIssuer")] {
        let (collector, port) = collector(acceptor).await;
        let otlp = start(port, dir.path(), "");
        otlp.tell(&opened("a"));
        until("it fails", || otlp.counters().failures > 0).await;
        let (status, detail) = otlp.standing();
        assert_eq!(status, crate::fact::SourceStatus::Degraded);
        assert!(detail.contains("certificate") && !detail.contains('\n'), "{says}: {detail}");
        assert!(collector.spans.lock().unwrap().is_empty());
        assert_eq!(otlp.shutdown().await.total().dropped, 1);
    }
}
