//! Kernel functions are probed where the kernel allows it: with fentry, and with kprobe once fentry is forbidden.
//! What these probes feed is tested by the same assertions as everywhere (`map`, `holders`, `stuck`, `identity`),
//! which run once per rung.

use serde_json::Value;
use support::{Config, Daemon, Lab, daemon};

support::tests! {
    kernel_functions_are_probed needs [Tracing] @ Kernel Stock,
    a_stock_kernel_refuses_nothing needs [Tracing] @ Kernel Stock,
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

/// What Debian's kernel supports but does not load is a program of ours that it refused.
fn a_stock_kernel_refuses_nothing(lab: &Lab) {
    // On arm64 it is less well known which functions can be hooked.
    if daemon::probes() != "all" || cfg!(target_arch = "aarch64") {
        return;
    }
    let daemon = Daemon::start(lab, &Config::default());
    let probes = daemon.list("probes", &["doctor"]);
    let refused: Vec<&Value> = probes.iter().filter(|probe| probe["status"] != "active").collect();
    assert!(refused.is_empty(), "{refused:#?}");
}
