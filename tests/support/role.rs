//! Helper processes. The test binary starts itself with a role in its environment, and [`play`] runs that role before
//! any test.
//!
//! A helper ends when its standard input ends, so that none outlives its test, and prints `ready` when it is in the
//! required state.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::{Netns, Sandbox, sys};

const ROLE: &str = "IPWATCH_TEST_ROLE";
const NETNS: &str = "IPWATCH_TEST_NETNS";
const COMM: &str = "IPWATCH_TEST_COMM";

/// A helper to be started.
#[derive(Debug)]
pub struct Helper<'a> {
    role: Role,
    args: Vec<&'a str>,
    netns: Option<&'a Netns>,
    dir: Option<&'a Path>,
    comm: Option<&'a str>,
    sandbox: Option<&'a Sandbox>,
    env: Option<(&'a str, &'a str)>,
    pid_ns: Option<u32>,
}

/// A running helper. Killed when dropped; one that hangs ends when the file system on which it hangs is released.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

macro_rules! roles {
    ($($(#[$doc:meta])* $variant:ident = $name:literal => $run:path,)*) => {
        /// What a helper does.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Role { $($(#[$doc])* $variant,)* }

        impl Role {
            fn name(self) -> &'static str {
                match self { $(Role::$variant => $name,)* }
            }
        }

        /// Plays the role in the environment and does not return; returns at once if there is none. Must be called
        /// first in `main`, while there is only one thread.
        pub fn play() {
            let Ok(role) = std::env::var(ROLE) else { return };
            let args: Vec<String> = std::env::args().skip(1).collect();
            prepare(&role);
            match role.as_str() {
                $($name => $run(&args),)*
                _ => panic!("no role {role:?}"),
            }
            sys::exit_now(0);
        }
    };
}

roles! {
    /// Does nothing.
    Park = "park" => park,
    /// Uses a CPU without end.
    Busy = "busy" => busy,
    /// Holds an fd of the netns in its argument, without being in it.
    HoldFd = "hold-fd" => hold_fd,
    /// Holds a socket created in that netns, without being in it.
    HoldSocket = "hold-socket" => hold_socket,
    /// Holds an fd of that netns that is in flight, unread in a Unix socket.
    HoldInFlight = "hold-in-flight" => hold_in_flight,
    /// Leaves a zombie leader and one thread in that netns.
    ZombieLeader = "zombie-leader" => zombie_leader,
    /// Moves between netns on command: `setns PATH`, `unshare`.
    Mover = "mover" => mover,
    /// Keeps a copy of all mounts in a separate mount namespace.
    Agent = "agent" => agent,
    /// Like `Agent`, with additional mounts below the directory in its first argument; the second argument is their
    /// number.
    Crowd = "crowd" => crowd,
    /// Reads the file in its last argument.
    Reader = "reader" => reader,
    /// Reads that file; another of its threads ends the process on the command `exit`.
    HungLeader = "hung-leader" => hung_leader,
    /// Reads that file in its leader (first argument: `leader`) or in another thread, and ends as commanded: see
    /// `stuck::Way`. The second argument is the cgroup whose memory it uses up.
    Mortal = "mortal" => mortal,
    /// Creates processes that end at once: the first argument is their number per second, the second the duration in
    /// seconds. Prints how many it created.
    Churn = "churn" => churn,
    /// Has as many idle threads as its argument says.
    Threads = "threads" => threads,
    /// Opens that file and exits on the command `exit`.
    Opener = "opener" => opener,
    /// Opens that file and executes another program on the command `exec`, which closes the file; with `sync` as its
    /// first argument, it waits until the file is written.
    Execer = "execer" => execer,
    /// Waits for a child as after vfork.
    Vfork = "vfork" => vfork,
    /// Dumps core on command, with a second thread.
    Dumper = "dumper" => dumper,
    /// Exits and stays a zombie: its parent does not wait.
    Exiter = "exiter" => exiter,
    /// Executes the program in its other arguments, with the system call in the first one forbidden.
    Without = "without" => without,
    /// Holds the kernel's rtnl lock (see [`crate::rtnl`]).
    HoldRtnl = "hold-rtnl" => crate::rtnl::hold,
    /// Serves a file system that never answers (see [`crate::fuse`]).
    Fuse = "fuse" => crate::fuse::serve,
    /// Serves one call of a CNI IPAM plugin (see [`crate::kubernetes::whereabouts`]).
    Whereabouts = "whereabouts" => crate::kubernetes::whereabouts::serve,
}

impl<'a> Helper<'a> {
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            role,
            args: Vec::new(),
            netns: None,
            dir: None,
            comm: None,
            sandbox: None,
            env: None,
            pid_ns: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: &'a str) -> Self {
        self.args.push(arg);
        self
    }

    /// In this netns from its start.
    #[must_use]
    pub fn inside(mut self, netns: &'a Netns) -> Self {
        self.netns = Some(netns);
        self
    }

    /// In this directory.
    #[must_use]
    pub fn dir(mut self, dir: &'a Path) -> Self {
        self.dir = Some(dir);
        self
    }

    /// With this process name.
    #[must_use]
    pub fn comm(mut self, comm: &'a str) -> Self {
        self.comm = Some(comm);
        self
    }

    /// A process of this pod's container.
    #[must_use]
    pub fn within(mut self, sandbox: &'a Sandbox) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn env(mut self, name: &'a str, value: &'a str) -> Self {
        self.env = Some((name, value));
        self
    }

    /// In the pid namespace of this process. The started process is `nsenter`, whose child is the helper.
    #[must_use]
    pub fn pid_namespace_of(mut self, pid: u32) -> Self {
        self.pid_ns = Some(pid);
        self
    }

    /// The command that plays this role, for a process that executes another program.
    #[must_use]
    pub fn command(role: Role) -> Command {
        let exe = std::env::current_exe().expect("the path of this binary");
        let mut command = Command::new(exe);
        command.env(ROLE, role.name());
        command
    }

    /// Starts the helper and waits until it is ready.
    #[must_use]
    pub fn start(self) -> Running {
        let mut command = match self.sandbox {
            None => Self::command(self.role),
            Some(sandbox) => joining(sandbox, &Self::command(self.role)),
        };
        if let Some(pid) = self.pid_ns {
            let mut entering = Command::new("nsenter");
            entering.args(["--pid", "--target", &pid.to_string()]).arg(command.get_program());
            entering.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command = entering;
        }
        command.args(&self.args).envs(self.env);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(netns) = self.netns {
            command.env(NETNS, netns.path());
        }
        if let Some(dir) = self.dir {
            command.current_dir(dir);
        }
        if let Some(comm) = self.comm {
            command.env(COMM, comm);
        }
        let mut child = command.spawn().expect("start a helper");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut running = Running { child, stdin, stdout };
        let line = running.hear();
        assert_eq!(line, "ready", "helper {:?} did not get ready", self.role);
        running
    }
}

