//! Makes the planned changes. Everything that an item depends on is checked again right before its change.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;

use super::api_server::{Access, ApiServer};
use super::cluster_store::{self, NotFreed};
use super::host_local::{Expected, Locked, Refused};
use super::node::{self, Node};
use super::record::{Record, RecordError};
use super::who::Who;
use super::{log, plan};
use crate::api::client::{Client, ClientError};
use crate::api::{Ask, Selector};
use crate::clock;
use crate::contract::{
    Body, Document, Finding, Fix, FixItem, FixState, FixTarget, IpamEntry, Prefix,
};
use crate::remedy::said;

/// Timeout of a question to the daemon.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the look at all netns may take where nobody waits for a lock.
const LOOKED: Duration = Duration::from_secs(15);

/// How long a store's lock is held for one item before it is given up: every ADD and DEL of the network waits for it.
const HELD: Duration = Duration::from_secs(2);

/// Why nothing was changed at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ActError {
    #[error("only root may change the node: use sudo, or --dry-run to see what would be changed")]
    NotRoot,
    #[error("{0}")]
    Elsewhere(String),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the node cannot be looked at: {0}")]
    Look(#[from] io::Error),
}

/// Whether this process can change the node at all.
///
/// # Errors
/// [`ActError`]
pub(crate) fn may() -> Result<(), ActError> {
    if !rustix::process::geteuid().is_root() {
        return Err(ActError::NotRoot);
    }
    node::is_here().map_err(ActError::Elsewhere)
}

/// Why an item was not done.
#[derive(Debug)]
enum NotDone {
    /// Nothing was changed.
    Skipped(String),
    /// A file was moved that had been replaced meanwhile, and could not be put back.
    Stranded(String),
    /// It may have been changed.
    Unknown(String),
}

impl From<String> for NotDone {
    fn from(why: String) -> Self {
        Self::Skipped(why)
    }
}

impl NotDone {
    fn told(self) -> (FixState, Option<String>) {
        match self {
            Self::Skipped(why) => (FixState::Skipped, Some(why)),
            Self::Stranded(why) => (FixState::Stranded, Some(why)),
            Self::Unknown(why) => (FixState::Unknown, Some(why)),
        }
    }
}

/// The daemon's answers at the moment of a change.
struct Anew {
    findings: Vec<Finding>,
    entries: Vec<IpamEntry>,
}

/// A run.
struct Act<'a> {
    client: &'a Client,
    api: ApiServer,
    node: Node,
    record: Record,
    who: Who,
    /// Why the daemon did not answer. It is then not asked again.
    silent: Option<String>,
    unlogged: bool,
}

/// Does what is planned, and says what became of it. `what` was asked for, `node` is the node's name; the record is kept
/// below `base`; `access` leads to the API server, where something is changed there. Whether every change was logged.
///
/// # Errors
/// [`ActError`]: nothing was changed.
pub(crate) async fn change(
    client: &Client,
    mut fix: Fix,
    (what, node): (&str, &str),
    base: &Path,
    access: Access,
) -> Result<(Fix, bool), ActError> {
    may()?;
    let who = Who::now();
    let look = Node::new()?;
    let record = Record::begin(base, what, node, who.clone())?;
    fix.record = Some(record.path().display().to_string());
    fix.dry_run = false;
    let api = ApiServer::new(access);
    let mut act = Act { client, api, node: look, record, who, silent: None, unlogged: false };
    for item in fix.items.iter_mut().filter(|item| item.state == FixState::Planned) {
        match act.item(item).await {
            Ok(why) => (item.state, item.why) = (FixState::Done, why),
            Err(why) => (item.state, item.why) = why.told(),
        }
        item.proof.clear();
        if is_changed(item.state) {
            act.unlogged |= !log::tell(item, &act.who, act.record.path());
        }
    }
    let Act { record, unlogged, .. } = act;
    if !fix.items.iter().any(|item| is_changed(item.state)) && record.discard() {
        fix.record = None;
    }
    Ok((fix, !unlogged))
}

fn is_changed(state: FixState) -> bool {
    matches!(state, FixState::Done | FixState::Stranded | FixState::Unknown)
}

