//! Metrics: what the daemon serves, read by promtool and by a real Prometheus, and what bad clients cost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use support::lead::Told;
use support::network::{self, Container, Network};
use support::poll::until;
use support::prometheus::{self, Page, Prometheus, promtool};
use support::{Config, Daemon, Lab, Netns, daemon, eventually};

support::tests! {
    what_is_served_is_what_is_documented needs [Prometheus],
    a_finding_is_there_when_it_is_told needs [Cni],
    addresses_are_told_within_their_bounds,
    a_real_prometheus_runs_every_query_and_rule needs [Prometheus, Cni],
    the_rules_keep_what_they_promise needs [Prometheus],
    who_never_reads_costs_nothing,
    a_unix_socket_is_served,
    a_port_in_use_ends_the_start,
    other_machines_are_not_served_unasked,
}

const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0";
const DOCUMENTED: &str = include_str!("../../docs/metrics.md");
const DASHBOARD: &str = include_str!("../../deploy/grafana/ipwatch.json");
const RULES: [(&str, &str); 2] = [
    ("recording.yml", include_str!("../../deploy/prometheus/recording.yml")),
    ("alerts.yml", include_str!("../../deploy/prometheus/alerts.yml")),
];
const RULE_TESTS: [(&str, &str); 4] = [
    ("clusters.test.yml", include_str!("../../deploy/prometheus/clusters.test.yml")),
    ("findings.test.yml", include_str!("../../deploy/prometheus/findings.test.yml")),
    ("fleet.test.yml", include_str!("../../deploy/prometheus/fleet.test.yml")),
    ("itself.test.yml", include_str!("../../deploy/prometheus/itself.test.yml")),
];

fn metrics(listen: &str, more: &str) -> String {
    format!("[metrics]\nlisten = \"{listen}\"\n{more}")
}

/// A configuration of metrics with the lab's addresses.
fn with_addresses(lab: &Lab, listen: &str, most: usize) -> String {
    let pods = lab.cidr(0);
    metrics(
        listen,
        &format!("address_info = true\npod_cidrs = [\"{pods}\"]\nmax_address_series = {most}"),
    )
}

#[track_caller]
fn scrape(address: &str) -> Page {
    let page = prometheus::get(address, "/metrics", "*/*").expect("somebody listens");
    assert_eq!(page.status, 200, "{}", page.body);
    page
}

/// The names and types in the documentation's table of metrics.
fn documented() -> BTreeMap<&'static str, &'static str> {
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        (cells.len() == 7).then(|| (name, cells[2]))
    };
    DOCUMENTED.lines().filter_map(row).collect()
}

/// The names and types that are served.
fn served(page: &Page) -> BTreeMap<&str, &str> {
    page.body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect()
}

fn what_is_served_is_what_is_documented(lab: &Lab) {
    let address = prometheus::free_address();
    let config = Config::default().otlp("http://127.0.0.1:9");
    let config = config.line(&with_addresses(lab, &address, 1024));
    let daemon = Daemon::start(lab, &config);
    let page = scrape(&address);
    assert_eq!(served(&page), documented(), "docs/metrics.md");
    let checked = promtool(&["check", "metrics"], lab.dir(), &page.body);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success() && said.is_empty(), "{said}\n{}", page.body);

    let open = prometheus::get(&address, "/metrics", OPEN_METRICS).unwrap();
    assert!(open.head.contains("application/openmetrics-text"), "{}", open.head);
    assert!(open.body.ends_with("# EOF\n"), "{}", open.body);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(prometheus::get(&address, path, "*/*").unwrap().status, 200, "{path}");
    }
    // The daemon's figures about itself agree with the kernel's.
    let resident = page.value("process_resident_memory_bytes") / 1024.0;
    let seen = support::proc::rss_kib(daemon.pid()) as f64;
    assert!((0.5..2.0).contains(&(resident / seen)), "{resident} and {seen} KiB");
    assert!(page.value("process_open_fds") > 10.0 && page.value("ipwatch_netns") >= 1.0);
    assert!(page.value("ipwatch_ready") == 1.0);
}

