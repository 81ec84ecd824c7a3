//! Endpoints of this node's pods in Calico's datastore, and inconsistencies: a living pod without an endpoint, or an
//! endpoint without a pod.
//!
//! Nothing is concluded from missing data. A datastore that has never had an endpoint of this node belongs to another
//! cluster, or knows this node by another name; one that was not listed completely, or does not answer, may have the
//! endpoint.

mod index;

use std::collections::BTreeMap;

use crate::fact::{BootNs, CniCommand, Endpoint, Link, PodName, SourceName};
use crate::remedy::said;

use self::index::Index;
use crate::map::conflict::hash_of;
use crate::map::{Certainty, Netns, NodeMap, SandboxEntry, SandboxVerdict, Thresholds};

/// Maximum number of endpoints, of all datastores.
const MOST: usize = 4096;
/// Maximum number of remembered removed endpoints.
const MOST_LOST: usize = 1024;
/// How much later than the pod's device an endpoint may be created, and how long the pod's own call may explain that it
/// was removed, in ns.
const GRACE: u64 = 10_000_000_000;
/// Calico's default prefix of device names.
const PREFIX: &str = "cali";
/// The store in which the pod itself is the endpoint.
pub(in crate::map) const PODS: &str = SourceName::Kubernetes.as_str();

/// An endpoint as last reported by its datastore.
#[derive(Debug, Clone)]
pub struct EndpointEntry {
    pub endpoint: Endpoint,
    /// Since when the report is the same.
    pub since: BootNs,
    /// When it was last reported.
    pub told: BootNs,
}

/// A living pod without an endpoint.
#[derive(Debug)]
pub struct MissingEndpoint<'a> {
    /// Name of the source that reports endpoints.
    pub store: &'a str,
    pub sandbox: &'a SandboxEntry,
    pub pod: &'a PodName,
    pub netns: &'a Netns,
    /// The node's end of the pod's device.
    pub device: &'a Link,
    /// The pod's endpoint, which names another container.
    pub other: Option<&'a EndpointEntry>,
    /// The removed endpoint, and when it was removed.
    pub lost: Option<&'a (EndpointEntry, BootNs)>,
    /// Since when the endpoint has been missing, as far as observed.
    pub since: BootNs,
    /// The moment from which that counts, if both the runtime and the datastore confirm it then.
    pub from: BootNs,
    /// When the datastore last reported.
    pub heard: BootNs,
}

/// An endpoint whose pod no longer exists.
#[derive(Debug)]
pub struct StaleEndpoint<'a> {
    pub entry: &'a EndpointEntry,
    pub container: &'a str,
    /// The moment from which it counts.
    pub from: BootNs,
    /// When the datastore last reported.
    pub heard: BootNs,
}

/// Store and key.
type EndpointKey = (String, String);

#[derive(Debug, Default)]
pub(in crate::map) struct Endpoints {
    all: BTreeMap<EndpointKey, EndpointEntry>,
    /// The endpoints of a pod, by namespace and name.
    by_pod: BTreeMap<(String, String), Vec<EndpointKey>>,
    lost: BTreeMap<EndpointKey, (EndpointEntry, BootNs)>,
    /// The datastores that report endpoints.
    stores: BTreeMap<String, Datastore>,
    /// Whether there were more endpoints than [`MOST`].
    beyond: bool,
}

/// State of a datastore.
#[derive(Debug, Default)]
struct Datastore {
    /// Since when its listing is complete. `None` while it is being listed, and after an incomplete listing.
    whole: Option<BootNs>,
    /// When it last reported: its data is valid as of then.
    heard: BootNs,
    /// Whether it has had an endpoint of this node: then it is this cluster's.
    ours: bool,
    /// Since when its source has had its current status. Earlier changes may still be reported once it answers again.
    stands: BootNs,
}

impl Endpoints {
    fn remove(&mut self, place: &EndpointKey) -> Option<EndpointEntry> {
        let entry = self.all.remove(place)?;
        let pod = (entry.endpoint.namespace.clone(), entry.endpoint.pod.clone());
        if let Some(places) = self.by_pod.get_mut(&pod) {
            places.retain(|other| other != place);
            if places.is_empty() {
                self.by_pod.remove(&pod);
            }
        }
        Some(entry)
    }

    fn remember(&mut self, place: EndpointKey, entry: EndpointEntry, at: BootNs) {
        if self.lost.len() >= MOST_LOST && !self.lost.contains_key(&place) {
            let oldest = self.lost.iter().min_by_key(|(_, (_, at))| *at);
            if let Some(oldest) = oldest.map(|(place, _)| place.clone()) {
                self.lost.remove(&oldest);
            }
        }
        self.lost.insert(place, (entry, at));
    }

