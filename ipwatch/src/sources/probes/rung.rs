//! The ways to observe an event, as the configuration and `ipwatch doctor` name them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A way to observe events in the kernel, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum Rung {
    /// A tracepoint with typed arguments.
    TpBtf,
    /// A raw tracepoint.
    RawTp,
    /// Entry or return of a function, by BPF trampoline.
    Fentry,
    /// Entry or return of a function, by kprobe.
    Kprobe,
    /// A socket filter.
    Socket,
    /// A program that is not attached: an iterator, or one that is run on demand.
    Snapshot,
}

impl Rung {
    const ALL: [Rung; 6] =
        [Rung::TpBtf, Rung::RawTp, Rung::Fentry, Rung::Kprobe, Rung::Socket, Rung::Snapshot];
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rung::TpBtf => "tp_btf",
            Rung::RawTp => "raw_tp",
            Rung::Fentry => "fentry",
            Rung::Kprobe => "kprobe",
            Rung::Socket => "socket",
            Rung::Snapshot => "snapshot",
        })
    }
}

impl Serialize for Rung {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl TryFrom<String> for Rung {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Rung {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Rung::ALL.into_iter().find(|rung| rung.to_string() == text).ok_or_else(|| {
            format!("{text:?} is no rung: use tp_btf, raw_tp, fentry, kprobe, socket or snapshot")
        })
    }
}
