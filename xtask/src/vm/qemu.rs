//! Boots a VM once: console lines are shown as they arrive, and summed up to a result.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::Stock;
use super::emulator::Emulator;
use crate::machine::Machine;
use crate::shell;
use crate::tally::Tally;

/// The last line of `init.sh`.
const END: &str = "ipwatch-vm: exit ";

/// Time limits that a healthy VM keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For the whole boot.
    end: Duration,
    /// For the next line that is not the kernel's: every test prints its end, and a kernel that hangs goes on printing
    /// that it does.
    silence: Duration,
}

impl Limits {
    /// Three times the duration of both runs of the suite on two cores, doubled because of another VM.
    pub(crate) const USUAL: Self =
        Self { end: Duration::from_secs(3600), silence: Duration::from_secs(300) };
    /// For tests in their long form: random changes for ten minutes on each of two rungs, at the end of a run, with
    /// nothing else running.
    pub(crate) const LONG: Self =
        Self { end: Duration::from_secs(7200), silence: Duration::from_secs(1200) };
}

/// Boots and waits for the end. `None`: the VM did not reach its last line, and has failed, whatever it printed
/// before. `disks` become `/dev/vda` and so on.
pub(crate) fn boot(
    emulator: &Emulator,
    kernel: Stock,
    image: &Path,
    initramfs: &Path,
    disks: &[&Path],
    limits: Limits,
) -> Result<Option<Tally>> {
    boot_and_hear(emulator, kernel, image, initramfs, disks, limits, |_| {})
}

/// Like [`boot`], and calls `hear` with every line.
pub(crate) fn boot_and_hear(
    emulator: &Emulator,
    kernel: Stock,
    image: &Path,
    initramfs: &Path,
    disks: &[&Path],
    limits: Limits,
    mut hear: impl FnMut(&str),
) -> Result<Option<Tally>> {
    // In this process's group, so that Ctrl-C ends the VM too. It also ends if this process ends by any other signal.
    let with_parent = ["setpriv", "--pdeathsig", "KILL"];
    let mut command = shell::command(&with_parent);
    let Limits { end: limit, silence } = limits;
    command.args(["timeout", "--foreground", "--signal=KILL", &limit.as_secs().to_string()]);
    command.args(with_parent).args(emulator.words());
    // Emulated even if /dev/kvm exists: it does not work inside most CI machines.
    let (board, console) = board(kernel.machine);
    command.args(["-accel", "tcg,thread=multi", "-smp", "2"]).args(board);
    command.args(["-m", "1536", "-nodefaults", "-no-reboot", "-display", "none"]);
    command.args(["-serial", "stdio", "-monitor", "none"]);
    // A NIC that can be moved into a netns. It is connected to nothing.
    command.args(["-nic", "user,model=virtio-net-pci,restrict=on"]);
    // Writes to a disk are discarded after the boot.
    for disk in disks {
        let file = disk.display();
        command.arg("-drive").arg(format!("file={file},format=raw,if=virtio,snapshot=on"));
    }
    command.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    // Includes warnings: a lockup's stack is printed at that level (dump_stack, KERN_DEFAULT).
    command.args([
        "-append",
        &format!(
            "{console} panic=-1 quiet loglevel=5 softlockup_all_cpu_backtrace=1 {}",
            kernel.words
        ),
    ]);
    command.stdin(std::process::Stdio::null());
    let mut tally = Tally::default();
    let mut end = None;
    shell::lines_within(&mut command, silence, |line| {
        println!("[{}] {line}", kernel.name);
        hear(line);
        tally.read(line, &format!("{} ", kernel.name));
        if let Some(code) = line.strip_prefix(END) {
            end = Some(code == "0");
        }
        !is_the_kernels(line)
    })?;
    match end {
        Some(fine) if fine == (tally.failed == 0) => {}
        Some(_) => tally.add(&Tally::failure(&format!(
            "Linux {}: how the VM ended is not what its tests said",
            kernel.name
        ))),
        None => {
            println!(
                "[{}] the VM ended in the middle, or was ended: after {silence:?} of silence or {limit:?}",
                kernel.name
            );
            return Ok(None);
        }
    }
    Ok(Some(tally))
}

/// Whether the kernel printed this line: it begins with the time, in brackets (`print_time`, 5.10 to 6.12).
fn is_the_kernels(line: &str) -> bool {
    let time = line.strip_prefix('[').and_then(|line| line.split_once("] "));
    time.is_some_and(|(time, _)| time.trim_start().parse::<f64>().is_ok())
}

/// Arguments of QEMU, and of the kernel, which passes those that it does not know to `init.sh`.
fn board(machine: Machine) -> (&'static [&'static str], &'static str) {
    match machine {
        Machine::X86_64 => (&["-cpu", "max", "-M", "q35"], "console=ttyS0"),
        // A plain CPU: emulating the pointer authentication of the newest is slow. The NIC needs no ROM, which may be
        // missing. The binaries for it are not optimised.
        Machine::Arm64 => (
            &["-cpu", "cortex-a72", "-M", "virt", "-global", "virtio-net-pci.romfile="],
            "console=ttyAMA0 IPWATCH_TEST_SLOW=15",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_that_hangs_prints_is_no_sign_of_life() {
        assert!(is_the_kernels("[ 2764.664034] watchdog: BUG: soft lockup - CPU#0 stuck for 22s!"));
        assert!(is_the_kernels("[12746.296035]  do_exit+0x374/0xab0"));
        assert!(!is_the_kernels("ok holders::setns (1.2 s)"));
        assert!(!is_the_kernels("[  OK  ] Reached target Basic System."));
    }
}
