//! Who runs the command, for the record and the log.

use serde::{Deserialize, Serialize};

use crate::bounded;

/// Who ran the command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Who {
    /// The user it ran as.
    pub(crate) uid: u32,
    /// The login uid, which `sudo` and `su` do not change; absent for a process outside of a login session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) login_uid: Option<u32>,
    /// `SUDO_USER`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sudo_user: Option<String>,
    /// `SUDO_UID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sudo_uid: Option<u32>,
    /// The process.
    pub(crate) pid: u32,
    /// Its command line.
    pub(crate) command: Vec<String>,
}

/// Longest word of the command line that is kept, in characters, and the maximum number of words.
const LONGEST: usize = 256;
const WORDS: usize = 256;

impl Who {
    /// Of this process.
    pub(crate) fn now() -> Self {
        let variable = |name: &str| std::env::var(name).ok().map(|value| cut(&value));
        let command = std::env::args_os().take(WORDS).map(|word| cut(&word.to_string_lossy()));
        Self {
            uid: rustix::process::getuid().as_raw(),
            login_uid: login_uid(),
            sudo_user: variable("SUDO_USER"),
            sudo_uid: variable("SUDO_UID").and_then(|uid| uid.parse().ok()),
            pid: std::process::id(),
            command: command.collect(),
        }
    }

    /// A text for people: `uid 0, login uid 1000, sudo by ada`.
    pub(crate) fn words(&self) -> String {
        let mut words = format!("uid {}", self.uid);
        if let Some(uid) = self.login_uid {
            words.push_str(&format!(", login uid {uid}"));
        }
        if let Some(user) = &self.sudo_user {
            words.push_str(&format!(", sudo by {}", crate::remedy::said(user)));
        }
        words
    }
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

/// `(uid_t) -1` means that no login uid is set (`audit_get_loginuid`, linux/audit.h).
fn login_uid() -> Option<u32> {
    let text = bounded::read_text("/proc/self/loginuid".as_ref(), 16).ok()?;
    text.trim().parse().ok().filter(|uid| *uid != u32::MAX)
}
