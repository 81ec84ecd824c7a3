//! One question to the ipwatch of one node, by `kubectl exec`, with a deadline.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::contract::Document;

/// Maximum size of an answer, in bytes: a few thousand findings.
const LONGEST: u64 = 8 << 20;
/// How much of an error is kept, in bytes.
const ERROR: u64 = 4 << 10;
/// Between two checks whether kubectl has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Why a node has not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    #[error("cannot run kubectl: {0}")]
    Start(#[from] io::Error),
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
    /// kubectl's last line.
    #[error("{0}")]
    Refused(String),
    #[error("its answer is no document of ipwatch/v1: is it another version?")]
    Unknown,
}

/// Runs `kubectl exec … -- ipwatch query … -o json` until `deadline`, which is `patience` after the node's turn began.
pub(super) fn ask(
    mut command: Command,
    deadline: Instant,
    patience: Duration,
) -> Result<Document, Silence> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let said = hear(&mut child, deadline).ok_or(Silence::Late(patience));
    // Also ends a kubectl that goes on although its output has ended; it may have ended by itself.
    let _ = child.kill();
    let status = child.wait()?;
    let (out, complaints) = said?;
    // `query` prints a document even if the object does not exist, and then exits with 3.
    match serde_json::from_slice::<Document>(&out) {
        Ok(document) if document.schema == crate::contract::SCHEMA => Ok(document),
        _ if status.success() => Err(Silence::Unknown),
        _ => Err(Silence::Refused(last_line(&complaints))),
    }
}

/// Both outputs until their end; `None` if the deadline comes first.
fn hear(child: &mut Child, deadline: Instant) -> Option<(Vec<u8>, Vec<u8>)> {
    let out = reading(child.stdout.take()?, LONGEST)?;
    let complaints = reading(child.stderr.take()?, ERROR)?;
    let left = || deadline.saturating_duration_since(Instant::now());
    let out = out.recv_timeout(left()).ok()?;
    // An answer that is whole does not wait for what else kubectl may say.
    while out.is_empty() {
        match child.try_wait() {
            Ok(None) if !left().is_zero() => thread::sleep(LOOK),
            Ok(None) => return None,
            _ => break,
        }
    }
    let complaints = if out.is_empty() { complaints.recv_timeout(left()).ok() } else { None };
    Some((out, complaints.unwrap_or_default()))
}

/// Reads on a thread of its own, which ends with the program.
fn reading(from: impl Read + Send + 'static, most: u64) -> Option<mpsc::Receiver<Vec<u8>>> {
    let (told, came) = mpsc::sync_channel(1);
    let read = move || {
        let mut text = Vec::new();
        // What was read before an error is judged like an answer that was cut off.
        let _ = from.take(most).read_to_end(&mut text);
        let _ = told.send(text);
    };
    thread::Builder::new().stack_size(128 * 1024).spawn(read).ok()?;
    Some(came)
}

fn last_line(complaints: &[u8]) -> String {
    let text = String::from_utf8_lossy(complaints);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(|| "kubectl failed and said nothing".to_owned(), |line| line.trim().to_owned())
}
