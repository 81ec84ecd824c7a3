//! Where the kernel takes probes on its functions, they are used: fentry, and kprobe once fentry is
//! forbidden. What they then feed is tested by the same assertions as everywhere (`map`, `holders`,
//! `stuck`, `identity`), which run once for each rung.

use support::{Config, Daemon, Lab, daemon};

support::tests! {
    kernel_functions_are_probed needs [Tracing] @ Kernel,
}

fn kernel_functions_are_probed(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let probes = daemon.list("probes", &["doctor"]);
    let on = |rung: &str| probes.iter().filter(|probe| probe["rung"] == rung).count();
    match daemon::probes().as_str() {
        "all" => assert!(on("fentry") > 5 && on("kprobe") == 0, "{probes:?}"),
        "kprobe" => assert!(on("kprobe") > 5 && on("fentry") == 0, "{probes:?}"),
        _ => assert_eq!((on("fentry"), on("kprobe")), (0, 0), "{probes:?}"),
    }
}
