//! Collectors that hang, are slow, or come back, over both protocols.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{Collector, Otlp, settings, until};
use crate::reading::Readings;
use crate::sinks::otlp::Kind;
use crate::sinks::tests::{node, opened};

/// What a server does with a connection that it accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    /// Never reads.
    Hangs,
    /// Reads and answers a byte at a time, slowly.
    Drips,
    /// Closes it at once.
    HangsUp,
    /// Sends bytes of no protocol.
    Babbles,
}

fn serve(listener: TcpListener, manner: Manner) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            match manner {
                Manner::Hangs => kept.push(stream),
                Manner::HangsUp => drop(stream),
                Manner::Babbles => {
                    let _ = stream.write_all(&[b'x'; 4096]).await;
                }
                Manner::Drips => {
                    tokio::spawn(async move {
                        let mut byte = [0];
                        for answer in b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n".iter() {
                            if stream.read(&mut byte).await.is_err()
                                || stream.write_all(&[*answer]).await.is_err()
                            {
                                return;
                            }
                            tokio::time::sleep(Duration::from_millis(200)).await;
                        }
                    });
                }
            }
        }
    })
}

fn start(address: SocketAddr, protocol: &str) -> Otlp {
    let file = format!(
        "endpoint = \"http://{address}\"\nprotocol = {protocol:?}\ntimeout = \"300ms\"\n\
         cni_calls = \"all\""
    );
    Otlp::start(settings(&file).unwrap(), &node(), &Readings::default()).unwrap()
}

/// A listener with SO_REUSEADDR, so that a later listener can take the same port.
async fn listen(address: Option<SocketAddr>) -> TcpListener {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap())).unwrap();
    socket.listen(64).unwrap()
}

#[tokio::test]
async fn whoever_hangs_costs_neither_memory_nor_the_end_its_two_seconds() {
    for protocol in ["grpc", "http/protobuf"] {
        for manner in [Manner::Hangs, Manner::Drips, Manner::HangsUp, Manner::Babbles] {
            let listener = listen(None).await;
            let otlp = start(listener.local_addr().unwrap(), protocol);
            let server = serve(listener, manner);
            let told: u64 = 1500;
            for n in 0..told {
                otlp.tell(&opened(&n.to_string()));
            }
            until("an attempt has failed", || otlp.counters().failures > 0).await;
            let count = otlp.findings();
            assert!(count.waiting <= 1024 + 32, "{protocol} {manner:?}: {count:?}");
            assert_eq!(count.dropped + count.waiting + count.exported, told);
            let counters = tokio::time::timeout(Duration::from_secs(10), otlp.shutdown()).await;
            let count = counters.expect("the end is bounded").of(Kind::Findings);
            assert_eq!((count.dropped, count.exported), (told, 0), "{protocol} {manner:?}");
            server.abort();
        }
    }
}

#[tokio::test]
async fn a_collector_that_comes_back_is_found_whatever_it_did_before() {
    for manner in [Manner::Hangs, Manner::Drips, Manner::HangsUp, Manner::Babbles] {
        let listener = listen(None).await;
        let address = listener.local_addr().unwrap();
        let otlp = start(address, "grpc");
        let server = serve(listener, manner);
        otlp.tell(&opened("a"));
        until("an attempt has failed", || otlp.counters().failures > 0).await;
        server.abort();
        let _ = server.await;

        let collector = Collector::default();
        tokio::spawn(collector.clone().serve(listen(Some(address)).await));
        until("it is there again", || otlp.findings().exported == 1).await;
        assert_eq!(collector.spans.lock().unwrap().len(), 1, "{manner:?}");
        assert_eq!(otlp.trouble(), None);
        assert_eq!(otlp.shutdown().await.total().dropped, 0);
    }
}
