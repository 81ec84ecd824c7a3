//! The gate: no fact gets past here with an invalid name.
//!
//! Every source submits its facts through [`crate::sources::Emit`], which calls the gate for each; a recording that is
//! replayed goes through it too. The match over [`Observation`] has no wildcard, so that a new fact cannot bypass it.
//!
//! What happens to a fact with an invalid name depends on what its absence would mean, because unknown is not absent:
//!
//! - A report of the kernel is kept. An address on a device with an invalid name is still held there: the device gets a
//!   name chosen here.
//! - A reservation is kept with its IP, for an unknown container: it is neither free nor a leak of anybody.
//! - A sandbox, a container, a pod, a cached result, a range or an endpoint without a valid identifying name is
//!   dropped, and the listing that contained it counts as incomplete, so that nothing is concluded from what is missing
//!   in it.
//! - A run of a plugin for a container whose id CNI does not allow is dropped. libcni and every plugin that is built on
//!   its `skel` reject that id before they change anything.
//! - If a name is only additional information, only the name is omitted.
//!
//! Each rejection is counted, by source and kind, and reported as [`Observation::Refused`].

use std::collections::{BTreeMap, HashSet};

use super::names::{LONGEST_DEVICE, LONGEST_PATH, Name, harmless, stand_in};
use super::{
    Attachment, CniCall, Configured, Container, ContainerMount, Endpoint, Fact, Holder, Link,
    Monitor, Observation, Origin, Pod, PodName, Process, Range, Reservation, RuntimeProcess,
    Sandbox, Scope,
};
use crate::fact::SourceName;

/// Maximum length of texts that are only for people: a line of a log, a state, a reason.
const LONGEST_TEXT: usize = 8192;

/// Maximum length of a key in a store: a file's path, and the location of the entry in the file.
const LONGEST_KEY: usize = LONGEST_PATH + 1024;

/// Replaces an invalid path. No path of a mount begins like this.
const UNNAMED: &str = "unnamed";

/// Maximum number of listings that are remembered as incomplete. There is one for each source.
const MOST: usize = 256;

/// Checks facts between the sources and the map.
#[derive(Debug, Default)]
pub struct Gate {
    /// Listings under way that have lost an entry.
    short: HashSet<Scope>,
}

/// Rejected names of one batch, by source and kind.
type Refused = BTreeMap<(String, Name), u64>;

impl Gate {
    /// Removes or corrects facts with invalid names, and appends the counts of rejections.
    pub fn admit(&mut self, facts: &mut Vec<Fact>) {
        let Some((at, origin)) = facts.last().map(|fact| (fact.at, fact.origin)) else { return };
        let mut refused = Refused::new();
        facts.retain_mut(|fact| {
            let mut check = Check { origin: fact.origin, refused: &mut refused };
            match check.what(&mut fact.what) {
                Verdict::Kept => {}
                Verdict::Dropped => return false,
                Verdict::Missing(scope) => {
                    // The limit exceeds the number of sources.
                    if self.short.len() < MOST {
                        self.short.insert(scope);
                    }
                    return false;
                }
            }
            match &mut fact.what {
                Observation::Began(scope) => {
                    self.short.remove(scope);
                }
                Observation::Ended { scope, complete, .. } => {
                    *complete &= !self.short.remove(scope)
                }
                _ => {}
            }
            true
        });
        let told = refused.into_iter().map(|((source, name), count)| Observation::Refused {
            source,
            name,
            count,
        });
        facts.extend(told.map(|what| Fact { at, origin, what }));
    }
}

/// The gate's decision about a fact.
enum Verdict {
    Kept,
    Dropped,
    /// Dropped, and the listing of this scope is incomplete.
    Missing(Scope),
}

use Verdict::{Dropped, Kept, Missing};

struct Check<'a> {
    origin: Origin,
    refused: &'a mut Refused,
}

