//! Which netns the user half must read again, because events of theirs were not told: there were too many of them
//! (`limit`), or the ring buffer had no room. The others need not be read again.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use ipwatch_common::{MISSING, MOST_OWED, MOST_OWED_TO_USERS, Netns, Owed};

use crate::emit::{self, dropped};
use crate::limit::Owner;

/// The user half takes entries out before it reads a netns, so that what is lost during that makes another entry.
#[map]
static OWED: HashMap<u64, Owed> = HashMap::with_max_entries(MOST_OWED, 0);

/// State since the user half last looked at [`OWED`]: see [`WOKEN`] and the other indexes.
#[map]
static OWES: Array<u32> = Array::with_max_entries(3, 0);

/// Index of 1 while the user half has been woken.
const WOKEN: u32 = 0;
/// Index of the number of entries of netns that are in a user namespace.
const TO_USERS: u32 = 1;
/// Index of 1 if there were more of these than [`MOST_OWED_TO_USERS`]: then all of them are read again.
const TO_ALL_USERS: u32 = 2;

/// Flag in the `kind` of [`owe`]: the netns is in a user namespace. Part of that argument, because each further one costs
/// stack, of which 5.10 has none left here.
pub const USERS: u16 = 1 << 15;

/// What was not told.
#[derive(Clone, Copy)]
pub enum What {
    Addresses,
    Neighbours,
    Claims,
    Tasks,
    /// Addresses and devices, for want of room in the ring buffer.
    Overrun,
}

/// A number that no other netns has while this one lives: the cookie, or the inode where there is none.
#[inline(always)]
pub fn name(netns: &Netns) -> u64 {
    if netns.cookie != 0 { netns.cookie } else { u64::from(netns.inode) }
}

/// The `kind` of [`owe`] for a netns of this owner.
#[inline(always)]
pub fn of(owner: Owner, kind: u16) -> u16 {
    if owner == Owner::ROOT { kind } else { kind | USERS }
}

/// Counts an event of a netns that was not told. Where the table is full, it counts as lost, and the user half reads
/// everything again; netns in user namespaces can fill half of it, and beyond that only they are all read again. `kind` is
/// made by [`of`]. A function of its own for the same reason as `limit::take_from`.
#[inline(never)]
pub fn owe(netns: &Netns, what: What, kind: u16) {
    let name = name(netns);
    if let Some(owed) = OWED.get_ptr_mut(name) {
        // SAFETY: a value of the map, which is never freed. An increment that is lost is one of several at one time.
        unsafe { count(&mut *owed, what) };
    } else if kind & USERS != 0 && !has_room_for_users() {
        wake();
        return;
    } else {
        let netns = Netns { refs: MISSING, ..*netns };
        // Each field by itself: zeroes for all would be a call of `memset`, and 5.10 allows 512 bytes of stack for all
        // functions on the way (`check_max_stack_depth`, kernel/bpf/verifier.c).
        let one = |of: What| u32::from(what as u8 == of as u8);
        let owed = Owed {
            netns,
            addresses: one(What::Addresses),
            neighbours: one(What::Neighbours),
            claims: one(What::Claims),
            tasks: one(What::Tasks),
            overrun: one(What::Overrun),
            reserved: 0,
        };
        if OWED.insert(name, owed, 0).is_err() {
            dropped(kind & !USERS);
            return;
        }
    }
    wake();
}

#[inline(always)]
fn count(owed: &mut Owed, what: What) {
    match what {
        What::Addresses => owed.addresses += 1,
        What::Neighbours => owed.neighbours += 1,
        What::Claims => owed.claims += 1,
        What::Tasks => owed.tasks += 1,
        What::Overrun => owed.overrun += 1,
    }
}

/// Whether one more netns that is in a user namespace may have an entry. If not, all of them count as owed.
#[inline(always)]
fn has_room_for_users() -> bool {
    let Some(entries) = OWES.get_ptr_mut(TO_USERS) else { return true };
    // SAFETY: a number in a map. Two CPUs that both count make one entry more.
    unsafe {
        if *entries < MOST_OWED_TO_USERS {
            *entries += 1;
            return true;
        }
    }
    if let Some(all) = OWES.get_ptr_mut(TO_ALL_USERS) {
        // SAFETY: a number in a map, which all that write to it here set to 1.
        unsafe { *all = 1 };
    }
    false
}

/// Has the user half look at the table, soon. It takes the flag back before it looks, so that what comes too late for
/// that look makes another.
#[inline(always)]
fn wake() {
    let Some(owes) = OWES.get_ptr_mut(WOKEN) else { return };
    // SAFETY: a number in a map. Two CPUs that both set it wake the user half twice.
    unsafe {
        if *owes == 0 {
            *owes = 1;
            emit::wake_for_owed();
        }
    }
}
