//! Runs of CNI plugins as the kernel reports them: real plugins, called as a runtime calls them.

use std::collections::HashMap;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use support::cni::{Call, Node, PLUGINS, Recorder, Seen, only};
use support::collector::Collector;
use support::{Config, Daemon, Lab, daemon, eventually, harness, patience};

support::tests! {
    calls_are_told_with_who_asked_what_and_how_they_ended needs [Cni] @ Kernel Stock,
    raw_tracepoints_tell_the_same needs [Cni] @ Kernel Stock,
    a_plugin_is_known_by_any_way_to_it needs [Cni] @ Kernel Stock,
    spans_of_calls_nest_and_say_why_one_failed needs [Cni, Rotel] @ Kernel,
    a_canary_in_a_plugins_environment_appears_nowhere needs [Cni] @ Kernel,
    fifty_calls_a_second_are_all_told needs [Cni] @ Alone Kernel Stock,
    fifty_calls_a_second_without_devices_are_all_told needs [Cni] @ Alone Kernel,
    a_plugin_that_is_gone_at_once_is_told_on_a_busy_machine needs [Cni] @ Alone Kernel,
}

/// Calls per second, except on an emulated CPU.
const RATE: u32 = 50;
/// Usual duration in seconds, and the one that the design promises (`cargo xtask test --long`).
const SECONDS: (u32, u32) = (10, 60);

fn seconds() -> u32 {
    if harness::is_long() { SECONDS.1 } else { SECONDS.0 }
}

fn calls_are_told_with_who_asked_what_and_how_they_ended(lab: &Lab) {
    tells_everything(lab, &Config::default());
}

fn raw_tracepoints_tell_the_same(lab: &Lab) {
    let forbid = if daemon::probes() == "kprobe" { "" } else { "forbid = [\"tp_btf\"]" };
    tells_everything(lab, &Config::default().probes_line(forbid));
}

fn tells_everything(lab: &Lab, config: &Config) {
    let node = Node::new(lab);
    let scripts = lab.subdir("bin");
    let dirs = format!("[cni]\nbin_dirs = [{PLUGINS:?}, {scripts:?}]");
    let recorder = Recorder::start(&node, &config.clone().line(&dirs));
    let mut done: Vec<(Call, u32, ExitStatus)> = Vec::new();
    let mut call = |call: Call| {
        let (pid, out) = node.run(&call);
        done.push((call, pid, out.status));
        out
    };
    for plugin in ["bridge", "ptp", "macvlan", "loopback"] {
        let pod = node.pod(plugin);
        for command in ["ADD", "DEL"] {
            let out = call(node.call(plugin, command, &format!("{plugin}-id"), &pod));
            assert!(out.status.success(), "{plugin}: {}", String::from_utf8_lossy(&out.stdout));
        }
    }
    // A plugin that fails, one that is killed, and one that takes its time in an environment as big as a runtime's
    // may be.
    let pod = node.pod("none");
    let mut wrong = node.call("bridge", "ADD", "failed-id", &pod);
    wrong.netns = "/run/netns/that-is-not".into();
    assert_eq!(call(wrong).status.code(), Some(1));
    let mut killed = node.call("loopback", "ADD", "killed-id", &pod);
    killed.plugin = node.script(&scripts, "killed", "kill -9 $$");
    assert_eq!(call(killed).status.code(), None);
    let mut slow = node.call("loopback", "CHECK", "slow-id", &pod);
    slow.plugin = node.script(&scripts, "slow", "sleep 0.3; exit 7");
    slow.filler = 48 << 10;
    let began = Instant::now();
    assert_eq!(call(slow).status.code(), Some(7));
    let took = began.elapsed();

    let (seen, _) = recorder.stop();
    for (call, pid, status) in &done {
        let name = call.plugin.file_name().unwrap().to_str().unwrap();
        only(&seen, name, call.command, &call.container).is(call, *pid, *status);
    }
    for plugin in ["bridge", "ptp", "macvlan"] {
        for command in ["ADD", "DEL"] {
            let id = format!("{plugin}-id");
            let main = only(&seen, plugin, command, &id);
            let ipam = only(&seen, "host-local", command, &id);
            assert_eq!(ipam.began["parent"], main.began["task"]["pid"]);
            assert!(main.lasted() > ipam.lasted());
        }
    }
    let lasted = Duration::from_nanos(only(&seen, "slow", "CHECK", "slow-id").lasted());
    assert!(lasted >= Duration::from_millis(300) && lasted <= took, "{lasted:?} of {took:?}");
}