impl Running {
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its only child.
    #[must_use]
    pub fn child(&self) -> Option<u32> {
        let pid = self.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.trim().parse().ok()
    }

    /// Sends the helper a line.
    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("a helper that still listens");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).expect("write to a helper");
    }

    /// The next line of its output; empty if it has ended.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("read from a helper");
        line.trim_end().to_owned()
    }

    /// Sends the helper a line and returns its answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    /// Sends the helper a signal.
    pub fn signal(&self, signal: i32) {
        sys::kill(self.pid(), signal).expect("signal a helper");
    }

    /// Whether the helper ends within `seconds` (times patience); reaps it.
    pub fn ends(&mut self, seconds: u32) -> bool {
        let rounds = seconds * crate::patience() * 50;
        (0..rounds.max(1)).any(|_| {
            let ended = matches!(self.child.try_wait(), Ok(Some(_)));
            if !ended {
                std::thread::sleep(Duration::from_millis(20));
            }
            ended
        })
    }

    /// Kills the helper and waits for its end.
    pub fn end(mut self) {
        let _ = self.child.kill();
        assert!(self.ends(10), "a helper does not end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A stopped process can be killed by SIGKILL; a hung one ends only when its file system does.
        for _ in 0..10 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A command that joins the container's cgroup and then executes `program`, in the order in which runc starts a
/// container.
fn joining(sandbox: &Sandbox, program: &Command) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]);
    command.arg(sandbox.cgroup()).arg(program.get_program());
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// Sets the name and the netns of the process.
fn prepare(role: &str) {
    let comm = std::env::var(COMM).unwrap_or_else(|_| format!("t-{role}"));
    let comm = std::ffi::CString::new(comm).expect("a name without NUL");
    let _ = rustix::thread::set_name(&comm);
    if let Some(path) = std::env::var_os(NETNS) {
        sys::enter_netns(Path::new(&path)).expect("enter the netns");
    }
}

