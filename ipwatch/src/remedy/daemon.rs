//! Where the daemon is that commands ask.

use std::borrow::Cow;

use super::{Step, text};

/// The daemon that a remedy's commands ask.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Daemon {
    /// Its clients find it without being told where.
    #[default]
    Usual,
    /// It listens at this socket.
    At(String),
    /// There is none, as in `ipwatch scan`: what would ask it is told in words.
    Absent,
}

impl Step {
    /// This step where the daemon is there. A command that would ask a daemon that is absent can only fail, and is none.
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
                &text!(" (no command: only a daemon can say whether it is still so, and none was asked)"),
            ))),
            Daemon::Absent => {
                let why = text!(" (no command: it asks the daemon, and none was asked here)");
                Cow::Owned(Self::advice(self.what.clone().then(&why)))
            }
        }
    }
}
