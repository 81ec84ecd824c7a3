//! Runs of CNI plugins: what each was asked to do, and how it ended.
//!
//! A program is a plugin when the path that it is run by, or the file itself, lies in one of the
//! directories that the user half names ([`DIRS`]). Both are looked at: a plugin may be a link to
//! somewhere else, or a script, whose file is its interpreter; and a directory goes by many paths.
//!
//! Its environment is read here and now: a plugin may be gone two milliseconds later, long before the
//! user half gets to look. It was written to the stack within this very exec, so that its pages are
//! there. The environment of a runtime holds credentials: it is gone through entry by entry in memory
//! that never leaves the kernel, and nothing but the values of five variables and, of `CNI_ARGS`,
//! three keys gets into the record.
//!
//! Anybody can run a plugin and write what they like into its environment. A run counts only where it can
//! do what plugins do: by root of the first user namespace, with CAP_NET_ADMIN or CAP_SYS_ADMIN there
//! (without either nobody enters a netns or changes one). That is the user namespace of the netns and of the
//! stores that are watched; what root of another one says would at most concern that one's own, and nothing
//! of it is kept. Of any other run only the fact is told, and none takes a place in [`RUNNING`]. Whether
//! others can change the plugin is told beside the run ([`CallRecord::loose`]).

use aya_ebpf::helpers::generated::{
    bpf_get_current_pid_tgid, bpf_probe_read_kernel, bpf_probe_read_kernel_str,
    bpf_probe_read_user_str,
};
use aya_ebpf::macros::{btf_tracepoint, map, raw_tracepoint};
use aya_ebpf::maps::{HashMap, PerCpuArray};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use ipwatch_common::{
    CallEndRecord, CallKey, CallRecord, CallRefusedRecord, DirKey, LONGEST_PATH, MOST_DIRS,
    MOST_UNTOLD, PATH_KEY, PATH_SEED, kind, path_step,
};

use crate::emit::{dropped, emit_call, header, look, suppressed};
use crate::limit::{Class, admits_user};
use crate::offsets::{
    BPRM_FILE, BPRM_FILENAME, BPRM_INTERP, CRED_EFFECTIVE, CRED_UID, CRED_USER_NS, DENTRY_INODE,
    DENTRY_PARENT, FILE_DENTRY, INODE_MODE, INODE_NUMBER, INODE_SB, INODE_UID, MM_ENV_END,
    MM_ENV_START, SB_DEV, SIGNAL_EXIT_CODE, SIGNAL_FLAGS, SIGNAL_LIVE, TASK_CRED, TASK_EXIT_CODE,
    TASK_LEADER, TASK_MM, TASK_PARENT, TASK_SIGNAL, TASK_START, TASK_TGID, USER_NS_LEVEL,
};
use crate::read::{self, Addr, at, field};
use crate::steps::{END, NEXT, steps};

/// `include/linux/sched/signal.h`: the exit code is the whole group's.
const SIGNAL_GROUP_EXIT: u32 = 0x4;
/// `include/uapi/asm-generic/errno-base.h`.
const ENOENT: i32 = -2;
/// Bytes of an entry that are read at a time.
const CHUNK: usize = 256;
/// Readings of one environment: some thousand variables.
const READINGS: usize = 4096;
/// Longest `CNI_ARGS` that is taken apart.
const ARGS: usize = 4096;
/// `CAP_NET_ADMIN` and `CAP_SYS_ADMIN` of include/uapi/linux/capability.h, as bits.
const ADMIN: u64 = 1 << 12 | 1 << 21;
/// Directories above a plugin that are looked at, in its file system.
const DEEPEST: usize = 64;
/// `include/uapi/linux/stat.h`: the type, a directory, the sticky bit, writable by the group or by others.
const S_IFMT: u16 = 0o170_000;
const S_IFDIR: u16 = 0o040_000;
const S_ISVTX: u16 = 0o1000;
const S_IWGO: u16 = 0o022;

