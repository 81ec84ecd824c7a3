//! How soon a warning reaches people: an IP is freed while it is held, and collector, scrape and journal must have
//! the finding before the next pod gets the IP.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;
use support::collector::{Collector, Span};
use support::fuse::Hung;
use support::harness::FIGURE;
use support::journal::Journal;
use support::pod::{Containerd, Setup, Slow};
use support::{Config, Daemon, Lab, patience, prometheus};

use super::duplicate::{RELEASED, await_known, hang};
use super::{SOON, await_ready, config, is_about, small};

support::tests! {
    // With runc, names of netns are mounted in other mount namespaces too, and the daemon runs in one.
    a_freed_ip_is_told_everywhere_before_it_is_given_again
        needs [Containerd, Runc, Cni, Fuse, Rotel],
}

/// The outputs of findings.
pub(crate) struct Outlets {
    pub(crate) collector: Collector,
    journal: Journal,
    /// Address of the metrics.
    metrics: String,
}

/// When each output first had a finding, by the wall clock, as in findings.
pub(crate) struct Seen {
    sent: Timestamp,
    scraped: Timestamp,
    written: Timestamp,
    /// The span that the collector received.
    pub(crate) span: Span,
}

impl Outlets {
    /// All outputs, and the command of a daemon with this journal.
    pub(crate) fn new(lab: &Lab) -> (Self, Command) {
        let (journal, command) = Journal::new(lab);
        let outlets =
            Self { collector: Collector::start(lab), journal, metrics: prometheus::free_address() };
        (outlets, command)
    }

    /// Adds them to a configuration.
    pub(crate) fn config(&self, config: Config) -> Config {
        let config = config.otlp(&self.collector.endpoint);
        config.line(&format!("[metrics]\nlisten = \"{}\"", self.metrics))
    }

    /// Number of firing findings about IPs that were freed while held. Not only those that page: soon this finding is
    /// a consequence of the one about its holder.
    fn firing(&self) -> Option<u32> {
        let page = prometheus::get(&self.metrics, "/metrics", "*/*")?;
        let group = format!("code=\"{RELEASED}\",severity=\"critical\",status=\"firing\"");
        let all = page.samples("ipwatch_findings").into_iter().filter(|line| line.contains(&group));
        Some(all.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).sum())
    }

    /// Watches all outputs while `act` makes this IP be freed.
    pub(crate) fn during<T>(&self, ip: &str, act: impl FnOnce() -> T) -> (Seen, T) {
        let name = format!("ipwatch.finding.firing {RELEASED}");
        let before = self.firing().expect("somebody listens");
        let fields = ["CODE=", "STATUS=", "IP="].map(|name| format!("IPWATCH_{name}"));
        let fields: Vec<String> =
            fields.iter().zip([RELEASED, "firing", ip]).map(|(n, v)| n.clone() + v).collect();
        thread::scope(|scope| {
            let sent = scope.spawn(|| {
                first_seen("the collector", || self.collector.span(&name, &[ip, "Str(firing)"]))
            });
            let scraped = scope
                .spawn(|| first_seen("a scrape", || self.firing().filter(|count| *count > before)));
            let written = scope.spawn(|| {
                self.journal.await_entry(&fields, 2 * SOON);
                Timestamp::now()
            });
            let done = act();
            let join = "nobody panicked";
            let (sent, span) = sent.join().expect(join);
            let (scraped, _) = scraped.join().expect(join);
            (Seen { sent, scraped, written: written.join().expect(join), span }, done)
        })
    }
}

impl Seen {
    /// Prints how long each output took after the finding fired, and checks that each had it before the next ADD of
    /// the IP began.
    #[track_caller]
    pub(crate) fn assert_before(&self, add: Timestamp, case: &str, finding: &Value) {
        let fired: Timestamp = finding["firing_at"].as_str().unwrap().parse().unwrap();
        let after = |at: Timestamp| at.duration_since(fired).as_secs_f64() * 1e3;
        println!(
            "{FIGURE}{case}, after the finding fires (goal < 1 s): at the collector {:.0} ms, scraped {:.0} ms, in \
             the journal {:.0} ms; the next ADD of it begins after {:.0} ms",
            after(self.sent),
            after(self.scraped),
            after(self.written),
            after(add)
        );
        let all = [
            ("the collector", self.sent),
            ("a scrape", self.scraped),
            ("the journal", self.written),
        ];
        for (what, at) in all {
            assert!(at < add, "{what} has it {:.0} ms after the ADD began", after(at) - after(add));
        }
    }
}

/// Polls until there is a result, and returns the time of the first one.
fn first_seen<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> (Timestamp, T) {
    let until = Instant::now() + Duration::from_secs((2 * SOON).into()) * patience();
    while Instant::now() < until {
        if let Some(seen) = look() {
            return (Timestamp::now(), seen);
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} never had it");
}

fn a_freed_ip_is_told_everywhere_before_it_is_given_again(lab: &Lab) {
    let (outlets, command) = Outlets::new(lab);
    let mut hung = Hung::mount(lab);
    let setup = Setup { subnet: Some(small(lab)), ..Setup::default() };
    let containerd = Containerd::start_as(lab, &setup);
    let config =
        config().cri(containerd.socket()).networks(&containerd.conf_dirs(), &containerd.bin_dir());
    let config = outlets.config(config);
    let mut daemon = Daemon::spawn_by(command, lab, &config, &lab.subdir("state"));
    daemon.await_ready();
    daemon.await_source("containerd");
    let pod = hang(&containerd, &mut hung);
    await_known(&daemon, &pod);

    let (seen, (given, second)) = outlets.during(&pod.ip, || {
        let mut client = containerd.begin_stop(&pod);
        let reservation = containerd.reservations().join(&pod.ip);
        support::poll::until("its IP is freed", 20, || !reservation.exists());
        let _ = client.wait();
        // host-local assigns round-robin: the fifth next pod gets it. A kubelet starts fewer than four pods within a
        // second: each waits for its IP, as with plugins that ask a server.
        containerd.slow_down(Slow::Reserve, Duration::from_millis(200));
        let others: Vec<_> =
            (0..4).map(|n| containerd.pod(&format!("web-{n}")).sandbox()).collect();
        await_ready(&daemon, &others);
        (Timestamp::now(), containerd.pod("web-4").sandbox())
    });
    assert_eq!(second.ip, pod.ip, "in silence");
    let finding = daemon.await_firing(RELEASED, SOON, is_about(&pod.ip));
    seen.assert_before(given, "a freed IP that is held", &finding);
    leads_to_what_it_is_about(&outlets.collector, &seen.span, &pod.ip, "bridge", &pod.sandbox);
    hung.release();
}

/// Checks that the span links to the tenure of the IP and to the ADD that assigned it.
#[track_caller]
pub(crate) fn leads_to_what_it_is_about(
    collector: &Collector,
    finding: &Span,
    ip: &str,
    plugin: &str,
    container: &str,
) {
    for (other, part) in [("ipwatch.tenure", ip), (&format!("cni ADD {plugin}"), container)] {
        let other = collector.await_span(other, &[part]);
        assert!(finding.leads_to(&other), "{finding:?}\nleads not to\n{other:?}");
    }
}
