//! The few system calls for which rustix has no safe function, each in a small function.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::mount::MountPropagationFlags;
use rustix::thread::{
    CpuSet, LinkNameSpaceType, UnshareFlags, sched_getaffinity, sched_setaffinity,
};

/// `SO_NETNS_COOKIE` (`include/uapi/asm-generic/socket.h`, 5.14).
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Moves the calling thread into the netns behind `path`.
pub fn enter_netns(path: &Path) -> io::Result<()> {
    enter_netns_fd(&File::open(path)?)
}

/// Moves the calling thread into the netns behind `fd`.
pub fn enter_netns_fd(fd: &impl AsFd) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Moves the calling thread into a new netns.
pub fn unshare_netns() -> io::Result<()> {
    // SAFETY: CLONE_NEWNET leaves the file table and the memory of the process alone.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// `net->net_cookie` of the netns in which `socket` was created; `None` before 5.14.
pub fn netns_cookie(socket: &impl AsFd) -> Option<u64> {
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `cookie`, which has that many.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    (rc == 0).then_some(cookie)
}

/// Runs `work` on a separate thread, and returns when the thread has completely ended. A join returns earlier: a
/// thread wakes its joiner in `exit_mm_release` (kernel/fork.c), and releases its namespaces after that.
pub fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let joined =
        std::thread::scope(|scope| scope.spawn(|| (rustix::thread::gettid(), work())).join());
    let (tid, done) = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let task = format!("/proc/self/task/{}", tid.as_raw_nonzero());
    crate::poll::until("the thread ends", 10, || !Path::new(&task).exists());
    done
}

/// Runs `work` on one CPU, and with it the processes that it starts.
pub fn on_one_cpu<T>(work: impl FnOnce() -> T) -> T {
    let all = sched_getaffinity(None).expect("the CPUs of this thread");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("a CPU");
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).expect("stay on one CPU");
    let done = work();
    sched_setaffinity(None, &all).expect("use all CPUs again");
    done
}

/// A socket in the calling thread's netns.
pub fn udp_socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// CPU time of all processes that this one has waited for, and of those that they have waited for.
#[must_use]
pub fn cpu_of_children() -> Duration {
    // SAFETY: all zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: getrusage writes one rusage to the pointer, which is valid for it.
    let rc = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.cast_unsigned())
            + Duration::from_micros(time.tv_usec.cast_unsigned())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Sends a signal to one thread. `cgroup.kill` sends SIGKILL in the same way.
pub fn tgkill(pid: u32, tid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: tgkill takes three integers and touches no memory of ours.
    let rc = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal to a process.
pub fn kill(pid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two integers and touches no memory of ours.
    let rc = unsafe { libc::kill(pid as libc::pid_t, signal) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A thread stopped by ptrace: it does nothing, while the other threads of its process continue.
#[derive(Debug)]
pub struct Held {
    tid: u32,
}

impl Held {
    /// Stops a thread until this is dropped or the calling thread ends.
    pub fn take(tid: u32) -> io::Result<Self> {
        for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
            // SAFETY: both requests ignore their address and their data, and touch no memory of ours.
            let rc = unsafe { libc::ptrace(request, tid as libc::pid_t, 0, 0) };
            if rc != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let held = Self { tid };
        crate::poll::until("the thread stands still", 10, || held.wait().is_some());
        Ok(held)
    }

    /// The next status change, as reported by wait(2).
    fn wait(&self) -> Option<libc::c_int> {
        let mut status = 0;
        // SAFETY: the kernel writes one int to `status`.
        let rc = unsafe {
            libc::waitpid(self.tid as libc::pid_t, &raw mut status, libc::WNOHANG | libc::__WALL)
        };
        (rc > 0).then_some(status)
    }

    /// Waits for the end of its process. The tracer of a leader is notified first, its parent only after that.
    pub fn await_end(self, seconds: u32) {
        crate::poll::until("the held process ends", seconds, || {
            self.wait().is_some_and(|status| !libc::WIFSTOPPED(status))
        });
    }
}

impl Drop for Held {
    /// Continues the thread.
    fn drop(&mut self) {
        // SAFETY: the request ignores its address, sends signal 0, which is none, and touches no memory of ours.
        let _ = unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid as libc::pid_t, 0, 0) };
    }
}

/// Ends only the calling thread. If it is the leader, it stays a zombie while its other threads continue.
pub fn exit_this_thread() -> ! {
    // SAFETY: SYS_exit ends this thread only and never returns; nothing of it is used any more.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("a thread that has exited")
}

/// Ends the process at once: no destructor runs.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory.
    unsafe { libc::_exit(code) }
}

/// Submits the fsync of a file without waiting for it: a process that gives up this memory, as in `execve`, waits for
/// it (`exit_aio`, fs/aio.c; `IOCB_CMD_FSYNC` is supported since 4.18).
pub fn sync_later(file: &impl AsFd) -> io::Result<()> {
    let mut context: libc::c_ulong = 0;
    // SAFETY: the kernel writes a number to `context`.
    if unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) } != 0 {
        return Err(io::Error::last_os_error());
    }
    /// `struct iocb` (include/uapi/linux/aio_abi.h), as words: data, key and flags, opcode with priority and fd,
    /// buffer, bytes, offset, reserved, flags and the eventfd.
    const IOCB_CMD_FSYNC: u64 = 2;
    let fd = u64::from(file.as_fd().as_raw_fd().cast_unsigned());
    let mut block: [u64; 8] = [0, 0, IOCB_CMD_FSYNC | fd << 32, 0, 0, 0, 0, 0];
    let mut blocks = [&raw mut block];
    // SAFETY: one block, which the kernel copies before it returns.
    let submitted = unsafe { libc::syscall(libc::SYS_io_submit, context, 1, blocks.as_mut_ptr()) };
    if submitted == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Stops the calling thread, like the parent of a vfork, until the child has exited. The child runs `child` in a copy