/// The directories of plugins. The user half fills it.
#[map]
static DIRS: HashMap<DirKey, u8> = HashMap::with_max_entries(MOST_DIRS, 0);

/// Plugins that run: their process, and its `start_boottime`. Allocated beforehand: under memory
/// pressure an entry could not be had, and the end of its call would go unseen.
#[map]
static RUNNING: HashMap<u32, u64> = HashMap::with_max_entries(4096, 0);

/// Ends that found no room in the ring buffer, by start and process: the user half takes them from here.
#[map]
static UNTOLD: HashMap<CallKey, CallEndRecord> = HashMap::with_max_entries(MOST_UNTOLD, 0);

/// Where an environment is taken apart. A tracepoint's program is not preempted by itself: the
/// kernel then skips the second run and counts it (`bpf_prog_enter_recur`).
#[map]
static SCAN: PerCpuArray<Scan> = PerCpuArray::with_max_entries(1, 0);

#[repr(C)]
struct Scan {
    /// Where the next reading begins, in the plugin's memory.
    at: Addr,
    /// End of the environment.
    end: Addr,
    /// Value of `CNI_ARGS`; 0 while it was not met.
    args_at: Addr,
    /// The next reading begins within an entry.
    inside: u32,
    /// Which variables were met. The first of a name counts, as for `getenv`.
    met: u32,
    /// Where the walk through `args` has come to.
    byte: u32,
    /// Where the pair begins that it is in.
    pair: u32,
    /// `CNI_ARGS` is longer than `args`: its last pair is not whole.
    cut: u32,
    reserved: u32,
    /// The entry that the way up from the plugin's file has come to.
    dentry: Addr,
    chunk: [u8; CHUNK],
    args: [u8; ARGS],
    record: CallRecord,
}

/// The variables, as bits of [`Scan::met`].
const COMMAND: u32 = 1;
const CONTAINER: u32 = 2;
const NETNS: u32 = 4;
const IFNAME: u32 = 8;
const CNI_ARGS: u32 = 16;
const ALL: u32 = 31;

#[inline(always)]
fn scan() -> Option<&'static mut Scan> {
    // SAFETY: this CPU's own, and no other program uses it.
    SCAN.get_ptr_mut(0).map(|scan| unsafe { &mut *scan })
}

/// `sched_process_exec(task, old_pid, bprm)`.
#[inline(always)]
fn begin(task: Addr, bprm: Addr) {
    // Of a container's own plugins nothing is taken: they are of a cluster within it, or a lie. Who runs
    // the node's is in its pid namespace, which is the daemon's own: the first, or that of a node which is itself a
    // container.
    if !read::is_beside_us(task) {
        return;
    }
    let Some(scan) = scan() else { return };
    // Of an earlier call nothing may be left: a read of what is not there gives zeroes.
    // SAFETY: the helper writes exactly a record, which is any bytes.
    unsafe {
        let size = size_of::<CallRecord>() as u32;
        bpf_probe_read_kernel((&raw mut scan.record).cast(), size, core::ptr::null());
    }
    let filename: Addr = field(bprm, &BPRM_FILENAME);
    // SAFETY: the helper writes at most the field.
    unsafe {
        let to = (&raw mut scan.record.plugin).cast();
        bpf_probe_read_kernel_str(to, LONGEST_PATH as u32, filename as *const _);
    }
    if !is_named(directory(&scan.record.plugin)) && !is_named(directory_of_file(bprm)) {
        return;
    }
    let pid: u32 = field(task, &TASK_TGID);
    let start: u64 = field(task, &TASK_START);
    // SAFETY: copied at once.
    if unsafe { RUNNING.get(&pid) }.copied() == Some(start) {
        // A plugin that is a wrapper becomes the one that it wraps: one call.
        return;
    }
    let mm: Addr = field(task, &TASK_MM);
    scan.at = field(mm, &MM_ENV_START);
    scan.end = field(mm, &MM_ENV_END);
    scan.args_at = 0;
    scan.inside = 0;
    scan.met = 0;
    read_environment();
    if scan.met & COMMAND == 0 {
        return;
    }
    let cred: Addr = field(task, &TASK_CRED);
    if !may_speak(cred) {
        refuse(read::pid(task), field(cred, &CRED_UID));
        return;
    }
    pod(scan);
    scan.dentry = dentry_of_file(bprm);
    // Until the way up has come to its end.
    scan.record.loose = 1;
    climb();
    // One text for both, but for a script (`bprm_change_interp`).
    scan.record.script = u32::from(field::<u64>(bprm, &BPRM_INTERP) != filename);
    let parent: Addr = field(task, &TASK_PARENT);
    scan.record.header = header::<CallRecord>(kind::CALL_BEGAN);
    scan.record.pid = read::pid(task);
    scan.record.parent = read::pid(parent);
    scan.record.start = start;
    if RUNNING.insert(pid, start, 0).is_err() {
        // No room: its end will not be told.
        dropped(kind::CALL_ENDED);
    }
    if !emit_call(&scan.record) {
        dropped(kind::CALL_BEGAN);
    }
}

