//! The lead time of a warning: the time between it and the failure that it warns of.
//!
//! A test follows the daemon's events ([`Told`]), causes a failure, takes the failure's time by other means than the
//! product, and asks for the lead ([`Told::lead`]). This process takes both times when it hears of them, so the
//! latency of the socket counts against the warning. The **machine lead** begins with the first warning about that IP
//! or range, `pending` included; the **human lead** with the first firing finding about it. A lead also depends on
//! the pace of the test: for a leak that fills a range in seconds the warning comes seconds before. What matters is
//! that no lead is negative.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Daemon, poll, table};

/// Prefix of a line about one lead; its cells are separated by tabs.
const LEAD: &str = "LEAD ";
/// Prefix of the line of a healthy run: its cycles, its CNI calls, its false alarms, and its seconds.
const HEALTHY: &str = "HEALTHY ";

/// All events of a daemon, with the times at which they were received.
#[derive(Debug)]
pub struct Told {
    socket: UnixStream,
    heard: Arc<Mutex<Vec<(Instant, Value)>>>,
}

/// A failure that must be warned of.
#[derive(Debug)]
pub struct Failure<'a> {
    /// The case, for the table.
    pub case: &'a str,
    /// When the failure showed.
    pub at: Instant,
    /// Whether a person had time to react: then a finding must have fired before it.
    pub slow: bool,
}

impl Told {
    /// Follows the daemon from now on through its socket, which is one process less on the way.
    #[must_use]
    pub fn by(daemon: &Daemon) -> Self {
        let (socket, body) = daemon.events();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in body {
                let at = Instant::now();
                let event = serde_json::from_str(&line).expect("a JSON line");
                all.lock().unwrap_or_else(PoisonError::into_inner).push((at, event));
            }
        });
        Self { socket, heard }
    }

    /// Every report of a finding so far, the oldest first.
    #[must_use]
    pub fn findings(&self) -> Vec<(Instant, Value)> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let findings = heard.iter().filter(|(_, event)| event["event"] == "finding");
        findings.map(|(at, event)| (*at, event["finding"].clone())).collect()
    }

    /// The first report of a finding with this code that matches `about`, and the first in which it fires.
    fn first(
        &self,
        code: &str,
        about: &dyn Fn(&Value) -> bool,
    ) -> (Option<Instant>, Option<(Instant, Value)>) {
        let mut all = self.findings();
        all.retain(|(_, f)| f["code"] == code && f["status"] != "resolved" && about(f));
        let first = all.first().map(|(at, _)| *at);
        (first, all.into_iter().find(|(_, finding)| finding["status"] == "firing"))
    }

    /// The last firing report of a finding before a failure; `first` if there is none.
    fn last_before(&self, failure: Instant, first: &Value) -> Value {
        let mut all = self.findings();
        all.retain(|(at, f)| f["id"] == first["id"] && f["status"] == "firing" && *at < failure);
        all.pop().map_or_else(|| first.clone(), |(_, finding)| finding)
    }

    /// Waits for the first report of such a finding, `pending` included.
    #[track_caller]
    pub fn await_word(&self, code: &str, seconds: u32, about: impl Fn(&Value) -> bool) -> Instant {
        poll::settle(seconds, || self.first(code, &about).0.is_some());
        self.first(code, &about)
            .0
            .unwrap_or_else(|| panic!("no word of {code}: {:#?}", self.short()))
    }

    /// Waits for such a finding to fire.
    #[track_caller]
    pub fn await_firing(&self, code: &str, seconds: u32, about: impl Fn(&Value) -> bool) {
        poll::settle(seconds, || self.first(code, &about).1.is_some());
        let fired = self.first(code, &about).1;
        assert!(fired.is_some(), "no {code} fires: {:#?}", self.short());
    }

    /// Waits until such a finding fires, adds its lead before the failure to the table, and returns the finding.
    /// `holder` returns the holder that it names, or what is wrong with that.
    ///
    /// # Panics
    /// There was no finding, it came after the failure, or it names the wrong holder.
    #[track_caller]
    pub fn lead(
        &self,
        failure: &Failure<'_>,
        code: &str,
        about: impl Fn(&Value) -> bool,
        holder: impl Fn(&Value) -> Result<String, String>,
    ) -> Value {
        poll::settle(40, || self.first(code, &about).1.is_some());
        let (word, firing) = self.first(code, &about);
        let machine = word.map(|at| micros(at, failure.at));
        let human = firing.as_ref().map(|(at, _)| micros(*at, failure.at));
        let finding = firing.map(|(_, first)| self.last_before(failure.at, &first));
        let named = finding.as_ref().map_or(Err("no finding".to_owned()), holder);
        enter(failure.case, code, machine, human, &named);
        let all = self.short();
        let ahead = |lead: Option<i64>| lead.is_some_and(|lead| lead > 0);
        assert!(ahead(machine), "{}: no {code} in time ({machine:?} µs): {all:#?}", failure.case);
        assert!(
            !failure.slow || ahead(human),
            "{code} did not fire in time ({human:?} µs): {all:#?}"
        );
        let finding = finding.expect("it fired, for it is named");
        assert!(named.is_ok(), "{named:?}: {finding:#?}");
        finding
    }

    /// Every report of a finding in one line, for a failed test.
    fn short(&self) -> Vec<String> {
        let line = |(_, f): (Instant, Value)| {
            format!("{} {} {} {}", f["code"], f["status"], f["subject"], f["holders"])
        };
        self.findings().into_iter().map(line).collect()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Time from `warning` to `failure` in µs; negative if the warning came after it.
fn micros(warning: Instant, failure: Instant) -> i64 {
    let span = |from: Instant, to: Instant| i64::try_from(to.duration_since(from).as_micros());
    if warning <= failure {
        span(warning, failure).unwrap_or(i64::MAX)
    } else {
        -span(failure, warning).unwrap_or(i64::MAX)
    }
}

fn enter(
    case: &str,
    code: &str,
    machine: Option<i64>,
    human: Option<i64>,
    named: &Result<String, String>,
) {
    let lead = |lead: Option<i64>| lead.map_or_else(|| "-".to_owned(), |lead| lead.to_string());
    let (right, whom) = match named {
        Ok(whom) => (1, whom),
        Err(whom) => (0, whom),
    };
    println!("{LEAD}{case}\t{code}\t{}\t{}\t{right}\t{whom}", lead(machine), lead(human));
}

/// Adds a healthy run to the table: its size, and the number of findings although nothing was wrong.
pub fn healthy(cycles: usize, calls: usize, false_alarms: usize, took: Duration) {
    println!("{HEALTHY}{cycles}\t{calls}\t{false_alarms}\t{}", took.as_secs());
}

/// The leads of a test run; of several runs of a case the worst.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: BTreeMap<(String, String), Row>,
    healthy: Vec<[u64; 4]>,
}

