//! How many records each party may cause, so that a flood of one pushes no record of another out of a ring buffer.
//!
//! A netns has a token bucket for each class of records, and so has the user who owns its user namespace, of nested ones the
//! outermost: whoever can make one netns, or one user namespace, can make any number of them. The buckets of both must have
//! a token. In the host's netns only root
//! changes addresses and devices, so these have no limit there. Its neighbour entries and claims are caused by whatever
//! is sent to its links: there each link has a bucket.
//!
//! A record that is held back is counted by kind and by netns (`owed`), and the user half reads that netns again.

use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::LruHashMap;
use ipwatch_common::{Budget, Netns};

use crate::emit::suppressed;
use crate::offsets::{
    HOST_INODE, NET_USER_NS, USER_NS_INODE, USER_NS_LEVEL, USER_NS_OWNER, USER_NS_PARENT,
};
use crate::owed::{self, What};
use crate::read::{Addr, field};

/// What has a budget of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Addresses, and devices that move.
    Addresses,
    Neighbours,
    Claims,
    /// Tasks that are told: a build on many CPUs ends some hundreds in a second.
    Tasks,
    /// Runs of plugins that do not count.
    Refused,
}

impl Class {
    /// Of a netns that only root can have made: more than runtimes and daemons do there.
    const fn budget_of_root(self) -> Budget {
        match self {
            Class::Addresses => Budget::new(1_000, 2_000),
            class => class.budget(),
        }
    }

    const fn budget(self) -> Budget {
        match self {
            Class::Addresses => Budget::new(250, 1_000),
            Class::Neighbours | Class::Claims => Budget::new(200, 400),
            Class::Tasks => Budget::new(1_000, 1_000),
            Class::Refused => Budget::new(50, 100),
        }
    }

    /// Of all netns of one owner together.
    const fn owners_budget(self) -> Budget {
        self.budget().doubled()
    }

    /// Of all netns in user namespaces that root made.
    const fn roots_budget(self) -> Budget {
        self.owners_budget().doubled().doubled()
    }

    /// As what it is counted; `None` for what is of no netns.
    const fn what(self) -> Option<What> {
        match self {
            Class::Addresses => Some(What::Addresses),
            Class::Neighbours => Some(What::Neighbours),
            Class::Claims => Some(What::Claims),
            Class::Tasks => Some(What::Tasks),
            Class::Refused => None,
        }
    }
}

/// Whose bucket it is.
#[repr(C)]
#[derive(Clone, Copy)]
struct Key {
    class: u32,
    /// A device of the host's netns, or 0.
    link: u32,
    /// The netns, by its name, or an [`Owner`].
    whose: u64,
}

/// When each will be full: see [`Budget::take`]. An entry that was thrown out is a full bucket, so that many netns make
/// the limit laxer for each, and never stricter; that of their owner is always in use.
#[map]
static BUCKETS: LruHashMap<Key, u64> = LruHashMap::with_max_entries(2048, 0);

/// Owner of the user namespace that a netns belongs to, or that user namespace if root made it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// No cookie and no inode has this bit.
    const IS_OWNER: u64 = 1 << 63;
    const ROOTS: u64 = 1 << 32;
    /// Of the first user namespace, where only root makes netns.
    pub const ROOT: Self = Self(0);

    /// A user by the number in the first user namespace.
    #[inline(always)]
    pub fn user(uid: u32) -> Self {
        Self(Self::IS_OWNER | u64::from(uid))
    }

    /// A user has many uids within a user namespace of his own (subuids), and those that he makes there belong to them: the
    /// outermost one belongs to himself.
    #[inline(always)]
    pub fn of(net: Addr) -> Self {
        let mut user_ns: Addr = field(net, &NET_USER_NS);
        if user_ns == 0 || field::<u32>(user_ns, &USER_NS_LEVEL) == 0 {
            return Self::ROOT;
        }
        // So deep they are nested at most (`create_user_ns`: level > 32, kernel/user_namespace.c).
        for _ in 0..32 {
            if field::<u32>(user_ns, &USER_NS_LEVEL) <= 1 {
                break;
            }
            match field(user_ns, &USER_NS_PARENT) {
                0 => break,
                parent => user_ns = parent,
            }
        }
        match field(user_ns, &USER_NS_OWNER) {
            // Of a runtime's pods, or of the root of a container: each is on its own, within what all of them have.
            0u32 => Self(
                Self::IS_OWNER | Self::ROOTS | u64::from(field::<u32>(user_ns, &USER_NS_INODE)),
            ),
            uid => Self::user(uid),
        }
    }

    /// Whether root made its user namespace, as runtimes do and as the root of a container can.
    #[inline(always)]
    fn is_roots(self) -> bool {
        self.0 & Self::ROOTS != 0
    }
}

/// Whether one more record of a netns may be told. One that may not is counted.
#[inline(always)]
pub fn admits(class: Class, kind: u16, netns: &Netns, owner: Owner) -> bool {
    netns.inode == HOST_INODE.load() || has_token(class, kind, netns, owner, 0)
}

/// The same of a record that whoever sends on a link can cause.
#[inline(always)]
pub fn admits_on_link(class: Class, kind: u16, netns: &Netns, owner: Owner, ifindex: u32) -> bool {
    // Whoever has a netns can make any number of devices in it.
    let link = if netns.inode == HOST_INODE.load() { ifindex } else { 0 };
    has_token(class, kind, netns, owner, link)
}

#[inline(always)]
fn has_token(class: Class, kind: u16, netns: &Netns, owner: Owner, link: u32) -> bool {
    let own = if owner == Owner::ROOT { class.budget_of_root() } else { class.budget() };
    let has = take(class, link, owed::name(netns), own)
        && (owner == Owner::ROOT || take(class, 0, owner.0, class.owners_budget()))
        && (!owner.is_roots() || take(class, 0, Owner::user(0).0, class.roots_budget()));
    if !has {
        suppressed(kind);
        if let Some(what) = class.what() {
            owed::owe(netns, what, owed::of(owner, kind));
        }
    }
    has
}

/// The same of a record that a user can cause wherever they are.
#[inline(always)]
pub fn admits_user(class: Class, kind: u16, uid: u32) -> bool {
    let admitted = take(class, 0, Owner::user(uid).0, class.budget());
    if !admitted {
        suppressed(kind);
    }
    admitted
}

#[inline(always)]
fn take(class: Class, link: u32, whose: u64, budget: Budget) -> bool {
    take_from(class as u32, link, whose, budget.refill, budget.burst) != 0
}

/// Two CPUs that take from one bucket at once may both take the last token. A function of its own: made part of every
/// program, it would add a third to the object.
#[inline(never)]
fn take_from(class: u32, link: u32, whose: u64, refill: u64, burst: u64) -> u64 {
    let (key, budget) = (Key { class, link, whose }, Budget { refill, burst });
    // SAFETY: takes nothing, reads a clock.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let Some(bucket) = BUCKETS.get_ptr_mut(key) else {
        // Where the kernel has no element left there is no limit.
        if let Some(full_at) = budget.take(0, now) {
            let _ = BUCKETS.insert(key, full_at, 0);
        }
        return 1;
    };
    // SAFETY: an element of a preallocated map stays memory of that map even when it is evicted.
    match budget.take(unsafe { *bucket }, now) {
        Some(full_at) => {
            // SAFETY: as above.
            unsafe { *bucket = full_at };
            1
        }
        None => 0,
    }
}