/// Whether the word of whoever has these credentials counts. What cannot be read does not.
#[inline(always)]
fn may_speak(cred: Addr) -> bool {
    let user_ns: Addr = field(cred, &CRED_USER_NS);
    user_ns != 0
        && field::<u32>(user_ns, &USER_NS_LEVEL) == 0
        && field::<u32>(cred, &CRED_UID) == 0
        && field::<u64>(cred, &CRED_EFFECTIVE) & ADMIN != 0
}

/// Tells of a run that does not count, unless its user has too many of them.
#[inline(always)]
fn refuse(pid: u32, uid: u32) {
    if !admits_user(Class::Refused, kind::CALL_REFUSED, uid) {
        return;
    }
    let header = header::<CallRefusedRecord>(kind::CALL_REFUSED);
    if !emit_call(&CallRefusedRecord { header, pid, uid }) {
        suppressed(kind::CALL_REFUSED);
    }
}

steps!(climb, calls_above_some, calls_above, DEEPEST);

/// One step up from the plugin's file.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn calls_above() -> u64 {
    let Some(scan) = scan() else { return END };
    let inode: Addr = field(scan.dentry, &DENTRY_INODE);
    let mode: u16 = field(inode, &INODE_MODE);
    // In a sticky directory nobody but its owner and root replaces what is root's (`may_delete`).
    let sticky = mode & S_IFMT == S_IFDIR && mode & S_ISVTX != 0;
    let shared = mode & S_IWGO != 0 && !sticky;
    // No mode: it could not be read.
    if mode & S_IFMT == 0 || shared || field::<u32>(inode, &INODE_UID) != 0 {
        return END;
    }
    let parent: Addr = field(scan.dentry, &DENTRY_PARENT);
    if parent == scan.dentry {
        scan.record.loose = 0;
        return END;
    }
    scan.dentry = parent;
    NEXT
}

#[inline(always)]
fn is_named(directory: DirKey) -> bool {
    DIRS.get_ptr(&directory).is_some()
}

/// Of the path's directory.
#[inline(always)]
fn directory(path: &[u8; LONGEST_PATH]) -> DirKey {
    let mut key = PATH_SEED;
    let mut directory = 0;
    for byte in path {
        if *byte == 0 {
            break;
        }
        if *byte == b'/' {
            directory = key;
        }
        key = path_step(key, *byte);
    }
    [PATH_KEY, directory]
}

/// Of the directory in which the file lies after every link. A kernel without one of these members has
/// no directory 0:0.
#[inline(always)]
fn directory_of_file(bprm: Addr) -> DirKey {
    let parent: Addr = field(dentry_of_file(bprm), &DENTRY_PARENT);
    let inode: Addr = field(parent, &DENTRY_INODE);
    let super_block: Addr = field(inode, &INODE_SB);
    [u64::from(field::<u32>(super_block, &SB_DEV)), field(inode, &INODE_NUMBER)]
}

