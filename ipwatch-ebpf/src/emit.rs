//! The way out: the ring buffers, and the count of what did not fit.

use aya_ebpf::bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, PerCpuArray, RingBuf};
use ipwatch_common::{Header, Netns, kind};

use crate::owed::{self, What};

/// Netns, addresses and devices. The user half sets its size at load.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Neighbour entries, and claims of IPs: whoever sends on a link causes them, and what floods it must not cost an
/// address. The user half sets its size too.
#[map]
static NEIGHBOURS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Runs of CNI plugins. Nothing tells of one again, so that what floods [`EVENTS`] must not cost one. The
/// user half sets its size too.
#[map]
static CALLS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Tasks. What floods it must not cost an address. The user half sets its size too.
#[map]
static TASKS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// 1 while the user half has been woken and has not looked at the tables of tasks since.
#[map]
static ROUSED: Array<u32> = Array::with_max_entries(1, 0);

/// Events of tasks that were seen, by kind: most of them make no record.
#[map]
static SEEN: PerCpuArray<u64> = PerCpuArray::with_max_entries(kind::COUNT as u32, 0);

/// Grows when a record did not fit: the user half looks further only then. It grows after what there is
/// to find.
#[map]
static DROPS: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Records that did not fit, by kind.
#[map]
static DROPPED: PerCpuArray<u64> = PerCpuArray::with_max_entries(kind::COUNT as u32, 0);

/// Records that did not fit, by kind, whose netns the user half is told to read again.
#[map]
static OVERRUN: PerCpuArray<u64> = PerCpuArray::with_max_entries(kind::COUNT as u32, 0);

/// Records that were held back, by kind: see `limit`.
#[map]
static SUPPRESSED: PerCpuArray<u64> = PerCpuArray::with_max_entries(kind::COUNT as u32, 0);

/// The header of a `T`, with the time of the event, which is now.
#[inline(always)]
pub fn header<T>(kind: u16) -> Header {
    // SAFETY: takes nothing, reads a clock.
    let time = unsafe { bpf_ktime_get_boot_ns() };
    Header { kind, size: size_of::<T>() as u16, reserved: 0, time }
}

/// Hands a record of a netns to the user half. One that did not fit is counted.
#[inline(always)]
pub fn emit<T>(kind: u16, record: &T) {
    if EVENTS.output::<T>(record, 0).is_err() {
        dropped(kind);
    }
}

/// Hands a record of what is in these netns to the user half. If it did not fit, they are read again. With each netns comes
/// the kind as [`owed::of`] makes it.
#[inline(always)]
pub fn emit_within<T, const N: usize>(kind: u16, record: &T, within: [(&Netns, u16); N]) {
    if EVENTS.output::<T>(record, 0).is_err() {
        count(&OVERRUN, u32::from(kind));
        for (netns, owed) in within {
            owed::owe(netns, What::Overrun, owed);
        }
        look();
    }
}

/// Hands a record of a neighbour entry or of a claim to the user half. Whether it fitted; one that did not is counted.
#[inline(always)]
pub fn emit_neighbour<T>(kind: u16, record: &T) -> bool {
    let fitted = NEIGHBOURS.output::<T>(record, 0).is_ok();
    if !fitted {
        dropped(kind);
    }
    fitted
}

/// Has the user half look at the table of what is owed.
#[inline(always)]
pub fn wake_for_owed() {
    let record = header::<Header>(kind::OWED);
    if EVENTS.output::<Header>(&record, 0).is_err() {
        // There is something to read, so that it is awake.
        look();
    }
}

/// When the user half is to read a record of [`emit_task`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At once.
    Now,
    /// With the next look at the tables, which [`rouse`] makes it take.
    Soon,
}

/// Hands a record of a task to the user half; one that did not fit is counted.
#[inline(always)]
pub fn emit_task<T>(kind: u16, record: &T, when: When) {
    let flags = if when == When::Now { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    if TASKS.output::<T>(record, u64::from(flags)).is_err() {
        dropped(kind);
    }
    if when == When::Soon {
        rouse();
    }
}

/// Has the user half look at the tables of tasks, soon. It is woken once, however many events there are until then;
/// it takes the flag back before it looks, so that what comes too late for that look makes another.
#[inline(always)]
pub fn rouse() {
    let Some(roused) = ROUSED.get_ptr_mut(0) else { return };
    // SAFETY: a number in a map. Two CPUs that both set it wake the user half twice.
    unsafe {
        if *roused == 0 {
            *roused = 1;
            let record = header::<Header>(kind::ROUSE);
            // Where there is no room there is something to read, and it is awake.
            let _ = TASKS.output::<Header>(&record, u64::from(BPF_RB_FORCE_WAKEUP));
        }
    }
}

/// Counts an event of a task.
#[inline(always)]
pub fn seen(kind: u16) {
    count(&SEEN, u32::from(kind));
}

/// Hands a record of a plugin's run to the user half. Whether it fitted: what happens to one that did
/// not is the caller's.
#[inline(always)]
pub fn emit_call<T>(record: &T) -> bool {
    CALLS.output::<T>(record, 0).is_ok()
}

/// Counts a record that will never be.
#[inline(always)]
pub fn dropped(kind: u16) {
    count(&DROPPED, u32::from(kind));
    look();
}

/// Makes the user half look at what did not fit.
#[inline(always)]
pub fn look() {
    count(&DROPS, 0);
}

/// Counts a record that is held back.
#[inline(always)]
pub fn suppressed(kind: u16) {
    count(&SUPPRESSED, u32::from(kind));
}

#[inline(always)]
fn count(counters: &PerCpuArray<u64>, index: u32) {
    if let Some(counter) = counters.get_ptr_mut(index) {
        // SAFETY: a value of the map that only this CPU writes to.
        unsafe { *counter = (*counter).wrapping_add(1) };
    }
}
