//! What is there already: every netns, every task outside the host's netns, every file that keeps a
//! netns alive.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_seq_write;
use aya_ebpf::macros::{map, raw_tracepoint};
use aya_ebpf::maps::Array;
use aya_ebpf::programs::RawTracePointContext;
use aya_log_ebpf::error;
use ipwatch_common::{
    FileRecord, MISSING, Netns, TaskRecord, WALK_CHUNK, WALK_CHUNKS, WalkResult, kind,
};

use crate::emit::header;
use crate::leaving;
use crate::offsets::{
    FILE_INODE, FILE_PRIVATE, INODE_PRIVATE, INODE_SB, NET_LIST, NET_NS, NS_OPS, SB_MAGIC,
    SOCK_NET, SOCKET_SK, TASK_ARRIVAL, TASK_COMM, TASK_PARENT, TASK_SIGNAL,
};
use crate::read::{self, Addr, at, field, is_host, net_of_task};
use crate::steps::{END, NEXT, SOME, steps};
use crate::tasks::{self, PF_EXITING};

/// `include/uapi/linux/magic.h`.
const NSFS_MAGIC: u64 = 0x6e73_6673;
const SOCKFS_MAGIC: u64 = 0x534f_434b;
/// `SIGKILL` as a bit of a signal set.
const KILL_BIT: u64 = 1 << 8;
/// Steps up from the running task to the first one.
const ANCESTORS: usize = 256;
/// Offset of `prev` in `struct list_head`; `next` is at 0.
const LIST_PREV: u64 = 8;

/// What the walk found, in chunks, so that the user half reads a thousand netns with four calls.
#[map]
static WALK: Array<[Netns; WALK_CHUNK]> = Array::with_max_entries(WALK_CHUNKS as u32, 0);

#[map]
static WALK_RESULT: Array<WalkResult> = Array::with_max_entries(1, 0);

/// Where the walk is. User space takes one at a time.
#[map]
static WALK_STATE: Array<Walk> = Array::with_max_entries(1, 0);

#[repr(C)]
struct Walk {
    head: Addr,
    node: Addr,
    count: u32,
    complete: u32,
}

/// Runs by `BPF_PROG_TEST_RUN` only, never attached. It holds the RCU read lock meanwhile, under
/// which no netns of `net->list` is freed (`cleanup_net` waits for readers after it unlinks).
#[raw_tracepoint]
pub fn walk_netns(ctx: RawTracePointContext) -> i32 {
    let Some(walk) = walk() else { return 0 };
    walk.count = 0;
    walk.complete = 0;
    let init = init_net();
    if init == 0 || NET_LIST.load() == MISSING {
        error!(&ctx, "netns walk: the first task was not reached");
    } else {
        // init_net is the first entry, so that what is before it is the head.
        walk.node = init + u64::from(NET_LIST.load());
        walk.head = at(walk.node + LIST_PREV);
        take();
    }
    let result = WalkResult { count: walk.count, complete: walk.complete };
    let _ = WALK_RESULT.set(0, result, 0);
    0
}

#[inline(always)]
fn walk() -> Option<&'static mut Walk> {
    // SAFETY: of this program alone, which runs once at a time.
    WALK_STATE.get_ptr_mut(0).map(|walk| unsafe { &mut *walk })
}

// And some more, to see the end of a list that is as long as there is room.
steps!(take, walk_some, walk_step, WALK_CHUNK * WALK_CHUNKS + SOME);

/// `init_net`, through the first task: its own parent.
#[inline(always)]
fn init_net() -> Addr {
    let mut task: Addr = read::current();
    for _ in 0..ANCESTORS {
        let parent: Addr = field(task, &TASK_PARENT);
        if parent == task {
            return net_of_task(task);
        }
        task = parent;
    }
    0
}

/// One netns.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_step() -> u64 {
    let Some(walk) = walk() else { return END };
    if walk.node == walk.head {
        walk.complete = 1;
        return END;
    }
    if walk.node == 0 {
        return END;
    }
    let index = walk.count;
    let Some(chunk) = WALK.get_ptr_mut(index / WALK_CHUNK as u32) else { return END };
    let net = walk.node.wrapping_sub(u64::from(NET_LIST.load()));
    // Masked: the verifier does not follow a comparison through the shift.
    let slot = index as usize & (WALK_CHUNK - 1);
    // SAFETY: within the chunk, and user space reads only after the walk.
    unsafe { chunk.cast::<Netns>().add(slot).write(read::netns_with_refs(net)) };
    walk.count = index.wrapping_add(1);
    walk.node = at(walk.node);
    NEXT
}

/// `struct bpf_iter__task` and the begin of `struct bpf_iter__task_file`; `meta` begins with `seq`.
/// Context of an iterator: uapi in all but name, the same since 5.8.
#[repr(C)]
struct TaskIter {
    meta: *const *mut c_void,
    task: Addr,
}

#[repr(C)]
struct FileIter {
    meta: *const *mut c_void,
    task: Addr,
    fd: u64,
    file: Addr,
}

