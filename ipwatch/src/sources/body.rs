//! The body of an answer over HTTP: part by part, or as JSON that is read while it comes. That is never in memory as a
//! whole.

use std::io::{self, BufReader, Read};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes};
use tokio::sync::mpsc;

use super::json::JsonError;

/// Parts of an answer that may wait for the parser.
const AHEAD: usize = 8;
/// What the parser is given at once.
const BUFFER: usize = 16 << 10;

/// Why an answer is not understood.
#[derive(Debug)]
pub(super) enum Unread<E> {
    /// It did not come to its end.
    Broken(E),
    /// It is longer than any should be.
    TooLong,
    /// It is not what was asked for.
    Garbage(String),
}

/// The next part of a body. `None`: it has ended. Cancel-safe.
pub(super) async fn part<B>(body: &mut B) -> Result<Option<Bytes>, B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    loop {
        match body.frame().await.transpose()? {
            None => return Ok(None),
            Some(frame) => {
                // Anything else is a trailer.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// What `parse` makes of a body of `limit` bytes at most. It is called on a thread of its own, while the body comes.
pub(super) async fn read<B, T, P>(
    mut body: B,
    limit: usize,
    parse: P,
) -> Result<T, Unread<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
    T: Send + 'static,
    P: FnOnce(BufReader<Coming>) -> Result<T, serde_json::Error> + Send + 'static,
{
    let (parts, coming) = mpsc::channel(AHEAD);
    let coming = BufReader::with_capacity(BUFFER, Coming { coming, now: Bytes::new() });
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
                // Whoever has what it wants, or fails, listens no more.
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
        Ok(Err(error)) => Err(Unread::Garbage(JsonError::of(&error, read).to_string())),
        Err(_) => Err(Unread::Garbage("it cannot be read".to_owned())),
    }
}

/// The parts of an answer, as one stream of bytes. For a thread.
pub(super) struct Coming {
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
        read(body, limit, serde_json::from_reader).await
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

    #[tokio::test]
    async fn a_parser_that_has_enough_ends_it() {
        let frames: Frames = (0..1000).map(|_| data("1 ")).collect();
        let body = StreamBody::new(stream::iter(frames));
        let first = read(body, usize::MAX, |coming| {
            serde_json::Deserializer::from_reader(coming).into_iter::<u8>().next().transpose()
        });
        assert_eq!(first.await.unwrap(), Some(1));
    }
}
