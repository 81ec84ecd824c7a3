//! The part of the contract that says what to do: in words, as a command for a shell, and as the words of that command.

use serde::{Deserialize, Serialize};

use crate::escape::quote::before_command;

/// One step on the way out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Step {
    /// What it is for. What others chose stands in double quotes.
    pub what: String,
    /// The command for a shell. Nothing in it but printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The same command without a shell: what it runs, in this order. Empty where there is no command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    /// It changes something. All others only look.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes: bool,
}

/// One program of a command. The next one runs only if it succeeded, or reads what it writes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Run {
    /// The program and its words, each as it is.
    pub argv: Vec<String>,
    /// The file that its output goes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Its output goes to the next one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pipe: bool,
}

impl Step {
    /// The step in one line: the words, then the command.
    #[must_use]
    pub fn line(&self) -> String {
        match &self.command {
            Some(command) => format!("{}: {command}", before_command(&self.what)),
            None => self.what.clone(),
        }
    }
}