/// Reports that the helper is in the required state.
pub(crate) fn ready() {
    say("ready");
}

/// Prints a line to the test.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("write to the test");
}

/// The next line from the test; `None` at the end.
pub(crate) fn listen() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).unwrap_or(0);
    (read > 0).then(|| line.trim_end().to_owned())
}

/// Reports ready, and waits until the test has ended.
fn wait_for_end() {
    ready();
    while listen().is_some() {}
}

fn park(_: &[String]) {
    wait_for_end();
}

fn busy(_: &[String]) {
    std::thread::spawn(|| {
        while listen().is_some() {}
        sys::exit_now(0);
    });
    ready();
    loop {
        std::hint::spin_loop();
    }
}

fn open(args: &[String]) -> std::fs::File {
    std::fs::File::open(args.last().expect("a path")).expect("open it")
}

fn hold_fd(args: &[String]) {
    let _held = open(args);
    wait_for_end();
}

fn hold_socket(args: &[String]) {
    let path = Path::new(&args[0]);
    // On a thread that ends, so that only the socket of this process remains in that netns.
    let made = sys::on_own_thread(|| sys::enter_netns(path).and_then(|()| sys::udp_socket()));
    let _held = made.expect("make a socket there");
    wait_for_end();
}

fn hold_in_flight(args: &[String]) {
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, sendmsg, socketpair,
    };
    let (near, _far): (OwnedFd, OwnedFd) =
        socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .expect("a pair of sockets");
    let held = open(args);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [held.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&near, &[std::io::IoSlice::new(b"x")], &mut control, SendFlags::empty())
        .expect("send the fd");
    drop(held);
    wait_for_end();
}

fn zombie_leader(args: &[String]) {
    let path = args[0].clone();
    std::thread::spawn(move || {
        sys::enter_netns(Path::new(&path)).expect("enter the netns");
        let stat = Path::new("/proc/self/stat");
        // The leader exits meanwhile; `ready` is printed when that is visible.
        while !std::fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") Z ")) {
            std::thread::sleep(Duration::from_millis(2));
        }
        wait_for_end();
        sys::exit_now(0);
    });
    sys::exit_this_thread();
}

fn mover(_: &[String]) {
    ready();
    while let Some(line) = listen() {
        match line.split_once(' ') {
            Some(("setns", path)) => sys::enter_netns(Path::new(path)).expect("setns"),
            _ => sys::unshare_netns().expect("unshare"),
        }
        let own = std::fs::read_link("/proc/thread-self/ns/net").expect("its netns");
        say(&own.to_string_lossy());
    }
}

fn agent(keeps: &[String]) {
    sys::copy_mounts().expect("a mount namespace of its own");
    crate::netns::forget_others(keeps);
    wait_for_end();
}

fn crowd(args: &[String]) {
    sys::copy_mounts().expect("a mount namespace of its own");
    let times: usize = args[1].parse().expect("a number");
    for n in 0..times {
        // Each below its own name, so that reading them takes as many paths.
        let dir = Path::new(&args[0]).join(format!("mount-{n}"));
        std::fs::create_dir(&dir).expect("make a directory");
        rustix::mount::mount_bind(&dir, &dir).expect("mount it");
    }
    wait_for_end();
}

fn without(args: &[String]) {
    use std::os::unix::process::CommandExt as _;
    sys::forbid(&args[0]).expect("set the filter");
    let error = Command::new(&args[1]).args(&args[2..]).env_remove(ROLE).exec();
    panic!("{}: {error}", args[1]);
}

fn reader(args: &[String]) {
    let mut file = open(args);
    ready();
    let _ = file.read(&mut [0; 16]);
}

fn hung_leader(args: &[String]) {
    std::thread::spawn(|| {
        while listen().is_some_and(|line| line != "exit") {}
        // exit_group(), which ends a JVM or a Go program, called by any thread.
        sys::exit_now(0);
    });
    reader(args);
}