/// of this memory.
pub fn vfork_like(child: impl FnOnce()) -> io::Result<()> {
    // SAFETY: without CLONE_VM the child has a copy of our memory, as after fork; the caller is
    // single-threaded, so that no lock is held by a thread that the child lacks.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone, libc::CLONE_VFORK | libc::SIGCHLD, 0_usize, 0_usize, 0, 0)
    };
    match pid {
        0 => {
            child();
            exit_now(0)
        }
        1.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the calling process write a core file of any size.
pub fn unlimit_core() -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core).maximum;
    let wanted = rustix::process::Rlimit { current: limit, maximum: limit };
    Ok(rustix::process::setrlimit(rustix::process::Resource::Core, wanted)?)
}

/// Creates a process that ends at once, and waits for its end. The caller must have one thread.
pub fn fork_and_reap() -> io::Result<()> {
    // SAFETY: the child does nothing but end; the parent waits for that child alone.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            child if child > 0 => {
                libc::waitpid(child, std::ptr::null_mut(), 0);
                Ok(())
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Restores the default action of a signal in a helper (Rust ignores SIGPIPE, and a caller may have ignored others).
pub fn default_signal(signal: i32) {
    // SAFETY: SIG_DFL installs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Disables core dumps from now on.
pub fn forbid_core() -> io::Result<()> {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    Ok(rustix::process::setrlimit(rustix::process::Resource::Core, none)?)
}

/// Makes the kernel kill the calling process for a forbidden system call.
pub fn die_by_seccomp() -> io::Result<()> {
    refuse(libc::SYS_getppid, libc::SECCOMP_RET_KILL_PROCESS)?;
    // SAFETY: it takes nothing.
    unsafe { libc::getppid() };
    Err(io::Error::other("the filter let it through"))
}

/// Applies `action` to a system call of the calling thread from now on, also after exec.
fn refuse(syscall: libc::c_long, action: u32) -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(LOAD, 0, 0, 0), // seccomp_data.nr
        step(JUMP_IF, 0, 1, syscall as u32),
        step(RETURN, 0, 0, action),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives until the call returns, and the kernel copies it.
    let rc = unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Installs a signal handler.
pub fn on_signal(signal: i32, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: the handlers passed here only store to an atomic, which is safe in a signal handler.
    unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
}

/// Moves the calling process, which must have one thread, into a new mount namespace; what is unmounted elsewhere
/// stays mounted in it.
pub fn copy_mounts() -> io::Result<()> {
    // SAFETY: CLONE_NEWNS leaves the file table and the memory of the process alone.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", private)?)
}

/// Makes this system call fail with EPERM in this process from now on, also after exec, as in a container without the
/// privilege. (Dropping CAP_BPF would not suffice: CAP_SYS_ADMIN includes it.)
pub fn forbid(call: &str) -> io::Result<()> {
    let number = match call {
        "bpf" => libc::SYS_bpf,
        "unshare" => libc::SYS_unshare,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    refuse(number, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32)
}

/// Asks the kernel to detach what holds this link, as root can ask for any link (`link_detach`, kernel/bpf/syscall.c, 5.9).
///
/// # Errors
/// There is no such link, or its kind cannot be detached by others.
pub fn detach_bpf_link(id: u32) -> io::Result<()> {
    // Of `enum bpf_cmd`, linux/bpf.h.
    const LINK_GET_FD_BY_ID: libc::c_long = 30;
    const LINK_DETACH: libc::c_long = 34;
    let call = |command: libc::c_long, word: u32| {
        // Both commands take no more than a word of 32 bits; the rest must be 0.
        let attributes = [word, 0, 0, 0];
        // SAFETY: the kernel reads as many bytes as it is told, and writes none for these commands.
        let done = unsafe {
            libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes))
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
    };
    let fd = call(LINK_GET_FD_BY_ID, id)?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just given it to us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let raw = u32::try_from(fd.as_raw_fd()).map_err(io::Error::other)?;
    call(LINK_DETACH, raw).map(drop)
}

/// Removes the limit of locked memory of a command, if this process may do that.
pub fn lock_memory(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt as _;

    use rustix::process::{Resource, Rlimit, setrlimit};
    let raise = || {
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        Ok(())
    };
    // SAFETY: between fork and exec it does one system call, and takes no lock and no memory.
    unsafe { command.pre_exec(raise) };
}

/// Sets how many files a process may have open: `None` is no limit. Returns the previous limit.
pub fn limit_files(pid: u32, most: Option<u64>) -> io::Result<Option<u64>> {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(prlimit(Some(pid), Resource::Nofile, Rlimit { current: most, maximum })?.current)
}

/// Runs a command with only these capabilities (such as `CAP_BPF`), even as root.
///
/// # Panics
/// A name is unknown.
pub fn keep_capabilities(command: &mut std::process::Command, names: &[String]) {
    use std::os::unix::process::CommandExt as _;

    use rustix::thread::CapabilitySet;
    let one = |name: &String| {
        let name = name.strip_prefix("CAP_").expect("CAP_ and a name");
        CapabilitySet::from_name(name).expect("a capability")
    };
    let keep: CapabilitySet = names.iter().map(one).collect();
    let drop = move || {
        // Root's permitted set after exec is limited by the bounding set (capabilities(7)).
        for capability in CapabilitySet::all().difference(keep).iter() {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                // A capability that this kernel does not have.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec it does system calls alone, and takes no lock and no memory.
    unsafe { command.pre_exec(drop) };
}
