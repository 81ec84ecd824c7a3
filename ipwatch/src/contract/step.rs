//! The part of the contract with the steps of a remedy: as text, as a command for a shell, and as the words of that
//! command.

use serde::{Deserialize, Serialize};

use crate::escape::quote::before_command;

/// One step of a remedy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Step {
    /// What it is for. Untrusted text stands in double quotes.
    pub what: String,
    /// The command for a shell. Contains only printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The same command without a shell: the programs that it runs, in this order. Empty if there is no command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    /// Whether it changes something. All others only look.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes: bool,
}

/// One program of a command. The next one runs only if it succeeded, or reads its output.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Run {
    /// The program and its arguments, unquoted.
    pub argv: Vec<String>,
    /// The file that its output is written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whether its output is piped to the next one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pipe: bool,
}

impl Step {
    /// The step in one line: the text, then the command.
    #[must_use]
    pub fn line(&self) -> String {
        match &self.command {
            Some(command) => format!("{}: {command}", before_command(&self.what)),
            None => self.what.clone(),
        }
    }
}
