//! Turns a runtime's answers into facts, with limits on everything.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::clock;
use crate::fact::{
    BootNs, Container, Fact, Name, Observation, Origin, PodName, Sandbox, Scope, Source,
    SourceStatus,
};
use crate::sources::{Closed, Emit};

/// Maximum number of sandboxes, and of containers, reported for one runtime. A node runs some hundred.
pub(super) const MOST: usize = 16_384;
/// Maximum length in bytes of a name that is kept. Kubernetes allows 253.
const LONGEST_NAME: usize = 512;
/// Maximum number of IPs kept of one sandbox.
const MOST_IPS: usize = 64;
/// Maximum number of facts sent together.
const BATCH: usize = 256;

/// The content of a list.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) sandboxes: Vec<Sandbox>,
    pub(super) containers: Vec<Container>,
    /// Number of entries left out: too many, duplicates, or without a valid id.
    pub(super) dropped: usize,
    /// Of these, entries without a valid id.
    pub(super) nameless: u64,
}

impl Found {
    /// Counts an entry without a valid id.
    pub(super) fn leave_out(&mut self) {
        self.dropped += 1;
        self.nameless += 1;
    }

    /// Keeps one entry for each id. A duplicate makes the list incomplete, because both entries are doubtful.
    pub(super) fn dedup(&mut self) {
        let mut seen = HashSet::new();
        let before = self.sandboxes.len() + self.containers.len();
        self.sandboxes.retain(|sandbox| seen.insert(sandbox.id.clone()));
        self.containers.retain(|container| seen.insert(container.id.clone()));
        self.dropped += before - self.sandboxes.len() - self.containers.len();
    }
}

/// Reports a whole list: if it is complete, whatever it does not contain is gone.
pub(super) async fn list(
    runtime: &str,
    found: Found,
    began: BootNs,
    emit: &Emit,
) -> Result<(), Closed> {
    let scope = || Scope::Runtime { runtime: runtime.to_owned() };
    let complete = found.dropped == 0;
    if found.nameless > 0 {
        let (source, name, count) = (runtime.to_owned(), Name::ContainerId, found.nameless);
        emit.send(vec![fact(began, Observation::Refused { source, name, count })]).await?;
    }
    let sandboxes = found.sandboxes.into_iter().map(Observation::Sandbox);
    let containers = found.containers.into_iter().map(Observation::Container);
    let mut all = std::iter::once(Observation::Began(scope()))
        .chain(sandboxes)
        .chain(containers)
        .map(|what| fact(began, what))
        .peekable();
    while all.peek().is_some() {
        emit.send(all.by_ref().take(BATCH).collect()).await?;
    }
    let ended = Observation::Ended { scope: scope(), began, complete };
    emit.send(vec![fact(clock::now(), ended)]).await
}

pub(super) fn fact(at: BootNs, what: Observation) -> Fact {
    Fact { at, origin: Origin::Runtime, what }
}

pub(super) fn source(name: String, status: SourceStatus, detail: String) -> Fact {
    fact(clock::now(), Observation::Source(Source { name, status, detail }))
}

/// A container id, if valid: it is used in paths and requests.
pub(super) fn id(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    Name::ContainerId.fits(text).then(|| text.to_owned())
}

/// A name from untrusted text, lossily decoded and cut.
pub(super) fn name(text: &[u8]) -> String {
    // Lossy decoding can lengthen the text, so it is cut again.
    let text = String::from_utf8_lossy(&text[..text.len().min(LONGEST_NAME)]);
    text[..text.floor_char_boundary(LONGEST_NAME)].to_owned()
}

/// A name that is not empty.
pub(super) fn named(text: &[u8]) -> Option<String> {
    Some(name(text)).filter(|name| !name.is_empty())
}

/// A pod's name, if there is one.
pub(super) fn pod(namespace: &[u8], pod: &[u8], uid: &[u8]) -> Option<PodName> {
    Some(PodName { namespace: name(namespace), name: named(pod)?, uid: named(uid) })
}

/// A path on the node, if valid.
pub(super) fn path(text: &str) -> Option<String> {
    Name::Path.fits(text).then(|| text.to_owned())
}

/// The valid IPs in these texts.
pub(super) fn ips<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Vec<IpAddr> {
    let mut ips = Vec::new();
    for text in texts.take(MOST_IPS) {
        let ip = std::str::from_utf8(text).ok().and_then(|text| text.parse::<IpAddr>().ok());
        ips.extend(ip.filter(|ip| !ip.is_unspecified() && !ips.contains(ip)));
    }
    ips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_nothing_that_could_steer_a_request_or_a_terminal() {
        assert_eq!(id(b"7f3a91c26e0b").as_deref(), Some("7f3a91c26e0b"));
        for hostile in [&b""[..], b"a/b", b"a b", b"a\r\nb", b"\x1b[2J", b"\xff", &[b'a'; 129]] {
            assert_eq!(id(hostile), None);
        }
    }

    #[test]
    fn a_name_is_cut_between_characters() {
        assert_eq!(name(b"api\x1b"), "api\u{1b}");
        assert_eq!(name(&[b'a'; 253]).len(), 253);
        assert_eq!(name("ü".repeat(400).as_bytes()).len(), 512);
        assert!(name(&[0xff; 4000]).len() <= 512);
        assert_eq!(named(b""), None);
    }

    #[test]
    fn only_ips_are_ips() {
        let texts = ["10.0.0.1", "", "fd00::1", "10.0.0.1", "x", "0.0.0.0"];
        let ips = ips(texts.iter().map(|text| text.as_bytes()));
        assert_eq!(ips, ["10.0.0.1".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
    }

    #[test]
    fn a_path_is_absolute() {
        assert_eq!(path("/run/netns/a").as_deref(), Some("/run/netns/a"));
        for other in ["", "run", "/a\0b"] {
            assert_eq!(path(other), None);
        }
    }
}
