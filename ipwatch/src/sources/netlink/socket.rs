//! One netlink socket: how it is created, and a receive that returns the nsid.
//!
//! netlink-sys, netlink-proto and rtnetlink drop the control message that says which netns a message came from, and
//! rtnetlink never enables strict checking. Therefore this file calls `recvmsg` itself.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt,
};

/// In bytes, more than any message: a dump fills at most 32 KiB (`netlink_dump`, af_netlink.c), and the largest single
/// message is a link with many virtual functions.
pub(super) const BUFFER: usize = 64 * 1024;

/// A NETLINK_ROUTE or NETLINK_SOCK_DIAG socket.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

/// The result of one `recvmsg`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// Length of the datagram in bytes: one or more netlink messages.
    pub(super) len: usize,
    /// The netns of the sender, in the numbering of this socket's netns. `None`: this netns itself, unless it has an
    /// nsid in itself.
    pub(super) nsid: Option<i32>,
    /// The datagram was longer than the buffer.
    pub(super) truncated: bool,
    /// Whether the kernel sent it, and not another process.
    pub(super) from_kernel: bool,
}

impl Socket {
    /// Opens and binds a NETLINK_ROUTE socket in the calling thread's netns. An unbound socket, or one bound after it
    /// joined its groups, receives nothing (`netlink_bind` with `nl_groups` 0 leaves all groups).
    pub(super) fn open(flags: SocketFlags) -> io::Result<Self> {
        Self::of(None, flags) // NETLINK_ROUTE is 0
    }

    /// A socket on which every operation fails.
    #[cfg(test)]
    pub(super) fn broken() -> Self {
        Self(std::fs::File::open("/dev/null").unwrap().into())
    }

    /// As [`open`](Self::open), for NETLINK_SOCK_DIAG.
    pub(super) fn diag() -> io::Result<Self> {
        Self::of(Some(netlink::SOCK_DIAG), SocketFlags::empty())
    }

    fn of(protocol: Option<Protocol>, flags: SocketFlags) -> io::Result<Self> {
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | flags,
            protocol,
        )?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(fd))
    }

    /// Enables strict checking of dump requests. Returns whether the kernel supports it (4.20+). Without it, the kernel
    /// silently ignores `IFA_TARGET_NETNSID` and dumps the wrong netns.
    pub(super) fn strict(&self) -> io::Result<bool> {
        offered(self.set_option(libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, 1))
    }

    /// Receives the messages of every netns that has an nsid here. Needs CAP_NET_BROADCAST.
    pub(super) fn listen_all_nsid(&self) -> io::Result<()> {
        self.set_option(libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID, 1)
    }

    pub(super) fn join(&self, group: u32) -> io::Result<()> {
        self.set_option(libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group as libc::c_int)
    }

    /// Attaches a classic BPF program; datagrams that it does not pass are never queued.
    pub(super) fn filter(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // The kernel only reads it.
        let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
        // SAFETY: a live sock_fprog whose `len` instructions are live too.
        let rc = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sets the receive buffer to `bytes`, beyond `net.core.rmem_max` if permitted (CAP_NET_ADMIN). Returns whether
    /// that was permitted.
    pub(super) fn receive_buffer(&self, bytes: usize) -> io::Result<bool> {
        if sockopt::set_socket_recv_buffer_size_force(&self.0, bytes).is_ok() {
            return Ok(true);
        }
        sockopt::set_socket_recv_buffer_size(&self.0, bytes)?;
        Ok(false)
    }

    /// Sets the timeout of a blocking receive.
    pub(super) fn receive_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(timeout))?)
    }

    /// Sends one request to the kernel.
    pub(super) fn send(&self, request: &[u8]) -> io::Result<()> {
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.0, request, SendFlags::empty(), &kernel)?;
        Ok(())
    }

    /// Receives one datagram and its nsid.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        // A cmsghdr and an int, which take 24 bytes; u64 for the alignment of cmsghdr.
        let mut control = [0u64; 8];
        let mut from = MaybeUninit::<libc::sockaddr_nl>::zeroed();
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: msghdr is plain data, for which zeroes are valid.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_name = from.as_mut_ptr().cast();
        header.msg_namelen = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control) as _;
        // SAFETY: every pointer in `header` is to a live local whose length is given beside it.
        let len = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut header, libc::MSG_TRUNC) };
        let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
        // SAFETY: zeroed above, and the kernel wrote a sockaddr_nl or nothing.
        let from = unsafe { from.assume_init() };
        Ok(Received {
            len: len.min(buffer.len()),
            nsid: nsid(&header),
            truncated: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
            from_kernel: from.nl_pid == 0,
        })
    }

    /// Number of datagrams dropped for want of room since the socket was opened: word 8 of SO_MEMINFO (4.12+).
    pub(super) fn dropped(&self) -> io::Result<u32> {
        const DROPS: usize = 8; // SK_MEMINFO_DROPS, linux/sock_diag.h
        let words: [u32; DROPS + 1] = self.option(libc::SOL_SOCKET, libc::SO_MEMINFO)?;
        Ok(words[DROPS])
    }

    /// The cookie of the netns in which this socket was created (5.14+; 5.12 only for TCP and UDP).
    pub(super) fn netns_cookie(&self) -> io::Result<u64> {
        self.option(libc::SOL_SOCKET, libc::SO_NETNS_COOKIE)
    }

    /// Discards what is queued, without blocking.
    pub(super) fn discard(&self) {
        let mut none = [0u8; 0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        // Any error except EAGAIN, such as that of an overrun, is discarded as well.
        for _ in 0..65_536 {
            match rustix::net::recv(&self.0, &mut none[..], flags) {
                Err(rustix::io::Errno::AGAIN) => return,
                _ => continue,
            }
        }
    }

    fn set_option(&self, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
        // SAFETY: reads size_of::<c_int>() bytes of a live local.
        let rc = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn option<T: Plain>(&self, level: i32, name: i32) -> io::Result<T> {
        let mut value = T::default();
        let mut len = size_of::<T>() as libc::socklen_t;
        // SAFETY: writes at most `len` bytes into a live local, any bytes being a valid T.
        let rc = unsafe {
            libc::getsockopt(self.0.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
        };
        match rc {
            0 if len as usize == size_of::<T>() => Ok(value),
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Types for which any bytes are a valid value.
trait Plain: Default {}
impl Plain for u64 {}
impl Plain for [u32; 9] {}

/// The nsid in the control messages of a `recvmsg`.
fn nsid(header: &libc::msghdr) -> Option<i32> {
    // SAFETY: `header` comes from a successful recvmsg, so its control part is well formed and the
    // CMSG macros stay within it; the data of a NETLINK_LISTEN_ALL_NSID message is an int.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = message.as_ref() {
            if found.cmsg_level == libc::SOL_NETLINK
                && found.cmsg_type == libc::NETLINK_LISTEN_ALL_NSID
            {
                return Some(libc::CMSG_DATA(message).cast::<i32>().read_unaligned());
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns whether the kernel knows a socket option (`netlink_setsockopt` returns ENOPROTOOPT for an unknown one).
fn offered(set: io::Result<()>) -> io::Result<bool> {
    match set {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        set => set.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_kernel_that_does_not_know_an_option_is_told_from_one_that_refuses_it() {
        let set = |errno| super::offered(Err(std::io::Error::from_raw_os_error(errno)));
        assert!(!set(libc::ENOPROTOOPT).unwrap());
        assert!(set(libc::EPERM).is_err());
        assert!(super::offered(Ok(())).unwrap());
    }
}
