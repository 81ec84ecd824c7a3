//! Loads and attaches single programs, and describes a kernel's refusal. Nothing is pinned.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use aya::programs::fentry::FEntryLinkId;
use aya::programs::fexit::FExitLinkId;
use aya::programs::kprobe::KProbeLinkId;
use aya::programs::raw_trace_point::RawTracePointLinkId;
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::programs::{
    BtfTracePoint, FEntry, FExit, Iter, KProbe, Program, ProgramError, RawTracePoint, SocketFilter,
};
use aya::sys::SyscallError;
use aya::{Btf, Ebpf};
use rustix::thread::CapabilitySet;

use super::Rung;
use super::kernel::{Kernel, lockdown_word};
use super::offsets::Offsets;
use crate::escape::escape;
use crate::sources::arp;

/// How a program is attached, and to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attach {
    /// A tracepoint, with typed arguments.
    TpBtf(&'static str),
    /// A raw tracepoint.
    RawTp(&'static str),
    /// Entry of a function, by trampoline.
    Fentry(&'static str),
    /// Return of a function, by trampoline.
    Fexit(&'static str),
    /// Entry of a function, by breakpoint or ftrace.
    Kprobe(&'static str),
    /// Return of a function, by breakpoint or ftrace.
    Kretprobe(&'static str),
    /// Loaded only; each read opens a new file.
    Iter(&'static str),
    /// The filter of a packet socket that receives ARP.
    Arp,
    /// Loaded only; run by `BPF_PROG_TEST_RUN`.
    TestRun,
}

impl Attach {
    /// The hook, as `doctor` shows it.
    pub(super) fn hook(self) -> &'static str {
        match self {
            Attach::TpBtf(name)
            | Attach::RawTp(name)
            | Attach::Fentry(name)
            | Attach::Fexit(name)
            | Attach::Kprobe(name)
            | Attach::Kretprobe(name) => name,
            Attach::Arp => "ETH_P_ARP in the host's netns",
            Attach::Iter("task") => "iter/task",
            Attach::Iter(_) => "iter/task_file",
            Attach::TestRun => "netns walk (BPF_PROG_TEST_RUN)",
        }
    }
}

/// The step that the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Load,
    Attach,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Load => "load",
            Stage::Attach => "attach",
        })
    }
}

/// Why one way cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The kernel has no such function, or has it under another name.
    #[error("this kernel has no {0}")]
    NoHook(&'static str),
    /// The kernel has no kprobes that programs could be attached to. Names the missing build option if the
    /// configuration was read.
    #[error("this kernel has no kprobes{}", because(.0))]
    NoKprobes(Option<String>),
    /// Any other refusal, as text.
    #[error("{0}")]
    Refused(String),
}

pub(super) struct Loader<'a> {
    ebpf: &'a mut Ebpf,
    btf: &'a Btf,
    offsets: &'a Offsets,
    kernel: &'a Kernel,
    kprobes: bool,
    /// The socket that receives ARP, once it is attached.
    arp: Option<OwnedFd>,
    links: Links,
}

/// The links of programs, by the programs' names.
pub(super) type Links = BTreeMap<&'static str, Link>;

/// The link of one program.
pub(super) enum Link {
    TpBtf(BtfTracePointLinkId),
    RawTp(RawTracePointLinkId),
    Fentry(FEntryLinkId),
    Fexit(FExitLinkId),
    Kprobe(KProbeLinkId),
}

/// Attaches a program that is loaded. `None`: it has no link.
pub(super) fn hold(
    name: &str,
    program: &mut Program,
    attach: Attach,
) -> Result<Option<Link>, ProgramError> {
    if is_deaf(name) {
        return Ok(None);
    }
    Ok(Some(match attach {
        Attach::TpBtf(_) => {
            let program: &mut BtfTracePoint = program.try_into()?;
            Link::TpBtf(program.attach()?)
        }
        Attach::RawTp(hook) => {
            let program: &mut RawTracePoint = program.try_into()?;
            Link::RawTp(program.attach(hook)?)
        }
        Attach::Fentry(_) => {
            let program: &mut FEntry = program.try_into()?;
            Link::Fentry(program.attach()?)
        }
        Attach::Fexit(_) => {
            let program: &mut FExit = program.try_into()?;
            Link::Fexit(program.attach()?)
        }
        Attach::Kprobe(hook) | Attach::Kretprobe(hook) => {
            let program: &mut KProbe = program.try_into()?;
            Link::Kprobe(program.attach(hook, 0)?)
        }
        Attach::Iter(_) | Attach::Arp | Attach::TestRun => return Ok(None),
    }))
}

/// Closes the link of a program.
pub(super) fn let_go(program: &mut Program, link: Link) -> Result<(), ProgramError> {
    match link {
        Link::TpBtf(link) => <&mut BtfTracePoint>::try_from(program)?.detach(link),
        Link::RawTp(link) => <&mut RawTracePoint>::try_from(program)?.detach(link),
        Link::Fentry(link) => <&mut FEntry>::try_from(program)?.detach(link),
        Link::Fexit(link) => <&mut FExit>::try_from(program)?.detach(link),
        Link::Kprobe(link) => <&mut KProbe>::try_from(program)?.detach(link),
    }
}