#[inline(always)]
fn dentry_of_file(bprm: Addr) -> Addr {
    let file: Addr = field(bprm, &BPRM_FILE);
    field(file, &FILE_DENTRY)
}

steps!(read_environment, calls_entry_some, calls_entry, READINGS);

/// One reading of the environment.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn calls_entry() -> u64 {
    let Some(scan) = scan() else { return END };
    if scan.at >= scan.end || scan.met == ALL {
        return END;
    }
    let from = scan.at;
    // SAFETY: the helper writes at most `CHUNK` bytes. It counts the NUL.
    let read = unsafe {
        bpf_probe_read_user_str((&raw mut scan.chunk).cast(), CHUNK as u32, from as *const _)
    };
    if read <= 0 {
        return END;
    }
    let begins = scan.inside == 0;
    // A chunk that is full may end within its entry. If it did not, the next one is empty and ends it.
    let full = read >= CHUNK as i64;
    scan.inside = u32::from(full);
    scan.at = from + if full { CHUNK as u64 - 1 } else { read as u64 };
    if begins {
        variable(scan, from);
    }
    NEXT
}

macro_rules! variables {
    ($scan:ident, $from:ident, $($name:literal: $bit:ident => $field:ident,)*) => {$(
        if $scan.met & $bit == 0 && starts_with(&$scan.chunk, $name) {
            $scan.met |= $bit;
            let value = $from + $name.len() as u64;
            let to = &raw mut $scan.record.$field;
            // SAFETY: the helper writes at most the field.
            unsafe {
                bpf_probe_read_user_str(to.cast(), field_len(to) as u32, value as *const _);
            }
            return;
        }
    )*};
}

const fn field_len<const N: usize>(_: *const [u8; N]) -> usize {
    N
}

/// Takes the value of the entry at `from`, which `chunk` begins with, if it is one of ours.
#[inline(always)]
fn variable(scan: &mut Scan, from: Addr) {
    if !starts_with(&scan.chunk, b"CNI_") {
        return;
    }
    variables!(scan, from,
        b"CNI_COMMAND=": COMMAND => command,
        b"CNI_CONTAINERID=": CONTAINER => container_id,
        b"CNI_NETNS=": NETNS => netns_path,
        b"CNI_IFNAME=": IFNAME => ifname,
    );
    if scan.met & CNI_ARGS == 0 && starts_with(&scan.chunk, b"CNI_ARGS=") {
        scan.met |= CNI_ARGS;
        scan.args_at = from + 9;
    }
}

/// Without a branch for each byte, of which the verifier would follow every combination.
#[inline(always)]
fn starts_with<const N: usize, const M: usize>(text: &[u8; M], word: &[u8; N]) -> bool {
    let mut differ = 0;
    let mut index = 0;
    while index < N {
        differ |= text[index] ^ word[index];
        index += 1;
    }
    differ == 0
}

/// Takes the pod's names out of `CNI_ARGS`: pairs of a key and a value, joined by semicolons.
#[inline(always)]
fn pod(scan: &mut Scan) {
    if scan.args_at == 0 {
        return;
    }
    // SAFETY: the helper writes at most `args`. It counts the NUL.
    let read = unsafe {
        let to = (&raw mut scan.args).cast();
        bpf_probe_read_user_str(to, ARGS as u32, scan.args_at as *const _)
    };
    if read <= 0 {
        return;
    }
    scan.byte = 0;
    scan.pair = 0;
    scan.cut = u32::from(read >= ARGS as i64);
    read_arguments();
}

steps!(read_arguments, calls_argument_some, calls_argument, ARGS);

/// One byte of `CNI_ARGS`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn calls_argument() -> u64 {
    let Some(scan) = scan() else { return END };
    let index = scan.byte;
    scan.byte = index.wrapping_add(1);
    let byte = scan.args[index as usize & (ARGS - 1)];
    if byte != 0 && byte != b';' {
        return NEXT;
    }
    if byte == b';' || scan.cut == 0 {
        pair(scan, u64::from(index));
    }
    scan.pair = index.wrapping_add(1);
    if byte == 0 { END } else { NEXT }
}

