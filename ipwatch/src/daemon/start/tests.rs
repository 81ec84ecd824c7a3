//! The netlink listener is restarted, in a netns that the test makes and uses as the host's. Needs root.

use std::time::Duration;

use super::*;
use crate::sources::netlink::testing::{in_new_netns, ip, root};

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_listener_that_broke_is_opened_anew_and_then_everything_is_read_again() {
    if !root() {
        return;
    }
    in_new_netns(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut listener = Listener::open(Requests::new().unwrap().host()).unwrap();
            listener.break_socket();
            let (emit, mut facts) = Emit::channel(64);
            let troubles = Troubles::default();
            tokio::spawn(listen(listener, troubles.clone(), emit));
            tokio::time::timeout(PATIENCE, troubles.changed()).await.expect("nothing is told");
            let report = troubles.report();
            let down: Vec<_> = report.iter().map(|one| (one.source, one.is_blind)).collect();
            assert_eq!(down, ["neighbours", "netlink", "routes"].map(|name| (name, true)));

            let mut until = async |what: &str, is: &dyn Fn(&Observation) -> bool| {
                let mut states = 0;
                loop {
                    let batch = tokio::time::timeout(PATIENCE, facts.recv()).await;
                    let batch = batch.unwrap_or_else(|_| panic!("never: {what}")).unwrap();
                    let state = |fact: &&Fact| matches!(fact.what, Observation::Source(_));
                    states += batch.iter().filter(state).count();
                    if batch.iter().any(|fact| is(&fact.what)) {
                        return states;
                    }
                }
            };
            let lost =
                |what: &Observation| *what == Observation::Lost { count: None, calls: false };
            assert_eq!(until("read again", &lost).await, 3, "how it stands is told once");
            ip("link add v0 type veth peer name v1");
            until(
                "heard",
                &|what| matches!(what, Observation::Link { link, .. } if link.name == "v0"),
            )
            .await;
            assert_eq!(troubles.report(), []);
        });
    });
}
