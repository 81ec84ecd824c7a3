//! A NIC of the node in the netns of a dead sandbox. Only in VMs, which have an unused NIC; the runtime is a fake,
//! because no containerd fits.

use std::path::Path;

use serde_json::Value;
use support::fake_cri::FakeCri;
use support::harness::case;
use support::netns::ip;
use support::remedy::{Shell, change};
use support::{Daemon, Lab, Netns, Sandbox};

use super::{SOON, config, is_in, only_holder};

support::tests! {
    a_nic_stays_in_a_dead_sandbox needs [OwnMachine, FakeCri] @ Alone Kernel Stock,
}

const CODE: &str = "device-held-by-dead-sandbox";

/// A hardware network device, and its bus address.
fn nic() -> (String, String) {
    let devices = std::fs::read_dir("/sys/class/net").unwrap().flatten();
    let hardware = devices.filter_map(|device| {
        let parent = std::fs::canonicalize(device.path().join("device")).ok()?;
        // virtio-net is a virtio device, which is a PCI device.
        let address = parent.file_name()?.to_str()?.to_owned();
        Some((device.file_name().to_str()?.to_owned(), address))
    });
    hardware.min().expect("the VM has a NIC")
}

fn a_nic_stays_in_a_dead_sandbox(lab: &Lab) {
    let runtime = FakeCri::start(lab);
    let (nic, address) = nic();
    let netns = Netns::new(lab, "eni");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    runtime.has_pod(&pod, "READY");
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()).cri(runtime.socket()));
    daemon.await_source("containerd");
    ip(&format!("link set {nic} netns {}", netns.name()));
    netns.ip(&format!("link set {nic} up"));
    netns.add_address(&lab.cidr(7), &nic);
    daemon.await_ip(lab.ip(7), netns.inode);
    std::thread::sleep(std::time::Duration::from_secs(8));
    let findings = daemon.findings_in(netns.inode);
    assert!(findings.is_empty(), "its sandbox lives: {findings:#?}");

    runtime.has_pod(&pod, "NOTREADY");
    let finding = daemon.await_firing(CODE, SOON, is_in(netns.inode));
    assert_eq!(finding["severity"], "warning", "{finding:#?}");
    assert_eq!(finding["subject"]["pod"]["name"], pod.name.as_str(), "{finding:#?}");
    assert_eq!(finding["subject"]["pod"]["state"], "NotReady", "{finding:#?}");
    let holder = only_holder(&finding);
    assert_eq!(holder["mount_path"], netns.path().to_str().unwrap(), "{finding:#?}");
    let proof = super::evidence(&finding);
    assert!(proof.contains(&nic) && proof.contains("virtio"), "{proof}");
    assert!(names(&finding, &address), "{address}: {proof}");

    let shell = Shell::new(lab);
    shell.looks(&finding);
    let command = change(&finding, "nsenter ");
    shell.succeeds(&command);
    shell.refuses(&command);
    assert!(Path::new("/sys/class/net").join(&nic).exists(), "it is back");
    daemon.await_resolved(&finding, SOON);
    case(
        "a NIC in the netns of a dead sandbox (mock runtime)",
        CODE,
        &format!("{nic} ({address}), bind mount"),
        "yes, by the printed command",
    );
}

/// By the device's own address, or by that of the bus behind it.
fn names(finding: &Value, address: &str) -> bool {
    let proof = super::evidence(finding);
    let behind = std::fs::canonicalize("/sys/bus/virtio/devices").ok();
    let pci = behind.and_then(|dir| std::fs::canonicalize(dir.join(address)).ok());
    let pci = pci.and_then(|path| Some(path.parent()?.file_name()?.to_str()?.to_owned()));
    proof.contains(address) || pci.is_some_and(|pci| proof.contains(&pci))
}
