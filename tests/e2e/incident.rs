//! Four incidents on one node at once, and everything that ipwatch reports about them: the whole output of `scan`,
//! `explain` and `query`, the journal's entry, the Event, the span and the metrics are compared with
//! `tests/fixtures/incident`. That text is what a person reads at 03:00, so it must name the cause, the proof, what to do now
//! and the fix.
//!
//! The node is real: kubelet, containerd, bridge and host-local. Of the 19 IPs of its range 17 were reserved before the
//! boot and never freed; the last two are those of two pods. `db-0` is deleted while it hangs in a FUSE read; somebody
//! gives the IP of `web-0` to a netns on the same bridge; `web-1` gets no IP.
//!
//! `IPWATCH_BLESS=1` writes the files anew: read the difference before it is committed.

mod plain;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use support::collector::Collector;
use support::fuse::Hung;
use support::journal::{Entries, Journal};
use support::kubernetes::{Events, Node};
use support::pod::{Pod, PodSandbox};
use support::poll::until;
use support::role::{Helper, Role};
use support::{Daemon, Lab, Netns, eventually, prometheus};

use self::plain::Plain;
use crate::lead::duplicate::READ;
use crate::lead::{SOON, config_for};
use crate::remedies::Fusectl;

support::tests! {
    // Runs alone: if several FUSE connections hang, none is named as the cause, and the metrics count every finding.
    what_a_person_on_call_reads
        needs [Containerd, Runc, Fuse, Kubelet, SharedApiServer, Rotel] @ Alone,
}

/// What the daemon needs to write Events.
const RIGHTS: &str = include_str!("../../deploy/kubernetes/api/events.yaml");
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/incident");
/// What kubelet logs about a pod that gets no IP.
const NO_SANDBOX: &str = "FailedCreatePodSandBox";
/// How many IPs are reserved and never freed.
const LEAKED: u8 = 17;
/// The first IP of the range.
const FIRST: u8 = 10;
/// The last one.
const LAST: u8 = FIRST + LEAKED + 1;

/// One incident.
struct Case {
    /// The name of its file, and the placeholder of the finding's id there.
    name: &'static str,
    code: &'static str,
    /// The IP or the network that it is about.
    about: String,
    /// The finding.
    finding: Value,
}

impl Case {
    fn impact(&self) -> &str {
        self.finding["impact"].as_str().expect("what will fail")
    }
}

fn what_a_person_on_call_reads(lab: &Lab) {
    let range = format!("{}/27 {} {}", lab.ip(0), lab.ip(FIRST), lab.ip(LAST));
    let node = Node::shared(lab, &range, &[]);
    node.control.grant(RIGHTS);
    reserve_and_forget(&node);
    // Mounted after kubelet has started, which would otherwise have a copy of this mount.
    let (mut hung, _fusectl) = (Hung::mount(lab), Fusectl::new());
    let db = node.run("db-0", hung.dir(), &READ);
    hung.await_read();
    let web = node.run_idle("web-0");
    // From then on the range is full, so its findings fire with the final text.
    let told = Told::new(lab, &node);
    for pod in [&db, &web] {
        told.daemon.await_ip(&pod.ip, pod.netns);
    }

    node.create("web-1", lab.dir(), &["/bin/sleep", "1000000"]);
    let stranger = Stranger::with_the_ip_of(&web, lab, &node, &told.daemon);
    node.delete("db-0");
    until("kubelet kills it, and it hangs", 60, || db.hangs());
    let (_, refused) = told.of_pods.await_first("web-1", NO_SANDBOX, 60);
    let refused = refused["message"].as_str().expect("a message");

    let network = told.network.clone();
    let leaked = lab.ip(FIRST).to_string();
    let cases = [
        told.case("stuck", "ip-held-by-stuck-process", &db.ip),
        told.case("duplicate", "ip-duplicate", &web.ip),
        told.case("leaked", "ipam-reservation-leaked", &network),
        told.case("exhausted", "ipam-range-exhausting", &network),
    ];
    let plain = told.plain(lab, &node, [&db, &web], &stranger, &cases);
    for case in &cases {
        let mut text = told.by_commands(&["explain", id(&case.finding), "--evidence"], lab);
        let ip = if case.about == network { &leaked } else { &case.about };
        text += &told.by_commands(&["query", "ip", ip], lab);
        if case.name == "exhausted" {
            text += &told.by_commands(&["query", "ipam"], lab);
            text += &told.by_commands(&["explain", refused, "--evidence"], lab);
        }
        text += &told.elsewhere(case);
        compare(lab, case.name, &plain.of(&text));
    }
    // Findings about other things on this machine are listed too, until what other tests left has gone.
    let scan = eventually("nothing else is wrong", 30, || {
        let text = plain.of(&told.by_commands(&["scan"], lab));
        let is_row = |line: &&str| ["CRIT ", "WARN ", "INFO "].iter().any(|s| line.starts_with(s));
        let is_ours = |line: &str| line.contains("10.7.0.") || line.contains("shop");
        text.lines().filter(is_row).all(is_ours).then_some(text)
    });
    compare(lab, "scan", &scan);
    // They are served by id.
    let metrics = plain.of(&told.metrics(&cases));
    let mut metrics: Vec<&str> = metrics.split_inclusive('\n').collect();
    metrics.sort_unstable();
    compare(lab, "metrics", &metrics.concat());
    hung.release();
}