fn mortal(args: &[String]) {
    let (leads, group, file) = (args[0] == "leader", args[1].clone(), args[2..].to_vec());
    sys::forbid_core().expect("forbid a core");
    for signal in [libc::SIGSEGV, libc::SIGSYS] {
        sys::default_signal(signal);
    }
    let (tell, leave) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        while let Some(line) = listen() {
            end_by(&line, &group, &tell);
        }
        sys::exit_now(0);
    });
    if leads {
        return reader(&file);
    }
    std::thread::spawn(move || reader(&file));
    let _ = leave.recv();
    sys::exit_this_thread();
}

/// Ends the process, or its leader, in the commanded way.
fn end_by(way: &str, group: &str, leave: &std::sync::mpsc::Sender<()>) {
    match way {
        "exit" => sys::exit_now(0),
        "leave" => leave.send(()).expect("a leader that waits"),
        "exec" => {
            use std::os::unix::process::CommandExt as _;
            let error = Command::new("sleep").arg("60").exec();
            panic!("sleep: {error}");
        }
        "fault" => {
            let (pid, tid) = (std::process::id(), rustix::thread::gettid());
            let tid = tid.as_raw_nonzero().get() as u32;
            sys::tgkill(pid, tid, libc::SIGSEGV).expect("signal this thread");
        }
        "seccomp" => sys::die_by_seccomp().expect("the filter"),
        "oom" => {
            std::fs::write(format!("{group}/cgroup.procs"), std::process::id().to_string())
                .expect("move into the cgroup");
            let mut held: Vec<Vec<u8>> = Vec::new();
            // Twice the limit; pages that are written cannot be shared.
            for _ in 0..128 {
                held.push(vec![1; 1 << 20]);
            }
            panic!("it lives on with {} MiB", held.len());
        }
        other => panic!("no way to die: {other}"),
    }
}

fn churn(args: &[String]) {
    let number = |n: usize| args[n].parse::<u32>().expect("a number");
    let (a_second, seconds) = (number(0), number(1));
    ready();
    let _ = listen();
    let began = std::time::Instant::now();
    let mut made = 0u32;
    while began.elapsed() < Duration::from_secs(u64::from(seconds)) {
        for _ in 0..a_second.div_ceil(50) {
            sys::fork_and_reap().expect("fork");
            made += 1;
        }
        let due = Duration::from_secs(1) * made / a_second;
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    say(&made.to_string());
    while listen().is_some() {}
}

fn threads(args: &[String]) {
    let count: usize = args[0].parse().expect("a number");
    for _ in 0..count {
        let thread = std::thread::Builder::new().stack_size(16 << 10);
        thread
            .spawn(|| {
                loop {
                    std::thread::park();
                }
            })
            .expect("a thread");
    }
    wait_for_end();
}

fn opener(args: &[String]) {
    let _open = open(args);
    ready();
    // Closing at exit must hang; returning here would close the file before the exit.
    while listen().is_some_and(|line| line != "exit") {}
    sys::exit_now(0);
}

fn execer(args: &[String]) {
    use std::os::unix::process::CommandExt as _;
    let open = open(args);
    ready();
    while listen().is_some_and(|line| line != "exec") {}
    if args[0] == "sync" {
        // It must not hang in closing the file before that.
        rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).expect("keep it open");
        sys::sync_later(&open).expect("submit it");
    }
    let error = Command::new("/proc/self/exe").env(ROLE, Role::Park.name()).exec();
    panic!("exec: {error}");
}

fn vfork(_: &[String]) {
    ready();
    sys::vfork_like(|| while listen().is_some() {}).expect("clone");
}

fn dumper(_: &[String]) {
    sys::unlimit_core().expect("raise the core limit");
    sys::default_signal(libc::SIGSEGV);
    std::thread::spawn(|| {
        loop {
            std::thread::park();
        }
    });
    ready();
    while listen().is_some_and(|line| line != "dump") {}
    let _ = sys::kill(std::process::id(), libc::SIGSEGV);
    wait_for_end();
}

fn exiter(_: &[String]) {
    ready();
    while listen().is_some_and(|line| line != "exit") {}
}
