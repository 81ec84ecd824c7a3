//! etcd and kube-apiserver, with their own tokens and certificates and with RBAC, on loopback addresses of a netns
//! that is the node's as well.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::asked;
use super::door::Door;
use super::part::Part;
use super::{Api, home, program, shared};
use crate::poll::until;
use crate::{Lab, Netns};

pub(super) const ETCD: &str = "http://127.0.0.1:2379";
/// Address of the server, in its netns.
pub(super) const SERVER: &str = "https://127.0.0.1:6443";

/// The server's certificate, which it creates itself.
pub(super) const CERTIFICATE: &str = "server/apiserver.crt";
/// The file with the permitted tokens.
const TOKENS: &str = "tokens.csv";
/// The user with all rights.
const ADMIN_NAME: &str = "admin";
/// Panic message if a test needs its own server to harm it.
const OWN: &str = "an API server of the test's own: needs [ApiServer]";
/// The kubelet's kubeconfig.
const NODE: &str = "node.kubeconfig";
/// The same for a kubelet outside of the server's netns.
const FAR_NODE: &str = "far-node.kubeconfig";
/// The kubeconfig with all rights.
const ADMIN: &str = "admin.kubeconfig";
/// The daemon's kubeconfig.
const AGENT: &str = "ipwatch.kubeconfig";
/// The daemon's user, as in its DaemonSet.
pub(super) const ACCOUNT: &str = "system:serviceaccount:ipwatch:ipwatch";
/// The key with which the server signs service account tokens.
pub(super) const KEY: &str = "accounts.key";
/// The issuer of these tokens.
pub(super) const ISSUER: &str = "https://kubernetes.default.svc";
/// The daemon's RBAC rules, from our manifests.
const RIGHTS: &str = include_str!("../../../deploy/kubernetes/api/rbac.yaml");

/// Both, running.
#[derive(Debug)]
pub struct ControlPlane {
    /// The node's address, on the loopback device of the netns, because `--node-ip` must not be 127.0.0.1.
    pub address: String,
    pub(super) dir: PathBuf,
    /// Directory of the server's files: not `dir` if the server is shared.
    pub(super) base: PathBuf,
    pub(super) api: Api,
    pub(super) door: Door,
    /// `None` if they are shared.
    pub(super) own: Option<Own>,
    /// The name of the node, as whose kubelet a test may authenticate.
    pub(super) node: String,
    pub(super) netns: Netns,
}

/// The processes, if they are not shared.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) server: Part,
    // Dropped after the server, which needs it.
    pub(super) etcd: Part,
}

impl ControlPlane {
    /// Starts them and waits until the API answers.
    #[must_use]
    pub fn start(lab: &Lab) -> Self {
        Self::begin(lab, &[], &[lab.tag().to_owned()])
    }

    /// Like `start`, for the tests that share it, with this many nodes.
    pub(crate) fn start_for(lab: &Lab, slots: usize) -> Self {
        let nodes: Vec<String> = (0..slots).map(|slot| shared::node(lab.tag(), slot)).collect();
        Self::begin(lab, &[], &nodes)
    }

    /// Like `start`, with further flags of the API server, and with an audit log.
    #[must_use]
    pub fn start_as(lab: &Lab, flags: &[&str]) -> Self {
        let audit = asked::flags(&home(lab));
        let all: Vec<&str> =
            audit.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        Self::begin(lab, &all, &[lab.tag().to_owned()])
    }

    fn begin(lab: &Lab, flags: &[&str], nodes: &[String]) -> Self {
        let netns = Netns::new(lab, "node");
        // Not an IP that the lab's pods may get.
        let address = lab.ip(250).to_string();
        netns.add_address(&format!("{address}/32"), "lo");
        let dir = home(lab);
        let users = nodes.iter().map(|name| format!("system:node:{name},2,\"system:nodes\""));
        let others = [
            format!("{ADMIN_NAME},1,\"system:masters\""),
            format!("{ACCOUNT},3,\"system:serviceaccounts\""),
        ];
        let users = users.chain(others).map(|user| format!("{},{user}\n", random()));
        secret(&dir.join(TOKENS), &users.collect::<String>());
        let (api, door) = Self::ways(&dir, &dir, &netns, &nodes[0]);
        let mut key = Command::new("openssl");
        key.args(["genrsa", "-out"]).arg(dir.join(KEY)).arg("2048");
        let made = key.output().expect("run openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let etcd = Part::start("etcd", etcd(&dir), netns.path(), &dir);
        let services = format!("{}/26", lab.ip(128));
        let mut server = server(&dir, &address, &services);
        server.args(flags);
        let server = Part::start("apiserver", server, netns.path(), &dir);
        let (own, base, node) = (Some(Own { server, etcd }), dir.clone(), nodes[0].clone());
        let mut control = Self { address, dir, base, api, door, own, node, netns };
        control.await_ready();
        control.grant(RIGHTS);
        control
    }

    /// Writes a test's kubeconfigs to `dir`, from the tokens and the certificate in `base`.
    pub(super) fn ways(dir: &Path, base: &Path, netns: &Netns, node: &str) -> (Api, Door) {
        let users = fs::read_to_string(base.join(TOKENS)).expect("the tokens");
        let token = |name: &str| -> String {
            let mut lines = users.lines().filter_map(|line| line.split_once(','));
            let is = |(_, user): &(&str, &str)| user.split(',').next() == Some(name);
            lines.find(is).expect("a token").0.to_owned()
        };
        let (admin, certificate) = (token(ADMIN_NAME), base.join(CERTIFICATE));
        let node = token(&format!("system:node:{node}"));
        secret(&dir.join(NODE), &kubeconfig(SERVER, &certificate, &node));
        let door = Door::open(netns.path());
        secret(&dir.join(FAR_NODE), &kubeconfig(&door.url(), &certificate, &node));
        secret(&dir.join(AGENT), &kubeconfig(&door.url(), &certificate, &token(ACCOUNT)));
        secret(&dir.join(ADMIN), &kubeconfig(&door.url(), &certificate, &admin));
        (Api::new(dir, netns.path(), &certificate, &admin), door)
    }

    /// The processes, which must not be shared.
    pub(super) fn own(&self) -> &Own {
        self.own.as_ref().expect(OWN)
    }

    /// Like `own`, mutable.
    pub(super) fn own_mut(&mut self) -> &mut Own {
        self.own.as_mut().expect(OWN)
    }

    /// How one of them ended; `None` if both run.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let own = self.own_mut();
        own.server.ended().or_else(|| own.etcd.ended())
    }

    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The API with all rights.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Kills the API server; its data stays in etcd.
    pub fn crash(&mut self) {
        self.own_mut().server.crash();
    }

