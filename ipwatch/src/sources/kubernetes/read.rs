//! Reads answers: a list entry by entry while it arrives, a watch line by line. Neither is ever in memory as a whole.

use serde::de::{DeserializeOwned, DeserializeSeed as _};

use super::client::Body;
use super::documents::{Page, Reader};
use super::error::ApiError;

/// Maximum size in bytes of a list. 10,000 pods with all managed fields have 200 MiB.
pub(super) const LIST_LIMIT: usize = 256 << 20;
/// How deeply the items of a list are nested: `{"items": [{…}]}`.
pub(super) const LEVELS: u32 = 2;
/// Longest line of a watch. The API server takes no object above 3 MiB.
const LINE_LIMIT: usize = 4 << 20;

/// Parses one page, of which at most `most` entries are kept, on a thread of its own, while it arrives.
pub(super) async fn page<T: DeserializeOwned + Send + 'static>(
    body: Body,
    most: usize,
) -> Result<Page<T>, ApiError> {
    page_within(body, LIST_LIMIT, most).await
}

/// The same with a limit of `limit` bytes.
pub(super) async fn page_within<T: DeserializeOwned + Send + 'static>(
    body: Body,
    limit: usize,
    most: usize,
) -> Result<Page<T>, ApiError> {
    let parse = move |coming| {
        Reader::new(most).deserialize(&mut serde_json::Deserializer::from_reader(coming))
    };
    body.read(limit, parse).await
}

/// The lines of a watch.
pub(super) struct Lines {
    what: &'static str,
    body: Body,
    /// Received text that was not returned yet.
    text: Vec<u8>,
    /// Length of its beginning that is known to have no end of line.
    looked: usize,
}

impl Lines {
    pub(super) fn new(what: &'static str, body: Body) -> Self {
        Self { what, body, text: Vec::new(), looked: 0 }
    }

    /// The next line that is not empty, `None` at the end of the watch. Cancel-safe.
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
                // An incomplete line is dropped.
                None => return Ok(None),
            }
        }
    }
}