impl Check<'_> {
    /// Whether a name is valid; an invalid name is counted.
    fn fits(&mut self, source: &str, name: Name, text: &str) -> bool {
        let fits = name.fits(text);
        if !fits {
            *self.refused.entry((source.to_owned(), name)).or_default() += 1;
        }
        fits
    }

    /// Omits an invalid name.
    fn maybe(&mut self, source: &str, name: Name, text: &mut Option<String>) {
        if text.as_deref().is_some_and(|text| !self.fits(source, name, text)) {
            *text = None;
        }
    }

    /// Omits an invalid name; an empty name is allowed.
    fn or_none(&mut self, source: &str, name: Name, text: &mut String) {
        if !text.is_empty() && !self.fits(source, name, text) {
            text.clear();
        }
    }

    fn pod(&mut self, source: &str, pod: &mut Option<PodName>) {
        let Some(named) = pod else { return };
        let namespace = self.fits(source, Name::Namespace, &named.namespace);
        let name = self.fits(source, Name::PodName, &named.name);
        self.maybe(source, Name::PodUid, &mut named.uid);
        if !(namespace && name) {
            *pod = None;
        }
    }

    fn what(&mut self, what: &mut Observation) -> Verdict {
        let origin = self.origin.source();
        match what {
            // The daemon's own texts, the kernel's numbers, and what is bounded where it is read.
            Observation::Boot(_)
            | Observation::ClockSet { .. }
            | Observation::Sight(_)
            | Observation::SourceGone { .. }
            | Observation::Refused { .. }
            | Observation::FirstAnswers
            | Observation::Memory { .. }
            | Observation::Lost { .. }
            | Observation::LostIn { .. }
            | Observation::LostInUsers
            | Observation::ProcessDoubted { .. }
            | Observation::Began(_)
            | Observation::Ended { .. }
            | Observation::Netns { .. }
            | Observation::NetnsCreated { .. }
            | Observation::NetnsUser { .. }
            | Observation::NetnsDying { .. }
            | Observation::NetnsGone { .. }
            | Observation::NetnsClosed { .. }
            | Observation::LinkGone { .. }
            | Observation::PeerNetns { .. }
            | Observation::Port { .. }
            | Observation::Vlans { .. }
            | Observation::Address { .. }
            | Observation::AddressGone { .. }
            | Observation::DadFailed { .. }
            | Observation::Neighbour { .. }
            | Observation::NeighbourGone { .. }
            | Observation::Claimed { .. }
            | Observation::Route { .. }
            | Observation::RouteGone { .. }
            | Observation::TaskExiting { .. }
            | Observation::TaskReleased { .. }
            | Observation::Signalled { .. }
            | Observation::HoldersSearched { .. }
            | Observation::PodsConfirmed
            | Observation::PodLimit { .. }
            | Observation::EndpointsConfirmed { .. }
            | Observation::CniEnded { .. }
            | Observation::Task(_)
            | Observation::Cleanup { .. } => Kept,

            Observation::Source(source) => {
                cut(&mut source.detail, LONGEST_TEXT);
                Kept
            }
            Observation::Link { link, .. } => {
                self.link(origin, link);
                Kept
            }
            Observation::Look { look, .. } => {
                bound(&mut look.cgroup, LONGEST_PATH);
                for system in &mut look.file_systems {
                    // Cut, it would be another path, which a command would name.
                    if !self.fits(origin, Name::Path, &system.point) {
                        UNNAMED.clone_into(&mut system.point);
                    }
                    cut(&mut system.source, LONGEST_PATH);
                }
                Kept
            }
            // Longer than any path of the kernel: a truncated path would be another path.
            Observation::Cgroup { path, .. } => kept(path.len() <= LONGEST_PATH),
            Observation::Holder { holder, .. } => self.holder(origin, holder),

            Observation::Attachment(attachment) => self.attachment(attachment),
            Observation::AttachmentGone { container_id, ifname } => {
                if !Name::Device.fits(ifname) {
                    *ifname = harmless(ifname);
                }
                kept(Name::ContainerId.fits(container_id))
            }
            Observation::Sandbox(sandbox) => self.sandbox(sandbox),
            Observation::Container(container) => self.container(container),
            Observation::SandboxGone { id, .. } | Observation::ContainerGone { id, .. } => {
                kept(Name::ContainerId.fits(id))
            }
            Observation::RuntimeProcesses { runtimes, monitors, complete } => {
                *complete &= self.runtime_processes(origin, runtimes, monitors);
                Kept
            }
            Observation::Pod(pod) => self.api_pod(origin, pod),
            Observation::PodGone { uid } => kept(Name::PodUid.fits(uid)),

            Observation::ContainerMount(mount) => self.container_mount(origin, mount),
            Observation::ContainerMountsSearched { ids, .. } => {
                ids.retain(|id| Name::ContainerId.fits(id));
                Kept
            }

            Observation::Reservation(reservation) => self.reservation(reservation),
            Observation::Range(range) => self.range(range),
            Observation::Configured(network) => self.configured(network),
            Observation::ReservationGone { key, .. }
            | Observation::Block(super::Block { key, .. })
            | Observation::BlockGone { key, .. }
            | Observation::EndpointGone { key, .. } => kept(key.len() <= LONGEST_KEY),
            Observation::StoreUnreadable(file) => {
                cut(&mut file.path, LONGEST_PATH);
                cut(&mut file.reason, LONGEST_TEXT);
                Kept
            }
            Observation::StoreReadable { path, .. } => {
                cut(path, LONGEST_PATH);
                Kept
            }
            Observation::Endpoint(endpoint) => self.endpoint(endpoint),

            Observation::CniBegan(call) => self.call(origin, call),
            Observation::CniError { container_id, text, .. } => {
                cut(text, LONGEST_TEXT);
                kept(self.fits(origin, Name::ContainerId, container_id))
            }
        }
    }

    /// Returns whether nothing was omitted: a runtime without one of its directories is no longer known to own the
    /// containers there.
    fn runtime_processes(
        &mut self,
        source: &str,
        runtimes: &mut [RuntimeProcess],
        monitors: &mut [Monitor],
    ) -> bool {
        let mut whole = true;
        for paths in runtimes.iter_mut().flat_map(|one| [&mut one.sockets, &mut one.dirs]) {
            paths.retain(|path| {
                let fits = self.fits(source, Name::Path, path);
                whole &= fits;
                fits
            });
        }
        for monitor in monitors {
            // A monitor without a container id may be any container's, so that more is in doubt, not less.
            self.maybe(source, Name::ContainerId, &mut monitor.container_id);
            self.maybe(source, Name::Path, &mut monitor.dir);
            // containerd allows the same alphabet for its namespaces (`identifiers.Validate`).
            self.maybe(source, Name::ContainerId, &mut monitor.namespace);
        }
        whole
    }

    fn link(&mut self, source: &str, link: &mut Link) {
        if !self.fits(source, Name::Device, &link.name) {
            link.name = stand_in(link.ifindex);
        }
        // Words of the kernel and of drivers: letters and digits.
        let plain =
            |text: &str| text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_graphic());
        link.kind = link.kind.take().filter(|kind| plain(kind) && kind.len() <= LONGEST_DEVICE);
        link.parent =
            link.parent.take().filter(|parent| plain(&parent.bus) && plain(&parent.address));
        if let Some(parent) = &mut link.parent {
            parent.driver = parent.driver.take().filter(|driver| plain(driver));
        }
    }

    fn holder(&mut self, source: &str, holder: &mut Holder) -> Verdict {
        match holder {
            Holder::Mount { path, cgroup, .. } => {
                bound(cgroup, LONGEST_PATH);
                // A netns that is held by a mount with an invalid path is still held: if a search omitted the holder,
                // the netns would be reported as a leak without holders.
                if !self.fits(source, Name::Path, path) {
                    UNNAMED.clone_into(path);
                }
                Kept
            }
            Holder::Fd { .. } | Holder::Socket { .. } | Holder::Candidate { .. } => Kept,
            Holder::Orphan { text } => {
                cut(text, LONGEST_TEXT);
                Kept
            }
        }
    }

    fn attachment(&mut self, attachment: &mut Attachment) -> Verdict {
        const SOURCE: &str = SourceName::Cni.as_str();
        let id = self.fits(SOURCE, Name::ContainerId, &attachment.container_id);
        // The creator of a pod may choose this name, which must not cost the results of others.
        if !self.fits(SOURCE, Name::Device, &attachment.ifname) {
            attachment.ifname = harmless(&attachment.ifname);
        }
        self.or_none(SOURCE, Name::Network, &mut attachment.network);
        self.maybe(SOURCE, Name::Path, &mut attachment.netns_path);
        self.pod(SOURCE, &mut attachment.pod);
        if id { Kept } else { Missing(Scope::Cni) }
    }

    fn sandbox(&mut self, sandbox: &mut Sandbox) -> Verdict {
        let source = sandbox.runtime.clone();
        self.pod(&source, &mut sandbox.pod);
        self.maybe(&source, Name::ContainerName, &mut sandbox.name);
        self.maybe(&source, Name::Path, &mut sandbox.netns_path);
        word(&mut sandbox.word);
        if self.fits(&source, Name::ContainerId, &sandbox.id) {
            return Kept;
        }
        Missing(Scope::Runtime { runtime: source })
    }

    fn container(&mut self, container: &mut Container) -> Verdict {
        let source = container.runtime.clone();
        self.maybe(&source, Name::ContainerName, &mut container.name);
        word(&mut container.word);
        let id = self.fits(&source, Name::ContainerId, &container.id);
        let sandbox = container.sandbox.as_deref();
        if id && sandbox.is_none_or(|id| self.fits(&source, Name::ContainerId, id)) {
            return Kept;
        }
        Missing(Scope::Runtime { runtime: source })
    }

    fn api_pod(&mut self, source: &str, pod: &mut Pod) -> Verdict {
        if let Some(phase) = &mut pod.phase {
            word(phase);
        }
        let named = self.fits(source, Name::Namespace, &pod.namespace)
            & self.fits(source, Name::PodName, &pod.name)
            & self.fits(source, Name::PodUid, &pod.uid);
        // Without it the mirror of a static pod would be taken for a pod, and its deletion for the pod's.
        let mirror = pod.mirror_of.as_deref();
        let mirror = mirror.is_none_or(|uid| self.fits(source, Name::PodUid, uid));
        if named && mirror { Kept } else { Missing(Scope::Pods) }
    }

    fn container_mount(&mut self, source: &str, mount: &mut ContainerMount) -> Verdict {
        bound(&mut mount.cgroup, LONGEST_PATH);
        for Process { comm, .. } in &mut mount.processes {
            cut(comm, LONGEST_TEXT);
        }
        cut(&mut mount.fs_type, LONGEST_PATH);
        let id = self.fits(source, Name::ContainerId, &mount.container_id);
        kept(id && self.fits(source, Name::Path, &mount.path))
    }

    fn reservation(&mut self, reservation: &mut Reservation) -> Verdict {
        let source = reservation.store.clone();
        self.or_none(&source, Name::Network, &mut reservation.network);
        self.maybe(&source, Name::ContainerId, &mut reservation.container_id);
        self.maybe(&source, Name::Device, &mut reservation.ifname);
        self.pod(&source, &mut reservation.pod);
        if reservation.key.len() <= LONGEST_KEY {
            return Kept;
        }
        *self.refused.entry((source.clone(), Name::Path)).or_default() += 1;
        Missing(Scope::Reservations { store: source })
    }

    fn range(&mut self, range: &mut Range) -> Verdict {
        let source = range.store.clone();
        cut(&mut range.path, LONGEST_PATH);
        self.maybe(&source, Name::Path, &mut range.data_dir);
        if range.network.is_empty() || self.fits(&source, Name::Network, &range.network) {
            return Kept;
        }
        Missing(Scope::Ranges { store: source })
    }

    fn configured(&mut self, network: &mut Configured) -> Verdict {
        let source = network.store.clone();
        cut(&mut network.path, LONGEST_PATH);
        if network.name.is_empty() || self.fits(&source, Name::Network, &network.name) {
            return Kept;
        }
        // That there are networks elsewhere is true whatever the name.
        if network.elsewhere {
            network.name.clear();
            return Kept;
        }
        Missing(Scope::Ranges { store: source })
    }

    fn endpoint(&mut self, endpoint: &mut Endpoint) -> Verdict {
        let source = endpoint.store.clone();
        self.maybe(&source, Name::ContainerId, &mut endpoint.container);
        self.maybe(&source, Name::Device, &mut endpoint.device);
        let named = self.fits(&source, Name::Namespace, &endpoint.namespace)
            & self.fits(&source, Name::PodName, &endpoint.pod);
        if named && endpoint.key.len() <= LONGEST_KEY {
            return Kept;
        }
        Missing(Scope::Endpoints { store: source })
    }

    fn call(&mut self, source: &str, call: &mut CniCall) -> Verdict {
        self.pod(source, &mut call.pod);
        // A DEL with an invalid path or interface may still free an IP: it counts as a call for its container.
        self.maybe(source, Name::Path, &mut call.netns_path);
        self.maybe(source, Name::Device, &mut call.ifname);
        cut(&mut call.plugin, LONGEST_PATH);
        let id = call.container_id.as_deref();
        kept(id.is_none_or(|id| self.fits(source, Name::ContainerId, id)))
    }
}

fn kept(kept: bool) -> Verdict {
    if kept { Kept } else { Dropped }
}

/// Truncates a text that is only for people, between two characters.
fn cut(text: &mut String, longest: usize) {
    text.truncate(text.floor_char_boundary(longest));
}

/// Omits a text that is longer than possible: a truncated path would be another path.
fn bound(text: &mut Option<String>, longest: usize) {
    *text = text.take().filter(|text| text.len() <= longest);
}

/// The word of a runtime or the API server for a state.
fn word(text: &mut String) {
    if text.len() > LONGEST_DEVICE * 4 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        "unknown".clone_into(text);
    }
}

#[cfg(test)]
mod tests;