/// A /29 on a bridge.
fn a_network(lab: &Lab, node: &Netns) -> Network {
    let subnet = format!("{}/29", lab.ip(0));
    Network::new(lab, node, "net", "bridge", &subnet, json!({ "bridge": "br1" }))
}

fn of_networks(lab: &Lab) -> Config {
    Config::default().networks(&[network::conf_dir(lab)], &network::bin_dir(lab))
}

/// Freed while still configured: once a finding is reported, a scrape that begins after that has it.
fn a_finding_is_there_when_it_is_told(lab: &Lab) {
    let address = prometheus::free_address();
    let node = Netns::new(lab, "node");
    let network = a_network(lab, &node);
    let daemon = Daemon::start(lab, &of_networks(lab).line(&metrics(&address, "")));
    daemon.await_source("host-local");
    let (container, pod) = (Container::new(lab, 1), Netns::new(lab, "pod"));
    let ip = network.add(&container, &pod).unwrap();
    daemon.await_ip(&ip, pod.inode);
    let range = eventually("the range is told", 10, || {
        let page = scrape(&address);
        let used = page.samples("ipwatch_ipam_range_used");
        used.iter().find(|line| line.contains(network.name())).map(|line| (*line).to_owned())
    });
    assert!(range.contains("store=\"host-local\"") && range.ends_with(" 1"), "{range}");

    let follower = Told::by(&daemon);
    let opened = || scrape(&address).samples("ipwatch_findings_opened_total").join("\n");
    let before = opened();
    fs::remove_file(network.reservations().join(&ip)).unwrap();
    let told = eventually("the finding fires", 20, || {
        let told = follower.findings().into_iter().map(|(_, finding)| finding);
        let mut firing = told.filter(|finding| finding["status"] == "firing");
        firing.find(|f| f["code"] == "ip-released-but-held" && f["subject"]["ip"] == *ip)
    });
    // At once, without waiting.
    let page = scrape(&address);
    let id = told["id"].as_str().unwrap();
    let critical = page.samples("ipwatch_critical_finding_info");
    let mine = critical.iter().find(|line| line.contains(&format!("id=\"{id}\"")));
    assert!(mine.is_some_and(|line| line.contains(&format!("ip=\"{ip}\""))), "{critical:?}");
    let group =
        "code=\"ip-released-but-held\",severity=\"critical\",status=\"firing\",role=\"cause\"";
    let groups = page.samples("ipwatch_findings");
    assert!(groups.iter().any(|line| line.contains(group)), "{groups:?}");
    assert_ne!(opened(), before, "and it is counted");

    network.del(&container, Some(&pod)).ok();
    drop(pod);
    until("it is gone when it is over", 20, || !scrape(&address).body.contains(id));
    let page = scrape(&address);
    let resolved = page.samples("ipwatch_findings_resolved_total");
    let mine = resolved.iter().find(|line| line.contains("ip-released-but-held"));
    assert!(mine.is_some_and(|line| !line.ends_with(" 0")), "{resolved:?}");
}

fn addresses_are_told_within_their_bounds(lab: &Lab) {
    let address = prometheus::free_address();
    let shared = format!("[addresses]\nshared = [\"{}\"]", lab.ip(9));
    let config = Config::default().line(&with_addresses(lab, &address, 2)).line(&shared);
    let daemon = Daemon::start(lab, &config);
    let pods = Netns::new(lab, "pod");
    pods.veth_to_host();
    for n in [3, 4, 5, 9] {
        pods.add_address(&lab.cidr(n), "eth0");
    }
    pods.add_address("192.0.2.7/32", "eth0");
    daemon.await_ip(lab.ip(9), pods.inode);
    daemon.await_ip("192.0.2.7", pods.inode);
    let page = scrape(&address);
    let told = page.samples("ipwatch_address_info");
    assert_eq!(told.len(), 2, "{told:?}");
    for (line, n) in told.iter().zip([3, 4]) {
        let labels = format!("{{ip=\"{}\",netns=\"{}\",", lab.ip(n), pods.inode);
        assert!(line.contains(&labels), "{line}");
    }
    let omitted = page.samples("ipwatch_metrics_omitted");
    let mine = omitted.iter().find(|line| line.contains("ipwatch_address_info"));
    assert!(mine.is_some_and(|line| line.ends_with(" 1")), "{omitted:?}");
}