    /// The endpoints of a pod in a datastore.
    fn of<'a>(&'a self, store: &str, pod: &PodName) -> impl Iterator<Item = &'a EndpointEntry> {
        let places = self.by_pod.get(&(pod.namespace.clone(), pod.name.clone()));
        let own: Vec<&EndpointKey> =
            places.into_iter().flatten().filter(|place| place.0 == store).collect();
        own.into_iter().filter_map(|place| self.all.get(place))
    }
}

impl NodeMap {
    pub(in crate::map) fn set_endpoint(&mut self, endpoint: &Endpoint, at: BootNs) {
        let place = (endpoint.store.clone(), endpoint.key.clone());
        let all = &mut self.workload.endpoints;
        let store = all.stores.entry(endpoint.store.clone()).or_default();
        (store.ours, store.heard) = (true, store.heard.max(at));
        let known = all.all.get_mut(&place);
        let newer = |told: BootNs| told > at;
        if known.as_ref().is_some_and(|known| newer(known.told))
            || all.lost.get(&place).is_some_and(|(_, went)| newer(*went))
        {
            return;
        }
        if let Some(known) = known.filter(|known| known.endpoint == *endpoint) {
            known.told = at;
            return;
        }
        let before = all.remove(&place);
        if before.is_none() && all.all.len() >= MOST {
            all.beyond = true;
            return;
        }
        all.lost.remove(&place);
        let pod = (endpoint.namespace.clone(), endpoint.pod.clone());
        all.by_pod.entry(pod).or_default().push(place.clone());
        let entry = EndpointEntry { endpoint: endpoint.clone(), since: at, told: at };
        all.all.insert(place, entry);
        // The endpoint belongs to another container now: the former container has none any more.
        let before = before.filter(|before| before.endpoint.container != endpoint.container);
        if let Some(before) = before.filter(|_| endpoint.container.is_some()) {
            self.note_endpoint_lost(&before.endpoint, at);
        }
    }

    pub(in crate::map) fn drop_endpoint(&mut self, store: &str, key: &str, at: BootNs) {
        let place = (store.to_owned(), key.to_owned());
        self.endpoints_confirmed(store, at);
        if self.workload.endpoints.all.get(&place).is_some_and(|known| known.told > at) {
            return;
        }
        if let Some(was) = self.workload.endpoints.remove(&place) {
            self.note_endpoint_lost(&was.endpoint, at);
            self.workload.endpoints.remember(place, was, at);
        }
    }

    /// A datastore has reported all changes until `at`.
    pub(in crate::map) fn endpoints_confirmed(&mut self, store: &str, at: BootNs) {
        if let Some(store) = self.workload.endpoints.stores.get_mut(store) {
            store.heard = store.heard.max(at);
        }
    }

    /// The status of a source has changed.
    pub(in crate::map) fn endpoints_stand(&mut self, store: &str, at: BootNs) {
        if let Some(store) = self.workload.endpoints.stores.get_mut(store) {
            store.stands = at;
        }
    }

    /// A listing of a datastore has begun: until it ends, the datastore may have more endpoints than reported.
    pub(in crate::map) fn endpoints_began(&mut self, store: &str) {
        self.workload.endpoints.stores.entry(store.to_owned()).or_default().whole = None;
    }

    /// A listing of a datastore has ended. After an incomplete one, endpoints that it did not name are unknown.
    pub(in crate::map) fn endpoints_listed(
        &mut self,
        store: &str,
        (began, at): (BootNs, BootNs),
        complete: bool,
    ) {
        if !complete {
            self.endpoints_began(store);
            return;
        }
        let missed = self
            .workload
            .endpoints
            .all
            .iter()
            .filter(|((own, _), entry)| own == store && entry.told < began);
        let missed: Vec<EndpointKey> = missed.map(|(place, _)| place.clone()).collect();
        for (store, key) in missed {
            self.drop_endpoint(&store, &key, began);
        }
        self.workload.endpoints.beyond &= self.workload.endpoints.all.len() >= MOST;
        let store = self.workload.endpoints.stores.entry(store.to_owned()).or_default();
        (store.whole, store.heard) = (Some(at), store.heard.max(began));
    }

    /// A datastore is no longer in use.
    pub(in crate::map) fn endpoints_over(&mut self, store: &str) {
        if self.workload.endpoints.stores.remove(store).is_none() {
            return;
        }
        self.workload.endpoints.all.retain(|(own, _), _| own != store);
        let places = self.workload.endpoints.by_pod.values_mut();
        places.for_each(|places| places.retain(|(own, _)| own != store));
        self.workload.endpoints.by_pod.retain(|_, places| !places.is_empty());
        self.workload.endpoints.beyond &= self.workload.endpoints.all.len() >= MOST;
    }

