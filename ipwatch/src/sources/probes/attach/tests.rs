//! Refusals, as real kernels returned them.

use super::*;

const CONFIG: &str =
    "CONFIG_BPF_SYSCALL=y\nCONFIG_BPF_JIT=y\nCONFIG_FUNCTION_TRACER=y\nCONFIG_DYNAMIC_FTRACE=y\n";

/// A kernel with direct calls, and one without.
fn kernels() -> [Kernel; 2] {
    let with = format!("{CONFIG}CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y\n");
    let known = |config| Kernel::known(Some(("/proc/config.gz", config)), None);
    [known(&with), known(CONFIG)]
}

fn system_call(call: &'static str, code: i32) -> ProgramError {
    SyscallError { call, io_error: io::Error::from_raw_os_error(code) }.into()
}

#[test]
fn a_refusal_reads_as_a_person_would_say_it() {
    let kernel = Kernel::known(None, None);
    let error = system_call("bpf_raw_tracepoint_open", libc::EPERM);
    let text = refusal(&kernel, Rung::TpBtf, "x", Stage::Attach, &error).to_string();
    assert_eq!(text, "attach refused (EPERM)");
    let error = system_call("perf_event_open", libc::ENOENT);
    let absent = refusal(&kernel, Rung::Kprobe, "x", Stage::Attach, &error);
    assert_eq!(absent, Refusal::NoHook("x"));
    assert_eq!(Refusal::NoKprobes(None).to_string(), "this kernel has no kprobes");
}

/// A 6.18 kernel of a virtual machine monitor, whose configuration has direct calls, returns EPERM for every fentry
/// program.
#[test]
fn an_option_that_is_set_is_not_named() {
    let [with, without] = kernels();
    for code in [libc::EPERM, libc::ENOTSUP, ENOTSUPP] {
        let name = errno_name(code);
        let text = refused(&with, Rung::Fentry, Stage::Load, code, None);
        assert_eq!(text, format!("load refused ({name})"));
        let text = refused(&without, Rung::Fentry, Stage::Load, code, None);
        let option = "CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS is not set in /proc/config.gz";
        assert_eq!(text, format!("load refused ({name}): {option}"));
        let text = refused(&Kernel::known(None, None), Rung::Fentry, Stage::Load, code, None);
        assert_eq!(text, format!("load refused ({name})"), "nothing was read");
    }
}

/// Debian's 6.12, `lockdown=confidentiality`.
#[test]
fn a_lockdown_is_the_reason_and_no_version_is() {
    let locked = Kernel::known(None, Some("confidentiality"));
    let said = last_line(
        "0: R1=ctx() R10=fp0\n; let task = ctx.arg(0);\n7: (85) call bpf_probe_read_kernel#113\n\
                          program of this type cannot use helper bpf_probe_read_kernel#113\n\
                          processed 8 insns (limit 1000000) max_states_per_insn 0 total_states 0 \
                          peak_states 0 mark_read 0\n\n",
    );
    let text = refused(&locked, Rung::Snapshot, Stage::Load, libc::EINVAL, said);
    let line = "program of this type cannot use helper bpf_probe_read_kernel#113";
    assert_eq!(text, format!("load refused (EINVAL): {line}; kernel lockdown: confidentiality"));
    let kept = Kernel::known(None, Some("integrity"));
    let text = refused(&kept, Rung::Snapshot, Stage::Load, libc::EINVAL, None);
    assert_eq!(text, "load refused (EINVAL)", "integrity refuses no reading");
}

/// Debian 11's 5.10, which has no `bpf_loop`.
#[test]
fn the_verifiers_last_line_is_shown_and_not_its_account() {
    let log = "func#0 @0\nlast_idx 10 first_idx 0\ninvalid func unknown#181\nprocessed 31 insns (limit 1000000) \
               max_states_per_insn 0 total_states 2 peak_states 2 mark_read 1\n";
    assert_eq!(last_line(log).as_deref(), Some("invalid func unknown#181"));
    let log = "R1 type=scalar expected=fp\nverification time 41 usec\nstack depth 16\nprocessed 3 insns\n";
    assert_eq!(last_line(log).as_deref(), Some("R1 type=scalar expected=fp"));
    for none in ["", "\n\n", "processed 0 insns (limit 1000000)\n"] {
        assert_eq!(last_line(none), None, "{none:?}");
    }
}

#[test]
fn a_line_is_short_and_harmless() {
    let line = last_line(&format!("\u{1b}[2J{}", "ä".repeat(400))).unwrap();
    assert!(line.starts_with("\\x1b[2J") && line.len() <= LONGEST_LINE, "{line}");
}
