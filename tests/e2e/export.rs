//! One finding all the way out: as a span to a real collector.

use support::collector::Collector;
use support::fuse::Hung;
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, eventually};

support::tests! {
    a_finding_reaches_a_collector needs [Fuse, Rotel],
    without_a_collector_nothing_else_suffers needs [Fuse],
}

fn stuck_netns(lab: &Lab) -> Netns {
    let netns = Netns::new(lab, "out");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    netns
}

fn a_finding_reaches_a_collector(lab: &Lab) {
    let collector = Collector::start(lab);
    let mut hung = Hung::mount(lab);
    let daemon = Daemon::start(lab, &Config::default().grace(1).otlp(&collector.endpoint));
    let netns = stuck_netns(lab);
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    let finding = eventually("the finding fires", 15, || {
        let all = daemon.findings_in(netns.inode);
        all.into_iter().find(|finding| finding["status"] == "firing")
    });
    let id = finding["id"].as_str().unwrap().to_owned();
    let ip = lab.ip(7).to_string();
    let pid = helper.pid().to_string();
    support::poll::until("the span has arrived with its holder and its IP", 20, || {
        let received = collector.received();
        ["ip-held-by-stuck-process", &id, &ip, &pid].iter().all(|part| received.contains(*part))
    });
    hung.release();
    support::poll::until("its end has arrived", 20, || collector.received().contains("resolved"));
}

/// A collector that is not there costs its spans, which are counted, and nothing else.
fn without_a_collector_nothing_else_suffers(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    // A port of the discard service: nothing listens there.
    let daemon = Daemon::start(lab, &Config::default().grace(1).otlp("http://127.0.0.1:9"));
    let netns = stuck_netns(lab);
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    support::poll::until("the finding fires", 15, || {
        daemon.findings_in(netns.inode).iter().any(|finding| finding["status"] == "firing")
    });
    assert!(daemon.stop().success(), "and it stops in time");
}