/// # Safety
/// `meta` is the first member of an iterator's context.
#[inline(always)]
unsafe fn write<T>(meta: *const *mut c_void, record: &T) {
    // The one typed pointer that is needed: `bpf_seq_write` takes nothing else. When the buffer is
    // full the kernel drops this record, reads out what is there and comes back to the same task
    // (bpf_seq_read, kernel/bpf/bpf_iter.c).
    // SAFETY: as the caller promises; the helper reads `size_of::<T>()` bytes.
    unsafe {
        let seq = *meta;
        bpf_seq_write(seq.cast(), (&raw const *record).cast_mut().cast(), size_of::<T>() as u32);
    }
}

/// Every task outside the host's netns that is not just a thread of a process in the same place. A
/// thread that exits or is killed is told in any case.
///
/// # Safety
/// Called by the kernel with the context of a task iterator.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
unsafe extern "C" fn it_task(ctx: *const TaskIter) -> i32 {
    // SAFETY: as the caller promises.
    let (meta, task) = unsafe { ((*ctx).meta, (*ctx).task) };
    if task == 0 {
        return 0;
    }
    let net = net_of_task(task);
    if net == 0 || is_host(net) {
        return 0;
    }
    let mut record: TaskRecord = tasks::record(kind::TASK_SEEN, task, read::netns(net));
    record.idle = idle(task);
    let stuck = record.flags & PF_EXITING != 0 || record.pending & KILL_BIT != 0;
    if stuck || !tasks::covered(task, net) {
        // SAFETY: `meta` is from the context.
        unsafe { write(meta, &record) };
    }
    0
}

/// Every member of a group in the table of those on their way out that still holds a netns.
///
/// # Safety
/// Called by the kernel with the context of a task iterator.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
unsafe extern "C" fn it_leaving(ctx: *const TaskIter) -> i32 {
    // SAFETY: as the caller promises.
    let (meta, task) = unsafe { ((*ctx).meta, (*ctx).task) };
    if task == 0 || !leaving::has(task, field(task, &TASK_SIGNAL)) {
        return 0;
    }
    let net = net_of_task(task);
    if net == 0 || is_host(net) {
        return 0;
    }
    let record: TaskRecord = tasks::record(kind::TASK_SEEN, task, read::netns(net));
    // SAFETY: `meta` is from the context.
    unsafe { write(meta, &record) };
    0
}

/// For how long a task has not been on a CPU. `sched_info.last_arrival` (kernel/sched/stats.h) is on the
/// scheduler's clock, which no helper tells; the task that reads this arrived a moment ago on the same
/// clock.
#[inline(always)]
fn idle(task: Addr) -> u64 {
    if TASK_ARRIVAL.load() == MISSING {
        return 0;
    }
    let reader: Addr = read::current();
    let (now, then): (u64, u64) = (field(reader, &TASK_ARRIVAL), field(task, &TASK_ARRIVAL));
    if then == 0 { 0 } else { now.saturating_sub(then) }
}

/// Every nsfs file and socket of a netns that is neither the host's nor that of its process.
///
/// # Safety
/// Called by the kernel with the context of a file iterator.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
unsafe extern "C" fn it_file(ctx: *const FileIter) -> i32 {
    // SAFETY: as the caller promises.
    let (meta, task, fd, file) = unsafe { ((*ctx).meta, (*ctx).task, (*ctx).fd, (*ctx).file) };
    if task == 0 || file == 0 {
        return 0;
    }
    let own = net_of_task(task);
    let inode: Addr = field(file, &FILE_INODE);
    let (held, socket) = match field::<u64>(field(inode, &INODE_SB), &SB_MAGIC) {
        NSFS_MAGIC => (net_of_nsfs(field(inode, &INODE_PRIVATE), own), 0),
        SOCKFS_MAGIC => (net_of_socket(field(file, &FILE_PRIVATE)), 1),
        _ => return 0,
    };
    if held == 0 || held == own || is_host(held) {
        return 0;
    }
    let record = FileRecord {
        header: header::<FileRecord>(kind::FILE_SEEN),
        netns: read::netns(held),
        pid: read::pid(task),
        fd: fd as u32,
        socket,
        reserved: 0,
        comm: field(task, &TASK_COMM),
    };
    // SAFETY: `meta` is from the context.
    unsafe { write(meta, &record) };
    0
}

/// The netns of an nsfs file, 0 for a namespace of another kind: those of a kind share their `ops`.
#[inline(always)]
fn net_of_nsfs(ns: Addr, own: Addr) -> Addr {
    if ns == 0 || own == 0 || NET_NS.load() == MISSING {
        return 0;
    }
    let offset = u64::from(NET_NS.load());
    let ops: Addr = field(ns, &NS_OPS);
    if ops == field::<Addr>(own + offset, &NS_OPS) { ns.wrapping_sub(offset) } else { 0 }
}

#[inline(always)]
fn net_of_socket(socket: Addr) -> Addr {
    match field::<Addr>(socket, &SOCKET_SK) {
        0 => 0,
        sk => field(sk, &SOCK_NET),
    }
}
