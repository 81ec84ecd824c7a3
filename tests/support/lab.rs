//! The environment of a test: a tag that marks everything that it creates, and a directory.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Variable in the environment of every process that a test starts, so that [`crate::sweep`] finds it.
pub const TAG_VARIABLE: &str = "IPWATCH_TEST_TAG";

/// The place of one test. Everything in it is named after [`Lab::tag`].
#[derive(Debug)]
pub struct Lab {
    tag: String,
    dir: PathBuf,
}

/// podman's default network is 10.88.0.0/16, and it creates no other that overlaps it.
const PODMANS: u8 = 88;

impl Lab {
    /// The lab of this process's test; the runner sets its tag.
    pub fn open() -> anyhow::Result<Self> {
        let tag = std::env::var(TAG_VARIABLE)?;
        let dir = Self::dir_of(&tag);
        std::fs::create_dir_all(&dir)?;
        Ok(Self { tag, dir })
    }

    /// Directory of a tag's files.
    #[must_use]
    pub fn dir_of(tag: &str) -> PathBuf {
        std::env::temp_dir().join(tag)
    }

    /// Marks everything that this test creates; at most 12 characters, because it is used in names of devices.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// A directory of the test, removed after it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A subdirectory, created if missing.
    #[must_use]
    pub fn subdir(&self, name: &str) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::create_dir_all(&path).expect("make a directory in the lab");
        path
    }

    /// An address that no other running test uses: 10.X.Y.N with X.Y of this lab.
    #[must_use]
    pub fn ip(&self, n: u8) -> Ipv4Addr {
        let [.., x, y] = std::process::id().to_be_bytes();
        let x = if x == PODMANS { PODMANS + 1 } else { x };
        Ipv4Addr::new(10, x, y, n)
    }

    /// Like `ip`, with prefix length 24, as for `ip addr add`.
    #[must_use]
    pub fn cidr(&self, n: u8) -> String {
        format!("{}/24", self.ip(n))
    }

    /// Whether a JSON text is about this lab: contains one of its IPs, pods or paths.
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

/// Whether a text contains this tag, and not only as the beginning of a longer one.
pub(crate) fn is_of(text: &str, tag: &str) -> bool {
    let mut found = text.match_indices(tag).map(|(at, _)| &text[at + tag.len()..]);
    found.any(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}
