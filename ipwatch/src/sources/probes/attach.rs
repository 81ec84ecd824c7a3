//! Loading and attaching single programs, and putting a kernel's refusal into words.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use aya::programs::{
    BtfTracePoint, FEntry, FExit, Iter, KProbe, Program, ProgramError, RawTracePoint, SocketFilter,
};
use aya::sys::SyscallError;
use aya::{Btf, Ebpf};

use super::Rung;
use super::offsets::Offsets;
use crate::sources::arp;

/// How a program is attached, and to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attach {
    /// A tracepoint, with typed arguments.
    TpBtf(&'static str),
    /// A tracepoint.
    RawTp(&'static str),
    /// Entry of a function, by trampoline.
    Fentry(&'static str),
    /// Return of a function, by trampoline.
    Fexit(&'static str),
    /// Entry of a function, by breakpoint or ftrace.
    Kprobe(&'static str),
    /// Return of a function, by breakpoint or ftrace.
    Kretprobe(&'static str),
    /// Loaded only; read through a file of its own each time.
    Iter(&'static str),
    /// The filter of a packet socket that hears ARP.
    Arp,
    /// Loaded only; run by `BPF_PROG_TEST_RUN`.
    TestRun,
}

impl Attach {
    /// What is hooked, as `doctor` shows it.
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

/// Where the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Load,
    Attach,
}

/// Why one way is not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The kernel has no such function, or has it under another name.
    #[error("this kernel has no {0}")]
    NoHook(&'static str),
    /// The kernel has no kprobes that a program could be attached to.
    #[error("this kernel has no kprobes: needs CONFIG_KPROBE_EVENTS")]
    NoKprobes,
    /// Anything else that it said.
    #[error("{0}")]
    Refused(String),
}

/// Loads programs of one object into the kernel.
pub(super) struct Loader<'a> {
    ebpf: &'a mut Ebpf,
    btf: &'a Btf,
    offsets: &'a Offsets,
    kprobes: bool,
    /// What this kernel says to every fentry program. It is not asked again: the verifier would
    /// look through each of them first.
    no_fentry: Option<Refusal>,
    /// The socket that hears ARP, once it does.
    arp: Option<OwnedFd>,
}

/// The kprobe PMU, through which programs are attached since 4.17.
const KPROBE_PMU: &str = "/sys/bus/event_source/devices/kprobe";

impl<'a> Loader<'a> {
    pub(super) fn new(ebpf: &'a mut Ebpf, btf: &'a Btf, offsets: &'a Offsets) -> Self {
        let kprobes = Path::new(KPROBE_PMU).exists();
        Self { ebpf, btf, offsets, kprobes, no_fentry: None, arp: None }
    }

    /// The socket that hears ARP, for as long as it is kept.
    pub(super) fn into_arp(self) -> Option<OwnedFd> {
        self.arp
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
        match (rung, &self.no_fentry) {
            (Rung::Fentry, Some(refusal)) => return Err(refusal.clone()),
            (Rung::Kprobe, _) if !self.kprobes => return Err(Refusal::NoKprobes),
            _ => {}
        }
        for (index, (name, attach)) in programs.iter().enumerate() {
            if let Err((stage, error)) = self.attach_one(name, *attach) {
                for (name, attach) in &programs[..=index] {
                    self.unload(name, *attach);
                }
                let refusal = refusal(rung, attach.hook(), stage, &error);
                tracing::debug!(program = name, %refusal, log = %verifier_log(&error), "refused");
                // Tracepoint programs are of the same type and need the same capabilities, so that
                // this is about trampolines as such. (Other errors are about one function.)
                if (rung, stage, errno(&error)) == (Rung::Fentry, Stage::Load, Some(libc::EPERM)) {
                    self.no_fentry = Some(refusal.clone());
                }
                return Err(refusal);
            }
        }
        Ok(())
    }

    fn attach_one(&mut self, name: &str, attach: Attach) -> Result<(), (Stage, ProgramError)> {
        let btf = self.btf;
        let program = self
            .ebpf
            .program_mut(name)
            // The object is built with the binary: a unit test pins that each name is in it.
            .ok_or((Stage::Load, ProgramError::UnexpectedProgramType))?;
        let load = |error| (Stage::Load, error);
        let hold = |error| (Stage::Attach, error);
        match attach {
            Attach::TpBtf(hook) => {
                let program: &mut BtfTracePoint = program.try_into().map_err(load)?;
                program.load(hook, btf).map_err(load)?;
                program.attach().map(drop).map_err(hold)
            }
            Attach::RawTp(hook) => {
                let program: &mut RawTracePoint = program.try_into().map_err(load)?;
                program.load().map_err(load)?;
                program.attach(hook).map(drop).map_err(hold)
            }
            Attach::Fentry(hook) => {
                let program: &mut FEntry = program.try_into().map_err(load)?;
                program.load(hook, btf).map_err(load)?;
                program.attach().map(drop).map_err(hold)
            }
            Attach::Fexit(hook) => {
                let program: &mut FExit = program.try_into().map_err(load)?;
                program.load(hook, btf).map_err(load)?;
                program.attach().map(drop).map_err(hold)
            }
            Attach::Kprobe(hook) | Attach::Kretprobe(hook) => {
                let program: &mut KProbe = program.try_into().map_err(load)?;
                program.load().map_err(load)?;
                program.attach(hook, 0).map(drop).map_err(hold)
            }
            Attach::Iter(kind) => {
                let program: &mut Iter = program.try_into().map_err(load)?;
                program.load(kind, btf).map_err(load)
            }
            Attach::Arp => {
                let program: &mut SocketFilter = program.try_into().map_err(load)?;
                program.load().map_err(load)?;
                let sys = |call| move |io_error| hold(SyscallError { call, io_error }.into());
                let socket = arp::socket().map_err(sys("socket"))?;
                program.attach(&socket).map_err(hold)?;
                arp::listen(&socket).map_err(sys("bind"))?;
                self.arp = Some(socket);
                Ok(())
            }
            Attach::TestRun => {
                let program: &mut RawTracePoint = program.try_into().map_err(load)?;
                program.load().map_err(load)
            }
        }
    }

    /// Gives up a program that was refused or whose twin was, so that it can be tried elsewhere.
    fn unload(&mut self, name: &str, attach: Attach) {
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
        // Not loaded is what was wanted.
        drop(outcome);
    }
}

/// The cause that carries the errno, whatever aya wrapped it in.
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

/// The verifier's words; they go to the log only, for they run to hundreds of lines.
fn verifier_log(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError { verifier_log, .. } => verifier_log.to_string(),
        error => error.to_string(),
    }
}

fn refusal(rung: Rung, hook: &'static str, stage: Stage, error: &ProgramError) -> Refusal {
    let code = errno(error);
    let absent = matches!(error, ProgramError::Btf(_))
        || (rung, stage, code) == (Rung::Kprobe, Stage::Attach, Some(libc::ENOENT));
    if absent {
        return Refusal::NoHook(hook);
    }
    let stage_name = match stage {
        Stage::Load => "load",
        Stage::Attach => "attach",
    };
    let Some(code) = code else {
        return Refusal::Refused(format!("{stage_name} refused ({error})"));
    };
    let hint = hint(rung, stage, code).map(|hint| format!(": {hint}")).unwrap_or_default();
    Refusal::Refused(format!("{stage_name} refused ({}){hint}", errno_name(code)))
}

/// What is most likely missing. The other rungs tell a missing capability from a missing option:
/// without the capability nothing loads at all, and `Probes::load` has said so.
fn hint(rung: Rung, stage: Stage, code: i32) -> Option<&'static str> {
    match (rung, stage, code) {
        (Rung::Fentry, Stage::Load, libc::EPERM | libc::ENOTSUP | ENOTSUPP) => {
            Some("needs CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS")
        }
        (Rung::Kprobe, Stage::Attach, libc::EPERM | libc::EACCES) => {
            Some("needs CAP_PERFMON, and no lockdown")
        }
        (Rung::Socket, Stage::Attach, libc::EPERM) => Some("needs CAP_NET_RAW"),
        (Rung::Snapshot, Stage::Load, libc::EINVAL) => Some("needs a kernel from 5.17 on"),
        _ => None,
    }
}

/// Kernel-internal "not supported", which the trampoline code lets out.
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
mod tests {
    use super::*;
    use aya::sys::SyscallError;

    #[test]
    fn a_refusal_reads_as_a_person_would_say_it() {
        let io_error = io::Error::from_raw_os_error(libc::EPERM);
        let error = SyscallError { call: "bpf_raw_tracepoint_open", io_error }.into();
        let text = refusal(Rung::TpBtf, "x", Stage::Attach, &error).to_string();
        assert_eq!(text, "attach refused (EPERM)");
        let io_error = io::Error::from_raw_os_error(ENOTSUPP);
        let error = SyscallError { call: "bpf_prog_load", io_error }.into();
        let text = refusal(Rung::Fentry, "x", Stage::Load, &error).to_string();
        assert!(text.starts_with("load refused (ENOTSUPP): needs CONFIG_DYNAMIC_FTRACE"), "{text}");
        let io_error = io::Error::from_raw_os_error(libc::ENOENT);
        let error = SyscallError { call: "perf_event_open", io_error }.into();
        assert_eq!(refusal(Rung::Kprobe, "x", Stage::Attach, &error), Refusal::NoHook("x"));
    }
}
