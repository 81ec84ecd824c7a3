//! Reading answers: a list entry by entry while it comes, a watch line by line. Neither is ever in memory
//! as a whole.

use std::io::{self, Read};

use hyper::body::Bytes;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::client::Body;
use super::documents::Page;
use super::error::ApiError;
use crate::sources::json::JsonError;

/// Longest answer to a list, in bytes. 10,000 pods with all that is managed in them have 200 MiB.
pub(super) const LIST_LIMIT: usize = 256 << 20;
/// Longest line of a watch. The API server takes no object above 3 MiB.
const LINE_LIMIT: usize = 4 << 20;
/// Parts of an answer that may wait for the parser.
const AHEAD: usize = 8;

/// One page. Parsed on a thread of its own, as it comes.
pub(super) async fn page<T: DeserializeOwned + Send + 'static>(
    what: &'static str,
    body: Body,
) -> Result<Page<T>, ApiError> {
    page_within(what, body, LIST_LIMIT).await
}

/// The same of no more than `limit` bytes.
pub(super) async fn page_within<T: DeserializeOwned + Send + 'static>(
    what: &'static str,
    mut body: Body,
    limit: usize,
) -> Result<Page<T>, ApiError> {
    let (parts, coming) = mpsc::channel(AHEAD);
    let parser = tokio::task::spawn_blocking(move || {
        let reader = io::BufReader::with_capacity(16 << 10, Coming { coming, now: Bytes::new() });
        let mut parser = serde_json::Deserializer::from_reader(reader);
        <Page<T> as serde::Deserialize>::deserialize(&mut parser)
    });
    let mut read = 0;
    let mut fed: Result<(), ApiError> = Ok(());
    loop {
        match body.part().await {
            Ok(Some(data)) => {
                read += data.len();
                if read > limit {
                    fed = Err(ApiError::TooLarge { what, limit: limit >> 20 });
                    break;
                }
                // Whoever has what it wants, or fails, listens no more.
                if parts.send(data).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                fed = Err(error);
                break;
            }
        }
    }
    drop(parts);
    let parsed = parser.await;
    fed?;
    let garbage = |why: String| ApiError::Garbage { what, why };
    match parsed {
        Ok(Ok(page)) => Ok(page),
        Ok(Err(error)) => Err(garbage(place(&error, read))),
        Err(_) => Err(garbage("it cannot be read".to_owned())),
    }
}

/// Where, but never what: the text of a JSON error can quote an object.
fn place(error: &serde_json::Error, read: usize) -> String {
    if error.is_eof() {
        JsonError::Torn(read).to_string()
    } else {
        JsonError::Malformed(error.line(), error.column()).to_string()
    }
}

/// The parts of an answer, as one stream of bytes. For a thread.
struct Coming {
    coming: mpsc::Receiver<Bytes>,
    now: Bytes,
}

impl Read for Coming {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            match self.coming.blocking_recv() {
                Some(data) => self.now = data,
                None => return Ok(0),
            }
        }
        let part = self.now.split_to(out.len().min(self.now.len()));
        out[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}

/// The lines of a watch.
pub(super) struct Lines {
    what: &'static str,
    body: Body,
    /// What has come and was not handed out.
    text: Vec<u8>,
    /// So much of it has no end of a line.
    looked: usize,
}

impl Lines {
    pub(super) fn new(what: &'static str, body: Body) -> Self {
        Self { what, body, text: Vec::new(), looked: 0 }
    }

    /// The next line that is not empty. `None`: the watch has ended. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        loop {
            if let Some(at) = self.text[self.looked..].iter().position(|byte| *byte == b'\n') {
                let rest = self.text.split_off(self.looked + at + 1);
                let mut line = std::mem::replace(&mut self.text, rest);
                self.looked = 0;
                line.pop();
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line));
            }
            self.looked = self.text.len();
            if self.text.len() > LINE_LIMIT {
                return Err(ApiError::TooLarge { what: self.what, limit: LINE_LIMIT >> 20 });
            }
            match self.body.part().await? {
                Some(data) => self.text.extend_from_slice(&data),
                // Half a line is none.
                None => return Ok(None),
            }
        }
    }
}
