//! One boot: console lines are shown as they come, and add up to a result.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::Stock;
use super::emulator::Emulator;
use crate::machine::Machine;
use crate::shell;
use crate::tally::Tally;

/// The line with which `init.sh` ends.
const END: &str = "ipwatch-vm: exit ";

/// What a VM that does not hang keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The end of it.
    end: Duration,
    /// The next line: every test says when it is done.
    silence: Duration,
}

impl Limits {
    /// Three times what both runs of the suite take on two cores, beside another VM twice.
    pub(crate) const USUAL: Self =
        Self { end: Duration::from_secs(3600), silence: Duration::from_secs(300) };
    /// The same with tests in their long form: random changes for ten minutes on each of two rungs, at the end of a
    /// run with nothing beside them.
    pub(crate) const LONG: Self =
        Self { end: Duration::from_secs(7200), silence: Duration::from_secs(1200) };
}

/// Boots and waits for the end. `None`: it did not reach its last line, and has failed, whatever it said
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

/// The same, and hands every line on.
pub(crate) fn boot_and_hear(
    emulator: &Emulator,
    kernel: Stock,
    image: &Path,
    initramfs: &Path,
    disks: &[&Path],
    limits: Limits,
    mut hear: impl FnMut(&str),
) -> Result<Option<Tally>> {
    // In this process's group: Ctrl-C ends the VM too. So does the end of this process by any other signal.
    let with_parent = ["setpriv", "--pdeathsig", "KILL"];
    let mut command = shell::command(&with_parent);
    let Limits { end: limit, silence } = limits;
    command.args(["timeout", "--foreground", "--signal=KILL", &limit.as_secs().to_string()]);
    command.args(with_parent).args(emulator.words());
    // Emulated even where /dev/kvm exists: inside most CI machines it does not work.
    let (board, console) = board(kernel.machine);
    command.args(["-accel", "tcg,thread=multi", "-smp", "2"]).args(board);
    command.args(["-m", "1536", "-nodefaults", "-no-reboot", "-display", "none"]);
    command.args(["-serial", "stdio", "-monitor", "none"]);
    // A NIC that can be moved into a netns. It leads nowhere.
    command.args(["-nic", "user,model=virtio-net-pci,restrict=on"]);
    // What is written to a disk is gone after the boot.
    for disk in disks {
        let file = disk.display();
        command.arg("-drive").arg(format!("file={file},format=raw,if=virtio,snapshot=on"));
    }
    command.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    // Warnings too: a lockup's stack is printed as one (dump_stack, KERN_DEFAULT).
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

/// Words for QEMU, and words for the kernel, which hands those that it does not know to `init.sh`.
fn board(machine: Machine) -> (&'static [&'static str], &'static str) {
    match machine {
        Machine::X86_64 => (&["-cpu", "max", "-M", "q35"], "console=ttyS0"),
        // A plain CPU: emulating the newest one's pointer authentication is slow. Nothing boots from the NIC, and
        // its ROM may be missing. What is tested there is not optimised.
        Machine::Arm64 => (
            &["-cpu", "cortex-a72", "-M", "virt", "-global", "virtio-net-pci.romfile="],
            "console=ttyAMA0 IPWATCH_TEST_SLOW=15",
        ),
    }
}
