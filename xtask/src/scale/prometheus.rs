//! A real Prometheus with the rules of `deploy/prometheus`, and what its API and `/proc` say of it.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::SCRAPE;
use crate::shell::{command, run};
use crate::{place, setup};

/// How long an answer may take: longer than Prometheus' own limit of a query, two minutes.
const PATIENCE: Duration = Duration::from_secs(150);

/// A running Prometheus, stopped when dropped.
pub(super) struct Prometheus {
    child: Child,
    address: SocketAddr,
    config: PathBuf,
}

/// CPU time and memory of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    at: Instant,
    /// Of 10 ms.
    ticks: u64,
    pub(super) resident_kib: u64,
    pub(super) most_resident_kib: u64,
}

impl Usage {
    /// Percent of a core between two moments.
    pub(super) fn percent(&self, later: &Self) -> f64 {
        100.0 * self.cpu(later) / later.at.duration_since(self.at).as_secs_f64()
    }

    /// CPU time between two moments, in seconds.
    pub(super) fn cpu(&self, later: &Self) -> f64 {
        later.ticks.saturating_sub(self.ticks) as f64 / 100.0
    }
}

impl Prometheus {
    /// Starts it in `dir` with this many targets, all of them served by `server`.
    pub(super) fn start(dir: &Path, server: SocketAddr, targets: usize) -> Result<Self> {
        let rules = place::repository().join("deploy/prometheus");
        let config = format!(
            "global: {{scrape_interval: {SCRAPE}s, scrape_timeout: {SCRAPE}s, evaluation_interval: {SCRAPE}s}}\n\
             rule_files: ['{0}/recording.yml', '{0}/alerts.yml']\n\
             scrape_configs:\n  - job_name: ipwatch\n    file_sd_configs: [{{files: [targets.json]}}]\n",
            rules.display()
        );
        let file = dir.join("prometheus.yml");
        fs::write(&file, config)?;
        let target = |n: usize| {
            let cluster = ["one", "two", "three"][n % 3];
            json!({"targets": [server.to_string()], "labels":
                {"__metrics_path__": format!("/{n}"), "instance": super::node(n), "cluster": cluster}})
        };
        let all: Vec<Value> = (0..targets).map(target).collect();
        fs::write(dir.join("targets.json"), serde_json::to_string(&all)?)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = File::create(dir.join("log"))?;
        let program = setup::prometheus()?.join("prometheus");
        let child = command(&[&program.to_string_lossy(), "--config.file=prometheus.yml"])
            .args(["--storage.tsdb.path=data", "--log.level=warn"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(dir)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("start Prometheus")?;
        let mut prometheus = Self { child, address, config: file };
        prometheus.wait_until_ready(dir)?;
        Ok(prometheus)
    }

    fn wait_until_ready(&mut self, dir: &Path) -> Result<()> {
        for _ in 0..600 {
            if self.child.try_wait()?.is_some() {
                bail!("Prometheus ended: {}", fs::read_to_string(dir.join("log"))?);
            }
            if self.get("/-/ready").is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("Prometheus is not ready within a minute")
    }

    /// Ends scrapes and rules, so that queries are all that it computes.
    pub(super) fn rest(&self) -> Result<()> {
        fs::write(&self.config, "global: {}\n")?;
        run(&mut command(&["kill", "-HUP", &self.child.id().to_string()]))?;
        // It writes for each series that it ended, and collects garbage.
        for _ in 0..100 {
            let before = self.usage()?;
            std::thread::sleep(Duration::from_secs(3));
            if before.cpu(&self.usage()?) < 0.05 {
                return Ok(());
            }
        }
        bail!("Prometheus does not come to rest within five minutes")
    }

    /// The body of an answer.
    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // HTTP/1.0: the answer ends with the connection, and has no chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nhost: {}\r\n\r\n", self.address)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        ensure!(status == "200", "{status}: {}", body.trim());
        Ok(body.to_owned())
    }

    /// The data of an answer of its API.
    pub(super) fn api(&self, path: &str) -> Result<Value> {
        let answer: Value = serde_json::from_str(&self.get(path)?)?;
        Ok(answer.get("data").cloned().unwrap_or_default())
    }

    /// The value of an expression that has one.
    pub(super) fn value(&self, expression: &str) -> Result<f64> {
        let data = self.api(&format!("/api/v1/query?query={}", encoded(expression)))?;
        let value = data.pointer("/result/0/value/1").and_then(Value::as_str);
        Ok(value.with_context(|| format!("{expression}: {data}"))?.parse()?)
    }

    /// One of its own metrics: the sum of its samples.
    pub(super) fn own(&self, name: &str) -> Result<f64> {
        let page = self.get("/metrics")?;
        let samples = page.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        let values: Vec<&str> = samples.filter_map(|line| line.rsplit(' ').next()).collect();
        ensure!(!values.is_empty(), "Prometheus has no {name}");
        Ok(values.into_iter().map(str::parse::<f64>).sum::<Result<f64, _>>()?)
    }

    pub(super) fn usage(&self) -> Result<Usage> {
        let read = |file| fs::read_to_string(format!("/proc/{}/{file}", self.child.id()));
        let (stat, status) = (read("stat")?, read("status")?);
        let (_, fields) = stat.rsplit_once(')').context("a process without a name")?;
        let times = fields.split_whitespace().skip(11).take(2);
        let ticks = times.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        let kib = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let size = line.and_then(|line| line.split_whitespace().next()).context("no size")?;
            Ok(size.parse()?)
        };
        let (resident_kib, most_resident_kib) = (kib("VmRSS:")?, kib("VmHWM:")?);
        Ok(Usage { at: Instant::now(), ticks, resident_kib, most_resident_kib })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Its data is thrown away.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A text as part of a query.
pub(super) fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "%{byte:02x}");
        out
    })
}
