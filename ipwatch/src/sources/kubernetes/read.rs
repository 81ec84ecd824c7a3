//! Reading answers: a list entry by entry while it comes, a watch line by line. Neither is ever in memory
//! as a whole.

use serde::Deserialize as _;
use serde::de::DeserializeOwned;

use super::client::Body;
use super::documents::Page;
use super::error::ApiError;

/// Longest answer to a list, in bytes. 10,000 pods with all that is managed in them have 200 MiB.
pub(super) const LIST_LIMIT: usize = 256 << 20;
/// How deeply the items of a list are nested: `{"items": [{…}]}`.
pub(super) const LEVELS: u32 = 2;
/// Longest line of a watch. The API server takes no object above 3 MiB.
const LINE_LIMIT: usize = 4 << 20;

/// One page. Parsed on a thread of its own, as it comes.
pub(super) async fn page<T: DeserializeOwned + Send + 'static>(
    body: Body,
) -> Result<Page<T>, ApiError> {
    page_within(body, LIST_LIMIT).await
}

/// The same of no more than `limit` bytes.
pub(super) async fn page_within<T: DeserializeOwned + Send + 'static>(
    body: Body,
    limit: usize,
) -> Result<Page<T>, ApiError> {
    let parse = |coming| Page::deserialize(&mut serde_json::Deserializer::from_reader(coming));
    body.read(limit, parse).await
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