#[derive(Debug)]
struct Row {
    runs: u32,
    right: u32,
    /// `None` if at least once there was no warning.
    machine: Option<i64>,
    human: Option<i64>,
    whom: String,
}

impl Table {
    /// Adds the lines that a test printed.
    pub(crate) fn read(&mut self, log: &str) {
        for row in log.lines().filter_map(|line| line.strip_prefix(LEAD)) {
            let cells: Vec<&str> = row.split('\t').collect();
            let [case, code, machine, human, right, whom] = cells[..] else { continue };
            self.add(case, code, machine.parse().ok(), human.parse().ok(), right == "1", whom);
        }
        for run in log.lines().filter_map(|line| line.strip_prefix(HEALTHY)) {
            let cells: Vec<u64> = run.split('\t').filter_map(|cell| cell.parse().ok()).collect();
            self.healthy.extend(<[u64; 4]>::try_from(cells).ok());
        }
    }

    fn add(
        &mut self,
        case: &str,
        code: &str,
        machine: Option<i64>,
        human: Option<i64>,
        right: bool,
        whom: &str,
    ) {
        let whom = whom.to_owned();
        let right = u32::from(right);
        let key = (case.to_owned(), code.to_owned());
        let Some(row) = self.rows.get_mut(&key) else {
            self.rows.insert(key, Row { runs: 1, right, machine, human, whom });
            return;
        };
        row.runs += 1;
        row.right += right;
        // `None` is the minimum, and the worst.
        row.machine = row.machine.min(machine);
        row.human = row.human.min(human);
    }

    /// Prints the table. The last line has the false alarms of the healthy run.
    pub(crate) fn print(&self) {
        let line = |((case, code), row): (&(String, String), &Row)| {
            let whom = format!("{} of {}: {}", row.right, row.runs, row.whom);
            vec![case.clone(), code.clone(), shown(row.machine), shown(row.human), whom]
        };
        let heads = ["lead time: case", "finding", "machine lead", "human lead", "named right"];
        table::print(heads, self.rows.iter().map(line).collect());
        for [cycles, calls, alarms, seconds] in &self.healthy {
            println!(
                "false alarms: {alarms} in a healthy run of {cycles} pod cycles in {seconds} s and {calls} CNI calls \
                 beside them"
            );
        }
    }
}

/// A lead in a suitable unit.
fn shown(lead: Option<i64>) -> String {
    match lead {
        None => "none".to_owned(),
        Some(lead) if lead.abs() < 1_000_000 => format!("{:.1} ms", lead as f64 / 1e3),
        Some(lead) => format!("{:.1} s", lead as f64 / 1e6),
    }
}
