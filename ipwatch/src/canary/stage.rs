//! The canary's child: creates two netns, does in them what the probes must report, and ends.
//!
//! It talks to the daemon over its standard streams, one line at a time. It says `ready`, and creates the netns on
//! `go`; it says `netns …` with their names, and starts the steps on `on`, or on `on dad` with a duplicate address; it
//! says `not STEP WHY` for what cannot be made here, and `stands` when all is made; it ends on `end`. If its input
//! ends, the daemon has ended, and the stage ends too. Nothing is done in the host's netns, no module is loaded, and
//! everything that it creates ends with it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::{
    ATTEMPTS, CONTAINER, ENDS, IPV4, IPV4_PEERS, IPV6, IPV6_PEERS, NEIGHBOUR, NEIGHBOUR_MAC, STAGE,
    twice,
};
use crate::bounded;
use crate::fact::NetnsRef;
use crate::sources::netlink::{Given, Maker};
use crate::sources::probes;

/// Between two attempts at a duplicate address.
const ATTEMPT: Duration = Duration::from_millis(250);
/// Between two checks whether an address is usable, and the maximum number of checks.
const LOOK: Duration = Duration::from_millis(2);
const LOOKS: u32 = 200;
/// Index of the loopback device in every netns.
const LO: u32 = 1;
const DEVICES: [&str; 2] = ["canary0", "canary1"];
/// Maximum length in bytes of a line.
const LINE: usize = 64;
const SELF: &str = "/proc/self/exe";
/// Starts the steps.
pub(super) const ON: &str = "on";
/// The same, and the second netns gets an address that the first one tries to use.
pub(super) const ON_WITH_DAD: &str = "on dad";

/// Whether these are the arguments of a child of the canary.
pub(crate) fn is_meant(args: &[std::ffi::OsString]) -> bool {
    args.get(1).is_some_and(|arg| arg == STAGE)
}