/// The kprobe PMU, through which programs are attached since 4.17.
const KPROBE_PMU: &str = "/sys/bus/event_source/devices/kprobe";

impl<'a> Loader<'a> {
    pub(super) fn new(
        ebpf: &'a mut Ebpf,
        btf: &'a Btf,
        offsets: &'a Offsets,
        kernel: &'a Kernel,
    ) -> Self {
        let kprobes = Path::new(KPROBE_PMU).exists();
        Self { ebpf, btf, offsets, kernel, kprobes, arp: None, links: Links::new() }
    }

    /// The socket that receives ARP until it is dropped, and the links.
    pub(super) fn into_parts(self) -> (Option<OwnedFd>, Links) {
        (self.arp, self.links)
    }

    pub(super) fn offsets(&self) -> &Offsets {
        self.offsets
    }

    /// Loads and attaches all of these programs, or none.
    pub(super) fn attach(
        &mut self,
        rung: Rung,
        programs: &[(&'static str, Attach)],
    ) -> Result<(), Refusal> {
        if rung == Rung::Kprobe && !self.kprobes {
            return Err(Refusal::NoKprobes(self.kernel.lacks(rung)));
        }
        for (index, (name, attach)) in programs.iter().enumerate() {
            if let Err((stage, error)) = self.attach_one(name, *attach) {
                for (name, attach) in &programs[..=index] {
                    self.unload(name, *attach);
                }
                let refusal = refusal(self.kernel, rung, attach.hook(), stage, &error);
                tracing::debug!(program = name, %refusal, log = %verifier_log(&error), "refused");
                return Err(refusal);
            }
        }
        Ok(())
    }

    fn attach_one(
        &mut self,
        name: &'static str,
        attach: Attach,
    ) -> Result<(), (Stage, ProgramError)> {
        let btf = self.btf;
        let program = self
            .ebpf
            .program_mut(name)
            // Cannot fail: a unit test checks that each name is in the object.
            .ok_or((Stage::Load, ProgramError::UnexpectedProgramType))?;
        if is_deaf(name) {
            return Ok(());
        }
        let load = |error| (Stage::Load, error);
        let held = |error| (Stage::Attach, error);
        match attach {
            Attach::TpBtf(hook) => {
                let program: &mut BtfTracePoint = (&mut *program).try_into().map_err(load)?;
                program.load(hook, btf).map_err(load)?;
            }
            Attach::RawTp(_) | Attach::TestRun => {
                let program: &mut RawTracePoint = (&mut *program).try_into().map_err(load)?;
                program.load().map_err(load)?;
            }
            Attach::Fentry(hook) => {
                let program: &mut FEntry = (&mut *program).try_into().map_err(load)?;
                program.load(hook, btf).map_err(load)?;
            }
            Attach::Fexit(hook) => {
                let program: &mut FExit = (&mut *program).try_into().map_err(load)?;
                program.load(hook, btf).map_err(load)?;
            }
            Attach::Kprobe(_) | Attach::Kretprobe(_) => {
                let program: &mut KProbe = (&mut *program).try_into().map_err(load)?;
                program.load().map_err(load)?;
            }
            Attach::Iter(kind) => {
                let program: &mut Iter = (&mut *program).try_into().map_err(load)?;
                program.load(kind, btf).map_err(load)?;
            }
            Attach::Arp => {
                let program: &mut SocketFilter = (&mut *program).try_into().map_err(load)?;
                program.load().map_err(load)?;
                let sys = |call| move |io_error| held(SyscallError { call, io_error }.into());
                let socket = arp::socket().map_err(sys("socket"))?;
                program.attach(&socket).map_err(held)?;
                arp::listen(&socket).map_err(sys("bind"))?;
                self.arp = Some(socket);
                return Ok(());
            }
        }
        let mut link = hold(name, program, attach).map_err(held)?;
        if is_detached(name)
            && let Some(link) = link.take()
        {
            let_go(program, link).map_err(held)?;
        }
        self.links.extend(link.map(|link| (name, link)));
        Ok(())
    }

    /// Unloads a program that was refused, or that belongs to the same way as one that was, so that it can be tried in
    /// another way.
    fn unload(&mut self, name: &str, attach: Attach) {
        self.links.remove(name);
        let Some(program) = self.ebpf.program_mut(name) else { return };
        let outcome = match (attach, program) {
            (Attach::TpBtf(_), Program::BtfTracePoint(program)) => program.unload(),
            (Attach::RawTp(_) | Attach::TestRun, Program::RawTracePoint(program)) => {
                program.unload()
            }
            (Attach::Fentry(_), Program::FEntry(program)) => program.unload(),
            (Attach::Fexit(_), Program::FExit(program)) => program.unload(),
            (Attach::Kprobe(_) | Attach::Kretprobe(_), Program::KProbe(program)) => {
                program.unload()
            }
            (Attach::Arp, Program::SocketFilter(program)) => program.unload(),
            (Attach::Iter(_), Program::Iter(program)) => program.unload(),
            _ => Ok(()),
        };
        // An error only means that it was not loaded.
        drop(outcome);
    }
}

/// Whether a test requests that a program counts as attached without being so: it then reports nothing, as a broken one
/// would. Debug builds only.
fn is_deaf(name: &str) -> bool {
    const TESTED: &str = "IPWATCH_TEST_DEAF";
    cfg!(debug_assertions)
        && std::env::var(TESTED).is_ok_and(|names| names.split(',').any(|one| one == name))
}

/// Whether a test requests that the link of a program is closed, as by a debugger. Debug builds only.
fn is_detached(name: &str) -> bool {
    const TESTED: &str = "IPWATCH_TEST_DETACHED";
    cfg!(debug_assertions)
        && std::env::var(TESTED).is_ok_and(|names| names.split(',').any(|one| one == name))
}

/// The errno in the chain of causes, whatever aya wrapped it in.
pub(super) fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(code);
        }
        cause = error.source();
    }
    None
}

