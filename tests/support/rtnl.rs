//! Holds the kernel's `rtnl_mutex` for as long as a test wants: then every teardown of a netns waits in `cleanup_net`
//! (net/core/net_namespace.c), and later ones queue behind it.
//!
//! The lock is global: meanwhile no interface can be created, changed or, on many kernels, listed. Only for a machine
//! that nobody else uses: [`crate::Need::OwnMachine`].
//!
//! `dev_ethtool` (net/ethtool/ioctl.c, seen on 6.1 and 6.12) copies its answer out under the lock. The answer spans
//! two pages, and the second one is registered with a userfaultfd that nobody serves: the fault waits in
//! `handle_userfault` (fs/userfaultfd.c) until the helper ends.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use crate::poll::until;
use crate::proc;
use crate::role::{self, Helper, Role, Running};

/// The held lock. Released when dropped.
#[derive(Debug)]
pub struct Held(Running);

impl Held {
    /// Takes the lock and waits until it is held.
    #[must_use]
    pub fn take() -> Self {
        let helper = Helper::new(Role::HoldRtnl).start();
        until("a thread waits under the lock", 10, || {
            proc::threads(helper.pid()).into_iter().any(|tid| {
                let stack = proc::View::of(helper.pid(), tid).map(|view| view.stack);
                stack.is_some_and(|s| s.contains("handle_userfault") && s.contains("dev_ethtool"))
            })
        });
        Self(helper)
    }

    /// Releases the lock.
    pub fn release(self) {
        self.0.end();
    }
}

/// The worker in `cleanup_net`, if there is one: its pid and state.
#[must_use]
pub fn cleanup_worker() -> Option<(u32, proc::View)> {
    let pids = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, proc::View::leader(pid)?)))
        .find(|(_, view)| view.stack.contains("cleanup_net"))
}

/// Plays [`Role::HoldRtnl`].
pub(crate) fn hold(_: &[String]) {
    let (pages, size) = two_pages().expect("map two pages");
    let fault = Unserved::register(pages + size, size).expect("register with a userfaultfd");
    std::thread::spawn(move || ask_link(pages + size - size_of::<u32>()));
    role::ready();
    while role::listen().is_some() {}
    drop(fault);
}

/// Two pages of memory, of which the first is present.
fn two_pages() -> io::Result<(usize, usize)> {
    // SAFETY: sysconf reads a constant; mmap with a null address makes a new mapping, which nothing
    // else refers to; the write goes into its first page.
    unsafe {
        let size = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let pages = libc::mmap(std::ptr::null_mut(), 2 * size, access, kind, -1, 0);
        if pages == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        pages.cast::<u32>().byte_add(size - size_of::<u32>()).write_volatile(ETHTOOL_GLINK);
        Ok((pages as usize, size))
    }
}

/// A userfaultfd that nobody serves.
struct Unserved(#[expect(dead_code, reason = "open is all it has to be")] OwnedFd);

/// `UFFDIO_API` and `struct uffdio_api` (include/uapi/linux/userfaultfd.h).
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
/// `UFFDIO_REGISTER` and `struct uffdio_register`.
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFD_API: u64 = 0xaa;
const MODE_MISSING: u64 = 1;

impl Unserved {
    fn register(start: usize, len: usize) -> io::Result<Self> {
        // SAFETY: the call takes flags alone and returns an fd that nobody else has.
        let fd = unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd as i32)
        };
        let mut api = [UFFD_API, 0, 0];
        let mut register = [start as u64, len as u64, MODE_MISSING, 0];
        for (request, argument) in
            [(UFFDIO_API, api.as_mut_ptr()), (UFFDIO_REGISTER, register.as_mut_ptr())]
        {
            // SAFETY: each request reads and writes one structure of the size that it encodes, which
            // the arrays have.
            if unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self(fd))
    }
}

/// `ETHTOOL_GLINK` (include/uapi/linux/ethtool.h): `struct ethtool_value`, two words.
const ETHTOOL_GLINK: u32 = 0xa;
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// Asks for the link state of `lo`, with the answer at `at`. Hangs.
fn ask_link(at: usize) {
    // SAFETY: all zeroes is a valid `struct ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = at as *mut libc::c_char;
    let socket = crate::sys::udp_socket().expect("a socket");
    loop {
        // SAFETY: the kernel writes eight bytes to `at`, which lie in the two pages made for it.
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
        assert!(done < 0, "the fault was served");
        // Interrupted by a signal.
        std::thread::sleep(Duration::from_millis(1));
    }
}
