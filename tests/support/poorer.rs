//! Commands that execute a program in an environment that lacks something or is falsified.

use std::path::Path;
use std::process::Command;

use crate::role::{Helper, Role};
use crate::{Lab, unit};

const NO_BTF: &str = "mount -t tmpfs none /sys/kernel/btf";

/// bpf(2) is forbidden.
#[must_use]
pub fn without_bpf(program: &Path) -> Command {
    without("bpf", program)
}

/// unshare(2) is forbidden, as by `RestrictNamespaces=` or without CAP_SYS_ADMIN.
#[must_use]
pub fn without_unshare(program: &Path) -> Command {
    without("unshare", program)
}

fn without(call: &str, program: &Path) -> Command {
    let mut command = Helper::command(Role::Without);
    command.arg(call).arg(program);
    command
}

/// The kernel's BTF is missing.
#[must_use]
pub fn without_btf(program: &Path) -> Command {
    with_mounts(NO_BTF, "slave", Path::new("-"), program)
}

/// BTF is missing, and mounts made on the node from now on are not visible.
#[must_use]
pub fn without_btf_and_propagation(program: &Path) -> Command {
    with_mounts(NO_BTF, "private", Path::new("-"), program)
}

/// `/proc` shows a process only to those who may trace it (`hidepid=2`), and the program has only the unit's
/// capabilities.
#[must_use]
pub fn with_hidden_processes(program: &Path) -> Command {
    let names = unit::capabilities();
    let names = names.iter().map(|name| name.trim_start_matches("CAP_").to_lowercase());
    let kept: String = names.map(|name| format!(",+{name}")).collect();
    let script = format!(
        "mount -t proc -o hidepid=2 proc /proc && set -- setpriv --bounding-set=-all{kept} \"$@\""
    );
    with_mounts(&script, "slave", Path::new("-"), program)
}

/// The boot id differs.
#[must_use]
pub fn in_another_boot(lab: &Lab, program: &Path) -> Command {
    let id = lab.dir().join("boot_id");
    std::fs::write(&id, "00000000-1111-4222-8333-444444444444\n").expect("write a boot id");
    with_mounts("mount --bind \"$0\" /proc/sys/kernel/random/boot_id", "slave", &id, program)
}

/// Runs `script`, with `$0` as given, in a separate mount namespace with this propagation.
fn with_mounts(script: &str, propagation: &str, zero: &Path, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", propagation, "sh", "-c"]);
    command.arg(format!("{script} && exec \"$@\"")).arg(zero).arg(program);
    command
}