fn id(finding: &Value) -> &str {
    finding["id"].as_str().expect("an id")
}

/// A netns on the node's bridge with a pod's IP, and the process in it.
struct Stranger {
    netns: Netns,
    process: support::role::Running,
}

impl Stranger {
    fn with_the_ip_of(pod: &PodSandbox, lab: &Lab, node: &Node<'_>, daemon: &Daemon) -> Self {
        let netns = Netns::new(lab, "vm7");
        node.netns().veth_to("vm7", &netns, "eth0");
        node.netns().ip(&format!("link set vm7 master {}b", lab.tag()));
        let process = Helper::new(Role::Park).comm("qemu").inside(&netns).start();
        // Which of two IPs came second is known only if the daemon saw it appear.
        until("the netns is known", 10, || {
            let known = daemon.list("addresses", &["query", "netns", &netns.inode.to_string()]);
            known.iter().any(|one| one["holders"].to_string().contains("qemu"))
        });
        netns.add_address(&format!("{}/27", pod.ip), "eth0");
        Self { netns, process }
    }
}

/// The plugin reserves IPs for containers from before the boot, for which DEL is never called.
fn reserve_and_forget(node: &Node<'_>) {
    let conf = node.containerd.conf_dirs()[0].join("10-test.conflist");
    let conf: Value = serde_json::from_slice(&fs::read(conf).expect("a conflist")).expect("JSON");
    let config = json!({
        "cniVersion": conf["cniVersion"], "name": conf["name"], "type": "bridge",
        "ipam": conf["plugins"][0]["ipam"],
    });
    let before_the_boot = SystemTime::now() - uptime() - Duration::from_secs(86_400);
    for n in 0..LEAKED {
        let mut plugin = Command::new(node.containerd.bin_dir().join("host-local"));
        plugin.envs([("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "eth0"), ("CNI_NETNS", "/gone")]);
        plugin.env("CNI_CONTAINERID", container(n)).env("CNI_PATH", node.containerd.bin_dir());
        let mut child = plugin.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("run it");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(config.to_string().as_bytes()).expect("write to it");
        drop(input);
        assert!(child.wait().expect("wait for it").success());
    }
    for file in fs::read_dir(node.containerd.reservations()).expect("reservations").flatten() {
        let file = fs::File::options().append(true).open(file.path()).expect("open it");
        file.set_modified(before_the_boot).expect("set its time");
    }
}

/// The id of a container that was there before the boot.
fn container(n: u8) -> String {
    format!("{:016x}", 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(n) + 1)).repeat(4)
}

fn uptime() -> Duration {
    let text = fs::read_to_string("/proc/uptime").expect("the uptime");
    let seconds = text.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(seconds.expect("seconds"))
}

/// The daemon, and all the places to which it reports.
struct Told {
    network: String,
    daemon: Daemon,
    metrics: String,
    journal: Entries,
    collector: Collector,
    of_pods: Events,
    of_nodes: Events,
}

impl Told {
    fn new(lab: &Lab, node: &Node<'_>) -> Self {
        let (journal, command) = Journal::new(lab);
        let (collector, metrics) = (Collector::start(lab), prometheus::free_address());
        let (of_pods, of_nodes) =
            (node.api().events(node.namespace()), node.api().events("default"));
        let config = config_for(&node.containerd)
            .top("node = \"node-17\"")
            .otlp(&collector.endpoint)
            .line(&format!("[metrics]\nlisten = \"{metrics}\""))
            .line(&format!("{}\nevents = true\ncluster = \"production\"", node.agent_lines()));
        let mut daemon = Daemon::spawn_by(command, lab, &config, &lab.subdir("state"));
        let journal = journal.keep();
        daemon.await_ready();
        daemon.await_source("containerd");
        daemon.await_source("kubernetes");
        let network = node.containerd.reservations();
        let network = network.file_name().and_then(|name| name.to_str()).expect("a network");
        let network = network.to_owned();
        Self { network, daemon, metrics, journal, collector, of_pods, of_nodes }
    }

    /// Waits until the finding fires with all its content.
    fn case(&self, name: &'static str, code: &'static str, about: &str) -> Case {
        let is_all = |finding: &Value| {
            let subject = &finding["subject"];
            let evidence = finding["evidence"].to_string();
            match name {
                "leaked" => {
                    let all = subject["reservations"].as_array().map_or(0, Vec::len);
                    all == usize::from(LEAKED) && subject["network"] == about
                }
                "exhausted" => {
                    let whole = format!("19 of 19 taken, {LEAKED} of them leaked");
                    subject["network"] == about && evidence.contains(&whole)
                }
                _ => subject["ip"] == about,
            }
        };
        let finding = self.daemon.await_firing(code, SOON, is_all);
        Case { name, code, about: about.to_owned(), finding }
    }

    /// Runs a command. Returns the command line and the whole output.
    fn by_commands(&self, args: &[&str], lab: &Lab) -> String {
        let mut command = Command::new(support::daemon::binary());
        if args[0] == "scan" {
            command.args(args).arg("--config").arg(lab.dir().join("ipwatch.toml"));
        } else {
            command.arg("--socket").arg(self.daemon.socket()).args(args);
        }
        let out = command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null()).output().expect("run it");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let words = args.iter().map(|word| match word.contains(' ') {
            true => format!("'{word}'"),
            false => (*word).to_owned(),
        });
        let words = words.collect::<Vec<_>>().join(" ");
        format!("$ ipwatch {words}\n{}{}\n", text(&out.stdout), text(&out.stderr))
    }

    /// The last report of a firing finding to the journal, Kubernetes and the collector. An earlier one may differ, such as
    /// that of a range which then had two free IPs.
    fn elsewhere(&self, case: &Case) -> String {
        let (id, impact) = (id(&case.finding), case.impact());
        let wanted = [("IPWATCH_ID", id), ("IPWATCH_STATUS", "firing"), ("IPWATCH_IMPACT", impact)];
        let entry = self.journal.await_first(&wanted, SOON);
        let entry = entry.iter().map(|(name, value)| match value.contains('\n') {
            true => format!("{name}\n    {}\n", value.replace('\n', "\n    ")),
            false => format!("{name}={value}\n"),
        });
        let entry: String = entry.collect();
        let event = self.event(case);
        // The collector prints quotation marks in a different form.
        let words = impact.split('"').max_by_key(|part| part.len()).unwrap_or_default();
        let parts = [&format!("ipwatch.finding.id: Str({id})"), words, "Str(firing)"];
        let span = self.collector.await_span("ipwatch.finding.", &parts);
        // The first line is the number of the span; after the last span of a request come the common attributes.
        let span = span.text().split("ResourceSpans #").next().unwrap_or_default();
        let span = span.split_once('\n').map_or("", |(_, span)| span);
        format!("# The journal\n{entry}\n# The Event\n{event}\n# The span\n{span}\n")
    }

    /// The Event, without the fields that the API server adds, and without its count.
    fn event(&self, case: &Case) -> String {
        let explain = format!("ipwatch explain {}", id(&case.finding));
        // An Event has only the beginning of a long text.
        let impact = &case.impact()[..case.impact().floor_char_boundary(100)];
        let is_it = |event: &Value| {
            let said = event["message"].as_str().unwrap_or_default();
            said.contains(&explain) && said.contains(impact)
        };
        let mut event = eventually("the Event is written", SOON, || {
            let all = self.of_pods.all().into_iter().chain(self.of_nodes.all());
            all.map(|(_, event)| event).find(is_it)
        });
        let fields = event.as_object_mut().expect("an object");
        fields.retain(|name, value| name != "metadata" && name != "count" && !value.is_null());
        serde_norway::to_string(&event).expect("YAML")
    }

    /// The series about the incidents.
    fn metrics(&self, cases: &[Case]) -> String {
        let page = prometheus::get(&self.metrics, "/metrics", "*/*").expect("metrics").body;
        let ours = |line: &&str| {
            let of = |case: &Case| match line.split('{').next() {
                Some("ipwatch_findings") => line.contains(&format!("code=\"{}\"", case.code)),
                Some("ipwatch_critical_finding_info") => line.contains(id(&case.finding)),
                _ => line.contains(&format!("network=\"{}\"", self.network)),
            };
            !line.starts_with('#') && cases.iter().any(of)
        };
        page.lines().filter(ours).map(|line| format!("{line}\n")).collect()
    }

    /// The placeholders for values that differ in each run.
    fn plain(
        &self,
        lab: &Lab,
        node: &Node<'_>,
        pods: [&Pod; 2],
        stranger: &Stranger,
        cases: &[Case],
    ) -> Plain {
        let mut plain = Plain::default();
        let path = |path: &Path| path.display().to_string();
        plain.put(&format!(" --socket={}", path(self.daemon.socket())), "");
        plain.put(&path(&lab.dir().join("ipam")), "/var/lib/cni/networks");
        plain.put(&path(&node.containerd.conf_dirs()[0]), "/etc/cni/net.d");
        plain.put(&path(lab.dir()), "/lab");
        plain.put(&self.network, "shopnet");
        plain.put(&format!("{}b", lab.tag()), "cni0");
        plain.put(&path(stranger.netns.path()), "/run/netns/vm7");
        plain.put(&path(node.netns().path()), "/run/netns/node-17");
        plain.put(node.name(), "node-17");
        plain.put(node.namespace(), "shop");
        plain.put(lab.ip(0).to_string().trim_end_matches('0'), "10.7.0.");
        plain.number(stranger.netns.inode, 4_026_532_103);
        plain.number(node.netns().inode, 4_026_532_100);
        plain.number(stranger.process.pid(), 7007);
        for (n, pod) in (1..).zip(pods) {
            plain.put(&path(&pod.path), &format!("/run/netns/cni-{}", pod.name));
            plain.number(pod.netns, 4_026_532_100 + n);
            plain.number(pod.pid, 810 + n);
            plain.number(pod.pause, 610 + n);
            plain.id(&pod.sandbox, &format!("5a9d0b0{n}"), &[12]);
            plain.id(&pod.container, &format!("c0a7a10{n}"), &[12]);
            plain.id(&pod.uid, &format!("7f3a2c1{n}"), &[8, 12]);
        }
        for case in cases {
            let lengths: Vec<usize> = (4..id(&case.finding).len()).collect();
            plain.id(id(&case.finding), case.name, &lengths);
        }
        plain
    }
}

/// Compares a text with the file of this name, or writes the file.
#[track_caller]
fn compare(lab: &Lab, name: &str, text: &str) {
    let file = PathBuf::from(FIXTURES).join(format!("{name}.txt"));
    if std::env::var_os("IPWATCH_BLESS").is_some() {
        fs::write(&file, text).expect("write a fixture");
        return;
    }
    let known = fs::read_to_string(&file).unwrap_or_default();
    if known == text {
        return;
    }
    let now = lab.dir().join(format!("{name}.txt"));
    fs::write(&now, text).expect("write what is said now");
    let diff = Command::new("diff").arg("-u").arg(&file).arg(&now).output().expect("run diff");
    let diff = String::from_utf8_lossy(&diff.stdout).into_owned();
    panic!("{} says otherwise; IPWATCH_BLESS=1 writes it anew:\n{diff}", file.display());
}
