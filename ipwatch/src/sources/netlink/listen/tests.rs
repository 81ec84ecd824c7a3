use std::io::Write as _;
use std::time::Duration;

use super::*;
use crate::fact::NetnsPath;
use crate::sources::netlink::Requests;
use crate::sources::netlink::testing::{Netns, in_new_netns, ip, root};

mod wire;

struct Heard {
    host: NetnsRef,
    facts: mpsc::Receiver<Vec<Fact>>,
    lost: mpsc::Receiver<Lost>,
    seen: Vec<Observation>,
}

impl Heard {
    /// Reads until `wanted` accepts a fact, and returns that fact.
    async fn until(&mut self, wanted: impl Fn(&Observation) -> bool) -> Observation {
        let mut from = 0;
        loop {
            if let Some(found) = self.seen[from..].iter().find(|what| wanted(what)) {
                return found.clone();
            }
            from = self.seen.len();
            let batch = tokio::time::timeout(Duration::from_secs(20), self.facts.recv()).await;
            let batch = batch.unwrap_or_else(|_| panic!("not heard; only {:#?}", self.seen));
            self.seen.extend(batch.expect("a listener").into_iter().map(|fact| fact.what));
        }
    }

    /// The next overrun: what was lost, and the status that the source reports.
    async fn overrun(&mut self) -> (Option<Lost>, Source) {
        let lost = tokio::time::timeout(Duration::from_secs(20), self.lost.recv()).await;
        let lost = lost.expect("an overrun");
        let told = self
            .until(|what| matches!(what, Observation::Source(source) if !source.detail.is_empty()))
            .await;
        let Observation::Source(source) = told else { unreachable!() };
        (lost, source)
    }

    /// Every nsid that was reported as assigned so far.
    fn given(&self) -> Vec<NetnsRef> {
        let netns = |what: &Observation| match what {
            Observation::Netns { netns } => Some(*netns),
            _ => None,
        };
        self.seen.iter().filter_map(netns).collect()
    }
}

/// Runs a listener in a netns of the test's own, which stands for the host's, so that no other events arrive. `before`
/// runs after the groups are joined and before the first read. Needs root.
fn listening(
    before: impl FnOnce(&mut Listener) + Send + 'static,
    test: impl AsyncFnOnce(&mut Heard) + Send + 'static,
) {
    if !root() {
        return;
    }
    in_new_netns(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let host = Requests::new().unwrap().host();
            let mut listener = Listener::open(host).unwrap();
            before(&mut listener);
            let (emit, facts) = Emit::channel(64);
            let (tell, lost) = mpsc::channel(4);
            let running = tokio::spawn(async move { listener.run(&emit, &tell).await });
            test(&mut Heard { host, facts, lost, seen: Vec::new() }).await;
            running.abort();
        });
    });
}

fn holds(what: &Observation, ip: &str) -> bool {
    matches!(what, Observation::Address { address, .. } if address.key.local.to_string() == ip)
}

#[test]
fn hears_another_netns_from_birth_to_death() {
    listening(
        |_| {},
        async |heard| {
            let netns = Netns::new();
            netns.veth("ipwt-c"); // gives it an nsid
            netns.ip("addr add 192.0.2.7/24 dev eth0");
            let given = heard.until(|what| matches!(what, Observation::Netns { .. })).await;
            let Observation::Netns { netns: name } = given else { unreachable!() };
            assert_eq!(name, NetnsRef::nsid(name.nsid.unwrap()));
            let held = heard.until(|what| holds(what, "192.0.2.7")).await;
            assert!(
                matches!(held, Observation::Address { netns, .. } if netns == name),
                "{held:?}"
            );
            let host = heard.host;
            heard
                .until(|what| {
                    matches!(what, Observation::Link { netns, link } if *netns == host && link.name == "ipwt-c")
                })
                .await;

            netns.ip("link set eth0 up");
            netns.ip("neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev eth0");
            heard
                .until(|what| {
                    matches!(what, Observation::Neighbour { netns, neighbour }
                        if *netns == name && neighbour.ip.to_string() == "192.0.2.9")
                })
                .await;
            netns.ip("addr del 192.0.2.7/24 dev eth0");
            heard
                .until(
                    |what| matches!(what, Observation::AddressGone { netns, .. } if *netns == name),
                )
                .await;
            drop(netns);
            heard
                .until(|what| matches!(what, Observation::NetnsDying { netns } if *netns == name))
                .await;
            assert_eq!(heard.given(), [name]);
        },
    );
}