fn a_plugin_is_known_by_any_way_to_it(lab: &Lab) {
    let node = Node::new(lab);
    let pod = node.pod("ways");
    let (real, late) = (lab.subdir("real"), lab.dir().join("late"));
    let link = lab.dir().join("link");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    std::os::unix::fs::symlink(format!("{PLUGINS}/loopback"), real.join("linked")).unwrap();
    let dirs = format!("[cni]\nbin_dirs = [{link:?}, {late:?}]");
    let recorder_config = Config::default().line(&dirs);
    let first = node.script(&real, "first", "exit 0");
    let recorder = {
        // The recorder waits for a call of Debian's loopback, which is not among its plugins here.
        std::fs::copy(format!("{PLUGINS}/loopback"), real.join("loopback")).unwrap();
        Recorder::start_by(&node, &recorder_config, &real.join("loopback"))
    };
    let run = |path: std::path::PathBuf, id: &str| {
        let mut call = node.call("loopback", "ADD", id, &pod);
        call.plugin = path;
        node.run(&call).1.status
    };
    run(link.join("first"), "by-the-link");
    run(first, "by-the-directory");
    run(link.join("linked"), "a-link-itself");
    // By a path that is not configured.
    let other = lab.dir().join("other");
    std::os::unix::fs::symlink(&real, &other).unwrap();
    run(other.join("loopback"), "by-another-link");
    // A wrapper that `exec`s the plugin is one call.
    let body = format!("exec {PLUGINS}/loopback");
    run(node.script(&real, "wrapper", &body), "wrapped");
    // Not a plugin.
    std::fs::copy(format!("{PLUGINS}/loopback"), lab.dir().join("stray")).unwrap();
    run(lab.dir().join("stray"), "elsewhere");
    // A directory that is created later and then replaced. Its own name is known beforehand.
    for (n, name) in ["late-1", "late-2"].into_iter().enumerate() {
        let _ = std::fs::rename(&late, lab.dir().join("late.old"));
        std::fs::create_dir(&late).unwrap();
        std::fs::copy(format!("{PLUGINS}/loopback"), late.join("loopback")).unwrap();
        run(late.join("loopback"), name);
        let way = lab.dir().join(format!("way-{n}"));
        std::os::unix::fs::symlink(&late, &way).unwrap();
        support::poll::until("the new directory is known by itself", 10, || {
            run(way.join("loopback"), &format!("{name}-itself-{}", "x".repeat(60)));
            recorder.text().contains(&format!("{name}-itself"))
        });
    }
    let (seen, _) = recorder.stop();
    let plugin = |id: &str| {
        let of = |seen: &&Seen| seen.began["container_id"] == id;
        let all: Vec<_> = seen.iter().filter(of).map(|s| s.began["plugin"].clone()).collect();
        assert!(all.len() < 2, "{id}: {all:?}");
        all.into_iter().next().and_then(|path| path.as_str().map(std::path::PathBuf::from))
    };
    assert_eq!(plugin("by-the-link"), Some(link.join("first")));
    assert_eq!(plugin("by-the-directory"), Some(real.join("first")));
    assert_eq!(plugin("a-link-itself"), Some(link.join("linked")));
    assert_eq!(plugin("by-another-link"), Some(other.join("loopback")));
    assert_eq!(plugin("wrapped"), Some(real.join("wrapper")));
    assert_eq!(plugin("elsewhere"), None);
    assert_eq!(plugin("late-1"), Some(late.join("loopback")));
    assert_eq!(plugin("late-2"), Some(late.join("loopback")));
}