/// Every query of the dashboard, with its variables filled in as by Grafana.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let fill = |text: &str| {
        let text = ["$cluster", "$instance", "$namespace"]
            .iter()
            .fold(text.to_owned(), |text, variable| text.replace(variable, ".*"));
        text.replace("$__rate_interval", "1m")
    };
    let queries: Vec<String> =
        targets.map(|target| fill(target["expr"].as_str().unwrap())).collect();
    assert!(queries.len() > 20 && queries.iter().all(|query| !query.contains('$')), "{queries:?}");
    queries
}

/// What Grafana's schema of a dashboard (version 38) asks of the parts that this one has, and what it does not ask: ids
/// that are unique, panels within the grid's 24 columns that do not overlap, and a query of a known data source for each.
fn is_a_dashboard(dashboard: &Value) {
    const KINDS: [&str; 5] = ["row", "stat", "table", "timeseries", "text"];
    assert_eq!(dashboard["schemaVersion"], 38);
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let is_query = variable["type"] == "query";
        assert!(variable["name"].is_string() && (is_query || variable["type"] == "datasource"));
        assert!(variable["query"].is_string(), "{variable:#}");
        let current = &variable["current"];
        assert!(current.is_null() || current["text"] != Value::Null, "{variable:#}");
    }
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel:#}");
        assert!(KINDS.contains(&panel["type"].as_str().unwrap()), "{panel:#}");
        let [x, y, w, h] =
            ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24, "{panel:#}");
        for (column, row) in (x..x + w).flat_map(|column| (y..y + h).map(move |row| (column, row)))
        {
            assert!(cells.insert((column, row)), "it lies over another one: {panel:#}");
        }
        let mut refs = BTreeSet::new();
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert!(refs.insert(target["refId"].as_str().unwrap()), "{panel:#}");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel:#}");
        }
    }
    // Every node reports what is the whole cluster's, and it is one thing.
    let text = queries().join("\n");
    for name in ["ipwatch_critical_finding_info", "ipwatch_ipam_range_free:ratio"] {
        let whole = text.split(name).skip(1).filter_map(|rest| rest.split('}').next());
        assert!(
            whole.clone().count() > 1 && whole.clone().all(|rest| rest.contains("scope")),
            "{name}"
        );
    }
}

/// The names of our metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c)));
    let ours = |word: &&str| {
        word.starts_with("ipwatch_") || word.starts_with("process_") || word.contains(":ipwatch_")
    };
    // A trailing colon is punctuation: no name ends in one.
    words.map(|word| word.trim_end_matches(':')).filter(ours).collect()
}

