//! Remedies as data: what a person should do, and the command for it. Pure, and below everything that prints a
//! remedy.
//!
//! Names, ids, paths and devices are chosen by others, and a person may paste a remedy into a root shell. Therefore
//! no text is concatenated from them here. Prose ([`Text`]) consists of our own constants and of quoted values; a
//! [`Command`] consists of words, and each value is exactly one word, or a part of a word that we begin. Only a
//! `&'static str` counts as our own: a foreign `String` cannot be passed where a constant is required. Shell syntax
//! is written in one place, [`Command::sh`].
//!
//! A step that changes something must only change what is still wrong, even if it is pasted alone, late, twice, or
//! after another step that failed. Its precondition is in the same command line, joined by `&&` (`guard`), in the
//! same request ([`kubernetes`]), or under the lock of the store ([`host_local`]).

pub(crate) mod command;
mod daemon;
#[cfg(test)]
mod forms;
pub(crate) mod guard;
pub(crate) mod host_local;
#[cfg(test)]
pub(crate) mod hostile;
pub(crate) mod kubernetes;
#[cfg(test)]
mod pages;
#[cfg(test)]
pub(crate) mod shell;
#[cfg(test)]
mod tests;
pub(crate) mod text;

pub use command::{Command, Run};
pub use daemon::Daemon;
pub use text::{Part, Text};
pub(crate) use text::{text, value};

use crate::contract;
pub(crate) use crate::escape::quote::{before_command, connection, end_of_quotation, said};

/// Prefix of a step that says what not to do: `explain` shows it as DON'T.
pub const NEVER: &str = "Do not: ";

/// One thing to do, or to avoid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its purpose, in words.
    pub what: Text,
    /// The command, if it can be typed.
    pub command: Option<Command>,
    /// Whether the command changes something; otherwise it only looks.
    pub changes: bool,
}

impl Step {
    /// A step without a command.
    #[must_use]
    pub fn advice(what: Text) -> Self {
        Self { what, command: None, changes: false }
    }

    /// A step that says what must not be done.
    #[must_use]
    pub fn never(what: &Text) -> Self {
        Self::advice(Text::own(NEVER).then(what))
    }

    /// A command that only looks.
    #[must_use]
    pub fn look(what: Text, command: Command) -> Self {
        Self::with(what, command, false)
    }

    /// A command that changes something, and contains its precondition.
    #[must_use]
    pub fn change(what: Text, command: Command) -> Self {
        Self::with(what, command, true)
    }

    fn with(what: Text, command: Command, changes: bool) -> Self {
        if command.is_typed() {
            return Self { what, command: Some(command), changes };
        }
        let why = text!(" (no command: a name in it cannot be typed safely)");
        Self { what: what.then(&why), command: None, changes: false }
    }

    /// The step in one line: the words, then the command.
    #[must_use]
    pub fn line(&self) -> String {
        contract::Step::from(self).line()
    }
}

impl From<&Step> for contract::Step {
    fn from(step: &Step) -> Self {
        let runs = step.command.iter().flat_map(Command::runs);
        let run = |run: &Run| contract::Run {
            argv: run.argv.clone(),
            to: run.to.clone(),
            pipe: run.pipe,
        };
        Self {
            what: step.what.to_string(),
            command: step.command.as_ref().map(Command::sh),
            runs: runs.map(run).collect(),
            changes: step.changes,
        }
    }
}

/// Keeps new pods away from the node while something is `still` wrong. Running pods are not affected, and `kubectl
/// uncordon` undoes it.
#[must_use]
pub(crate) fn cordon(what: Text, node: &str, still: Command) -> Step {
    Step::change(what, still.and(Command::new("kubectl").own("cordon").value(node)))
}

/// Makes a CRI runtime stop and remove a sandbox if `precondition` holds. `stopp` also ends a sandbox that is Ready,
/// so the precondition must exclude it.
#[must_use]
pub(crate) fn remove_sandbox(what: Text, precondition: Command, id: &str) -> Step {
    let stop = Command::new("crictl").own("stopp").value(id);
    let remove = Command::new("crictl").own("rmp").value(id);
    Step::change(what, precondition.and(stop).and(remove))
}
