//! Whom an acknowledgement is about. A duplicate IP is one finding, whoever has the IP, and lingers; a holder that starts
//! anew is still acknowledged, and another one is not.

use crate::contract::{Netns, Pod};
use crate::fact::BootNs;
use crate::finding::Subject;

/// Maximum number of holders that one acknowledgement is about.
const MOST: usize = 8;
/// How long, in ns, a holder may be without a name: a new netns of an acknowledged pod is named once its runtime has
/// been asked.
const NAMELESS: u64 = 10_000_000_000;

/// The holders that were acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct AckedFor {
    subjects: Vec<Subject>,
    /// Since when a holder is there of which it is not known whether it is one of them.
    nameless: Option<BootNs>,
}

impl AckedFor {
    pub(super) fn is_empty(&self) -> bool {
        self.subjects.is_empty()
    }

    pub(super) fn add(&mut self, subject: &Subject) {
        self.nameless = None;
        let is_new = !self.subjects.iter().any(|known| is_same(known, subject) == Some(true));
        if is_new {
            if self.subjects.len() == MOST {
                self.subjects.remove(0);
            }
            self.subjects.push(subject.clone());
        }
    }

    /// Whether this is another holder, or has not shown for too long that it is one of these.
    pub(super) fn excludes(&mut self, subject: &Subject, now: BootNs) -> bool {
        let same = self.subjects.iter().map(|known| is_same(known, subject));
        if same.clone().any(|same| same == Some(true)) {
            self.nameless = None;
            return false;
        }
        if same.into_iter().all(|same| same == Some(false)) {
            return true;
        }
        now.since(*self.nameless.get_or_insert(now)) >= NAMELESS
    }

    /// Nobody is there.
    pub(super) fn forget_nameless(&mut self) {
        self.nameless = None;
    }

    /// When a holder without a name has been there for too long.
    pub(super) fn due(&self) -> Option<BootNs> {
        self.nameless.map(|since| since.plus(NAMELESS))
    }
}

/// Whether two subjects are one holder, if that is known: a pod, else a container, else a netns.
fn is_same(known: &Subject, other: &Subject) -> Option<bool> {
    if known == other {
        return Some(true);
    }
    if let (Some(known), Some(other)) = (&known.pod, &other.pod)
        && let Some(same) = is_same_pod(known, other)
    {
        return Some(same);
    }
    let id = |subject: &Subject| subject.container.as_ref()?.id.clone();
    if let (Some(id), Some(other_id)) = (id(known), id(other)) {
        // Another sandbox may be of the same pod.
        let names_no_pod = known.pod.is_none() && other.pod.is_none();
        return if id == other_id { Some(true) } else { names_no_pod.then_some(false) };
    }
    let same = known.netns.as_ref().zip(other.netns.as_ref());
    same.filter(|(known, other)| is_same_netns(known, other)).map(|_| true)
}

fn is_same_pod(known: &Pod, other: &Pod) -> Option<bool> {
    if let (Some(known), Some(other)) = (&known.uid, &other.uid) {
        return Some(known == other);
    }
    let name = |pod: &Pod| pod.namespace.clone().zip(pod.name.clone());
    Some(name(known)? == name(other)?)
}

/// Only the cookie is never reused.
fn is_same_netns(known: &Netns, other: &Netns) -> bool {
    known.cookie.is_some() && known.cookie == other.cookie
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Container;

    #[test]
    fn the_ninth_holder_can_be_acknowledged_too() {
        let of = |n: usize| Subject {
            container: Some(Container { id: Some(n.to_string()), ..Container::default() }),
            ..Subject::default()
        };
        let mut acked = AckedFor::default();
        for n in 0..=MOST {
            acked.add(&of(n));
            assert!(!acked.excludes(&of(n), BootNs(1)), "{n}");
        }
        assert!(acked.excludes(&of(0), BootNs(1)), "the oldest");
    }
}
