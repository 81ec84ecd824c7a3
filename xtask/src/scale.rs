//! `cargo xtask scale`: what a fleet of nodes costs a Prometheus, with our rules and our dashboard.
//!
//! A real Prometheus scrapes some thousands of targets. All of them are one HTTP server here ([`server`]), which serves
//! each node the recorded scrape of a real daemon with 250 pods and some findings (`tests/fixtures/scrape.txt`, made by
//! the end-to-end test `scale::a_full_node`), with the node's own names and with values that move ([`page`]). Then scrapes
//! and rules are stopped, and every expression of the rules and every query of the dashboard ([`dashboard`]) is asked once
//! more by itself. Its cost is Prometheus' CPU time, which other work on the machine changes little. The figures go into
//! `docs/figures.json` and `docs/scale.md`.

mod dashboard;
mod page;
mod prometheus;
mod server;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use self::dashboard::{Panel, Query};
use self::prometheus::Prometheus;
use crate::figures::{Origin, Reader};
use crate::monitor::TemporaryDir;
use crate::{interrupt, place};

/// Seconds between two scrapes, and between two evaluations of the rules.
const SCRAPE: u64 = 30;
/// Nodes of the fleet whose figures are kept.
const TARGETS: usize = 3000;
/// Minutes of scrapes before the dashboard is asked.
const MINUTES: u64 = 10;
/// How often each query is asked.
const TIMES: usize = 3;

/// The beginning of the names of the figures, without and with `ipwatch_address_info`.
pub(crate) const PREFIX: &str = "scale: ";
pub(crate) const PREFIX_WITH_ADDRESSES: &str = "scale, with address_info: ";

struct Options {
    targets: usize,
    minutes: u64,
    /// With `ipwatch_address_info`, one series for each pod.
    addresses: bool,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self { targets: TARGETS, minutes: MINUTES, addresses: false };
        let mut rest = words;
        while !rest.is_empty() {
            rest = match rest {
                ["--addresses", rest @ ..] => {
                    options.addresses = true;
                    rest
                }
                ["--minutes", number, rest @ ..] => {
                    options.minutes = number.parse().context("--minutes NUMBER")?;
                    rest
                }
                [number, rest @ ..] if number.parse::<u16>().is_ok_and(|number| number > 0) => {
                    options.targets = number.parse()?;
                    rest
                }
                _ => bail!("usage: cargo xtask scale [--addresses] [--minutes NUMBER] [TARGETS]"),
            };
        }
        ensure!((5..=24 * 60).contains(&options.minutes), "--minutes must be 5 or more");
        Ok(options)
    }

    fn prefix(&self) -> &'static str {
        if self.addresses { PREFIX_WITH_ADDRESSES } else { PREFIX }
    }
}

/// Measures, and keeps the figures if the fleet has the usual size.
pub(crate) fn command_line(words: &[&str]) -> Result<()> {
    let options = Options::parse(words)?;
    interrupt::catch();
    let template = page::Template::parse(&fs::read_to_string(recorded())?, options.addresses)?;
    let (server, served) = server::start(template)?;
    let dir = TemporaryDir::new()?;
    let prometheus = Prometheus::start(dir.path(), server, options.targets)?;
    let began = Instant::now();
    wait_for_all(&prometheus, options.targets)?;
    println!("all {} targets are up after {:.0} s", options.targets, began.elapsed().as_secs_f64());
    let mut figures = Figures { options: &options, lines: Vec::new() };
    scrapes(&prometheus, &options, &mut figures)?;
    series(&prometheus, &mut figures)?;
    let scrapes = served.scrapes.load(Ordering::Relaxed);
    let each = served.bytes.load(Ordering::Relaxed) / scrapes.max(1);
    println!("served: {scrapes} scrapes, {} KiB each", each >> 10);
    let groups = groups(&prometheus)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    prometheus.rest()?;
    for (kind, panels) in [("rules", groups), ("dashboard", dashboard::panels()?)] {
        for panel in panels {
            let about_addresses = |query: &Query| query.expression.contains("address");
            // With addresses the other expressions read the same series as without.
            if !options.addresses || panel.queries.iter().any(about_addresses) {
                let cpu = ask(&prometheus, &panel, now)?;
                figures.add(&format!("{kind}: {}", panel.title), &format!("{cpu:.2} s"), "< 2 s");
            }
        }
    }
    figures.keep()
}

fn recorded() -> PathBuf {
    place::repository().join("tests/fixtures/scrape.txt")
}

/// Name of the nth node.
fn node(n: usize) -> String {
    format!("node-{n:05}")
}

fn wait_for_all(prometheus: &Prometheus, targets: usize) -> Result<()> {
    for _ in 0..200 {
        // Before the first scrape there is no value.
        let up = prometheus.value("count(up{job=\"ipwatch\"} == 1)").unwrap_or(0.0);
        if up >= targets as f64 {
            return Ok(());
        }
        pause(Duration::from_secs(3))?;
    }
    bail!("not all of the {targets} targets are up after ten minutes")
}