/// The collector's text for the span with this name and this attribute.
fn span_of(received: &str, name: &str, attribute: &str) -> Option<String> {
    let mut spans = received.split("Span #").skip(1);
    spans.find(|span| span.contains(name) && span.contains(attribute)).map(str::to_owned)
}

/// The value of the line that gives `field` in a span's text.
fn field<'a>(span: &'a str, field: &str) -> &'a str {
    let line = span.lines().find(|line| line.trim_start().starts_with(field));
    line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
}

fn spans_of_calls_nest_and_say_why_one_failed(lab: &Lab) {
    let node = Node::new(lab);
    let collector = Collector::start(lab);
    let log = lab.dir().join("containerd.log");
    std::fs::write(&log, "").unwrap();
    let config = Config::default().otlp(&collector.endpoint).otlp_line("cni_calls = \"all\"");
    let _daemon = Daemon::start(lab, &config.line(&format!("[cni]\nlogs = [{log:?}]")));
    let (pod, id) = (node.pod("spans"), "0123456789abcdef");
    assert!(node.run(&node.call("bridge", "ADD", id, &pod)).1.status.success());
    // A second ADD is refused, and the runtime logs the plugin's message.
    let again = node.run(&node.call("bridge", "ADD", id, &pod)).1;
    assert!(!again.status.success());
    let said: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    let why = said["msg"].as_str().unwrap();
    let date = jiff::Timestamp::now();
    let quoted = format!(
        "failed to setup network for sandbox \"{}\": plugin type=\"bridge\" failed (add): {why}",
        node.id(id)
    );
    let line =
        format!("time=\"{date}\" level=error msg=\"RunPodSandbox failed\" error={quoted:?}\n");
    std::fs::write(&log, line).unwrap();

    let arrived = |name: &str, attribute: &str| {
        eventually(&format!("{name} with {attribute}"), 20, || {
            span_of(&collector.received(), name, attribute)
        })
    };
    let main = arrived("cni ADD bridge", "process.exit.code: Int(0)");
    // The second ADD has run one as well.
    let ipam = arrived("cni ADD host-local", field(&main, "Trace ID"));
    assert!(ipam.contains("process.exit.code: Int(0)"), "{ipam}");
    let failed = arrived("cni ADD bridge", "ipwatch.cni.error");
    assert!(failed.contains(why), "{failed}");
    for part in [id, "eth0", "shop", "pod-0123456789abcdef", "/usr/lib/cni/bridge"] {
        assert!(main.contains(part), "{part}: {main}");
    }
    assert_eq!(field(&main, "ID").len(), 16, "{main}");
    assert_eq!(field(&ipam, "Parent ID"), field(&main, "ID"));
    assert_ne!(field(&failed, "Trace ID"), field(&main, "Trace ID"));
    assert!(!collector.received().contains(&node.secret));
}

fn a_canary_in_a_plugins_environment_appears_nowhere(lab: &Lab) {
    let node = Node::new(lab);
    let pod = node.pod("vault");
    let config = Config::default();
    // With the most verbose log.
    let mut command = std::process::Command::new(daemon::binary());
    command.env("RUST_LOG", "trace").env("IPWATCH_LOG", "trace");
    let mut daemon = Daemon::spawn_by(command, lab, &config, &lab.subdir("state"));
    daemon.await_ready();
    let follower = daemon.follow();
    let recorder = Recorder::start(&node, &config);
    for command in ["ADD", "DEL"] {
        assert!(node.run(&node.call("bridge", command, "vault-id", &pod)).1.status.success());
    }
    let mut wrong = node.call("bridge", "ADD", "failed-id", &pod);
    wrong.netns = "/run/netns/that-is-not".into();
    assert!(!node.run(&wrong).1.status.success());
    let (_, record) = recorder.stop();
    assert!(record.contains("vault-id") && record.contains("failed-id"), "it was recorded");
    let mut said = vec![("the record", record), ("`watch`", follower.text())];
    for question in [["query", "ip"], ["query", "pod"], ["query", "history"], ["doctor", "-ojson"]]
    {
        let out = daemon.ask(&question);
        said.push(("an answer", String::from_utf8_lossy(&out.stdout).into_owned()));
    }
    let log = daemon.log();
    assert!(daemon.stop().success());
    said.push(("the log", log));
    for entry in std::fs::read_dir(lab.subdir("state")).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        said.push(("the store", String::from_utf8_lossy(&bytes).into_owned()));
    }
    for (what, text) in said {
        assert!(!text.contains(&node.secret), "{what} holds the secret");
    }
}