/// The verifier's output for the log: hundreds of lines.
fn verifier_log(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError { verifier_log, .. } => verifier_log.to_string(),
        error => error.to_string(),
    }
}

/// Maximum length in bytes of a verifier line that is shown.
const LONGEST_LINE: usize = 160;

/// The line in which the verifier says what it rejects: the last one that is not part of its statistics
/// (`print_verification_stats`, kernel/bpf/verifier.c) or of the source listing.
fn last_line(log: &str) -> Option<String> {
    const ACCOUNT: [&str; 4] = ["processed ", "verification time ", "stack depth ", "; "];
    let told = |line: &&str| !line.is_empty() && !ACCOUNT.iter().any(|word| line.starts_with(word));
    let line = log.lines().rev().map(str::trim).find(told)?;
    let mut line = escape(line).into_owned();
    line.truncate(line.floor_char_boundary(LONGEST_LINE));
    Some(line)
}

fn refusal(
    kernel: &Kernel,
    rung: Rung,
    hook: &'static str,
    stage: Stage,
    error: &ProgramError,
) -> Refusal {
    let code = errno(error);
    let absent = matches!(error, ProgramError::Btf(_))
        || (rung, stage, code) == (Rung::Kprobe, Stage::Attach, Some(libc::ENOENT));
    if absent {
        return Refusal::NoHook(hook);
    }
    let said = match error {
        ProgramError::LoadError { verifier_log, .. } => last_line(&verifier_log.to_string()),
        _ => None,
    };
    let Some(code) = code else {
        return Refusal::Refused(format!("{stage} refused ({})", escape(&error.to_string())));
    };
    Refusal::Refused(refused(kernel, rung, stage, code, said))
}

/// The refusal in the kernel's terms, and what is known to be missing.
fn refused(kernel: &Kernel, rung: Rung, stage: Stage, code: i32, said: Option<String>) -> String {
    let missing = missing(kernel, rung, stage, code);
    let why: Vec<String> = said.into_iter().chain(missing).collect();
    let why = because(&(!why.is_empty()).then(|| why.join("; ")));
    format!("{stage} refused ({}){why}", errno_name(code))
}

fn because(why: &Option<String>) -> String {
    why.as_ref().map(|why| format!(": {why}")).unwrap_or_default()
}

/// What is missing, only if it was read and not guessed. A kernel with lockdown=confidentiality refuses what reads its
/// memory (`LOCKDOWN_BPF_READ_KERNEL`, `LOCKDOWN_KPROBES`); that explains more than a build option.
fn missing(kernel: &Kernel, rung: Rung, stage: Stage, code: i32) -> Option<String> {
    let lacks = |one| {
        let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
        held.is_ok_and(|held| !held.contains(one))
    };
    if let Some(level @ "confidentiality") = kernel.lockdown() {
        return Some(lockdown_word(level));
    }
    match (rung, stage, code) {
        (Rung::Kprobe, Stage::Attach, libc::EPERM | libc::EACCES)
            if lacks(CapabilitySet::PERFMON) && lacks(CapabilitySet::SYS_ADMIN) =>
        {
            Some("needs CAP_PERFMON".to_owned())
        }
        (Rung::Socket, Stage::Attach, libc::EPERM) if lacks(CapabilitySet::NET_RAW) => {
            Some("needs CAP_NET_RAW".to_owned())
        }
        _ => kernel.lacks(rung),
    }
}

/// Kernel-internal "not supported", which the trampoline code returns to user space.
const ENOTSUPP: i32 = 524;

fn errno_name(code: i32) -> String {
    let name = match code {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::E2BIG => "E2BIG",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EBUSY => "EBUSY",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::EEXIST => "EEXIST",
        libc::ENODEV => "ENODEV",
        libc::EINVAL => "EINVAL",
        libc::ENOSPC => "ENOSPC",
        libc::ENOSYS => "ENOSYS",
        libc::ENOTSUP => "EOPNOTSUPP",
        ENOTSUPP => "ENOTSUPP",
        code => return format!("errno {code}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests;
