//! The capabilities of our threads. They belong to threads, not to the process (capabilities(7)): each thread keeps only
//! what its work needs. What one has given up does not come back, and a new thread has what the thread has that makes it:
//! those that need more than the main thread keeps are made by a thread of their own ([`Starter`]).

use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Enough for every thread but the main one; the default of 2 MiB would only waste address space.
const STACK: usize = 512 * 1024;

/// What a thread needs. `docs/security.md` has the threads by name; a test compares the two, and another the table with a
/// daemon that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Talks to the network, or writes our own files.
    None,
    /// The main thread: opens netlink sockets again, and reads the tables of the kernel half. Its threads for blocking calls
    /// have what it has until they keep less.
    Core,
    /// Reads what others may not read, and what the kernel half reports.
    Read,
    /// Enters network namespaces and asks them.
    EnterNetns,
    /// Reads processes, and the kernel's log.
    ReadProcesses,
    /// Reads processes and mounts, asks sockets for their netns, and runs the snapshot programs.
    Search,
    /// Makes the network namespaces of the canary, and what is in them.
    Canary,
    /// Attaches programs again.
    Attach,
}

/// Of these [`Starter`] makes threads.
const STARTED: [Rights; 6] = [
    Rights::Read,
    Rights::EnterNetns,
    Rights::ReadProcesses,
    Rights::Search,
    Rights::Canary,
    Rights::Attach,
];

impl Rights {
    fn set(self) -> CapabilitySet {
        let processes = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
        match self {
            Rights::None => CapabilitySet::empty(),
            // NET_BROADCAST: NETLINK_LISTEN_ALL_NSID. NET_ADMIN: SO_RCVBUFFORCE.
            Rights::Core => {
                Rights::Read.set() | CapabilitySet::NET_ADMIN | CapabilitySet::NET_BROADCAST
            }
            // BPF: before 5.19 each call of bpf(2) needs it where `kernel.unprivileged_bpf_disabled` is set (`__sys_bpf`,
            // kernel/bpf/syscall.c).
            Rights::Read => processes | CapabilitySet::BPF,
            Rights::EnterNetns => processes | CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN,
            Rights::ReadProcesses => processes | CapabilitySet::SYS_ADMIN | CapabilitySet::SYSLOG,
            // NET_ADMIN: the netns of a socket (SIOCGSKNS, `sock_ioctl`, net/socket.c).
            Rights::Search => Rights::Read.set() | CapabilitySet::NET_ADMIN,
            Rights::Canary => {
                Rights::Read.set() | CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN
            }
            // PERFMON: a kprobe (`perf_kprobe_event_init`, kernel/events/core.c, 5.8).
            Rights::Attach => CapabilitySet::BPF | CapabilitySet::PERFMON,
        }
    }

    /// What a thread keeps of what it has. CAP_SYS_ADMIN stands in for CAP_BPF and CAP_PERFMON where they are missing
    /// (`bpf_capable`, `perfmon_capable`, include/linux/capability.h, 5.8).
    fn of(self, had: CapabilitySet) -> CapabilitySet {
        let wanted = self.set();
        let both = CapabilitySet::BPF | CapabilitySet::PERFMON;
        let stands_in = !had.contains(wanted & both);
        let wanted = if stands_in { wanted | CapabilitySet::SYS_ADMIN } else { wanted };
        had & wanted
    }
}

/// Gives up everything but `rights` on the calling thread, and thereby on the threads that it starts. If that fails, the
/// thread works with what it has.
pub(crate) fn keep(rights: Rights) {
    if let Err(error) = try_keep(rights) {
        tracing::warn!("a thread keeps capabilities that it does not need: {error}");
    }
}

/// The same.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn try_keep(rights: Rights) -> io::Result<()> {
    let kept = rights.of(rustix::thread::capabilities(None)?.permitted);
    set(kept, kept)
}

/// Without inheritable ones there are no ambient ones either (`cap_capset`, security/commoncap.c).
fn set(effective: CapabilitySet, permitted: CapabilitySet) -> io::Result<()> {
    let sets = CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

type Job = Box<dyn FnOnce() + Send>;

/// Makes threads that need more than the thread that asks for them. It does nothing else, reads nothing from outside, and
/// uses none of what it hands on. It ends when nobody can ask any more.
#[derive(Debug, Clone)]
pub(crate) struct Starter(mpsc::Sender<Job>);

impl Starter {
    /// Its threads have at most what the calling thread has now, and are in its netns.
    ///
    /// # Errors
    /// No thread can be made.
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::Builder::new().name("ipwatch-starter".to_owned()).stack_size(STACK).spawn(
            move || {
                if let Err(error) = only_hand_on() {
                    tracing::warn!("the thread that makes threads uses what it hands on: {error}");
                }
                for job in jobs {
                    job();
                }
            },
        )?;
        Ok(Self(sender))
    }

    /// Makes a thread that keeps `rights`, and whose name `ps -L` shows.
    ///
    /// # Errors
    /// No thread can be made.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        rights: Rights,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let (told, made) = mpsc::sync_channel(1);
        let builder = thread::Builder::new().name(format!("ipwatch-{name}")).stack_size(STACK);
        let job = move || {
            let made = builder.spawn(move || {
                keep(rights);
                work()
            });
            // The caller waits for it.
            let _ = told.send(made);
        };
        let gone = || io::Error::other("the thread that makes threads has ended");
        self.0.send(Box::new(job)).map_err(|_| gone())?;
        made.recv().map_err(|_| gone())?
    }
}

