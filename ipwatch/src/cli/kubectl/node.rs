//! One question to the ipwatch of one node, by `kubectl exec`, with a deadline.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::room::Allowance;
use crate::contract::Document;

/// Maximum size of an answer, in bytes: a few thousand findings.
const LONGEST: u64 = 8 << 20;
/// How much is read of an answer at once, in bytes.
const PART: usize = 16 << 10;
/// How much of the end of kubectl's stderr is kept, in bytes.
const ERROR: usize = 4 << 10;
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
    #[error("its answer has more than {} MiB", LONGEST >> 20)]
    TooLong,
    /// The answers of all nodes are too long together.
    #[error("no room is left for its answer beside those of the others: ask it by itself")]
    NoRoom,
}

/// Runs `kubectl exec … -- ipwatch query … -o json` until `deadline`, which is `patience` after the node's turn began.
/// What it answers is charged to the node's `allowance`.
pub(super) fn ask(
    mut command: Command,
    deadline: Instant,
    patience: Duration,
    allowance: &Arc<Allowance>,
) -> Result<Document, Silence> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let said = hear(&mut child, deadline, allowance).ok_or(Silence::Late(patience));
    // Also ends a kubectl that goes on although its output has ended; it may have ended by itself.
    let _ = child.kill();
    let status = child.wait()?;
    let (out, complaints) = said?;
    if allowance.is_refused() {
        return Err(Silence::NoRoom);
    }
    if out.len() as u64 == LONGEST {
        return Err(Silence::TooLong);
    }
    // `query` prints a document even if the object does not exist, and then exits with 3.
    match serde_json::from_slice::<Document>(&out) {
        Ok(document) if document.schema == crate::contract::SCHEMA => Ok(document),
        _ if status.success() => Err(Silence::Unknown),
        _ => {
            let why = last_line(&complaints);
            Err(Silence::Refused(
                why.unwrap_or_else(|| "kubectl failed and said nothing".to_owned()),
            ))
        }
    }
}

/// Both outputs until their end; `None` if the deadline comes first.
fn hear(
    child: &mut Child,
    deadline: Instant,
    allowance: &Arc<Allowance>,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let room = Arc::clone(allowance);
    let out = apart(child.stdout.take()?, move |out| all_of(out.take(LONGEST), &room))?;
    // To its end: a program whose stderr is closed is killed by what it writes there.
    let complaints = apart(child.stderr.take()?, |mut stderr| end_of(&mut stderr))?;
    let left = || deadline.saturating_duration_since(Instant::now());
    let out = out.recv_timeout(left()).ok()?;
    // A whole answer does not wait for what else kubectl may say.
    let complaints =
        if out.is_empty() { complaints.recv_timeout(left()).ok()? } else { Vec::new() };
    while out.is_empty() && matches!(child.try_wait(), Ok(None)) {
        if left().is_zero() {
            return None;
        }
        thread::sleep(LOOK);
    }
    Some((out, complaints))
}

/// Reads on a thread of its own, which ends with the program.
fn apart<R: Read + Send + 'static>(
    from: R,
    read: impl FnOnce(R) -> Vec<u8> + Send + 'static,
) -> Option<mpsc::Receiver<Vec<u8>>> {
    let (told, came) = mpsc::sync_channel(1);
    // Nobody may be waiting any more.
    let work = move || drop(told.send(read(from)));
    thread::Builder::new().stack_size(128 * 1024).spawn(work).ok()?;
    Some(came)
}

/// What is read before an error, or before there is no room, is judged like an answer that was cut off.
fn all_of(mut out: impl Read, room: &Allowance) -> Vec<u8> {
    let (mut text, mut part) = (Vec::new(), [0; PART]);
    while let Ok(read @ 1..) = out.read(&mut part) {
        if !room.take(read as u64) {
            break;
        }
        text.extend_from_slice(part.get(..read).unwrap_or_default());
    }
    text
}

fn end_of(stderr: &mut impl Read) -> Vec<u8> {
    let (mut tail, mut part) = (Vec::new(), [0; 1 << 10]);
    while let Ok(read @ 1..) = stderr.read(&mut part) {
        tail.extend_from_slice(part.get(..read).unwrap_or_default());
        tail.drain(..tail.len().saturating_sub(ERROR));
    }
    tail
}

/// The last line that is not empty.
pub(super) fn last_line(complaints: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(complaints);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}