#[test]
fn what_happened_before_the_first_reading_is_not_lost() {
    listening(
        |_| ip("link add v0 type veth peer name v1"),
        async |heard| {
            heard
                .until(|what| matches!(what, Observation::Link { link, .. } if link.name == "v0"))
                .await;
        },
    );
}

#[test]
fn a_port_that_leaves_its_bridge_is_not_gone() {
    listening(
        |_| {},
        async |heard| {
            ip("link add br0 type bridge");
            ip("link add v0 type veth peer name v1");
            ip("link set v0 master br0");
            ip("link set v0 nomaster");
            ip("link del v0");
            heard.until(|what| matches!(what, Observation::LinkGone { .. })).await;
            let v0 = |what: &Observation| match what {
                Observation::Link { link, .. } if link.name == "v0" => {
                    Some(Some(link.master.is_some()))
                }
                Observation::LinkGone { .. } => Some(None),
                _ => None,
            };
            let life: Vec<_> = heard.seen.iter().filter_map(v0).collect();
            let first_gone = life.iter().position(Option::is_none).unwrap();
            assert!(life.contains(&Some(true)), "{life:?}");
            assert!(life[..first_gone].ends_with(&[Some(false)]), "{life:?}");
            assert_eq!(life[first_gone..].iter().filter(|step| step.is_some()).count(), 0);
        },
    );
}

#[test]
fn numbers_that_other_netns_give_are_not_ours() {
    listening(
        |_| {},
        async |heard| {
            let (netns, inner) = (Netns::new(), Netns::new());
            netns.veth("ipwt-d");
            // In `netns`, `inner` gets an nsid; on the host it has none.
            netns.ip(&format!("link add side type veth peer name side netns {}", inner.pid()));
            netns.ip("addr add 192.0.2.7/24 dev side");
            heard.until(|what| holds(what, "192.0.2.7")).await;
            drop(inner);
            netns.ip("addr add 192.0.2.8/24 dev eth0");
            heard.until(|what| holds(what, "192.0.2.8")).await;
            assert_eq!(heard.given().len(), 1, "{:?}", heard.given());
            let dying = |what: &&Observation| matches!(what, Observation::NetnsDying { .. });
            assert_eq!(heard.seen.iter().find(dying), None);
        },
    );
}

#[test]
fn the_host_with_a_number_of_its_own_stays_the_host() {
    listening(
        |_| {},
        async |heard| {
            let netns = Netns::new();
            netns.veth("ipwt-e");
            // A request from here about a device there whose peer is here makes the kernel assign an nsid to this
            // netns.
            let mut requests = Requests::new().unwrap();
            let door = [NetnsPath::Task { pid: netns.pid(), tid: netns.pid() }];
            let facts = requests.adopt(NetnsRef::default(), &door, &[], false).unwrap();
            let Some(Observation::Netns { netns: name }) = facts.first().map(|fact| &fact.what)
            else {
                panic!("{facts:?}")
            };
            requests.dump(*name).unwrap();
            ip("addr add 192.0.2.1/24 dev ipwt-e");

            let held = heard.until(|what| holds(what, "192.0.2.1")).await;
            let host = heard.host;
            assert!(
                matches!(held, Observation::Address { netns, .. } if netns == host),
                "{held:?}"
            );
            let numbered = heard.given().into_iter().find(|netns| netns.cookie == host.cookie);
            assert!(numbered.is_some_and(|netns| netns.nsid.is_some()), "{:?}", heard.given());
        },
    );
}

