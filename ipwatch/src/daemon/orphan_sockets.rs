//! The last step of a search for holders: TCP connections that no process has any more. They are visible only from
//! inside their netns, so the thread `netns` reads them, through the doors that the search has found.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::jobs::{Ask, NetnsJob, SocketHolders};
use crate::clock;
use crate::fact::{Fact, NetnsPath, NetnsRef, Observation, Origin};
use crate::sources::netlink::{AdoptError, Requests};

/// How long one search may occupy the thread `netns`, in nanoseconds.
const LONGEST: u64 = 500_000_000;
/// How long the search waits for the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of doors to try.
const MOST_DOORS: usize = 8;

impl Ask {
    /// Runs on the thread that can enter netns. With `observe_only` nothing is asked, because the kernel may load
    /// `tcp_diag` for it (`inet_diag_lock_handler`, net/ipv4/inet_diag.c).
    ///
    /// # Errors
    /// The thread cannot be used any more ([`AdoptError::is_fatal`]).
    pub(super) fn with(
        self,
        requests: &mut Requests,
        observe_only: bool,
    ) -> Result<Vec<Fact>, AdoptError> {
        if observe_only {
            let answers = self.netns.iter().map(|_| SocketHolders::Unreachable).collect();
            let _ = self.answer.try_send(answers);
            return Ok(Vec::new());
        }
        let until = clock::now().plus(LONGEST);
        let mut answers = Vec::with_capacity(self.netns.len());
        for (netns, doors) in &self.netns {
            if clock::now() > until {
                break;
            }
            answers.push(match requests.orphans(*netns, doors) {
                Ok(holders) => SocketHolders::Known(holders),
                Err(error) if error.is_fatal() => return Err(error),
                Err(AdoptError::Closed(_) | AdoptError::Mismatch { .. }) => {
                    SocketHolders::Unreachable
                }
                Err(error) => {
                    tracing::debug!("{error}");
                    SocketHolders::Unknown
                }
            });
        }
        // The search may have stopped waiting.
        let _ = self.answer.try_send(answers);
        Ok(Vec::new())
    }
}

/// Inserts the orphans in `wanted` into the facts of a search for holders, before the facts that end it. `beside` has
/// the facts of another pass that ran at the same time.
///
/// If no door opens a netns, its orphans can never be read (before 6.18 this is a netns that only the kernel holds),
/// and its search is as complete as it can be. If a netns was not asked because time ran out, its search is not
/// complete.
pub(super) fn add(
    to: &SyncSender<Box<NetnsJob>>,
    wanted: &[NetnsRef],
    beside: &[Fact],
    facts: &mut Vec<Fact>,
) {
    let netns = wanted.iter().map(|netns| (*netns, doors(*netns, beside, facts))).collect();
    let (answer, answers) = sync_channel(1);
    let asked = to.try_send(Box::new(NetnsJob::Orphans(Ask { netns, answer }))).is_ok();
    let mut told = if asked { wait(&answers) } else { Vec::new() };
    told.resize_with(wanted.len(), || SocketHolders::Unknown);
    let ends =
        facts.iter().position(|fact| matches!(fact.what, Observation::HoldersSearched { .. }));
    let mut ends = facts.split_off(ends.unwrap_or(facts.len()));
    for (netns, told) in wanted.iter().zip(told) {
        match told {
            SocketHolders::Unreachable => {}
            SocketHolders::Known(holders) => facts.extend(holders.into_iter().map(|holder| Fact {
                at: clock::now(),
                origin: Origin::Netlink,
                what: Observation::Holder { netns: *netns, holder },
            })),
            SocketHolders::Unknown => leave_open(&mut ends, netns),
        }
    }
    facts.append(&mut ends);
}

fn wait(answers: &Receiver<Vec<SocketHolders>>) -> Vec<SocketHolders> {
    answers.recv_timeout(PATIENCE).unwrap_or_default()
}

/// The search for the holders of this netns is not complete.
pub(super) fn leave_open(facts: &mut [Fact], of: &NetnsRef) {
    for fact in facts {
        if let Observation::HoldersSearched { netns, complete } = &mut fact.what
            && netns == of
        {
            *complete = false;
        }
    }
}

/// Whether two passes that ran at the same time mean the same netns.
pub(super) fn is_same(one: &NetnsRef, other: &NetnsRef) -> bool {
    (one.cookie.is_some() && one.cookie == other.cookie)
        || (one.inode.is_some() && one.inode == other.inode)
}

/// Doors into a netns, made from what was found to hold it.
fn doors(wanted: NetnsRef, beside: &[Fact], facts: &[Fact]) -> Vec<NetnsPath> {
    let door = |fact: &Fact| match &fact.what {
        Observation::Holder { netns, holder } if is_same(netns, &wanted) => {
            NetnsPath::through(holder)
        }
        _ => None,
    };
    let found = facts.iter().chain(beside).filter_map(door);
    found.take(MOST_DOORS).chain([NetnsPath::Handle]).collect()
}

#[cfg(test)]
mod tests;
