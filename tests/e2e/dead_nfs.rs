//! A pod's process that was writing to NFS when the server died, and was killed: it cannot end before the server
//! answers, and its IP stays. The finding's remedy ends it.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::nfs::Nfs;
use support::poll::until;
use support::proc::View;
use support::remedy::{Shell, change};
use support::{Config, Daemon, Lab, Netns, sys};

support::tests! {
    a_writer_of_a_dead_server_is_found_and_freed needs [OwnMachine, Nfs, UmountN] @ Kernel Stock,
}

const GRACE: u32 = 2;
/// Seconds until a finding fires here.
const SOON: u32 = 40;

/// A process with dirty pages: dash writes, and then executes a program that waits.
fn writer(netns: &Netns, file: &Path) -> Child {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns.path().display())).args(["sh", "-c"]);
    command.arg("exec >\"$0\"; echo something; exec sleep 100000").arg(file);
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("run sh");
    let comm = || std::fs::read_to_string(format!("/proc/{}/comm", child.id()));
    until("it has written", 10, || comm().is_ok_and(|comm| comm == "sleep\n"));
    child
}

fn a_writer_of_a_dead_server_is_found_and_freed(lab: &Lab) {
    let (netns, shell) = (Netns::new(lab, "writer"), Shell::new(lab));
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let nfs = Nfs::mount(lab);
    let daemon = Daemon::start(lab, &Config::default().grace(GRACE));
    let mut writer = writer(&netns, &nfs.file());
    sys::kill(writer.id(), libc::SIGKILL).expect("kill it");
    let hangs = || View::leader(writer.id()).is_some_and(|view| view.state == 'D');
    until("it hangs", 10, || nfs.is_dead() && hangs());
    let mine = |finding: &Value| finding["subject"]["netns"]["inode"] == netns.inode;
    let finding = daemon.await_firing("ip-held-by-stuck-process", SOON, mine);
    assert_eq!(finding["subject"]["ip"], lab.ip(7).to_string(), "{finding:#?}");
    let told = finding.to_string();
    assert!(told.contains("NFS") && told.contains("127.0.0.1:/export"), "{finding:#?}");
    shell.looks(&finding);
    assert!(!told.contains("cordon"), "nobody vouches for this netns: {finding:#?}");
    let command = change(&finding, "umount ");
    assert!(command.ends_with(nfs.dir().to_str().unwrap()), "{command}");
    // The pid now belongs to another process.
    let (check, rest) = command.split_once(" && ").unwrap();
    let others = check.replacen("{18}", "{18}9", 1);
    assert_ne!(others, check);
    shell.refuses(&format!("{others} && {rest}"));
    assert!(hangs(), "its requests failed for another process");
    // A file system in use stays mounted, and `umount` reports that: the process must no longer wait.
    let _ = shell.run(&command);
    until("it ends", 20, || writer.try_wait().expect("wait for it").is_some());
    assert!(nfs.is_dead(), "the server did not answer meanwhile");
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
}