fn pause(time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        ensure!(!interrupt::came(), "interrupted");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Lets Prometheus scrape for the wanted time.
fn scrapes(prometheus: &Prometheus, options: &Options, figures: &mut Figures<'_>) -> Result<()> {
    const APPENDED: &str = "prometheus_tsdb_head_samples_appended_total";
    let (began, from) = (Instant::now(), prometheus.usage()?);
    let appended = prometheus.own(APPENDED)?;
    pause(Duration::from_secs(60 * options.minutes))?;
    let to = prometheus.usage()?;
    let rate = (prometheus.own(APPENDED)? - appended) / began.elapsed().as_secs_f64();
    figures.add("samples a second", &format!("{rate:.0}"), "(none)");
    figures.add(
        "CPU, scrapes and rules",
        &format!("{:.0} % of a core", from.percent(&to)),
        "< 100 %",
    );
    let gib = |kib: u64| kib as f64 / f64::from(1 << 20);
    let memory =
        format!("{:.1} GiB, at most {:.1} GiB", gib(to.resident_kib), gib(to.most_resident_kib));
    figures.add("memory", &memory, "< 8 GiB");
    Ok(())
}

/// The groups of rules, with the expressions of their rules.
fn groups(prometheus: &Prometheus) -> Result<Vec<Panel>> {
    let rules = prometheus.api("/api/v1/rules")?;
    let groups = rules.get("groups").and_then(Value::as_array).context("no groups of rules")?;
    let of = |group: &Value| {
        let mut queries = Vec::new();
        for rule in group.get("rules").and_then(Value::as_array).into_iter().flatten() {
            let is = |key| rule.get(key).and_then(Value::as_str).unwrap_or_default();
            // A machine that is busy with other work may let an evaluation time out.
            if is("health") == "err" {
                println!("{}: {}", is("name"), is("lastError"));
            }
            queries.push(Query::of_rule(is("query")));
        }
        let title = group.get("name").and_then(Value::as_str).context("a group without a name")?;
        Ok(Panel { title: title.to_owned(), queries })
    };
    groups.iter().map(of).collect()
}

/// How many series there are, and the metrics that have most of them.
fn series(prometheus: &Prometheus, figures: &mut Figures<'_>) -> Result<()> {
    let each = prometheus.value("avg(scrape_samples_scraped > 0)")?;
    let most = prometheus.value("max(scrape_samples_scraped)")?;
    let goal = if figures.options.addresses { "(none)" } else { "< 400" };
    figures.add("series of a node", &format!("{each:.0}, at most {most:.0}"), goal);
    figures.add(
        "series in all",
        &format!("{:.0}", prometheus.own("prometheus_tsdb_head_series")?),
        "(none)",
    );
    let status = prometheus.api("/api/v1/status/tsdb")?;
    let metrics = status.get("seriesCountByMetricName").and_then(Value::as_array);
    for metric in metrics.into_iter().flatten() {
        let (name, count) = (metric.get("name"), metric.get("value"));
        println!("    {} {}", count.unwrap_or(&Value::Null), name.unwrap_or(&Value::Null));
    }
    Ok(())
}

/// Asks the queries of a panel one after the other, some times. Returns the median of the CPU times of all of them, in
/// seconds.
fn ask(prometheus: &Prometheus, panel: &Panel, now: u64) -> Result<f64> {
    let mut sums = Vec::new();
    for _ in 0..TIMES {
        let mut sum = 0.0;
        for query in &panel.queries {
            ensure!(!interrupt::came(), "interrupted");
            let before = prometheus.usage()?;
            let answer = prometheus.api(&query.path(now));
            answer.with_context(|| format!("{}: {}", panel.title, query.expression))?;
            let cpu = before.cpu(&prometheus.usage()?);
            println!("    {cpu:.2} s {}", query.expression);
            sum += cpu;
        }
        sums.push(sum);
    }
    sums.sort_by(f64::total_cmp);
    sums.get(TIMES / 2).copied().context("nothing was asked")
}

/// Figures, as the benchmarks print them.
struct Figures<'a> {
    options: &'a Options,
    lines: Vec<String>,
}

impl Figures<'_> {
    fn add(&mut self, name: &str, measured: &str, goal: &str) {
        let line = format!("{}{name}  {measured}  goal {goal}", self.options.prefix());
        println!("{line}");
        self.lines.push(line);
    }

    fn keep(self) -> Result<()> {
        if self.options.targets != TARGETS || self.options.minutes < MINUTES {
            println!("not kept: those of {TARGETS} targets for {MINUTES} minutes and more are");
            return Ok(());
        }
        let mut reader = Reader::default();
        self.lines.iter().for_each(|line| reader.read(line));
        reader.keep(false, &Origin::here()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        let options = Options::parse(&["--addresses", "--minutes", "20", "500"]).unwrap();
        assert_eq!((options.targets, options.minutes, options.addresses), (500, 20, true));
        assert_eq!(Options::parse(&[]).unwrap().targets, TARGETS);
        for wrong in [&["0"][..], &["--minutes", "1"], &["many"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    /// What is documented is measured, and nothing else.
    #[test]
    fn the_recorded_scrape_has_every_metric() {
        let docs = fs::read_to_string(place::repository().join("docs/metrics.md")).unwrap();
        let text = fs::read_to_string(recorded()).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let names: Vec<String> = names
            .map(|(name, kind)| {
                format!("| `{name}{}` |", if kind == "counter" { "_total" } else { "" })
            })
            .collect();
        assert!(names.len() > 30, "{names:?}");
        for name in &names {
            assert!(docs.contains(name), "{name} is not documented; is it gone?");
        }
        let rows = docs.lines().filter(|line| {
            ["| `ipwatch_", "| `process_"].iter().any(|begin| line.starts_with(begin))
        });
        assert_eq!(
            rows.count(),
            names.len(),
            "record it anew: IPWATCH_BLESS=1, scale::a_full_node"
        );
    }
}
