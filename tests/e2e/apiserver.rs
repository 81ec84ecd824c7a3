//! A real etcd and API server without a kubelet: they start in a few seconds, and the test itself creates a node's
//! pods. The pods are fake for the runtime, and real for the API server and the kernel.
//!
//! - [`bad_days`]: the API server hangs, loses history, is overloaded, loses its etcd: nothing is concluded from
//!   that.
//! - [`token`]: the token expires, and a new one is used.
//! - [`whereabouts`]: pools of the cluster against a node's real containers, and malformed objects.
//! - [`calico`]: blocks, and malformed entries in them.
//! - [`wrapped`]: `ipwatch-ipam` before Whereabouts.
//! - [`node_conditions`]: conditions of the Node, with the rights in our manifests.

pub(crate) mod bad_days;
pub(crate) mod calico;
pub(crate) mod node_conditions;
pub(crate) mod token;
pub(crate) mod whereabouts;
pub(crate) mod wrapped;

use serde_json::{Value, json};
use support::fake_cri::FakeCri;
use support::kubernetes::ControlPlane;
use support::lead::Told;
use support::poll::until;
use support::role::{Helper, Role, Running};
use support::{Config, Daemon, Lab, Netns, Sandbox};

use crate::lead::is_about;

/// The finding that would be wrong if silence counted as a deletion.
const CODE: &str = "ip-held-by-deleted-pod";
/// Seconds until a finding must be reported after the API server answers again: the longest pause after a few
/// failures, the runtime's next answer, and the grace.
const SOON: u32 = 60;
/// Grace in seconds.
const GRACE: u32 = 2;

/// A pod that the API server, a runtime and the kernel know, without a kubelet.
struct Pod {
    ip: String,
    netns: Netns,
    paper: Sandbox,
    _pause: Running,
}

/// A node with pods, and its API server.
struct Cluster<'a> {
    lab: &'a Lab,
    control: ControlPlane,
    runtime: FakeCri,
    pods: Vec<Pod>,
}

impl<'a> Cluster<'a> {
    /// With three pods; `flags` are further flags of the API server.
    fn start(lab: &'a Lab, flags: &[&str]) -> Self {
        let control = ControlPlane::start_as(lab, flags);
        let shop = json!({ "metadata": { "name": Sandbox::NAMESPACE } });
        control.api().create("/api/v1/namespaces", &shop);
        let mut cluster = Self { lab, control, runtime: FakeCri::start(lab), pods: Vec::new() };
        cluster.pods = (0..3).map(|n| cluster.pod(n)).collect();
        let lines = cluster.pods.iter().map(|pod| FakeCri::lines(&pod.paper, "READY"));
        cluster.runtime.has(&lines.collect::<String>());
        cluster
    }

    fn pod(&self, n: u8) -> Pod {
        let name = format!("web-{n}");
        let uid = self.create(&name);
        let netns = Netns::new(self.lab, &name);
        netns.veth_to_host();
        let cidr = self.lab.cidr(10 + n);
        netns.add_address(&cidr, "eth0");
        let paper = Sandbox::make_as(self.lab, &netns, &cidr, "", (&name, &uid));
        let pause = Helper::new(Role::Park).inside(&netns).within(&paper).start();
        Pod { ip: self.lab.ip(10 + n).to_string(), netns, paper, _pause: pause }
    }

    /// Creates a pod object of this node, which nobody starts; returns its uid.
    fn create(&self, name: &str) -> String {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": self.lab.tag(), "automountServiceAccountToken": false,
                "containers": [{ "name": "main", "image": "none" }],
            },
        });
        let pod = self.control.api().create(&pods(), &pod);
        pod["metadata"]["uid"].as_str().expect("a uid").to_owned()
    }

    fn force_delete(&self, name: &str) {
        self.control.api().force_delete(&format!("{}/{name}", pods()));
    }

    fn config(&self) -> Config {
        Config::default()
            .grace(GRACE)
            .holders_grace(GRACE)
            .cri(self.runtime.socket())
            .cache_dir(self.pods[0].paper.cache())
    }

    /// A daemon that uses this API server, whether or not it answers.
    fn daemon(&self) -> Daemon {
        let daemon = Daemon::start(self.lab, &self.config().line(&self.lines()));
        daemon.await_source("containerd");
        for pod in &self.pods {
            daemon.await_ip(&pod.ip, pod.netns.inode);
        }
        daemon
    }

    fn lines(&self) -> String {
        let config = self.control.agent_config();
        format!("[kubernetes]\nkubeconfig = {config:?}\nnode = {:?}", self.lab.tag())
    }

    /// Starts the daemon and waits until it knows the pods.
    fn watching(&self) -> (Daemon, Told) {
        let daemon = self.daemon();
        let told = Told::by(&daemon);
        await_status(&daemon, &["active"]);
        (daemon, told)
    }

    /// Checks that nothing was found so far, and that a deletion from now on is.
    #[track_caller]
    fn assert_unharmed(&self, daemon: &Daemon, told: &Told) {
        assert_nothing(told);
        self.assert_follows(daemon, told);
    }

    /// Checks that a deletion is noticed, and only for the deleted pod.
    #[track_caller]
    fn assert_follows(&self, daemon: &Daemon, told: &Told) {
        let [first, second, _] = &self.pods[..] else { panic!("three pods") };
        self.force_delete(&first.paper.name);
        told.await_firing(CODE, SOON, is_about(&first.ip));
        let other = daemon.findings_in(second.netns.inode);
        assert!(other.iter().all(|finding| finding["code"] != CODE), "{other:#?}");
    }
}

/// Path of the pods in the API.
fn pods() -> String {
    format!("/api/v1/namespaces/{}/pods", Sandbox::NAMESPACE)
}

/// The status of the API server as a source.
fn source(daemon: &Daemon) -> Value {
    daemon.source("kubernetes").unwrap_or_default()
}

/// Waits until the source has one of these statuses; returns its detail.
#[track_caller]
fn await_status(daemon: &Daemon, wanted: &[&str]) -> String {
    let mut said = Value::Null;
    until(&format!("the API server is {wanted:?}"), SOON, || {
        said = source(daemon);
        wanted.iter().any(|status| said["status"] == *status)
    });
    said["detail"].as_str().unwrap_or_default().to_owned()
}

/// Checks that no pod was reported as deleted, not even as `pending`.
#[track_caller]
fn assert_nothing(told: &Told) {
    let mut all = told.findings();
    all.retain(|(_, finding)| finding["code"] == CODE);
    assert!(all.is_empty(), "nobody has deleted anything: {all:#?}");
}
