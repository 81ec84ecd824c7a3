//! A cheap look for polling: the daemon's answer directly from its socket. Starting the command takes a quarter of a
//! second of an emulated CPU, so that polling with it would slow down what is awaited. The values that a test uses
//! come from the command.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// The list under `key` of the answer to `GET target`. Empty if there is no daemon, no answer or no such list.
#[must_use]
pub(crate) fn list(socket: &Path, target: &str, key: &str) -> Vec<Value> {
    match document(socket, target).map(|mut document| document[key].take()) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

/// The document answered to `GET target`.
#[must_use]
pub(crate) fn document(socket: &Path, target: &str) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    // 1.0: the answer ends with the connection.
    stream.write_all(format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    serde_json::from_slice(answer.get(end + 4..)?).ok()
}