fn a_real_prometheus_runs_every_query_and_rule(lab: &Lab) {
    let address = prometheus::free_address();
    let node = Netns::new(lab, "node");
    let network = a_network(lab, &node);
    let config = of_networks(lab).otlp("http://127.0.0.1:9");
    let daemon = Daemon::start(lab, &config.line(&with_addresses(lab, &address, 1024)));
    daemon.await_source("host-local");
    let (container, pod) = (Container::new(lab, 1), Netns::new(lab, "pod"));
    let ip = network.add(&container, &pod).unwrap();
    daemon.await_ip(&ip, pod.inode);
    let prometheus = Prometheus::start(lab, &address, &RULES);
    // Each queried name is served: a misspelt name is no error, it just finds nothing.
    let page = scrape(&address);
    let served = served(&page);
    let recorded: BTreeSet<&str> =
        names(RULES[0].1).into_iter().filter(|n| n.contains(':')).collect();
    let queries = queries();
    let texts = queries.iter().map(String::as_str).chain(RULES.map(|(_, text)| text));
    for name in texts.flat_map(names) {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let known =
            served.contains_key(name) || family.is_some_and(|name| served.contains_key(name));
        assert!(known || recorded.contains(name), "{name} is asked for, and not there");
    }
    for query in &queries {
        let _ = prometheus.query(query);
    }
    // After two scrapes there are rates; and the newer format was understood.
    until("the latency has a rate", 30, || {
        prometheus.value("rate(process_cpu_seconds_total{job=\"ipwatch\"}[1m])").is_some()
    });
    let info = prometheus.query(&format!("ipwatch_address_info{{ip=\"{ip}\"}}"));
    assert_eq!(info.len(), 1, "{info:?}");
    assert_eq!(info[0]["metric"]["netns"], pod.inode.to_string(), "{info:?}");
    fs::remove_file(network.reservations().join(&ip)).unwrap();
    let paged = format!(
        "ALERTS{{alertname=\"IpwatchCriticalFinding\", ip=\"{ip}\", alertstate=\"firing\"}}"
    );
    until("the alert fires", 30, || prometheus.query(&paged).len() == 1);
    let rules = prometheus.api("/api/v1/rules");
    let groups = rules["groups"].as_array().unwrap();
    let mut count = 0;
    for group in groups {
        // A group with a longer interval of its own has not been evaluated yet; the tests of the rules do that.
        let is_due = group["interval"].as_f64().unwrap() < 60.0;
        for rule in group["rules"].as_array().unwrap() {
            let fine = if is_due { "ok" } else { "unknown" };
            assert!([fine, "ok"].contains(&rule["health"].as_str().unwrap()), "{rule:#}");
            count += 1;
        }
    }
    assert!(count > 15, "{rules:#}");
}

