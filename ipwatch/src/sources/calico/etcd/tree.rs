//! The documents of the v2 API, with the fields that are read. A list is parsed entry by entry while it arrives, so
//! that it is never in memory as a whole.

use std::fmt;
use std::io::Read;

use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokio::sync::mpsc;

use super::error::EtcdError;
use crate::sources::body::{self, Unread};
use crate::sources::errors::chain;
use crate::sources::json::Name;

/// Maximum size in bytes of a list.
const LIST_LIMIT: usize = 256 << 20;
/// Maximum number of batches that wait for their consumer.
const AHEAD: usize = 8;
/// Number of entries in a batch.
const BATCH: usize = 64;

/// A key and its value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) key: String,
    pub(super) value: String,
}

/// A change of a key.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Event {
    pub(super) action: Name,
    pub(super) node: Node,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Node {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) dir: bool,
    pub(super) modified_index: u64,
}

/// The body of an error.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Refusal {
    pub(super) error_code: u32,
    pub(super) message: Name,
    pub(super) index: u64,
}

/// The entries of a list, as they arrive.
pub(super) struct Entries(mpsc::Receiver<Vec<Leaf>>);

impl Entries {
    /// The next batch, `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Vec<Leaf>> {
        self.0.recv().await
    }
}

/// Reads a list. Returns its entries and the result of reading; both must be awaited concurrently.
pub(super) fn read(
    what: &'static str,
    body: Incoming,
) -> (Entries, impl Future<Output = Result<(), EtcdError>> + Send) {
    let (found, entries) = mpsc::channel(AHEAD);
    let batch = move |leaves| found.blocking_send(leaves).is_ok();
    let read = body::read(body, LIST_LIMIT, None, |coming| parse(coming, batch));
    let read = async move {
        read.await.map_err(|error| match error {
            Unread::Broken(error) => EtcdError::Broken { what, why: chain(&error) },
            Unread::TooLong => EtcdError::TooLarge { what, limit: LIST_LIMIT >> 20 },
            Unread::Garbage(why) => EtcdError::Garbage { what, why },
        })
    };
    (Entries(entries), read)
}

/// Parses every entry of a list, in batches. `take` returns whether more are wanted.
pub(super) fn parse(
    reader: impl Read,
    take: impl FnMut(Vec<Leaf>) -> bool,
) -> Result<(), serde_json::Error> {
    let mut found = Found { batch: Vec::new(), take };
    let mut parser = serde_json::Deserializer::from_reader(reader);
    Whole(&mut found).deserialize(&mut parser)?;
    parser.end()?;
    found.pass().map_err(serde::de::Error::custom)
}

struct Found<F> {
    batch: Vec<Leaf>,
    take: F,
}

impl<F: FnMut(Vec<Leaf>) -> bool> Found<F> {
    fn push(&mut self, leaf: Leaf) -> Result<(), &'static str> {
        self.batch.push(leaf);
        if self.batch.len() >= BATCH { self.pass() } else { Ok(()) }
    }

    fn pass(&mut self) -> Result<(), &'static str> {
        let batch = std::mem::take(&mut self.batch);
        if (self.take)(batch) { Ok(()) } else { Err("nobody listens") }
    }
}

/// `{"action": "get", "node": {…}}`.
struct Whole<'a, F>(&'a mut Found<F>);

impl<'de, F: FnMut(Vec<Leaf>) -> bool> DeserializeSeed<'de> for Whole<'_, F> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(Vec<Leaf>) -> bool> Visitor<'de> for Whole<'_, F> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer with a node")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut has_node = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "node" {
                has_node = true;
                map.next_value_seed(Branch(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        if has_node { Ok(()) } else { Err(serde::de::Error::custom("no node")) }
    }
}

/// A key, or a directory of keys. serde_json limits the depth.
struct Branch<'a, F>(&'a mut Found<F>);

impl<'de, F: FnMut(Vec<Leaf>) -> bool> DeserializeSeed<'de> for Branch<'_, F> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(Vec<Leaf>) -> bool> Visitor<'de> for Branch<'_, F> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a node")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut key, mut value) = (None, None);
        while let Some(name) = map.next_key::<String>()? {
            match &*name {
                "key" => key = Some(map.next_value()?),
                "value" => value = Some(map.next_value()?),
                "nodes" => map.next_value_seed(Branches(self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        // A directory has no value.
        match (key, value) {
            (Some(key), Some(value)) => {
                self.0.push(Leaf { key, value }).map_err(serde::de::Error::custom)
            }
            _ => Ok(()),
        }
    }
}

struct Branches<'a, F>(&'a mut Found<F>);

impl<'de, F: FnMut(Vec<Leaf>) -> bool> DeserializeSeed<'de> for Branches<'_, F> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(Vec<Leaf>) -> bool> Visitor<'de> for Branches<'_, F> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nodes")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Branch(self.0))?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(text: &str) -> Result<Vec<(String, String)>, String> {
        let mut all = Vec::new();
        let read = parse(text.as_bytes(), |batch| {
            all.extend(batch.into_iter().map(|leaf| (leaf.key, leaf.value)));
            true
        });
        read.map(|()| all).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_is_its_leaves_in_whatever_order_the_fields_are() {
        let text = r#"{"action":"get","node":{"key":"/a","dir":true,"createdIndex":4,"nodes":[
            {"key":"/a/b","value":"1","modifiedIndex":7},
            {"nodes":[{"value":"2","key":"/a/c/d"}],"dir":true,"key":"/a/c"},
            {"key":"/a/e","dir":true},
            {"key":"/a/f","dir":true,"nodes":null}]}}"#;
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(leaves(text).unwrap(), [pair("/a/b", "1"), pair("/a/c/d", "2")]);
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        for wrong in [
            "",
            "{}",
            "[]",
            "{\"node\":7}",
            "{\"node\":{\"key\":7,\"value\":\"\"}}",
            "{\"node\":{}} x",
        ] {
            assert!(leaves(wrong).is_err(), "{wrong}");
        }
        let deep = format!("{{\"node\":{}{}", "{\"nodes\":[".repeat(5000), "]}".repeat(5000));
        assert!(leaves(&deep).unwrap_err().contains("recursion"));
    }
}
