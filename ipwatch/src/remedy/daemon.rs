//! Which daemon the commands of remedies ask.

use std::borrow::Cow;

use super::{Step, text};

/// The daemon that the commands of a remedy ask.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Daemon {
    /// The default socket, which clients use without an option.
    #[default]
    Usual,
    /// This socket.
    At(String),
    /// There is no daemon, as in `ipwatch scan`: steps that would ask it have no command.
    Absent,
}

impl Step {
    /// This step for a daemon. If the daemon is absent, a command that asks it could only fail and is left out.
    #[must_use]
    pub fn asking(&self, daemon: &Daemon) -> Cow<'_, Self> {
        let Some(command) = self.command.as_ref().filter(|command| command.asks_daemon()) else {
            return Cow::Borrowed(self);
        };
        match daemon {
            Daemon::Usual => Cow::Borrowed(self),
            Daemon::At(socket) => {
                let command = command.clone().at_socket(socket);
                Cow::Owned(Self::with(self.what.clone(), command, self.changes))
            }
            Daemon::Absent if self.changes => Cow::Owned(Self::advice(self.what.clone().then(
                &text!(" (no command: it must ask the daemon first whether the finding is still open, and none was asked)"),
            ))),
            Daemon::Absent => {
                let why = text!(" (no command: it asks the daemon, and none was asked here)");
                Cow::Owned(Self::advice(self.what.clone().then(&why)))
            }
        }
    }
}
