//! The body of an HTTP response: part by part, or parsed as JSON while it arrives, so that it is never in memory as a
//! whole.

use std::io::{self, BufReader, Read};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes};
use tokio::sync::mpsc;

use super::json::JsonError;

/// Maximum number of parts that wait for the parser.
const AHEAD: usize = 8;
/// Buffer size of the parser, in bytes.
const BUFFER: usize = 16 << 10;
/// The most that a parser may be made to keep of one piece: a word, or an entry of a list with all that is in it. No store
/// of such a server takes more than 3 MiB as one.
const LONGEST_PIECE: usize = 4 << 20;

/// Why a body could not be parsed.
#[derive(Debug)]
pub(super) enum Unread<E> {
    /// It ended early.
    Broken(E),
    /// It is longer than the limit.
    TooLong,
    /// It does not have the expected form.
    Garbage(String),
}

/// The next part of a body, `None` at the end. Cancel-safe.
pub(super) async fn part<B>(body: &mut B) -> Result<Option<Bytes>, B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    loop {
        match body.frame().await.transpose()? {
            None => return Ok(None),
            Some(frame) => {
                // Any other frame is a trailer.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// What `parse` makes of a body of `limit` bytes at most. It is called on a thread of its own, while the body comes.
///
/// A parser keeps a word as a whole, and what it reads an entry as. So neither may be longer than [`LONGEST_PIECE`].
/// `levels`: how deeply a list of entries is nested; `None`: the parser keeps no more than words.
pub(super) async fn read<B, T, P>(
    mut body: B,
    limit: usize,
    levels: Option<u32>,
    parse: P,
) -> Result<T, Unread<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
    T: Send + 'static,
    P: FnOnce(BufReader<Coming>) -> Result<T, serde_json::Error> + Send + 'static,
{
    let (parts, coming) = mpsc::channel(AHEAD);
    let pieces = Pieces { levels: levels.unwrap_or(u32::MAX), ..Pieces::default() };
    let coming = BufReader::with_capacity(BUFFER, Coming { coming, now: Bytes::new(), pieces });
    let parser = tokio::task::spawn_blocking(move || parse(coming));
    let mut read = 0;
    let mut fed = Ok(());
    loop {
        match part(&mut body).await {
            Ok(Some(data)) => {
                read += data.len();
                if read > limit {
                    fed = Err(Unread::TooLong);
                    break;
                }
                // The parser has finished or failed.
                if parts.send(data).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                fed = Err(Unread::Broken(error));
                break;
            }
        }
    }
    drop(parts);
    let parsed = parser.await;
    fed?;
    match parsed {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error)) if error.is_io() => Err(Unread::Garbage(error.to_string())),
        Ok(Err(error)) => Err(Unread::Garbage(JsonError::of(&error, read).to_string())),
        Err(_) => Err(Unread::Garbage("it cannot be read".to_owned())),
    }
}

/// The parts of a body, as one stream of bytes. Blocks.
pub(super) struct Coming {
    coming: mpsc::Receiver<Bytes>,
    now: Bytes,
    pieces: Pieces,
}

/// How long the piece is that is being read.
#[derive(Debug, Default)]
struct Pieces {
    levels: u32,
    depth: u32,
    in_word: bool,
    /// Behind a backslash.
    escaped: bool,
    length: usize,
}

impl Pieces {
    /// Whether all of this is no part of a piece that is too long.
    fn are_short(&mut self, text: &[u8]) -> bool {
        for byte in text {
            self.length += 1;
            if self.in_word {
                self.in_word = self.escaped || *byte != b'"';
                self.escaped = !self.escaped && *byte == b'\\';
                if self.length > LONGEST_PIECE {
                    return false;
                }
                continue;
            }
            match byte {
                b'"' => self.in_word = true,
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth <= self.levels && !self.in_word {
                self.length = 0;
            } else if self.length > LONGEST_PIECE {
                return false;
            }
        }
        true
    }
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
        if !self.pieces.are_short(&part) {
            let limit = LONGEST_PIECE >> 20;
            return Err(io::Error::other(format!("a piece of it has more than {limit} MiB")));
        }
        out[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::HeaderMap;
    use hyper::body::Frame;

    use super::*;

    type Frames = Vec<Result<Frame<Bytes>, &'static str>>;

    fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
        Ok(Frame::data(Bytes::from_static(text.as_bytes())))
    }

    async fn numbers(frames: Frames, limit: usize) -> Result<Vec<u8>, Unread<&'static str>> {
        let body = StreamBody::new(stream::iter(frames));
        read(body, limit, None, serde_json::from_reader).await
    }

    #[tokio::test]
    async fn an_answer_is_read_across_its_parts() {
        let trailer = Ok(Frame::trailers(HeaderMap::new()));
        let frames = vec![data("[1, 2"), data(""), data("3,"), data(" 4]"), trailer];
        assert_eq!(numbers(frames, 10).await.unwrap(), [1, 23, 4]);
    }

    #[tokio::test]
    async fn what_is_no_whole_answer_is_told_apart() {
        let broken = numbers(vec![data("[1,"), Err("reset")], 99).await;
        assert!(matches!(broken, Err(Unread::Broken("reset"))), "{broken:?}");
        let long = numbers(vec![data("[1,"), data("2]")], 4).await;
        assert!(matches!(long, Err(Unread::TooLong)), "{long:?}");
        for (text, says) in [("[1,", "torn: 3 bytes"), ("[\n\"hunter2\"]", "line 2 column")] {
            match numbers(vec![data(text)], 99).await {
                Err(Unread::Garbage(why)) => {
                    assert!(why.contains(says) && !why.contains("hunter2"), "{why}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    /// A gigabyte in one word, or in one entry of many short words: neither is kept.
    #[tokio::test]
    async fn no_piece_is_longer_than_any_should_be() {
        let endless = |first: &'static str, then: &'static str| {
            let rest = std::iter::repeat_n(Bytes::from(then.repeat(1000)), 1 << 20);
            let all = std::iter::once(Bytes::from_static(first.as_bytes())).chain(rest);
            StreamBody::new(stream::iter(all.map(|part| Ok::<_, &str>(Frame::data(part)))))
        };
        let texts = [r#"{"items":[{"a":"\""#, r#"{"items":[{"a":[1"#, r#"{"items":[{"b":{"c":1"#];
        for (text, then) in texts.into_iter().zip(["aa", ",1", r#","d":[]"#]) {
            let read = read(endless(text, then), usize::MAX, Some(2), |coming| {
                serde_json::from_reader::<_, serde_json::Value>(coming)
            });
            let said = format!("{:?}", read.await);
            assert!(said.contains("more than 4 MiB"), "{text}: {said}");
        }
        // Many entries are as long as they may be, and so are the words of what is read deeper.
        let entry = format!("{{\"a\":\"{}\"}},", "\\\"".repeat(1 << 20));
        let list = format!("{{\"items\":[{}0]}}", entry.repeat(3));
        let whole =
            || StreamBody::new(stream::iter([Ok::<_, &str>(Frame::data(list.clone().into()))]));
        for levels in [Some(2), None] {
            let read = read(whole(), usize::MAX, levels, |coming| {
                serde_json::from_reader::<_, serde_json::Value>(coming)
            });
            assert_eq!(read.await.unwrap()["items"].as_array().unwrap().len(), 4);
        }
    }

    #[tokio::test]
    async fn a_parser_that_has_enough_ends_it() {
        let frames: Frames = (0..1000).map(|_| data("1 ")).collect();
        let body = StreamBody::new(stream::iter(frames));
        let first = read(body, usize::MAX, None, |coming| {
            serde_json::Deserializer::from_reader(coming).into_iter::<u8>().next().transpose()
        });
        assert_eq!(first.await.unwrap(), Some(1));
    }
}
