//! `cargo xtask demo`: creates pods (one healthy, one that cannot exit, one of which only the network namespace is
//! left, two with the same IP), and shows what ipwatch reports about them.

mod stage;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use self::stage::{Pod, Stage};
use crate::monitor::{Monitor, TemporaryDir};
use crate::{build, interrupt, setup, shell};

/// Maximum wait for the findings: both graces and two looks each, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Creates the pods, shows ipwatch's reports, and cleans up, also after Ctrl-C.
pub(crate) fn run() -> Result<()> {
    setup::need_root("the demo")?;
    setup::packages(&["iproute2"])?;
    let ipwatch = build::product()?;
    // The binary that plays the processes; see tests/support/role.rs.
    let roles = build::test_binary("e2e")?;
    interrupt::catch();
    let dir = TemporaryDir::new()?;
    let done =
        Stage::new(dir.path(), &roles).and_then(|mut stage| play(&mut stage, dir.path(), &ipwatch));
    // After an interrupt, errors of interrupted commands are not the cause.
    if interrupt::came() {
        bail!("interrupted; everything is cleaned up");
    }
    done
}

fn play(stage: &mut Stage, dir: &Path, ipwatch: &Path) -> Result<()> {
    println!(
        "\nThis makes five pods, without a container runtime, in network namespaces that nothing routes to; has\n\
         ipwatch look at them, and at this node; and removes all of it, also after Ctrl-C.\n"
    );
    stage.healthy()?;
    println!("  shop/web-0   healthy, {}", Pod::HEALTHY.ip());
    stage.leaked()?;
    println!(
        "  shop/cart-0  gone, but its network namespace is still mounted, {}",
        Pod::LEAKED.ip()
    );
    stage.duplicate()?;
    println!("  shop/db-0, shop/db-1   share a link, and both have {}", Pod::TWIN.ip());
    let mut wanted = vec![Pod::LEAKED, Pod::TWIN];
    match stage.hanging() {
        Ok(()) => {
            println!(
                "  shop/api-0   reads from a file server that never answers, {}",
                Pod::STUCK.ip()
            );
            wanted.push(Pod::STUCK);
        }
        Err(error) => println!("  shop/api-0   is left out, FUSE does not work here: {error:#}"),
    }
    let config = stage.config();
    let said = dir.join("ipwatch.log");
    let log = std::fs::File::create(&said)?;
    let monitor = Monitor::start(ipwatch, dir, &config, Stdio::from(log))
        .with_context(|| std::fs::read_to_string(&said).unwrap_or_default())?;
    if stage.kill_hanging()? {
        println!("Now api-0 is killed, and cannot exit.");
    }
    let found = await_findings(&monitor, &wanted)?;

    for pod in [Pod::HEALTHY, Pod::LEAKED, Pod::TWIN, Pod::STUCK] {
        // One by one, because there may be other pods on this node.
        show(&monitor, &["query", "netns", &pod.netns(), "-o", "tree"])?;
    }
    show(&monitor, &["query", "findings"])?;
    let config = monitor.config().display().to_string();
    // Without a runtime, a single look cannot know how long a netns has been empty.
    println!("\nThe same without a daemon, from one look, which shows what hangs:");
    show(&monitor, &["scan", "--config", &config])?;
    if let Some(id) = found.last() {
        show(&monitor, &["explain", &id[..id.len().min(6)]])?;
    }
    println!("\nCleaning up: the file server ends, the namespace is unmounted.");
    stage.clear();
    await_end(&monitor, &found)?;
    show(&monitor, &["query", "findings", "--all"])
}

/// Waits until a finding fires for each of these pods; returns the ids of the findings.
fn await_findings(monitor: &Monitor, wanted: &[Pod]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    until(PATIENCE, || {
        let lines = findings(monitor)?;
        let of = |pod: &Pod| {
            lines.iter().find(|line| line.contains(&format!("\"ip\":\"{}\"", pod.ip())))
        };
        found = wanted.iter().filter_map(of).filter_map(|line| id(line)).collect();
        Ok(found.len() == wanted.len())
    })?;
    if found.len() < wanted.len() {
        println!(
            "(Not everything was found in time; `cargo xtask run` shows what can be seen here.)"
        );
    }
    Ok(found)
}

/// Waits until none of these findings fires any more.
fn await_end(monitor: &Monitor, found: &[String]) -> Result<()> {
    until(PATIENCE, || {
        let lines = findings(monitor)?;
        Ok(!lines.iter().filter_map(|line| id(line)).any(|id| found.contains(&id)))
    })
}

/// The firing findings, one JSON document each.
fn findings(monitor: &Monitor) -> Result<Vec<String>> {
    let text = shell::output(&mut monitor.command(&["query", "findings", "-o", "jsonl"]))?;
    // Consequences are shown with their cause.
    let first =
        |line: &&str| line.contains("\"status\":\"firing\"") && !line.contains("\"caused_by\"");
    Ok(text.lines().filter(first).map(str::to_owned).collect())
}

/// A finding's id.
fn id(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("\"id\":\"")?;
    rest.split_once('"').map(|(id, _)| id.to_owned())
}

/// Polls until `done` returns true, time is up or Ctrl-C came.
fn until(patience: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    const PAUSE: Duration = Duration::from_millis(200);
    for _ in 0..patience.as_millis() / PAUSE.as_millis() {
        if interrupt::came() {
            bail!("interrupted");
        }
        if done()? {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Prints a command and its answer. Exit code 1 of `scan` is not an error.
fn show(monitor: &Monitor, args: &[&str]) -> Result<()> {
    println!("\n$ ipwatch {}", args.join(" "));
    let mut command = monitor.command(args);
    let status = command.status()?;
    if !matches!(status.code(), Some(0 | 1)) {
        bail!("ipwatch {}: {status}", args.join(" "));
    }
    Ok(())
}