/// Runs one of the canary's children: the stage itself, or a child of the stage.
pub(crate) fn main(args: &[std::ffi::OsString]) -> ExitCode {
    let role = args.get(2).and_then(|role| role.to_str()).unwrap_or_default();
    let done = match role {
        "stage" => args.get(3).ok_or(io::ErrorKind::InvalidInput.into()).and_then(|plugin| {
            let plugin = Path::new(plugin);
            stage(plugin)
        }),
        "threads" => threads(),
        "wait" => io::stdin().read(&mut [0]).map(drop),
        // The plugin only has to run.
        _ => Ok(()),
    };
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A process with two threads. The one that is not the leader ends both (`do_group_exit`, kernel/exit.c).
fn threads() -> io::Result<()> {
    std::thread::Builder::new().spawn(|| {
        #[expect(clippy::disallowed_methods, reason = "exit_group() by a thread is what is wanted")]
        std::process::exit(0)
    })?;
    // The other thread ends this one.
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

fn stage(plugin: &Path) -> io::Result<()> {
    say("ready")?;
    expect("go")?;
    let (first, one) = new_netns()?;
    let (second, other) = new_netns()?;
    enter(&first)?;
    say(&format!("netns {} {}", spelt(one), spelt(other)))?;
    let dad = match &*hear()? {
        line if line == ON_WITH_DAD.as_bytes() => true,
        line if line == ON.as_bytes() => false,
        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    let mut set = Set { first, second, here: Maker::open()?, there: None, waits: None };
    let steps: [(&str, Step); 4] = [
        ("ipv4", Set::ipv4),
        ("ipv6", Set::ipv6),
        ("neighbour", Set::neighbour),
        ("children", Set::children),
    ];
    // If this fails, the steps that need it report that.
    let _ = set.here.up(LO);
    for (step, make) in steps {
        leave_out(step, make(&mut set))?;
    }
    leave_out("plugin", run_plugin(plugin))?;
    let devices = set.devices();
    let told = devices.as_ref().err().map(io::Error::to_string);
    for step in ["device", "arp", "dad"].into_iter().filter(|_| told.is_some()) {
        say(&format!("not {step} {}", told.as_deref().unwrap_or_default()))?;
    }
    if devices.is_ok() {
        leave_out("arp", set.arp())?;
    }
    let dad = dad && devices.is_ok();
    if dad {
        leave_out("dad", set.first_of_two())?;
    }
    say("stands")?;
    for attempt in (0..ATTEMPTS).filter(|_| dad) {
        if set.second_of_two(attempt).is_err() || readable(Some(ATTEMPT))? {
            break;
        }
        set.give_up(attempt)?;
    }
    let ended = expect("end");
    if let Some(mut waits) = set.waits {
        // Its input is closed, which ends it.
        waits.wait()?;
    }
    ended
}

/// Makes one event, or a few.
type Step = fn(&mut Set) -> io::Result<()>;

/// The state of the steps. The stage is in the first netns.
struct Set {
    first: OwnedFd,
    second: OwnedFd,
    here: Maker,
    /// In the second netns, once a device is there.
    there: Option<Maker>,
    /// The child that stays.
    waits: Option<Child>,
}

impl Set {
    /// An address whose peer changes, which is a different address for the kernel.
    fn ipv4(&mut self) -> io::Result<()> {
        for peer in IPV4_PEERS {
            let given = given(LO, IPV4.into(), 32, Some(peer.into()));
            self.here.give(given)?;
            self.here.take(given)?;
        }
        Ok(())
    }

    /// The same for IPv6, where the kernel changes the peer in place (`inet6_addr_modify`, net/ipv6/addrconf.c, 5.7).
    fn ipv6(&mut self) -> io::Result<()> {
        let one = |peer: std::net::Ipv6Addr| given(LO, IPV6.into(), 128, Some(peer.into()));
        self.here.give(Given { unasked: false, ..one(IPV6_PEERS[0]) })?;
        usable(IPV6)?;
        self.here.give(one(IPV6_PEERS[1]))?;
        self.here.take(one(IPV6_PEERS[1]))
    }

    /// A child that stays as long as the stage, because short-lived ones are not reported; one that is ended by one of
    /// its threads; and one that is killed.
    fn children(&mut self) -> io::Result<()> {
        let wait = || child(SELF.as_ref(), "wait").stdin(Stdio::piped()).spawn();
        self.waits = Some(wait()?);
        child(SELF.as_ref(), "threads").stdin(Stdio::null()).spawn()?.wait()?;
        kill(wait()?)
    }

    fn neighbour(&mut self) -> io::Result<()> {
        self.here.neighbour(LO, NEIGHBOUR, NEIGHBOUR_MAC)
    }

    /// A veth pair, one end of which is moved to the second netns.
    fn devices(&mut self) -> io::Result<()> {
        if !has_veth() {
            return Err(io::Error::other("the module veth is not loaded, and none is for this"));
        }
        self.here.veth(DEVICES)?;
        self.here.move_to(index(DEVICES[1])?, self.second.as_fd())
    }

    /// One end sends an ARP request for the other. The end that is brought up last sends at once: the first end starts
    /// to send when the kernel processes its carrier, up to a second later (`linkwatch_event`, net/core/link_watch.c).
    fn arp(&mut self) -> io::Result<()> {
        enter(&self.second)?;
        let moved = self.bring_up_there();
        enter(&self.first)?;
        moved?;
        let here = index(DEVICES[0])?;
        self.here.up(here)?;
        self.here.give(given(here, ENDS[0].into(), 24, None))?;
        UdpSocket::bind((ENDS[0], 0))?.send_to(b"?", (ENDS[1], 9)).map(drop)
    }

    fn bring_up_there(&mut self) -> io::Result<()> {
        let there = index(DEVICES[1])?;
        let mut maker = Maker::open()?;
        maker.up(there)?;
        maker.give(given(there, ENDS[1].into(), 24, None))?;
        self.there = Some(maker);
        Ok(())
    }

    /// Gives the second netns every address that the first one will try.
    fn first_of_two(&mut self) -> io::Result<()> {
        // Removes the random delay of up to a second before the first packet (`addrconf_dad_kick`). If /proc/sys is
        // read-only, the delay stays.
        for device in [DEVICES[0], "all", "default"] {
            set(device, "router_solicitation_delay", "0");
        }
        // A netns may inherit the host's settings (`net.core.devconf_inherit_init_net`).
        set(DEVICES[0], "accept_dad", "1");
        set(DEVICES[0], "dad_transmits", "1");
        let accepts = is_on("all", "accept_dad") || is_on(DEVICES[0], "accept_dad");
        if !accepts || !is_on(DEVICES[0], "dad_transmits") {
            return Err(io::Error::other("duplicate address detection is off"));
        }
        enter(&self.second)?;
        let there = index(DEVICES[1]);
        enter(&self.first)?;
        let there = there?;
        let maker = self.there.as_mut().ok_or(io::ErrorKind::NotFound)?;
        for attempt in 0..ATTEMPTS {
            let given = given(there, twice(attempt).into(), 64, None);
            maker.give(given)?;
        }
        Ok(())
    }

    fn second_of_two(&mut self, attempt: u16) -> io::Result<()> {
        let here = index(DEVICES[0])?;
        let asked = Given { unasked: false, ..given(here, twice(attempt).into(), 64, None) };
        self.here.give(asked)
    }

    /// Removes the address, which is not needed any longer.
    fn give_up(&mut self, attempt: u16) -> io::Result<()> {
        self.here.take(given(index(DEVICES[0])?, twice(attempt).into(), 64, None))
    }
}

/// Sets a sysctl of the netns that the stage is in, if permitted.
fn set(device: &str, key: &str, value: &str) {
    let path = format!("/proc/sys/net/ipv6/conf/{device}/{key}");
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let _ = file.and_then(|file| rustix::io::write(file, value.as_bytes()));
}

/// Whether a sysctl is above 0. One that cannot be read counts as having the kernel's default.
fn is_on(device: &str, key: &str) -> bool {
    let path = format!("/proc/sys/net/ipv6/conf/{device}/{key}");
    let value = bounded::read_text(path.as_ref(), LINE).ok();
    value.and_then(|value| value.trim().parse::<i64>().ok()).is_none_or(|value| value > 0)
}

/// Waits until an address is usable. The kernel reports that from a work queue (`addrconf_dad_work`), with the peer
/// that the address has by then, and without a delay on a loopback device.
fn usable(ip: std::net::Ipv6Addr) -> io::Result<()> {
    const TENTATIVE: u8 = 0x40;
    let name: String = ip.octets().iter().map(|byte| format!("{byte:02x}")).collect();
    for _ in 0..LOOKS {
        let text = bounded::read_text("/proc/self/net/if_inet6".as_ref(), 64 * LINE)?;
        // ADDRESS IFINDEX LENGTH SCOPE FLAGS DEVICE
        let line = text.lines().find(|line| line.starts_with(&name));
        let flags = line.and_then(|line| line.split_ascii_whitespace().nth(4));
        let flags = flags.and_then(|flags| u8::from_str_radix(flags, 16).ok());
        if flags.is_some_and(|flags| flags & TENTATIVE == 0) {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    Err(io::Error::other("the address did not become usable"))
}

fn given(ifindex: u32, ip: IpAddr, prefix_len: u8, peer: Option<IpAddr>) -> Given {
    Given { ifindex, ip, prefix_len, peer, unasked: ip.is_ipv6() }
}

fn kill(mut child: Child) -> io::Result<()> {
    child.kill()?;
    child.wait().map(drop)
}

/// Runs our own program with a path and an environment that make it a plugin.
fn run_plugin(plugin: &Path) -> io::Result<()> {
    let mut command = child(plugin, "plugin");
    command.env("CNI_COMMAND", "VERSION").env("CNI_CONTAINERID", CONTAINER).stdin(Stdio::null());
    command.spawn()?.wait().map(drop)
}

fn child(program: &Path, role: &str) -> Command {
    let mut command = Command::new(program);
    command.arg0(CONTAINER).args([STAGE, role]).env_clear().stdout(Stdio::null());
    command
}

/// Whether veth devices are available without loading a module (`request_module` in `rtnl_newlink`,
/// net/core/rtnetlink.c).
fn has_veth() -> bool {
    const MODULES: &str = "/proc/modules";
    const LIMIT: usize = 1 << 20;
    if !Path::new(MODULES).exists() {
        // Without module support, asking loads nothing.
        return true;
    }
    let has = |path: &Path, is: &dyn Fn(&str) -> bool| {
        bounded::read_text(path, LIMIT).is_ok_and(|text| text.lines().any(is))
    };
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let builtin = format!("/lib/modules/{release}/modules.builtin");
    has(MODULES.as_ref(), &|line| line.starts_with("veth "))
        || has(builtin.as_ref(), &|line| line.ends_with("/veth.ko"))
}

/// Moves the stage into a new netns.
fn new_netns() -> io::Result<(OwnedFd, NetnsRef)> {
    // SAFETY: only what concerns file descriptors is unsafe to unshare; the stage has one thread beside.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty())?;
    Ok((fd, probes::own_netns()?))
}

fn enter(netns: &OwnedFd) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::Network);
    Ok(rustix::thread::move_into_link_name_space(netns.as_fd(), kind)?)
}

fn index(name: &str) -> io::Result<u32> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::netdevice::name_to_index(socket, name)?)
}

/// In the form that `run` parses.
fn spelt(netns: NetnsRef) -> String {
    format!("{}:{}", netns.cookie.unwrap_or_default(), netns.inode.unwrap_or_default())
}

fn leave_out(step: &str, made: io::Result<()>) -> io::Result<()> {
    match made {
        Ok(()) => Ok(()),
        Err(error) => say(&format!("not {step} {error}")),
    }
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Waits for one line. Any other line, or the end of the input, is an error.
fn expect(word: &str) -> io::Result<()> {
    if hear()? == word.as_bytes() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// One line, or its beginning if the input ends or it is too long.
fn hear() -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    let input = io::stdin();
    while line.len() < LINE {
        // Byte by byte and without the buffer of `Stdin`, whose read-ahead would hide input from `poll`.
        if rustix::io::read(input.as_fd(), &mut byte)? == 0 || byte[0] == b'\n' {
            break;
        }
        line.push(byte[0]);
    }
    Ok(line)
}

/// Whether input from the daemon arrives within `pause`.
fn readable(pause: Option<Duration>) -> io::Result<bool> {
    let input = io::stdin();
    let mut fds = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
    let timeout = pause.map(|pause| rustix::event::Timespec {
        tv_sec: pause.as_secs().cast_signed(),
        tv_nsec: i64::from(pause.subsec_nanos()),
    });
    Ok(rustix::event::poll(&mut fds, timeout.as_ref())? > 0)
}