impl Act<'_> {
    /// Looks at one item again, and changes it. Returns what of it could not be done, where the rest was.
    async fn item(&mut self, item: &FixItem) -> Result<Option<String>, NotDone> {
        if matches!(item.target, FixTarget::FreeAllocation { .. }) {
            return self.allocation(item).await;
        }
        self.of_the_node(item).await.map(|()| None)
    }

    async fn of_the_node(&mut self, item: &FixItem) -> Result<(), NotDone> {
        match &item.target {
            FixTarget::FreeReservation { .. } => self.reservation(item).await,
            FixTarget::UnmountNetns { path, netns } => {
                self.agrees(item).await?;
                let number = self.intend(item, None)?;
                let done = self.node.unmount(path, netns);
                self.became(number, item, done.map_err(NotDone::from))
            }
            FixTarget::DeletePair { interface, peer } => {
                self.agrees(item).await?;
                self.hear_of_netns().await?;
                let number = self.intend(item, None)?;
                let done = self.node.delete_pair(interface, peer);
                self.became(number, item, done.map_err(NotDone::from))
            }
            FixTarget::FreeAllocation { .. } | FixTarget::Nothing { .. } => {
                Err("there is nothing to be done".to_owned().into())
            }
        }
    }

    /// Removes an allocation from its object in the API server. The object's version, read before the node is looked at,
    /// is tested by the change itself: whoever is given the IP meanwhile has changed the object.
    async fn allocation(&mut self, item: &FixItem) -> Result<Option<String>, NotDone> {
        let FixTarget::FreeAllocation { ip, store, key, container_id, .. } = &item.target else {
            return Err("it is no allocation".to_owned().into());
        };
        let which = (*ip, &**key, &**container_id);
        let seen = cluster_store::look(&mut self.api, store, which).await?;
        self.agrees(item).await?;
        self.hear_of_netns().await?;
        self.is_free(*ip, container_id).await?;
        self.node.nobody_has(*ip, clock::now().plus(LOOKED.as_nanos() as u64))?;
        let kept = format!("{}-{ip}.json", self.record.items());
        let text = serde_json::to_vec(&seen).map_err(io::Error::from);
        let noted = text.and_then(|text| self.record.keep(&kept, &text));
        noted
            .map_err(|error| format!("it could not be recorded ({error}), so it is not changed"))?;
        let number = self.intend(item, Some(&kept))?;
        match cluster_store::free(&mut self.api, store, which, &seen).await {
            Ok(left) => {
                self.became(number, item, Ok(()))?;
                Ok(left)
            }
            Err(NotFreed::Unknown(why)) => {
                self.became(number, item, Err(NotDone::Unknown(why))).map(|()| None)
            }
            Err(NotFreed::Refused(why)) => {
                let told = self.became(number, item, Err(NotDone::Skipped(why)));
                self.record.forget(&kept);
                told.map(|()| None)
            }
        }
    }

    /// Moves a reservation out of its store. The last checks are made under the store's lock, while no ADD and no DEL of the
    /// network runs.
    async fn reservation(&mut self, item: &FixItem) -> Result<(), NotDone> {
        let FixTarget::FreeReservation { ip, path, container_id, ifname, since, .. } = &item.target
        else {
            return Err("it is no reservation".to_owned().into());
        };
        let path = Path::new(path);
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err("it is no path of a file".to_owned().into());
        };
        if let Some(why) = &self.silent {
            return Err(why.clone().into());
        }
        // Slow checks come before the lock, for which pods wait. What may have changed since is checked under the lock.
        self.agrees(item).await?;
        self.hear_of_netns().await?;
        let locked = Locked::take(directory).await.map_err(|error| error.to_string())?;
        let until = clock::now().plus(HELD.as_nanos() as u64);
        self.is_free(*ip, container_id).await?;
        self.node.nobody_has(*ip, until)?;
        if clock::now() > until {
            return Err(node::LATE.to_owned().into());
        }
        let kept = format!("{}-{ip}", self.record.items());
        let number = self.intend(item, Some(&kept))?;
        let (ifname, since) = (ifname.as_deref(), since.as_deref());
        let expected = Expected { container_id, ifname, since };
        let done = locked.move_away(name, expected, self.record.dir(), &kept);
        let at = said(&self.record.path().join(&kept).display().to_string());
        let done = done.map_err(|error| match error {
            Refused::Stranded(_) => NotDone::Stranded(format!("{error}, {at}")),
            error => NotDone::Skipped(error.to_string()),
        });
        self.became(number, item, done)
    }

    /// Asks the daemon which netns it knows, for the check of all addresses.
    async fn hear_of_netns(&mut self) -> Result<(), String> {
        if self.node.is_fresh() {
            return Ok(());
        }
        let asked = Ask::Addresses(Selector::Netns(None));
        if let Some(Document { body: Body::Addresses(all), .. }) = self.ask(&asked).await? {
            self.node.hears(&all);
        }
        self.node.look_for_kept()
    }

    fn intend(&mut self, item: &FixItem, kept: Option<&str>) -> Result<usize, String> {
        let noted = self.record.intend(item, kept);
        noted.map_err(|error| format!("it could not be recorded ({error}), so it is not changed"))
    }

    /// Writes the outcome to the record. If that fails the change stays: the record has its intention.
    fn became(
        &mut self,
        number: usize,
        item: &FixItem,
        done: Result<(), NotDone>,
    ) -> Result<(), NotDone> {
        let (state, why) = match &done {
            Ok(()) => (FixState::Done, None),
            Err(NotDone::Skipped(why)) => (FixState::Skipped, Some(why.clone())),
            Err(NotDone::Stranded(why)) => (FixState::Stranded, Some(why.clone())),
            Err(NotDone::Unknown(why)) => (FixState::Unknown, Some(why.clone())),
        };
        let item = FixItem { state, why, ..item.clone() };
        if let Err(error) = self.record.became(number, &item, None) {
            tracing::warn!("the record in {} is not whole: {error}", self.record.path().display());
        }
        done
    }

    /// Succeeds if the daemon's present answers lead to the same plan for an item.
    async fn agrees(&mut self, item: &FixItem) -> Result<(), String> {
        let anew = self.anew(item).await?;
        plan::still(item, &anew.findings, &anew.entries)
    }

    async fn anew(&mut self, item: &FixItem) -> Result<Anew, String> {
        let what = Some(item.finding.clone());
        let told = match self.ask(&Ask::Findings { all: true, what }).await? {
            Some(Document { body: Body::Findings(findings), .. }) => findings,
            _ => Vec::new(),
        };
        let (FixTarget::FreeReservation { ip, .. } | FixTarget::FreeAllocation { ip, .. }) =
            &item.target
        else {
            return Ok(Anew { findings: told, entries: Vec::new() });
        };
        let asked = Ask::Ipam { ip: Some(Prefix::host(*ip)), network: None };
        let entries = self.ask(&asked).await?.map(|document| document.reservations);
        Ok(Anew { findings: told, entries: entries.unwrap_or_default() })
    }

    /// Succeeds if the daemon knows no holder of the IP except the container that is gone, and all sources that could know
    /// one are up.
    async fn is_free(&mut self, ip: std::net::IpAddr, container: &str) -> Result<(), String> {
        let asked = Ask::Check { ip, container: Some(container.to_owned()) };
        match self.ask(&asked).await? {
            Some(Document { body: Body::Verdict(verdict), .. }) if verdict.free => Ok(()),
            Some(Document { body: Body::Verdict(verdict), .. }) => {
                let why = verdict.reasons.into_iter().next();
                Err(why.unwrap_or_else(|| "the daemon says that it is not free".to_owned()))
            }
            _ => Err("the daemon does not say whether it is free".to_owned()),
        }
    }

    /// Asks the daemon. `None`: nothing matches (404).
    async fn ask(&mut self, ask: &Ask) -> Result<Option<Document>, String> {
        if let Some(why) = &self.silent {
            return Err(why.clone());
        }
        let why = match timeout(PATIENCE, self.client.ask(ask)).await {
            Ok(Ok(document)) => return Ok(Some(document)),
            Ok(Err(ClientError::Refused { status: 404, .. })) => return Ok(None),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it takes more than two seconds".to_owned(),
        };
        let why =
            format!("the daemon does not answer, and nothing is changed without its word: {why}");
        self.silent = Some(why.clone());
        Err(why)
    }
}

#[cfg(test)]
mod tests;
