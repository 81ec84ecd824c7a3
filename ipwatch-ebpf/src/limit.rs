//! How much one CPU tells in a second of what a stranger can cause at will: whoever floods a link must not
//! push addresses and tasks out of the ring buffer.

use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;

use crate::emit::suppressed;

const TOLD_PER_SECOND: u32 = 200;
const SECOND: u64 = 1_000_000_000;

/// What has a limit of its own.
#[derive(Clone, Copy)]
pub enum Window {
    Neighbours,
    Claims,
    Refused,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Told {
    since: u64,
    told: u32,
    reserved: u32,
}

#[map]
static WINDOWS: PerCpuArray<Told> = PerCpuArray::with_max_entries(3, 0);

/// Whether one more record may be told now. One that may not is counted under its kind.
#[inline(always)]
pub fn may_tell(window: Window, kind: u16) -> bool {
    let Some(told) = WINDOWS.get_ptr_mut(window as u32) else { return false };
    // SAFETY: takes nothing, reads a clock.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    // SAFETY: a value of the map that only this CPU writes to.
    let told = unsafe { &mut *told };
    if now.wrapping_sub(told.since) > SECOND {
        told.since = now;
        told.told = 0;
    }
    if told.told >= TOLD_PER_SECOND {
        suppressed(kind);
        return false;
    }
    told.told += 1;
    true
}
