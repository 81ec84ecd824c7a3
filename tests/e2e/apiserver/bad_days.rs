//! Failures of a real API server. During each one pods live on, unreported. Nothing may be found, the daemon must
//! pause between its requests, and it must recover with the API server, which the deletion of a pod shows.

use std::time::Duration;

use support::kubernetes::Asked;
use support::lead::Told;
use support::poll::until;
use support::{Lab, patience};

use super::{CODE, Cluster, SOON, assert_nothing, await_status, source};
use crate::lead::is_about;

support::tests! {
    one_that_hangs_is_waited_for needs [ApiServer, FakeCri],
    one_that_has_forgotten_is_asked_for_everything needs [ApiServer, FakeCri],
    one_that_has_too_much_to_do_is_left_alone needs [ApiServer, FakeCri],
    one_that_has_lost_its_etcd_is_waited_for needs [ApiServer, FakeCri],
}

/// Length of a failure: long enough for an answer of the runtime and for the grace period, after which silence could
/// be mistaken for a statement.
const BAD: Duration = Duration::from_secs(8);
/// Limit of the requests during a failure of that length: the pauses are 1, 2, 4 and 8 s, each at least half as long,
/// and a session may both list and watch.
const FEW: usize = 12;
/// A key in etcd that stands for a pod but holds none.
const DAMAGED: &str = "/registry/pods/shop/damaged";

/// As on a machine that swaps: connections are accepted, and no answer comes.
fn one_that_hangs_is_waited_for(lab: &Lab) {
    let cluster = Cluster::start(lab, &[]);
    let (daemon, told) = cluster.watching();
    cluster.control.hang();
    // A watch that hears nothing cannot tell this from a server without events.
    std::thread::sleep(BAD * patience());
    assert_eq!(source(&daemon)["status"], "active");
    assert_nothing(&told);
    // A new daemon asks, and gets no answer.
    drop((daemon, told));
    let before = cluster.control.door().came();
    let daemon = cluster.daemon();
    let told = Told::by(&daemon);
    until("it says that there is no answer", 60, || {
        let said = source(&daemon);
        said["status"] == "down" && said["detail"].to_string().contains("no answer")
    });
    let came = cluster.control.door().came() - before;
    // One of them asks for the Node.
    assert!(came <= 4, "{came} connections in half a minute");
    cluster.control.wake();
    await_status(&daemon, &["active"]);
    cluster.assert_unharmed(&daemon, &told);
}

/// While the daemon is cut off, a pod is deleted and etcd compacts that event away (410).
fn one_that_has_forgotten_is_asked_for_everything(lab: &Lab) {
    // Served from etcd itself: the API server's own watch cache cannot be made to forget.
    let cluster = Cluster::start(lab, &["--watch-cache=false"]);
    let (daemon, told) = cluster.watching();
    cluster.control.door().shut();
    await_status(&daemon, &["down"]);
    let third = &cluster.pods[2];
    cluster.force_delete(&third.paper.name);
    cluster.control.compact();
    assert_nothing(&told);
    let before = cluster.control.asked().len();
    cluster.control.door().reopen();
    told.await_firing(CODE, SOON, is_about(&third.ip));
    let all = cluster.control.asked().split_off(before);
    // The Node, which does not exist here, is asked for by itself.
    let first = all.iter().find(|one| one.uri.starts_with("/api/v1/pods"));
    assert!(first.is_some_and(Asked::is_watch), "it tries to go on where it was first: {all:#?}");
    assert!(all.iter().any(|one| !one.is_watch()), "everything is listed anew: {all:#?}");
    assert!(all.len() <= FEW, "{all:#?}");
    cluster.assert_follows(&daemon, &told);
}

/// The API server serves one request at a time, and that one takes long: all others get a 429.
fn one_that_has_too_much_to_do_is_left_alone(lab: &Lab) {
    let flags = ["--max-requests-inflight=1", "--enable-priority-and-fairness=false"];
    let cluster = Cluster::start(lab, &flags);
    let agent = cluster.control.as_agent();
    let busy = std::thread::scope(|scope| {
        cluster.control.hang_etcd();
        // The slow request: it names no resource version, so it is served from etcd.
        let slow = scope.spawn(|| agent.get("/api/v1/pods?limit=1"));
        std::thread::sleep(Duration::from_secs(1) * patience());
        let daemon = cluster.daemon();
        let told = Told::by(&daemon);
        until("it says that the API server has too much to do", 20, || {
            source(&daemon)["detail"].to_string().contains("429")
        });
        std::thread::sleep(BAD * patience());
        assert_nothing(&told);
        cluster.control.wake_etcd();
        let _ = slow.join();
        (daemon, told)
    });
    let (daemon, told) = busy;
    await_status(&daemon, &["active"]);
    let all = cluster.control.asked();
    let refused = all.iter().filter(|one| one.code == 429).count();
    assert!((1..=FEW).contains(&refused), "{all:#?}");
    cluster.assert_unharmed(&daemon, &told);
}

/// An object in etcd is damaged, and then etcd is killed: the API server answers, but has no data.
fn one_that_has_lost_its_etcd_is_waited_for(lab: &Lab) {
    // Without its watch cache it asks etcd for everything.
    let mut cluster = Cluster::start(lab, &["--watch-cache=false"]);
    let (daemon, told) = cluster.watching();
    let before = cluster.control.asked().len();
    // The watch fails at this object, as would one that continued from there, whatever happens to the object later.
    cluster.control.damage(DAMAGED);
    until("it is said to fail", 20, || {
        let said = source(&daemon);
        said["status"] == "down" && said["detail"].to_string().contains("500")
    });
    std::thread::sleep(BAD * patience());
    assert_nothing(&told);
    let all = cluster.control.asked().split_off(before);
    assert!(all.iter().any(|one| one.code == 500) && all.len() <= FEW, "{all:#?}");
    cluster.control.repair(DAMAGED);
    await_status(&daemon, &["active"]);

    cluster.control.crash_etcd();
    cluster.control.door().cut();
    std::thread::sleep(BAD * patience());
    cluster.control.restart_etcd();
    await_status(&daemon, &["active"]);
    cluster.assert_unharmed(&daemon, &told);
}