#[test]
fn an_overrun_is_told_after_what_was_still_queued() {
    listening(
        |listener| {
            listener.links.socket.receive_buffer(4_096).unwrap();
            ip("link add v0 type veth peer name v1");
            for host in 1..60 {
                ip(&format!("addr add 192.0.2.{host}/32 dev v0"));
            }
        },
        async |heard| {
            let (lost, source) = heard.overrun().await;
            assert_eq!(lost, Some(Lost::Links));
            assert_eq!((&*source.name, source.status), ("netlink", SourceStatus::Active));
            assert!(source.detail.starts_with("overrun 1 times"), "{}", source.detail);
            assert!(heard.seen.iter().any(|what| matches!(what, Observation::Link { .. })));
        },
    );
}

/// The kernel removes all addresses of a device at once, so that a slow machine does not let them pass.
#[test]
fn a_netns_that_floods_is_paused_and_told_to_be_incomplete() {
    const ADDRESSES: u32 = 6_000;
    listening(
        |_| {},
        async |heard| {
            let netns = Netns::new();
            netns.veth("ipwt-f");
            let given = heard.until(|what| matches!(what, Observation::Netns { .. })).await;
            let Observation::Netns { netns: name } = given else { unreachable!() };
            let address = |n: u32| std::net::Ipv4Addr::from_bits(0xc612_0000 + n);
            let lines = (1..=ADDRESSES).map(|n| format!("addr add {}/32 dev eth0\n", address(n)));
            let mut batch = tempfile::NamedTempFile::new().unwrap();
            batch.write_all(lines.collect::<String>().as_bytes()).unwrap();
            netns.ip(&format!("-batch {}", batch.path().display()));
            netns.ip("link del eth0");
            let lost = |what: &Observation| match what {
                Observation::LostIn { netns, unreported } if *netns == name => unreported.addresses,
                _ => 0,
            };
            heard.until(|what| lost(what) > 0).await;
            let removed = |what: &&Observation| matches!(what, Observation::AddressGone { .. });
            let told = heard.seen.iter().filter(removed).count();
            assert!(told < ADDRESSES as usize, "{told} were told");
        },
    );
}

#[test]
fn new_sockets_go_on_counting_where_the_old_ones_were() {
    if !root() {
        return;
    }
    in_new_netns(|| {
        let mut listener = Listener::open(Requests::new().unwrap().host()).unwrap();
        (listener.links.overruns, listener.links.dropped) = (2, 3);
        for _ in 0..2 {
            listener.reopen().unwrap();
            let Observation::Source(source) = listener.links.state(&listener.counters).what else {
                unreachable!()
            };
            let text = "overrun 2 times since the start (3 messages), each time read again";
            assert_eq!(source.detail, text);
            assert!(listener.links.dropped == 0, "the kernel counts anew");
        }
    });
}

#[test]
fn the_others_wait_for_the_first_socket_each_on_its_own() {
    let mut lag = Lag::default();
    lag.ended(Lost::Neighbours, 5);
    assert!(lag.disagree(Lost::Neighbours, 5) && !lag.disagree(Lost::Neighbours, 6));
    assert!(!lag.disagree(Lost::Routes, 5) && !lag.disagree(Lost::Links, 5));
    lag.ended(Lost::Links, 5);
    assert!(!lag.disagree(Lost::Neighbours, 5) && lag.disagree(Lost::Routes, 5));
    lag.ended(Lost::Links, 5);
    assert!(lag.disagree(Lost::Neighbours, 5));
    lag.ended(Lost::Neighbours, 5);
    lag.ended(Lost::Routes, 5);
    lag.ended(Lost::Routes, 5);
    assert!(!lag.disagree(Lost::Neighbours, 5) && lag.0.is_empty());
}
