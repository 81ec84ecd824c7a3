//! A token expires while the daemon runs, and its file gets a new one later, as a kubelet writes it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use support::poll::until;
use support::{Daemon, Lab, patience};

use super::{Cluster, await_status, source};

support::tests! {
    one_that_has_expired_is_said_and_the_next_is_taken needs [ApiServer, FakeCri],
}

/// Lifetime of the first token, in seconds. The daemon has begun a watch by then, even beside other tests.
const FIRST: i64 = 20;
/// Limit of the refused requests until the next token is there.
const FEW: usize = 12;

fn write(file: &Path, token: &str) {
    let part = file.with_extension("part");
    fs::write(&part, token).expect("write a token");
    fs::rename(part, file).expect("replace the token");
}

fn one_that_has_expired_is_said_and_the_next_is_taken(lab: &Lab) {
    let cluster = Cluster::start(lab, &[]);
    let uid = cluster.control.make_account();
    let file = lab.dir().join("token");
    let first = cluster.control.sign(&uid, FIRST * i64::from(patience()));
    write(&file, &first);
    let config = cluster.control.agent_config_with(&file);
    let lines = format!("[kubernetes]\nkubeconfig = {config:?}\nnode = {:?}", lab.tag());
    let daemon = Daemon::start(lab, &cluster.config().line(&lines));
    let told = support::lead::Told::by(&daemon);
    await_status(&daemon, &["active"]);
    let others = cluster.control.api_with(&first);
    until("it has expired, by other eyes", 60, || {
        others.get("/api/v1/pods?limit=1").is_err_and(|error| error.starts_with("401"))
    });
    // An open watch continues: the token was checked when it began.
    assert_eq!(source(&daemon)["status"], "active");
    cluster.control.door().cut();
    let said = await_status(&daemon, &["down"]);
    until("it is said to have expired", 20, || {
        let said = source(&daemon)["detail"].to_string();
        said.contains("401") && said.contains("token")
    });
    assert!(!said.contains(&first), "not the token itself");
    std::thread::sleep(Duration::from_secs(4) * patience());
    let refused = cluster.control.asked().iter().filter(|one| one.code == 401).count();
    assert!((1..=FEW).contains(&refused), "{refused} requests without credentials");

    write(&file, &cluster.control.sign(&uid, 3600));
    await_status(&daemon, &["active"]);
    assert!(!daemon.log().contains(first.rsplit('.').next().unwrap()), "nor in its log");
    cluster.assert_unharmed(&daemon, &told);
}
