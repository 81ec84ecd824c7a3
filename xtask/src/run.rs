//! `cargo xtask run`: runs the daemon on this node, and shows what it sees, until Ctrl-C.

use std::process::Stdio;

use anyhow::Result;

use crate::monitor::{Monitor, TemporaryDir};
use crate::{build, interrupt, setup};

/// Builds the daemon, starts it with a separate socket and state directory, and shows its output.
pub(crate) fn run() -> Result<()> {
    setup::need_root("the monitor")?;
    let ipwatch = build::product()?;
    let dir = TemporaryDir::new()?;
    interrupt::catch();
    let monitor = Monitor::start(&ipwatch, dir.path(), "", Stdio::inherit())?;
    println!("\nWhat it can see here (ipwatch doctor):\n");
    monitor.show(&["doctor"])?;
    println!("\nEvery IP and who holds it (ipwatch query ip):\n");
    monitor.show(&["query", "ip"])?;
    println!(
        "\nFollowing (ipwatch watch); Ctrl-C ends it. From another terminal:\n  {} --socket {} query ip\n",
        ipwatch.display(),
        monitor.socket().display()
    );
    monitor.follow()
}