    /// Restarts the API server, and waits until it answers.
    pub fn restart(&mut self) {
        self.own_mut().server.restart();
        self.await_ready();
    }

    /// The kubeconfig of the node's kubelet.
    pub(super) fn node_config(&self) -> PathBuf {
        self.dir.join(NODE)
    }

    /// Like `node_config`, for a kubelet in this netns.
    pub(super) fn far_node_config(&self) -> PathBuf {
        self.dir.join(FAR_NODE)
    }

    /// The server's certificate, which is its own authority.
    #[must_use]
    pub fn authority(&self) -> String {
        fs::read_to_string(self.base.join(CERTIFICATE)).expect("the certificate")
    }

    /// The daemon's kubeconfig for this netns, with the rights in our manifests.
    #[must_use]
    pub fn agent_config(&self) -> PathBuf {
        self.dir.join(AGENT)
    }

    /// A kubeconfig with all rights, for this netns.
    #[must_use]
    pub fn admin_config(&self) -> PathBuf {
        self.dir.join(ADMIN)
    }

    /// Grants the daemon the rights in a manifest of ours.
    pub fn grant(&self, rights: &str) {
        for document in rights.split("---\n") {
            let object: Value = serde_norway::from_str(document).expect("an object of RBAC");
            let kind = object["kind"].as_str().expect("a kind").to_lowercase();
            let group = object["apiVersion"].as_str().expect("a group");
            self.api.create(&format!("/apis/{group}/{kind}s"), &object);
        }
    }

    /// Defines a kind by the YAML of a CustomResourceDefinition, and waits until it is served. Returns the path of
    /// its objects, without a namespace.
    pub fn define(&self, definition: &str) -> String {
        let object: Value = serde_norway::from_str(definition).expect("a definition");
        self.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &object);
        let text = |value: &Value| value.as_str().expect("a name").to_owned();
        let spec = &object["spec"];
        let (group, version) = (text(&spec["group"]), text(&spec["versions"][0]["name"]));
        let path = format!("/apis/{group}/{version}/{}", text(&spec["names"]["plural"]));
        until(&format!("{path} is served"), 30, || self.api.get(&path).is_ok());
        path
    }

    pub(super) fn await_ready(&mut self) {
        until("kube-apiserver is ready", 90, || {
            self.own_mut().server.assert_running();
            // The namespace that is created last at the start.
            self.base.join(CERTIFICATE).exists()
                && self.api.get("/readyz").is_ok()
                && self.api.get("/api/v1/namespaces/kube-node-lease").is_ok()
        });
    }
}

fn etcd(dir: &Path) -> Command {
    let mut command = Command::new(program("etcd"));
    command.arg("--data-dir").arg(dir.join("etcd")).args(["--listen-client-urls", ETCD]);
    command.args(["--advertise-client-urls", ETCD]);
    command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
    // Nothing here outlives the test.
    command.args(["--unsafe-no-fsync", "--logger=zap", "--log-level=error"]);
    command
}

fn server(dir: &Path, address: &str, services: &str) -> Command {
    let path = |name: &str| dir.join(name).display().to_string();
    let key = path("accounts.key");
    let mut command = Command::new(program("kube-apiserver"));
    for (flag, value) in [
        ("etcd-servers", ETCD),
        ("bind-address", "127.0.0.1"),
        ("secure-port", "6443"),
        ("advertise-address", address),
        ("cert-dir", &path("server")),
        ("token-auth-file", &path(TOKENS)),
        ("authorization-mode", "Node,RBAC"),
        ("enable-admission-plugins", "NodeRestriction"),
        // No controller runs that creates a service account for each namespace.
        ("disable-admission-plugins", "ServiceAccount"),
        ("service-cluster-ip-range", services),
        ("service-account-issuer", ISSUER),
        ("service-account-signing-key-file", &key),
        ("service-account-key-file", &key),
        ("allow-privileged", "true"),
    ] {
        command.arg(format!("--{flag}={value}"));
    }
    command
}

fn kubeconfig(server: &str, certificate: &Path, token: &str) -> String {
    kubeconfig_of(server, certificate, &json!({ "token": token }))
}

pub(super) fn kubeconfig_of(server: &str, certificate: &Path, user: &Value) -> String {
    let cluster = json!({ "server": server, "certificate-authority": certificate });
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{ "name": "test", "cluster": cluster }],
        "users": [{ "name": "test", "user": user }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
    });
    config.to_string()
}

/// A random secret.
pub(super) fn random() -> String {
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a random id");
    random.trim().replace('-', "")
}

/// Writes a file that only root can read.
pub(super) fn secret(file: &Path, text: &str) {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = fs::File::options();
    let mut file = options
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(file)
        .expect("open a file");
    file.write_all(text.as_bytes()).expect("write it");
}
