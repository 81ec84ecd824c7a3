//! One netlink socket: how it is made, and a receive that keeps the nsid.
//!
//! netlink-sys, netlink-proto and rtnetlink drop the control message that says which netns a message
//! came from, and rtnetlink never asks for strict checking: hence `recvmsg` by hand.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt,
};

/// Larger than any message: a dump fills at most 32 KiB (`netlink_dump`, af_netlink.c), and a link
/// with many virtual functions is the largest single one.
pub(super) const BUFFER: usize = 64 * 1024;

/// A socket of NETLINK_ROUTE or NETLINK_SOCK_DIAG.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

/// What one `recvmsg` brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// Bytes of the datagram, one or more netlink messages.
    pub(super) len: usize,
    /// The netns it came from, in the numbering of this socket's netns. None: from this netns itself,
    /// unless it has a number of its own in itself.
    pub(super) nsid: Option<i32>,
    /// The datagram was longer than the buffer.
    pub(super) truncated: bool,
    /// The kernel sent it, not another process.
    pub(super) from_kernel: bool,
}

impl Socket {
    /// A NETLINK_ROUTE socket in the calling thread's netns, bound: an unbound one, or one bound after joining its
    /// groups, receives nothing (`netlink_bind` with `nl_groups` 0 leaves them all).
    pub(super) fn open(flags: SocketFlags) -> io::Result<Self> {
        Self::of(None, flags) // NETLINK_ROUTE is 0
    }

    /// One that nothing can be done with.
    #[cfg(test)]
    pub(super) fn broken() -> Self {
        Self(std::fs::File::open("/dev/null").unwrap().into())
    }

    /// As [`open`](Self::open), of NETLINK_SOCK_DIAG.
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

    /// Asks the kernel to check dump requests strictly; whether it does (4.20+). Without it an
    /// `IFA_TARGET_NETNSID` is silently ignored and the dump is of the wrong netns.
    pub(super) fn strict(&self) -> io::Result<bool> {
        offered(self.set_option(libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, 1))
    }

    /// Hears every netns that has an nsid here. Needs CAP_NET_BROADCAST.
    pub(super) fn listen_all_nsid(&self) -> io::Result<()> {
        self.set_option(libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID, 1)
    }

    /// Joins a multicast group.
    pub(super) fn join(&self, group: u32) -> io::Result<()> {
        self.set_option(libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group as libc::c_int)
    }

    /// Keeps only the datagrams that this classic BPF program lets pass: the others are never queued.
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

    /// Asks for a receive buffer of `bytes`, past `net.core.rmem_max` if allowed (CAP_NET_ADMIN).
    /// Returns whether it was.
    pub(super) fn receive_buffer(&self, bytes: usize) -> io::Result<bool> {
        if sockopt::set_socket_recv_buffer_size_force(&self.0, bytes).is_ok() {
            return Ok(true);
        }
        sockopt::set_socket_recv_buffer_size(&self.0, bytes)?;
        Ok(false)
    }

    /// A blocking receive gives up after this long.
    pub(super) fn receive_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(timeout))?)
    }

    /// Sends one request to the kernel.
    pub(super) fn send(&self, request: &[u8]) -> io::Result<()> {
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.0, request, SendFlags::empty(), &kernel)?;
        Ok(())
    }

    /// Receives one datagram and keeps the nsid that came with it.
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
        // SAFETY: every pointer in `header` is to a live local of the length told beside it.
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

    /// Datagrams that found no room, since the socket was made: word 8 of SO_MEMINFO (4.12+).
    pub(super) fn dropped(&self) -> io::Result<u32> {
        const DROPS: usize = 8; // SK_MEMINFO_DROPS, linux/sock_diag.h
        let words: [u32; DROPS + 1] = self.option(libc::SOL_SOCKET, libc::SO_MEMINFO)?;
        Ok(words[DROPS])
    }

    /// The cookie of the netns this socket was made in (5.14+; 5.12 for TCP and UDP alone).
    pub(super) fn netns_cookie(&self) -> io::Result<u64> {
        self.option(libc::SOL_SOCKET, libc::SO_NETNS_COOKIE)
    }

    /// Throws away what is queued, without blocking.
    pub(super) fn discard(&self) {
        let mut none = [0u8; 0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        // An error that is not "empty" (an overrun) is part of what is thrown away.
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

/// Types of which any bytes are a value.
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

/// Whether the kernel knows an option of a socket (`netlink_setsockopt`: ENOPROTOOPT for what is new to it).
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