/// A call, the pid of its process, and how it ended.
type Done = (Call, u32, ExitStatus);

/// What was seen, by container: thousands of calls are looked up.
fn by_container(seen: Vec<Seen>) -> HashMap<String, Vec<Seen>> {
    let mut all: HashMap<String, Vec<Seen>> = HashMap::new();
    for one in seen {
        let id = one.began["container_id"].as_str().unwrap_or_default().to_owned();
        all.entry(id).or_default().push(one);
    }
    all
}

/// Starts the calls at a fixed pace, whether or not the previous ones have ended.
fn call_at_a_pace(
    node: &Node<'_>,
    every: Duration,
    calls: impl Iterator<Item = Call>,
) -> Vec<Done> {
    let (sender, running) = mpsc::channel::<(Call, Child)>();
    let (running, done) = (Mutex::new(running), Mutex::new(Vec::new()));
    let wait = || {
        loop {
            let next = running.lock().unwrap().recv();
            let Ok((call, child)) = next else { return };
            let (pid, out) = (child.id(), child.wait_with_output().unwrap());
            done.lock().unwrap().push((call, pid, out.status));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(wait);
        }
        let mut next = Instant::now();
        for call in calls {
            let child = node.start(&call);
            sender.send((call, child)).unwrap();
            next += every;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        drop(sender);
    });
    done.into_inner().unwrap()
}

fn fifty_calls_a_second_are_all_told(lab: &Lab) {
    let node = Node::new(lab);
    let recorder = Recorder::start(&node, &Config::default());
    let pods: Vec<_> = (0..8).map(|n| node.pod(&format!("p{n}"))).collect();
    let seconds = seconds();
    let every = Duration::from_secs(1) * patience() / RATE;
    let began = Instant::now();
    let done = call_at_a_pace(
        &node,
        every,
        (0..seconds * RATE / patience()).map(|n| {
            // A pod's bridge ADD takes ten times as long as the others, and has a child.
            let (plugin, command) = match n % 10 {
                0 => ("bridge", "ADD"),
                5 => ("bridge", "DEL"),
                n if n % 2 == 0 => ("host-local", "ADD"),
                _ => ("host-local", "DEL"),
            };
            let pod = &pods[(n / 10) as usize % pods.len()];
            let id =
                if plugin == "bridge" { format!("b{}", n / 10) } else { format!("h{}", n / 2) };
            let ifname = format!("eth{}", n / 10);
            Call { ifname, ..node.call(plugin, command, &id, pod) }
        }),
    );
    let took = began.elapsed();
    let seen = by_container(recorder.stop().0);
    let mut children = 0;
    for (call, pid, status) in &done {
        let name = call.plugin.file_name().unwrap().to_str().unwrap();
        let seen = seen.get(&call.container).map_or(&[][..], Vec::as_slice);
        let main = only(seen, name, call.command, &call.container);
        main.is(call, *pid, *status);
        if name == "bridge" && status.success() {
            // By its parent as well: an ADD that fails releases its reservation with a DEL.
            let of = |run: &&Seen| run.began["parent"] == *pid;
            let ipam: Vec<&Seen> = seen.iter().filter(of).collect();
            assert_eq!(ipam.len(), 1, "{ipam:?}");
            assert_eq!(ipam[0].began["pod"], main.began["pod"]);
            assert_eq!(ipam[0].began["command"], call.command);
            assert!(ipam[0].ended.is_some());
            children += 1;
        }
    }
    assert!(children > 0, "no bridge came to its IPAM");
    println!(
        "{}{} calls and {children} of IPAM plugins within them in {:.1} s, {:.1} a second (goal {RATE}): none \
         missed",
        harness::FIGURE,
        done.len(),
        took.as_secs_f32(),
        done.len() as f32 / took.as_secs_f32(),
    );
}