macro_rules! keys {
    ($scan:ident, $key:ident, $base:ident, $length:ident, $($name:literal: $most:literal => $field:ident,)*) => {$(
        if starts_with(&$key, $name) && $scan.record.$field[0] == 0 {
            let length = $length.wrapping_sub($name.len() as u64);
            // Longer than Kubernetes allows: none rather than a part.
            if length <= $most {
                let to = (&raw mut $scan.record.$field).cast();
                let from = $base.wrapping_add($name.len() as u64);
                // SAFETY: the helper writes at most `$most` bytes, which are fewer than the field.
                unsafe {
                    bpf_probe_read_kernel(to, (length & $most) as u32, from as *const _);
                }
            }
            return;
        }
    )*};
}

/// Takes the value of the pair that ends before `end`, if it is one of ours.
#[inline(always)]
fn pair(scan: &mut Scan, end: u64) {
    let length = end.wrapping_sub(u64::from(scan.pair));
    let base = (&raw const scan.args as u64).wrapping_add(u64::from(scan.pair));
    let key: [u8; 18] = at(base);
    keys!(scan, key, base, length,
        b"K8S_POD_NAMESPACE=": 63 => pod_namespace,
        b"K8S_POD_NAME=": 255 => pod_name,
        b"K8S_POD_UID=": 63 => pod_uid,
    );
}

/// `sched_process_exit(task)`, told once the last of its threads is leaving. What `wait` gives is what
/// counts (`wait_task_zombie`, kernel/exit.c).
#[inline(always)]
fn end(task: Addr) {
    // SAFETY: takes nothing.
    let pid = (unsafe { bpf_get_current_pid_tgid() } >> 32) as u32;
    // SAFETY: copied at once.
    let Some(start) = unsafe { RUNNING.get(&pid) }.copied() else { return };
    let signal: Addr = field(task, &TASK_SIGNAL);
    // `live` no longer counts this task: do_exit() takes it off before the tracepoint.
    if field::<u32>(signal, &SIGNAL_LIVE) != 0 {
        return;
    }
    // Two threads that leave at once may both be the last. Another error than that it is gone is about
    // the map's lock.
    if RUNNING.remove(&pid) == Err(ENOENT) {
        return;
    }
    let leader: Addr = field(task, &TASK_LEADER);
    if field::<u64>(leader, &TASK_START) == start {
        tell_end(leader, signal, pid, start);
    }
}

#[inline(always)]
fn tell_end(leader: Addr, signal: Addr, pid: u32, start: u64) {
    let group = field::<u32>(signal, &SIGNAL_FLAGS) & SIGNAL_GROUP_EXIT != 0;
    let code =
        if group { field(signal, &SIGNAL_EXIT_CODE) } else { field(leader, &TASK_EXIT_CODE) };
    let header = header::<CallEndRecord>(kind::CALL_ENDED);
    let record = CallEndRecord { header, pid: read::pid(leader), code, start };
    if emit_call(&record) {
        return;
    }
    if UNTOLD.insert([start, u64::from(pid)], record, 0).is_ok() {
        look();
    } else {
        dropped(kind::CALL_ENDED);
    }
}

#[btf_tracepoint]
pub fn tp_call(ctx: BtfTracePointContext) -> i32 {
    begin(ctx.arg(0), ctx.arg(2));
    0
}

#[raw_tracepoint]
pub fn rt_call(ctx: RawTracePointContext) -> i32 {
    begin(ctx.arg(0), ctx.arg(2));
    0
}

#[btf_tracepoint]
pub fn tp_call_end(ctx: BtfTracePointContext) -> i32 {
    end(ctx.arg(0));
    0
}

#[raw_tracepoint]
pub fn rt_call_end(ctx: RawTracePointContext) -> i32 {
    end(ctx.arg(0));
    0
}