    /// An endpoint, by its key.
    #[must_use]
    pub fn endpoint(&self, store: &str, key: &str) -> Option<&EndpointEntry> {
        self.workload.endpoints.all.get(&(store.to_owned(), key.to_owned()))
    }

    /// An endpoint by its key as written in evidence: quoted, if it is not a plain word.
    pub(crate) fn endpoint_said(&self, store: &str, key: &str) -> Option<&EndpointEntry> {
        let all = self.workload.endpoints.all.iter().filter(|_| key.starts_with('"'));
        let mut of_it = all.filter(|((of, known), _)| of == store && said(known) == key);
        of_it.next().map(|(_, entry)| entry)
    }

    /// Whether every datastore of endpoints answers and can be relied on. True if there is none.
    #[must_use]
    pub fn endpoints_answer(&self) -> bool {
        let Endpoints { stores, beyond, .. } = &self.workload.endpoints;
        !beyond && stores.iter().all(|(name, store)| store.ours && self.tells(name, store))
    }

    /// Whether every datastore that has had an endpoint of this node still reports.
    #[must_use]
    pub fn endpoints_are_followed(&self) -> bool {
        let mut ours = self.workload.endpoints.stores.iter().filter(|(_, store)| store.ours);
        ours.all(|(name, store)| self.tells(name, store))
    }

    fn tells(&self, name: &str, store: &Datastore) -> bool {
        store.whole.is_some() && self.store_answers(name)
    }

    /// Datastores whose silence about a pod is evidence.
    fn datastores(&self) -> impl Iterator<Item = (&str, &Datastore)> {
        let Endpoints { stores, beyond, .. } = &self.workload.endpoints;
        let stores = stores
            .iter()
            .filter(move |(name, store)| !beyond && store.ours && self.tells(name, store));
        stores.map(|(name, store)| (&**name, store))
    }

    /// Whether a pod seems to lack an endpoint; a cheap check that ignores the pod's state and its device.
    #[must_use]
    pub fn has_unwired_pods(&self) -> bool {
        self.unwired().next().is_some()
    }

    /// Sandboxes whose pod seems to lack an endpoint in a datastore, by the cheap check.
    fn unwired(&self) -> impl Iterator<Item = ((&str, &Datastore), &SandboxEntry)> {
        self.datastores().flat_map(move |store| {
            let sandboxes = self.workload.runtimes.sandboxes();
            let lacks = move |sandbox: &&SandboxEntry| self.lacks_endpoint(store.0, sandbox);
            sandboxes.filter(lacks).map(move |sandbox| (store, sandbox))
        })
    }

    fn lacks_endpoint(&self, store: &str, entry: &SandboxEntry) -> bool {
        let Some(pod) = entry.sandbox.pod.as_ref() else { return false };
        let of_it = |known: &EndpointEntry| {
            known.endpoint.container.as_ref().is_none_or(|other| *other == entry.sandbox.id)
        };
        !entry.sandbox.host_network
            && entry.dead.is_none()
            && entry.sandbox.life == crate::fact::Life::Alive
            && !self.workload.endpoints.of(store, pod).any(of_it)
    }

