//! How soon the warning is where people look: an IP is freed while it is held, and the collector, a scrape and
//! the journal have the finding before the IP is given to the next pod.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use support::collector::{Collector, Span};
use support::fuse::Hung;
use support::harness::FIGURE;
use support::journal::Journal;
use support::pod::{Containerd, Setup, Slow};
use support::{Daemon, Lab, patience, prometheus};

use super::duplicate::{RELEASED, await_known, hang};
use super::{SOON, await_ready, config, is_about, small};

support::tests! {
    // With runc: names of netns are then mounted in other mount namespaces too, and the daemon is in one.
    a_freed_ip_is_told_everywhere_before_it_is_given_again
        needs [Containerd, Runc, Cni, Fuse, Rotel],
}

/// Looks again and again, and says when it first saw it: by the wall clock, as findings do.
fn first_seen<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> (Timestamp, T) {
    let until = Instant::now() + Duration::from_secs((2 * SOON).into()) * patience();
    while Instant::now() < until {
        if let Some(seen) = look() {
            return (Timestamp::now(), seen);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} never had it");
}

fn a_freed_ip_is_told_everywhere_before_it_is_given_again(lab: &Lab) {
    let collector = Collector::start(lab);
    let (journal, command) = Journal::new(lab);
    let mut hung = Hung::mount(lab);
    let setup = Setup { subnet: Some(small(lab)), ..Setup::default() };
    let containerd = Containerd::start_as(lab, &setup);
    let address = prometheus::free_address();
    let config =
        config().cri(containerd.socket()).networks(&containerd.conf_dirs(), &containerd.bin_dir());
    let config = config.otlp(&collector.endpoint);
    let config = config.line(&format!("[metrics]\nlisten = \"{address}\""));
    let mut daemon = Daemon::spawn_by(command, lab, &config, &lab.subdir("state"));
    daemon.await_ready();
    daemon.await_source("containerd");
    let pod = hang(&containerd, &mut hung);
    await_known(&daemon, &pod);

    let name = format!("ipwatch.finding {RELEASED}");
    let at_the_collector = || collector.span(&name, &[&pod.ip, "firing"]);
    // Not those that page: it soon follows from the one about its holder.
    let firing = || {
        let page = prometheus::get(&address, "/metrics", "*/*")?;
        let group = format!("code=\"{RELEASED}\",severity=\"critical\",status=\"firing\"");
        let all = page.samples("ipwatch_findings").into_iter().filter(|line| line.contains(&group));
        Some(all.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).sum::<u32>())
    };
    let before = firing().expect("somebody listens");
    let scraped = || firing().filter(|count| *count > before).map(drop);
    let fields = ["CODE=", "STATUS=", "IP="].map(|name| format!("IPWATCH_{name}"));
    let fields: Vec<String> =
        fields.iter().zip([RELEASED, "firing", &pod.ip]).map(|(n, v)| n.clone() + v).collect();
    let (given, second, told) = std::thread::scope(|scope| {
        let sent = scope.spawn(|| first_seen("the collector", at_the_collector));
        let served = scope.spawn(|| first_seen("a scrape", scraped));
        let written = scope.spawn(|| {
            let entry = journal.await_entry(&fields, 2 * SOON);
            (Timestamp::now(), entry)
        });
        let mut client = containerd.begin_stop(&pod);
        let reservation = containerd.reservations().join(&pod.ip);
        support::poll::until("its IP is freed", 20, || !reservation.exists());
        let _ = client.wait();
        // host-local goes round: the fifth next pod gets it. Four pods within a second are more than a kubelet
        // makes: each waits for its IP a while, as with plugins that ask a server.
        containerd.slow_down(Slow::Reserve, Duration::from_millis(200));
        let others: Vec<_> =
            (0..4).map(|n| containerd.pod(&format!("web-{n}")).sandbox()).collect();
        await_ready(&daemon, &others);
        let given = Timestamp::now();
        let second = containerd.pod("web-4").sandbox();
        let join = "nobody panicked";
        let told =
            (sent.join().expect(join), served.join().expect(join), written.join().expect(join));
        (given, second, told)
    });
    assert_eq!(second.ip, pod.ip, "in silence");
    let ((sent, span), (served, ()), (written, _)) = told;
    let finding = daemon.await_firing(RELEASED, SOON, is_about(&pod.ip));
    let fired: Timestamp = finding["firing_at"].as_str().unwrap().parse().unwrap();
    let after = |at: Timestamp| at.duration_since(fired).as_secs_f64() * 1e3;
    println!(
        "{FIGURE}a freed IP that is held, after the finding fires (goal < 1 s): at the collector {:.0} ms, \
         scraped {:.0} ms, in the journal {:.0} ms; the next ADD of it begins after {:.0} ms",
        after(sent),
        after(served),
        after(written),
        after(given)
    );
    for (what, at) in [("the collector", sent), ("a scrape", served), ("the journal", written)] {
        assert!(at < given, "{what} has it {:.0} ms after the ADD began", after(at) - after(given));
    }
    leads_to_what_it_is_about(&collector, &span, &pod.ip, &pod.sandbox);
    hung.release();
}

/// The span points at the tenure of the IP and at the ADD that gave it.
fn leads_to_what_it_is_about(collector: &Collector, finding: &Span, ip: &str, sandbox: &str) {
    for (other, part) in [("ipwatch.tenure", ip), ("cni ADD bridge", sandbox)] {
        let other = collector.await_span(other, &[part]);
        assert!(finding.leads_to(&other), "{finding:?}\nleads not to\n{other:?}");
    }
}
