//! One HTTP server with the metrics of a whole fleet: `/NUMBER` is those of that node, one request per connection, as the
//! daemon serves them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::page::Template;

/// Threads that answer.
const THREADS: usize = 4;
/// Maximum size of a request's head, in bytes.
const HEAD: usize = 4096;

/// What the server has served.
#[derive(Debug, Default)]
pub(super) struct Served {
    pub(super) scrapes: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Starts the server on a free port of the loopback. Its threads end with the process.
pub(super) fn start(template: Template) -> Result<(SocketAddr, Arc<Served>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (listener, template) = (Arc::new(listener), Arc::new(template));
    let (served, began) = (Arc::new(Served::default()), Instant::now());
    for _ in 0..THREADS {
        let (listener, template, served) = (listener.clone(), template.clone(), served.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A scraper that went away is counted by Prometheus.
                if let Ok(bytes) = answer(stream, &template, began) {
                    served.scrapes.fetch_add(1, Ordering::Relaxed);
                    served.bytes.fetch_add(bytes, Ordering::Relaxed);
                }
            }
        });
    }
    Ok((address, served))
}

fn answer(mut stream: TcpStream, template: &Template, began: Instant) -> Result<u64> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD {
        match stream.read(&mut part)? {
            0 => break,
            read => head.extend_from_slice(part.get(..read).unwrap_or_default()),
        }
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or_default();
    let number = path.trim_start_matches('/').parse().with_context(|| format!("GET {path}"))?;
    let page = template.page(number, began.elapsed().as_secs_f64());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{page}",
        page.len()
    )?;
    Ok(page.len() as u64)
}
