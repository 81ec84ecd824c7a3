//! Allocations in the API server, of whichever store that has some there.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::api_server::{ApiServer, Refused};
use super::{calico, whereabouts};
use crate::fact::store;

/// An allocation as it was read, and as the record keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "store", rename_all = "kebab-case")]
pub(super) enum Seen {
    Whereabouts(whereabouts::Seen),
    Calico(calico::Seen),
}

impl Seen {
    /// The entry alone, without the version of its object.
    fn entry(&self) -> &serde_json::Value {
        match self {
            Self::Whereabouts(seen) => &seen.allocation,
            Self::Calico(seen) => &seen.attribute,
        }
    }
}

/// How often an object that others change meanwhile is looked at again.
const TRIES: usize = 4;

/// Whether a key of a store is that of an allocation which can be freed.
pub(super) fn has(store: &str, key: &str) -> bool {
    match store {
        store::WHEREABOUTS => whereabouts::parts(key).is_some(),
        store::CALICO => calico::parts(key).is_some(),
        _ => false,
    }
}

/// Looks at an allocation of a container.
///
/// # Errors
/// What does not agree.
pub(super) async fn look(
    api: &mut ApiServer,
    store: &str,
    which: (IpAddr, &str, &str),
) -> Result<Seen, String> {
    match store {
        store::WHEREABOUTS => whereabouts::look(api, which).await.map(Seen::Whereabouts),
        store::CALICO => calico::look(api, which).await.map(Seen::Calico),
        _ => Err("its store is not one of the API server".to_owned()),
    }
}

/// Why an allocation was not freed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotFreed {
    /// Nothing was changed.
    Refused(String),
    /// It may have been freed.
    Unknown(String),
}

impl From<Refused> for NotFreed {
    fn from(why: Refused) -> Self {
        match why {
            Refused::Lost(_) => Self::Unknown(why.to_string()),
            _ => Self::Refused(why.to_string()),
        }
    }
}

/// Frees it, if it is still what was read. Returns what could not be done after that. A pool or a block changes with every
/// pod that is given an IP of it: where only others' entries have changed since, it is looked at again.
///
/// # Errors
/// [`NotFreed`]
pub(super) async fn free(
    api: &mut ApiServer,
    store: &str,
    which: (IpAddr, &str, &str),
    seen: &Seen,
) -> Result<Option<String>, NotFreed> {
    let mut now = seen.clone();
    for _ in 1..TRIES {
        match once(api, &now).await {
            Err(Refused::Changed) => {
                now = look(api, store, which).await.map_err(NotFreed::Refused)?;
            }
            done => return done.map_err(NotFreed::from),
        }
        if now.entry() != seen.entry() {
            return Err(Refused::Changed.into());
        }
    }
    once(api, &now).await.map_err(NotFreed::from)
}

async fn once(api: &mut ApiServer, seen: &Seen) -> Result<Option<String>, Refused> {
    match seen {
        Seen::Whereabouts(seen) => whereabouts::free(api, seen).await,
        Seen::Calico(seen) => calico::free(api, seen).await,
    }
}

/// Brings it back, unless it has been given out since.
///
/// # Errors
/// Why not.
pub(super) async fn restore(api: &mut ApiServer, seen: &Seen) -> Result<(), String> {
    match seen {
        Seen::Whereabouts(seen) => whereabouts::restore(api, seen).await,
        Seen::Calico(seen) => calico::restore(api, seen).await,
    }
}

#[cfg(test)]
mod tests;