/// Plugins that take little time, so that two cores reach the rate: the test measures what is seen, not how fast
/// devices are created.
fn fifty_calls_a_second_without_devices_are_all_told(lab: &Lab) {
    let node = Node::new(lab);
    let recorder = Recorder::start(&node, &Config::default());
    let pods: Vec<_> = (0..8).map(|n| node.pod(&format!("p{n}"))).collect();
    let (number, every) =
        (seconds() * RATE / patience(), Duration::from_secs(1) * patience() / RATE);
    let began = Instant::now();
    let calls = (0..number).map(|n| {
        // An ADD and then a DEL for each container, with the two plugins in turn; some fail.
        let (plugin, pod) = (["loopback", "host-local"][n as usize / 2 % 2], &pods[n as usize % 8]);
        let command = if n % 2 == 0 { "ADD" } else { "DEL" };
        let call = node.call(plugin, command, &format!("s{}", n / 2), pod);
        let netns = if n % 16 == 0 { "/run/netns/that-is-not".into() } else { call.netns };
        Call { netns, ..call }
    });
    let done = call_at_a_pace(&node, every, calls);
    let took = began.elapsed();
    let seen = by_container(recorder.stop().0);
    assert_eq!(done.len(), number as usize);
    for (call, pid, status) in &done {
        let name = call.plugin.file_name().unwrap().to_str().unwrap();
        let seen = seen.get(&call.container).map_or(&[][..], Vec::as_slice);
        only(seen, name, call.command, &call.container).is(call, *pid, *status);
        // No call is reported that was not made: each container has its ADD and its DEL.
        assert_eq!(seen.len(), 2, "{seen:?}");
    }
    let failed = done.iter().filter(|(_, _, status)| !status.success()).count();
    assert!(failed > 0 && failed < done.len() / 4, "{failed} of {} failed", done.len());
    println!(
        "{}{} calls of small plugins in {:.1} s, {:.1} a second (goal {RATE}), {failed} of them failed: none \
         missed, none misattributed",
        harness::FIGURE,
        done.len(),
        took.as_secs_f32(),
        done.len() as f32 / took.as_secs_f32(),
    );
}

fn a_plugin_that_is_gone_at_once_is_told_on_a_busy_machine(lab: &Lab) {
    let node = Node::new(lab);
    let scripts = lab.subdir("bin");
    let dirs = format!("[cni]\nbin_dirs = [{PLUGINS:?}, {scripts:?}]");
    let recorder = Recorder::start(&node, &Config::default().line(&dirs));
    let brief = node.script(&scripts, "brief", "exit 3");
    let over = AtomicBool::new(false);
    let mut done: Vec<Done> = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..2 * std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for n in 0..40 {
            let mut call = node.call("loopback", "VERSION", &format!("brief-{n}"), &node.host);
            if n % 2 == 0 {
                call.plugin.clone_from(&brief);
            }
            let (pid, out) = node.run(&call);
            done.push((call, pid, out.status));
        }
        over.store(true, Ordering::Relaxed);
    });
    let (seen, _) = recorder.stop();
    let mut lives = Vec::new();
    for (call, pid, status) in &done {
        let name = call.plugin.file_name().unwrap().to_str().unwrap();
        let seen = only(&seen, name, call.command, &call.container);
        seen.is(call, *pid, *status);
        lives.push(seen.lasted());
    }
    lives.sort_unstable();
    println!(
        "{}{} plugins on a busy machine, half of them gone within {:.1} ms: none missed",
        harness::FIGURE,
        lives.len(),
        lives[lives.len() / 2] as f64 / 1e6,
    );
}
