//! Reading the kernel's structs.
//!
//! Everything goes through `bpf_probe_read_kernel`, typed pointer or not: one handler then serves
//! tp_btf, fentry and kprobe alike, a `void *` argument is no special case, and a pointer that went
//! stale is read as zeroes instead of faulting. A field that cannot be read, and a member that this
//! kernel does not have, is 0, and every user of a field takes 0 for "unknown".
//!
//! A kernel that is locked down to confidentiality has no such helper (`bpf_tracing_func_proto`,
//! kernel/trace/bpf_trace.c). There ([`TYPED`]) everything is loaded directly, which the verifier allows through
//! pointers whose type it knows from BTF (`check_ptr_to_btf_access`, kernel/bpf/verifier.c): arguments of tp_btf, fentry
//! and iterators, and what is reached from them without a `void *`, a map or a step back. A stale pointer gives zeroes
//! there too (`BPF_PROBE_MEM`). A program that needs more is refused, and its event falls to the next rung. The verifier
//! takes what stands in read-only data for constants, so that it does not look at the other way.

use aya_ebpf::Global;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_current_task_btf, bpf_probe_read_kernel,
};
use ipwatch_common::{MISSING, Netns};

use crate::offsets::{
    DEVICE_INDEX, DEVICE_NET, HOST_INODE, NET_COOKIE, NET_INODE, NET_REFS, NSPROXY_NET, OWN_PID_NS,
    PID_LEVEL, PID_NS_INODE, PID_NUMBERS, TASK_LEADER, TASK_NSPROXY, TASK_PID, TASK_TGID,
    TASK_THREAD_PID, TYPED, UPID_NS,
};

/// An address in kernel memory. It is a number: nothing here dereferences one.
pub type Addr = u64;

/// A value that is valid for any bytes.
///
/// # Safety
/// Every bit pattern is a `Self`, and it has no padding.
pub unsafe trait Plain: Copy {
    const ZERO: Self;
}

macro_rules! plain {
    ($($number:ty),*) => {$(
        // SAFETY: an integer.
        unsafe impl Plain for $number {
            const ZERO: Self = 0;
        }
    )*};
}

plain!(u8, u16, u32, u64);

// SAFETY: bytes.
unsafe impl<const N: usize> Plain for [u8; N] {
    const ZERO: Self = [0; N];
}

/// The `T` at `addr`, or zeroes.
#[inline(always)]
pub fn at<T: Plain>(addr: Addr) -> T {
    if TYPED.load() != 0 {
        // SAFETY: the verifier lets this load pass only where the address is that of a member of this size, and a member
        // is aligned as its type. Any bytes are a `T`.
        return unsafe { core::ptr::read_volatile(addr as *const T) };
    }
    let mut value = T::ZERO;
    // SAFETY: the helper writes exactly `size_of::<T>()` bytes to `value`, which are any `T`: those
    // at `addr`, or zeroes when that faults (bpf_probe_read_kernel_common in
    // kernel/trace/bpf_trace.c).
    unsafe {
        bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, addr as *const _);
    }
    value
}

/// The member at `offset` of the struct at `base`, or zeroes.
#[inline(always)]
pub fn field<T: Plain>(base: Addr, offset: &Global<u32>) -> T {
    match offset.load() {
        MISSING => T::ZERO,
        offset => at(base.wrapping_add(u64::from(offset))),
    }
}

/// The running task, with its type where that is needed.
#[inline(always)]
pub fn current() -> Addr {
    // SAFETY: takes nothing.
    unsafe {
        if TYPED.load() == 0 { bpf_get_current_task() } else { bpf_get_current_task_btf() as Addr }
    }
}

/// The netns of a task; 0 for one that has given its namespaces up.
#[inline(always)]
pub fn net_of_task(task: Addr) -> Addr {
    match field::<u64>(task, &TASK_NSPROXY) {
        0 => 0,
        nsproxy => field(nsproxy, &NSPROXY_NET),
    }
}

/// The netns of a device.
#[inline(always)]
pub fn net_of_device(device: Addr) -> Addr {
    field(device, &DEVICE_NET)
}

/// The index of a device.
#[inline(always)]
pub fn index_of_device(device: Addr) -> u32 {
    field(device, &DEVICE_INDEX)
}

/// Whether this is the host's netns.
#[inline(always)]
pub fn is_host(net: Addr) -> bool {
    field::<u32>(net, &NET_INODE) == HOST_INODE.load()
}

/// The names of a netns, without its references.
#[inline(always)]
pub fn netns(net: Addr) -> Netns {
    Netns { cookie: field(net, &NET_COOKIE), inode: field(net, &NET_INODE), refs: MISSING }
}

/// The names of a netns and its references.
#[inline(always)]
pub fn netns_with_refs(net: Addr) -> Netns {
    let refs = match NET_REFS.load() {
        MISSING => MISSING,
        _ => field(net, &NET_REFS),
    };
    Netns { refs, ..netns(net) }
}

/// Pid namespaces around the daemon's own that are gone through: kind within a container within a virtual machine's is
/// two. The kernel allows 32 (`MAX_PID_NS_LEVEL`).
const DEEPEST: u64 = 6;

/// `sizeof(struct upid)`: a number and a pointer.
const UPID: u64 = 16;

/// The number of a thread in the daemon's own pid namespace; 0 for one that does not show there.
#[inline(always)]
pub fn tid(task: Addr) -> u32 {
    match OWN_PID_NS.load() {
        0 => field(task, &TASK_PID),
        own => number(task, own),
    }
}

/// The same of its process.
#[inline(always)]
pub fn pid(task: Addr) -> u32 {
    match OWN_PID_NS.load() {
        0 => field(task, &TASK_TGID),
        own => number(field(task, &TASK_LEADER), own),
    }
}

/// Whether a task is in the daemon's own pid namespace itself, not in one within it.
#[inline(always)]
pub fn is_beside_us(task: Addr) -> bool {
    let of: Addr = field(task, &TASK_THREAD_PID);
    let level: u32 = field(of, &PID_LEVEL);
    match OWN_PID_NS.load() {
        0 => level == 0,
        own => namespace(of, u64::from(level)) == own,
    }
}

/// `upid->nr` at the level whose namespace is `own` (`pid_nr_ns`, kernel/pid.c, seen from user space's side: the level
/// of its own namespace nobody tells it). A function of its own: made part of every program that names a task, it
/// would double the object.
#[inline(never)]
fn number(task: Addr, own: u32) -> u32 {
    let of: Addr = field(task, &TASK_THREAD_PID);
    let deepest = u64::from(field::<u32>(of, &PID_LEVEL));
    if of == 0 || PID_NUMBERS.load() == MISSING {
        return 0;
    }
    let mut level = 1;
    while level <= DEEPEST {
        if level <= deepest && namespace(of, level) == own {
            return at(numbers(of, level));
        }
        level += 1;
    }
    0
}

/// The inode of the pid namespace of a pid at a level.
#[inline(always)]
fn namespace(of: Addr, level: u64) -> u32 {
    field(field::<Addr>(numbers(of, level), &UPID_NS), &PID_NS_INODE)
}

#[inline(always)]
fn numbers(of: Addr, level: u64) -> Addr {
    of.wrapping_add(u64::from(PID_NUMBERS.load())).wrapping_add(level.wrapping_mul(UPID))
}