fn only_hand_on() -> io::Result<()> {
    let had = rustix::thread::capabilities(None)?.permitted;
    let all = STARTED.iter().fold(CapabilitySet::empty(), |all, rights| all | rights.of(had));
    set(CapabilitySet::empty(), all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets() -> (CapabilitySet, CapabilitySet) {
        let sets = rustix::thread::capabilities(None).unwrap();
        (sets.effective, sets.permitted)
    }

    #[test]
    fn a_thread_keeps_what_it_had_and_may_keep_and_its_children_no_more() {
        let (effective, had) = sets();
        let apart = thread::spawn(move || {
            keep(Rights::EnterNetns);
            let own = sets();
            keep(Rights::Read);
            (own, sets(), thread::spawn(sets).join().unwrap())
        });
        let (own, less, child) = apart.join().unwrap();
        let kept = Rights::EnterNetns.of(had);
        assert_eq!(own, (kept, kept));
        let kept = Rights::Read.of(own.1);
        assert_eq!(less, (kept, kept), "nothing comes back");
        assert_eq!(child, less);
        assert_eq!(sets(), (effective, had), "the caller keeps its own");
    }

    #[test]
    fn a_thread_that_has_given_up_has_others_made_that_have_more() {
        let (_, had) = sets();
        let apart = thread::spawn(|| {
            let starter = Starter::start().unwrap();
            keep(Rights::None);
            let made = |rights| starter.spawn("test", rights, sets).unwrap().join().unwrap();
            (STARTED.map(made), sets())
        });
        let (made, own) = apart.join().unwrap();
        assert_eq!(made, STARTED.map(|rights| (rights.of(had), rights.of(had))));
        assert_eq!(own, (CapabilitySet::empty(), CapabilitySet::empty()));
    }

    #[test]
    fn where_bpf_is_missing_another_stands_in() {
        let all = CapabilitySet::all();
        assert_eq!(Rights::Read.of(all), Rights::Read.set());
        let less = all - CapabilitySet::BPF;
        let kept = Rights::Read.of(less);
        assert!(kept.contains(CapabilitySet::SYS_ADMIN) && !kept.contains(CapabilitySet::BPF));
        assert_eq!(Rights::None.of(less), CapabilitySet::empty());
    }

    /// Rows of the table in `docs/security.md`: names of threads, what they do, capabilities.
    #[test]
    fn the_table_of_the_documentation_is_this_one() {
        let page = include_str!("../../docs/security.md");
        let all = |rights: &[Rights]| rights.iter().map(|one| one.set()).collect();
        for (thread, wanted) in [
            ("ipwatch", Rights::Core.set()),
            ("ipwatch-files", Rights::Read.set()),
            ("ipwatch-apart", Rights::Read.set()),
            ("ipwatch-calls", Rights::Read.set()),
            ("ipwatch-tasks", Rights::Read.set()),
            ("ipwatch-netns", Rights::EnterNetns.set()),
            ("ipwatch-looks", Rights::ReadProcesses.set()),
            ("ipwatch-search", Rights::Search.set()),
            ("ipwatch-canary", Rights::Canary.set()),
            ("ipwatch-attach", Rights::Attach.set()),
            ("ipwatch-starter", all(&STARTED)),
            ("ipwatch-network", Rights::None.set()),
            ("names", Rights::None.set()),
            ("ledger", Rights::None.set()),
        ] {
            let row = page.lines().skip_while(|line| !line.starts_with("| Thread | Work |")).find(
                |line| {
                    let names = line.split('|').nth(1).unwrap_or_default().split('`');
                    names.skip(1).step_by(2).any(|name| name == thread)
                },
            );
            let cells = row.unwrap_or_else(|| panic!("{thread}")).split('|').nth(3).unwrap();
            let told = cells.split('`').filter(|word| word.starts_with("CAP_"));
            let told: CapabilitySet = told
                .map(|name| {
                    let flag = CapabilitySet::from_name(name.trim_start_matches("CAP_"));
                    flag.unwrap_or_else(|| panic!("{name}"))
                })
                .collect();
            assert_eq!(told, wanted, "{thread}");
        }
    }
}
