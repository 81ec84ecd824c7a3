//! `cargo xtask recordings [NAME]…`: recreates `recordings/*.jsonl`, each from an end-to-end test of a field case.
//!
//! `ipwatch record` runs beside the test's daemon, with the same configuration. Only the lines that a replay reads
//! are kept, without any name of the machine. The expected findings of each are in
//! `ipwatch/src/daemon/record_replay/field.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::build::{self, Binaries};
use crate::shell::{command, output, run};
use crate::{place, setup, test, vm};

/// Maximum size of a committed recording, in bytes.
const MOST: usize = 600_000;

/// Where a case is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On this host: needs a runtime, a kubelet or an API server.
    Host,
    /// On a stock kernel, whose probes report more.
    Vm,
}

/// A field case (the name of its file), and the test that produces it.
struct Case(&'static str, &'static str, Place);

const CASES: [Case; 11] = [
    Case("del-never-called", "lead::exhaustion::add_without_del_fills_a_range", Place::Host),
    Case("range-full", "kubelet::exhaustion::a_pod_fails_long_after", Place::Host),
    Case("freed-while-held", "kubelet::freed::a_freed_ip_is_told", Place::Host),
    Case("whereabouts-after-a-crash", "apiserver::whereabouts::a_crashed_nodes", Place::Host),
    Case(
        "del-of-an-old-sandbox",
        "cases::ipam::a_late_del_takes_the_successors_network",
        Place::Host,
    ),
    Case("device-busy", "cases::mounts::an_agent_keeps_a_dead_pods_shm", Place::Host),
    Case("node-crash", "lead::exhaustion::lost_sandboxes_fill_a_range", Place::Host),
    Case("api-server-is-silent", "kubelet::outage::a_silent_api_server", Place::Host),
    Case("exit-group", "stuck::a_leader_that_hangs_after_a_threads_exit_group", Place::Vm),
    Case("flood-of-neighbours", "bad_link::a_full_neighbour_table", Place::Vm),
    Case("duplicate-on-a-bridge", "reach::one_ip_in_two_netns_on_one_bridge", Place::Vm),
];

/// Records the named cases, or all.
pub(crate) fn command_line(names: &[&str]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| !CASES.iter().any(|case| case.0 == **name)) {
        bail!("no recording {unknown:?}; there are {}", CASES.map(|case| case.0).join(", "));
    }
    setup::need_root("recording")?;
    let binaries = build::for_tests()?;
    let wanted = |place| {
        let named = |case: &&Case| names.is_empty() || names.contains(&case.0);
        CASES.iter().filter(named).filter(move |case| case.2 == place)
    };
    for case in wanted(Place::Host) {
        keep(case.0, &on_this_host(&binaries, case.1)?)?;
    }
    let cases: Vec<(&str, &str)> = wanted(Place::Vm).map(|case| (case.0, case.1)).collect();
    if cases.is_empty() {
        return Ok(());
    }
    for (name, packed) in vm::recordings(&binaries, &cases)? {
        let file = place::target().join("recording.gz.base64");
        fs::write(&file, packed)?;
        let unpack = format!("base64 -d < '{}' | gunzip", file.display());
        keep(&name, &output(&mut command(&["sh", "-c", &unpack]))?)?;
    }
    Ok(())
}

/// The longest recording of a run: a test may start its daemon several times.
fn on_this_host(binaries: &Binaries, filter: &str) -> Result<String> {
    let dir = place::target().join("recordings");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    let mut e2e = test::end_to_end(binaries, &[filter])?;
    run(e2e.args(["--jobs", "1", filter]).env("IPWATCH_TEST_RECORDINGS", &dir))?;
    let size = |path: &PathBuf| fs::metadata(path).map_or(0, |meta| meta.len());
    let files = fs::read_dir(&dir)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let longest = files.into_iter().max_by_key(size).context("it started no daemon")?;
    Ok(fs::read_to_string(longest)?)
}

fn keep(name: &str, text: &str) -> Result<()> {
    let words = words()?;
    let mut kept = String::new();
    // A replay does not read the recorder's own findings.
    for line in text.lines().filter(|line| !line.starts_with("{\"told\"")) {
        kept.push_str(&cleaned(line, &words));
        kept.push('\n');
    }
    ensure!(kept.len() <= MOST, "{name} is {} bytes long, and may be {MOST}", kept.len());
    let file = place::repository().join("recordings").join(format!("{name}.jsonl"));
    fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
    println!("{name}: {} lines, {} bytes", kept.lines().count(), kept.len());
    fs::write(&file, kept).with_context(|| file.display().to_string())
}

/// Names of this machine, and their replacements.
fn words() -> Result<Vec<(String, &'static str)>> {
    let cgroups = fs::read_to_string("/proc/self/cgroup")?;
    let mut words: Vec<(String, &str)> = vec![
        (place::cache("")?.display().to_string(), "/opt/"),
        (place::repository().display().to_string(), "/opt/ipwatch"),
    ];
    let own = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    words.extend(own.filter(|path| path.len() > 1).map(|path| (path.to_owned(), "/test.slice")));
    words.push((output(&mut command(&["hostname"]))?.trim().to_owned(), "node-1"));
    // A path before its own prefixes.
    words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
    words.dedup();
    Ok(words)
}

fn cleaned(line: &str, words: &[(String, &str)]) -> String {
    let long = |(word, _): &&(String, &str)| word.len() > 2;
    words.iter().filter(long).fold(line.to_owned(), |line, (word, with)| line.replace(word, with))
}

#[cfg(test)]
mod tests {
    use super::cleaned;

    #[test]
    fn words_of_the_machine_are_replaced() {
        let words = [("/a/cache/".to_owned(), "/opt/"), ("box".to_owned(), "node-1")];
        assert_eq!(
            cleaned(r#"{"p":"/a/cache/x","n":"box"}"#, &words),
            r#"{"p":"/opt/x","n":"node-1"}"#
        );
    }
}
