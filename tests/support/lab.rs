//! What a test works in: a tag that marks everything it makes, and a directory of its own.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// In the environment of every process that a test starts, so that [`crate::sweep`] finds it.
pub const TAG_VARIABLE: &str = "IPWATCH_TEST_TAG";

/// One test's place. Everything in it is named after [`Lab::tag`].
#[derive(Debug)]
pub struct Lab {
    tag: String,
    dir: PathBuf,
}

impl Lab {
    /// The lab of the test that this process runs: its tag comes from the runner.
    pub fn open() -> anyhow::Result<Self> {
        let tag = std::env::var(TAG_VARIABLE)?;
        let dir = Self::dir_of(&tag);
        std::fs::create_dir_all(&dir)?;
        Ok(Self { tag, dir })
    }

    /// Where a tag's files lie.
    #[must_use]
    pub fn dir_of(tag: &str) -> PathBuf {
        std::env::temp_dir().join(tag)
    }

    /// Marks everything this test makes; at most 12 characters, for names of devices.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// A directory of the test's own, removed after it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A subdirectory, made.
    #[must_use]
    pub fn subdir(&self, name: &str) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::create_dir_all(&path).expect("make a directory in the lab");
        path
    }

    /// An address that no other test running now uses: 10.X.Y.N with X.Y of this lab.
    #[must_use]
    pub fn ip(&self, n: u8) -> Ipv4Addr {
        let [.., x, y] = std::process::id().to_be_bytes();
        Ipv4Addr::new(10, x, y, n)
    }

    /// The same as a prefix of length 24, as `ip addr add` takes it.
    #[must_use]
    pub fn cidr(&self, n: u8) -> String {
        format!("{}/24", self.ip(n))
    }

    /// Whether a JSON text is about something of this lab: one of its IPs, pods or paths.
    #[must_use]
    pub fn owns(&self, text: &str) -> bool {
        let [a, b, c, _] = self.ip(0).octets();
        let after = |what: &str| -> Vec<&str> {
            text.match_indices(what).map(|(at, _)| &text[at + what.len()..]).collect()
        };
        let (first, last) = crate::pod::uid_of(&self.tag);
        let uid = after(&format!("\"{first}-"));
        text.contains(&format!("\"{a}.{b}.{c}."))
            || is_of(text, &self.tag)
            || uid.iter().any(|rest| rest.get(..27).is_some_and(|uid| uid.ends_with(&last)))
    }
}

/// Whether a text names something after this tag, and not after a longer one.
pub(crate) fn is_of(text: &str, tag: &str) -> bool {
    let mut found = text.match_indices(tag).map(|(at, _)| &text[at + tag.len()..]);
    found.any(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}