    /// Living pods with a device of Calico's and without an endpoint, including those that do not count yet.
    pub fn missing_endpoints(&self, thresholds: &Thresholds) -> Vec<MissingEndpoint<'_>> {
        let index = Index::new(self);
        let mut found = Vec::new();
        for (store, sandbox) in self.unwired() {
            found.extend(self.missing_endpoint(store, sandbox, &index, thresholds));
        }
        found
    }

    fn missing_endpoint<'a>(
        &'a self,
        (store, says): (&'a str, &Datastore),
        sandbox: &'a SandboxEntry,
        index: &Index<'a>,
        thresholds: &Thresholds,
    ) -> Option<MissingEndpoint<'a>> {
        let id = &sandbox.sandbox.id;
        let pod = sandbox.sandbox.pod.as_ref()?;
        let other = self.workload.endpoints.of(store, pod).next();
        if !matches!(self.verdict_on(id), SandboxVerdict::Lives)
            || !is_only(sandbox, index.sandboxes(&pod.namespace, &pod.name))
            || self.is_to_go(id, pod)
            || (store == PODS && !self.is_in_api(pod))
        {
            return None;
        }
        let netns = self.netns_of_sandbox(id).filter(|netns| {
            let sure = netns.owner().is_some_and(|owner| owner.certainty != Certainty::ByIp);
            sure && netns.dying.is_none() && netns.routable().next().is_some()
        })?;
        let (device, made) = self.calico_device(netns, pod, index)?;
        let lost = index.lost(&pod.namespace, &pod.name).iter().copied();
        let lost = lost.filter(|(was, _)| {
            was.endpoint.store == store && was.endpoint.container.as_ref().is_none_or(|of| of == id)
        });
        let lost = lost.max_by_key(|(_, at)| *at);
        let went = lost.map(|(_, at)| *at).or(other.map(|entry| entry.since));
        let whole = says.whole?;
        let since = went.unwrap_or(whole).max(sandbox.first_seen).max(made);
        // Missed changes arrive once the datastore answers again, or with the listing.
        let from = since.max(whole).max(says.stands).plus(GRACE.max(thresholds.second_look));
        let heard = says.heard;
        Some(MissingEndpoint {
            store,
            sandbox,
            pod,
            netns,
            device,
            other,
            lost,
            since,
            from,
            heard,
        })
    }

    /// Whether the pod is being removed or set up: its own ADD is under way, or a DEL was called.
    fn is_to_go(&self, id: &str, pod: &PodName) -> bool {
        let now = self.now;
        let deleted = self.call_history(id).is_some_and(|known| known.del.first.is_some());
        let known = pod.uid.as_deref().and_then(|uid| self.pod(uid));
        deleted
            || self.is_called(CniCommand::Add, id, now, GRACE)
            || known.is_some_and(|known| {
                let ended = known.pod.phase.as_deref();
                known.pod.deletion.is_some()
                    || known.gone.is_some()
                    || matches!(ended, Some("Succeeded" | "Failed"))
            })
    }

    /// Whether the API server has the pod with this uid.
    fn is_in_api(&self, pod: &PodName) -> bool {
        let known = pod.uid.as_deref().and_then(|uid| self.pod(uid));
        known.is_some_and(|known| known.gone.is_none())
    }

    /// The node's end of the device that Calico made for a pod, and since when it has existed.
    fn calico_device<'a>(
        &'a self,
        netns: &Netns,
        pod: &PodName,
        index: &Index<'a>,
    ) -> Option<(&'a Link, BootNs)> {
        let known = index.link(&format!("{PREFIX}{}", hash_of(&pod.namespace, &pod.name)))?;
        let there = self.far_netns(index.host()?, &known.link) == Some(netns.id);
        (there && known.link.kind.as_deref() == Some("veth")).then_some((&known.link, known.since))
    }

    /// Endpoints whose container belonged to this node and no longer exists, with nothing of it left.
    pub fn stale_endpoints(&self, thresholds: &Thresholds) -> Vec<StaleEndpoint<'_>> {
        // Pods of the API server are their own endpoints.
        let stores: Vec<_> = self.datastores().filter(|(name, _)| *name != PODS).collect();
        let index = Index::new(self);
        let all = self.workload.endpoints.all.values();
        let of = |entry: &EndpointEntry| {
            stores
                .iter()
                .find(|(name, _)| *name == entry.endpoint.store)
                .map(|(_, store)| store.heard)
        };
        all.filter_map(|entry| self.stale_endpoint(entry, of(entry)?, &index, thresholds)).collect()
    }

    fn stale_endpoint<'a>(
        &'a self,
        entry: &'a EndpointEntry,
        heard: BootNs,
        index: &Index<'a>,
        thresholds: &Thresholds,
    ) -> Option<StaleEndpoint<'a>> {
        let id = entry.endpoint.container.as_deref()?;
        let gone = match self.verdict_on(id) {
            SandboxVerdict::Gone(sandbox) => sandbox.gone?,
            SandboxVerdict::Denied(since) if self.is_ours(id) => since,
            _ => return None,
        };
        let Endpoint { namespace, pod, device, .. } = &entry.endpoint;
        let lives = !index.sandboxes(namespace, pod).is_empty();
        // Without the node's netns its devices are unknown.
        index.host()?;
        let device = device.as_deref().is_some_and(|name| index.link(name).is_some());
        let netns = self.workload.owners.netns_of(id).any(|id| self.netns(id).is_some());
        if lives || device || netns {
            return None;
        }
        let from = gone.max(entry.since).plus(thresholds.leak_age);
        Some(StaleEndpoint { entry, container: id, from, heard })
    }
}

/// Whether every other living sandbox of the pod is certainly older. `all`: the pod's sandboxes that are not dead.
fn is_only(sandbox: &SandboxEntry, all: &[&SandboxEntry]) -> bool {
    let mut others = all.iter().filter(|other| other.sandbox.id != sandbox.sandbox.id);
    others.all(|other| {
        let made = other.sandbox.created.zip(sandbox.sandbox.created);
        made.is_some_and(|(other, own)| other < own)
    })
}
