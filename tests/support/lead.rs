//! How early a warning comes: the time between it and the failure that it warns of.
//!
//! A test follows what the daemon tells ([`Told`]), causes a failure, takes its time by other eyes than the
//! product's, and asks for the lead ([`Told::lead`]). Both times are taken by this process when it hears of
//! them, so the warning's way through the socket counts against it. The **machine lead** begins with the
//! first warning about the very IP or range, `pending` included; the **human lead** with the first finding
//! about it that fires. How long a lead is says something of the pace of the test as well: of a leak that
//! fills a range in seconds one is warned seconds before. What counts is that no lead is negative.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use crate::{Daemon, poll, table};

/// What begins a line about one lead, its cells parted by tabs.
const LEAD: &str = "LEAD ";
/// What begins the line of a healthy run: its cycles, the CNI calls beside them, and its false alarms.
const HEALTHY: &str = "HEALTHY ";

/// Everything that a daemon tells, with the time at which it was heard.
#[derive(Debug)]
pub struct Told {
    socket: UnixStream,
    heard: Arc<Mutex<Vec<(Instant, Value)>>>,
}

/// A failure that was to be warned of.
#[derive(Debug)]
pub struct Failure<'a> {
    /// What went wrong, as the table shows it.
    pub case: &'a str,
    /// When it showed.
    pub at: Instant,
    /// A person had time too: a finding must have fired before it.
    pub slow: bool,
}

impl Told {
    /// Follows the daemon from now on, by its socket: one program less on the way.
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

    /// The findings that were told of so far, as they were each time, the first first.
    #[must_use]
    pub fn findings(&self) -> Vec<(Instant, Value)> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let findings = heard.iter().filter(|(_, event)| event["event"] == "finding");
        findings.map(|(at, event)| (*at, event["finding"].clone())).collect()
    }

    /// The first word of a finding with this code for which `about` holds, and the first that it fires.
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

    /// The last word of a finding that was told before a failure; itself where there is none.
    fn last_before(&self, failure: Instant, first: &Value) -> Value {
        let mut all = self.findings();
        all.retain(|(at, f)| f["id"] == first["id"] && f["status"] == "firing" && *at < failure);
        all.pop().map_or_else(|| first.clone(), |(_, finding)| finding)
    }

    /// Waits for the first word of such a finding, `pending` included.
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

    /// Waits until such a finding fires, enters the lead that it gave before the failure into the table,
    /// and returns the finding. `holder` says whom it names, or what is wrong with whom it names.
    ///
    /// # Panics
    /// There was none, it came after the failure, or it names the wrong one.
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

    /// Every word of a finding in a line, for a failed test.
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

/// From `warning` to `failure`; negative when the warning came after it.
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

/// Enters a healthy run: what happened, and how many findings were raised although nothing was wrong.
pub fn healthy(cycles: usize, calls: usize, false_alarms: usize) {
    println!("{HEALTHY}{cycles}\t{calls}\t{false_alarms}");
}

/// The leads of a test run: of several runs of a case the worst.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: BTreeMap<(String, String), Row>,
    healthy: Vec<[u64; 3]>,
}

#[derive(Debug)]
struct Row {
    runs: u32,
    right: u32,
    /// `None`: at least once there was no warning at all.
    machine: Option<i64>,
    human: Option<i64>,
    whom: String,
}

impl Table {
    /// Adds what a test printed.
    pub(crate) fn read(&mut self, log: &str) {
        for row in log.lines().filter_map(|line| line.strip_prefix(LEAD)) {
            let cells: Vec<&str> = row.split('\t').collect();
            let [case, code, machine, human, right, whom] = cells[..] else { continue };
            self.add(case, code, machine.parse().ok(), human.parse().ok(), right == "1", whom);
        }
        for run in log.lines().filter_map(|line| line.strip_prefix(HEALTHY)) {
            let cells: Vec<u64> = run.split('\t').filter_map(|cell| cell.parse().ok()).collect();
            self.healthy.extend(<[u64; 3]>::try_from(cells).ok());
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
        // `None` is the least, and the worst.
        row.machine = row.machine.min(machine);
        row.human = row.human.min(human);
    }

    /// Prints it. In the last line is what the warnings cost: the false alarms of the healthy run.
    pub(crate) fn print(&self) {
        let line = |((case, code), row): (&(String, String), &Row)| {
            let whom = format!("{} of {}: {}", row.right, row.runs, row.whom);
            vec![case.clone(), code.clone(), shown(row.machine), shown(row.human), whom]
        };
        let heads = ["lead time: case", "finding", "machine lead", "human lead", "named right"];
        table::print(heads, self.rows.iter().map(line).collect());
        for [cycles, calls, alarms] in &self.healthy {
            println!(
                "false alarms: {alarms} in a healthy run of {cycles} pod cycles and {calls} CNI calls beside them"
            );
        }
    }
}

/// In the unit that fits.
fn shown(lead: Option<i64>) -> String {
    match lead {
        None => "none".to_owned(),
        Some(lead) if lead.abs() < 1_000_000 => format!("{:.1} ms", lead as f64 / 1e3),
        Some(lead) => format!("{:.1} s", lead as f64 / 1e6),
    }
}
