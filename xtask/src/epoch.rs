//! The time in everything that is packed: that of the commit, or what `SOURCE_DATE_EPOCH` says, as in
//! <https://reproducible-builds.org/specs/source-date-epoch/>. Nothing that is packed has the time of its build.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::place;
use crate::shell::{command, output, run};

/// Seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

impl Epoch {
    #[cfg(test)]
    pub(crate) const fn at(seconds: u64) -> Self {
        Self(seconds)
    }

    /// The time to pack with. A tree that was unpacked from an archive has no commit: there the variable must be set.
    pub(crate) fn of_source() -> Result<Self> {
        let said = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(said) => said,
            Err(_) => {
                let mut log = command(&["git", "log", "-1", "--format=%ct"]);
                output(log.current_dir(place::repository()))
                    .context("no commit to take the time from: set SOURCE_DATE_EPOCH")?
            }
        };
        said.trim().parse().map(Self).with_context(|| format!("SOURCE_DATE_EPOCH is {said:?}"))
    }

    /// As programs take it from a variable or an option.
    pub(crate) fn seconds(self) -> String {
        self.0.to_string()
    }

    /// `2026-11-28T06:00:00Z`.
    pub(crate) fn rfc3339(self) -> Result<String> {
        self.dated("+%Y-%m-%dT%H:%M:%SZ")
    }

    /// As in a mail, which is what Debian's changelogs have.
    pub(crate) fn rfc5322(self) -> Result<String> {
        self.dated("+%a, %d %b %Y %H:%M:%S +0000")
    }

    fn dated(self, format: &str) -> Result<String> {
        let mut date = command(&["date", "--utc", "--date", &format!("@{}", self.0), format]);
        Ok(output(date.env("LC_ALL", "C"))?.trim().to_owned())
    }

    /// Gives this time to everything in a directory.
    pub(crate) fn stamp(self, root: &Path) -> Result<()> {
        let at = format!("@{}", self.0);
        let touch = ["touch", "--no-dereference", "--date", &at, "{}", "+"];
        run(command(&["find"]).arg(root).arg("-exec").args(touch))
    }

    /// Tells a program that packs.
    pub(crate) fn set(self, command: &mut Command) -> &mut Command {
        command.env("SOURCE_DATE_EPOCH", self.seconds()).env("LC_ALL", "C").env("TZ", "UTC")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_formats() {
        let epoch = Epoch::at(1_795_842_498);
        assert_eq!(epoch.rfc3339().unwrap(), "2026-11-28T05:08:18Z");
        assert_eq!(epoch.rfc5322().unwrap(), "Sat, 28 Nov 2026 05:08:18 +0000");
    }
}