fn the_rules_keep_what_they_promise(lab: &Lab) {
    is_a_dashboard(&serde_json::from_str(DASHBOARD).unwrap());
    let dir = lab.subdir("rules");
    for (name, text) in RULES.iter().chain(&RULE_TESTS) {
        fs::write(dir.join(name), text).unwrap();
    }
    let check = |args: &[&str]| {
        let out = promtool(args, &dir, "");
        let said = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (out.status.success(), said.concat())
    };
    let names =
        |files: &[(&'static str, &str)]| -> Vec<&str> { files.iter().map(|f| f.0).collect() };
    let (fine, said) = check(&[&["check", "rules", "--lint-fatal"], &names(&RULES)[..]].concat());
    assert!(fine, "{said}");
    let (fine, said) = check(&[&["test", "rules"], &names(&RULE_TESTS)[..]].concat());
    assert!(fine, "{said}");
    let scrape = include_str!("../../deploy/prometheus/scrape.yml");
    fs::write(dir.join("scrape.yml"), scrape).unwrap();
    let (fine, said) = check(&["check", "config", "scrape.yml"]);
    assert!(fine, "{said}");
    // The documented alerts are exactly those in the rules.
    let alerts = RULES[1].1.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: BTreeSet<&str> = alerts.collect();
    let rows = DOCUMENTED.lines().filter_map(|line| line.strip_prefix("| `Ipwatch"));
    let told: BTreeSet<String> =
        rows.map(|rest| format!("Ipwatch{}", rest.split('`').next().unwrap())).collect();
    assert_eq!(alerts, told.iter().map(String::as_str).collect());
    let critical = RULES[1].1.matches("severity: critical").count();
    assert_eq!(critical, 4, "only these may wake somebody");
    each_alert_leads_to_a_page(alerts.len());
}

/// By its `runbook_url`: a page of docs, and its section where it names one. The page of a finding has the name of its
/// code, which another test sees to.
fn each_alert_leads_to_a_page(alerts: usize) {
    const RUNBOOKS: &str = "runbook_url: \"https://runbooks.example/ipwatch/";
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"));
    let urls = RULES[1].1.lines().filter_map(|line| line.trim().strip_prefix(RUNBOOKS));
    let urls: Vec<&str> = urls.map(|url| url.trim_end_matches('"')).collect();
    assert_eq!(urls.len(), alerts, "{urls:?}");
    for url in urls {
        let url = url.replace("{{ $labels.code }}", "ip-duplicate");
        let (page, section) = url.split_once('#').unwrap_or((&url, ""));
        let text = fs::read_to_string(docs.join(page)).unwrap_or_else(|e| panic!("{url}: {e}"));
        let is_it =
            |line: &str| line.strip_prefix("## ").is_some_and(|t| t.to_lowercase() == section);
        assert!(section.is_empty() || text.lines().any(is_it), "{url}");
    }
}

/// All connections are taken by clients that never ask and clients that never read: events are still seen, memory
/// stays, and after a while there are free places again.
fn who_never_reads_costs_nothing(lab: &Lab) {
    let address = prometheus::free_address();
    let daemon = Daemon::start(lab, &Config::default().line(&metrics(&address, "")));
    for _ in 0..5 {
        let _ = scrape(&address);
    }
    let before = support::proc::rss_kib(daemon.pid());
    let mut bad: Vec<TcpStream> = Vec::new();
    for n in 0..100 {
        let mut stream = TcpStream::connect(&address).unwrap();
        if n % 2 == 0 {
            // On a connection that was closed already, this fails.
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
        }
        bad.push(stream);
    }
    let pod = Netns::new(lab, "pod");
    pod.veth_to_host();
    pod.add_address(&lab.cidr(7), "eth0");
    daemon.await_ip(lab.ip(7), pod.inode);
    let after = support::proc::rss_kib(daemon.pid());
    assert!(after < before + 5 * 1024, "{before} KiB, then {after} KiB");
    until("there is a place again", 40, || {
        prometheus::get(&address, "/metrics", "*/*").is_some_and(|page| page.status == 200)
    });
    let mut stream = bad.swap_remove(1);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(daemon.stop().success(), "and it ends in time");
}

fn a_unix_socket_is_served(lab: &Lab) {
    let socket = lab.dir().join("metrics.sock");
    let listen = format!("unix:{}", socket.display());
    let daemon = Daemon::start(lab, &Config::default().line(&metrics(&listen, "")));
    let page = prometheus::get_unix(&socket, "/metrics");
    assert!(page.status == 200 && page.value("ipwatch_ready") == 1.0, "{page:?}");
    assert!(daemon.stop().success());
    assert!(!socket.exists(), "it is removed");
}

/// Starts a daemon that must not start. Returns its message, which is one line.
#[track_caller]
fn refused(lab: &Lab, listen: &str) -> String {
    let (dir, state) = (lab.dir(), lab.dir().join("unmade"));
    fs::write(dir.join("bad.toml"), metrics(listen, "")).unwrap();
    let out = Command::new(daemon::binary())
        .args(["run", "--config", "bad.toml", "--socket", "bad.sock", "--state-dir"])
        .arg(&state)
        .current_dir(dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!state.exists(), "nothing is half started");
    said
}

fn a_port_in_use_ends_the_start(lab: &Lab) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = refused(lab, &address);
    assert!(said.contains(&address) && said.contains("in use"), "{said}");
}

fn other_machines_are_not_served_unasked(lab: &Lab) {
    let said = refused(lab, "0.0.0.0:0");
    assert!(said.contains("allow_non_loopback") && said.contains("127.0.0.1"), "{said}");
    let address = format!("0.0.0.0:{}", prometheus::free_address().rsplit(':').next().unwrap());
    let config = Config::default().line(&metrics(&address, "allow_non_loopback = true"));
    let _daemon = Daemon::start(lab, &config);
    assert_eq!(scrape(&address.replace("0.0.0.0", "127.0.0.1")).value("ipwatch_ready"), 1.0);
}
