//! The one table of every key of `ipwatch.toml`: what it means, whether a reload takes it over, and whether it may be
//! shown. Its value is that of the serialised [`Config`].
//!
//! `ipwatch config default` and `show`, the log line of a reload and `docs/config.md` are made from it;
//! a test compares it with what [`Config`] takes.

use toml::Value;

use super::Config;

/// One key.
#[derive(Debug)]
pub struct Key {
    /// Its name with that of its table, as `stuck.grace`.
    pub name: &'static str,
    /// What it means.
    pub about: &'static str,
    /// For a key without a default: a value as it may be written.
    pub example: &'static str,
    /// A reload takes it over; any other waits for a restart.
    pub live: bool,
    /// What of its value nobody is shown.
    hide: Hide,
    /// Its value, where the serialised configuration does not have it.
    own: Option<fn(&Config) -> Option<Value>>,
}

/// What of a value is a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hide {
    /// Nothing.
    Nothing,
    /// Name and password in a URL.
    UserInfo,
    /// Every value of the table that it is, as those of headers.
    Values,
}

/// What stands in a secret's place.
const HIDDEN: &str = "(hidden)";

impl Key {
    const fn new(name: &'static str, about: &'static str) -> Self {
        Self { name, about, example: "", live: false, hide: Hide::Nothing, own: None }
    }

    /// A reload takes it over.
    const fn live(mut self) -> Self {
        self.live = true;
        self
    }

    const fn example(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }

    const fn hide(mut self, hide: Hide) -> Self {
        self.hide = hide;
        self
    }

    const fn own(mut self, value: fn(&Config) -> Option<Value>) -> Self {
        self.own = Some(value);
        self
    }

    /// Its table (empty: none) and its name there.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.name.rsplit_once('.').unwrap_or(("", self.name))
    }

    /// Whether a file with this content sets it.
    pub(super) fn is_in(&self, file: &toml::Table) -> bool {
        let (table, name) = self.parts();
        let place =
            if table.is_empty() { Some(file) } else { file.get(table).and_then(Value::as_table) };
        place.is_some_and(|place| place.contains_key(name))
    }

    /// Its value, whole: to compare, not to show.
    #[must_use]
    pub fn value(&self, config: &Config) -> Option<Value> {
        if let Some(own) = self.own {
            return own(config);
        }
        let whole = Value::try_from(config).ok()?;
        self.name.split('.').try_fold(&whole, |table, name| table.get(name)).cloned()
    }

    /// Its value as it may be shown.
    #[must_use]
    pub fn shown(&self, config: &Config) -> Option<Value> {
        let value = self.value(config)?;
        Some(match (self.hide, value) {
            (Hide::UserInfo, Value::String(url)) => Value::String(without_user_info(&url)),
            (Hide::Values, Value::Table(table)) => {
                let hidden = |(name, _)| (name, Value::String(HIDDEN.to_owned()));
                Value::Table(table.into_iter().map(hidden).collect())
            }
            (Hide::Values, _) => Value::String(HIDDEN.to_owned()),
            (_, value) => value,
        })
    }

    /// Whether its value may be quoted in an error.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.hide != Hide::Nothing
    }
}

/// A URL without a name and a password.
fn without_user_info(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority = rest.find('/').unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) => format!("{scheme}://{HIDDEN}{}", &rest[at..]),
        None => url.to_owned(),
    }
}

/// The keys whose values differ.
pub fn differences(a: &Config, b: &Config) -> Vec<&'static Key> {
    KEYS.iter().filter(|key| key.value(a) != key.value(b)).collect()
}

/// Each table and what it is about, in the order of the file.
pub const TABLES: &[(&str, &str)] = &[
    ("", ""),
    ("stuck", "When an exiting process counts as stuck."),
    ("holders", "When remains of a sandbox count as left behind."),
    ("probes", "The eBPF half."),
    ("addresses", "Addresses that are shared on purpose."),
    ("neighbours", "Who claims which IP on a link."),
    ("identity", "How network namespaces are told apart."),
    ("cni", "CNI: its result cache, its plugins, and the runtime's log."),
    ("ipam", "Where IPAM plugins keep what they have reserved."),
    ("runtime", "The container runtimes."),
    (
        "kubernetes",
        "The API server, asked for this node's pods, and for how many the node may have.",
    ),
    ("calico", "Calico's datastore, where it is an etcd of its own: docs/calico-etcd.md."),
    ("otlp", "Export to an OpenTelemetry collector."),
    ("metrics", "Metrics for Prometheus: docs/metrics.md."),
    ("retention", "How long history is kept."),
];

/// Every key, in the order of the file.
pub const KEYS: &[Key] = &[
    Key::new("socket", "The API's socket."),
    Key::new("state_dir", "Directory of the findings and the history."),
    Key::new(
        "observe_only",
        "Change nothing on the node: assign no nsid, have no kernel module loaded, make no \
         canary. Less is then seen.",
    ),
    Key::new("node", "The node's name in every document; default: the host name.")
        .example("\"node-17\""),
    Key::new("stuck.grace", "How long a process may take to exit.").live(),
    Key::new("stuck.core_dump_grace", "The same while its core is being dumped.").live(),
    Key::new("holders.grace", "How long a dead sandbox may keep its IP, its device, its mounts.")
        .live(),
    Key::new(
        "holders.leak_age",
        "Age of a pod's netns that no runtime knows, or where there is none to ask.",
    )
    .live(),
    Key::new("holders.teardown_grace", "How long the kernel may take to tear down one netns.")
        .live(),
    Key::new(
        "probes.enabled",
        "Load the eBPF probes. Without them netlink and procfs are used, which report less, and later.",
    ),
    Key::new(
        "probes.forbid",
        "Rungs of the ladder not to be used: tp_btf, raw_tp, fentry, kprobe, socket, snapshot.",
    ),
    Key::new(
        "probes.sweep",
        "How often all tasks are read although probes report them, to find what the probes missed. \
         Where probes cannot report all tasks, it is every 2s. 0s: never, for tests of the probes.",
    ),
    Key::new(
        "probes.canary",
        "The canary runs a few seconds after the start, once a day, and again after an event was \
         not seen. false: only on `ipwatch doctor --canary`.",
    ),
    Key::new(
        "addresses.shared",
        "IPs or prefixes that several may have on purpose: anycast, VIPs that move; as \
         [\"10.0.0.100\", \"192.0.2.0/24\"].",
    )
    .live(),
    Key::new(
        "neighbours.watch",
        "Receive ARP through a socket on the host's links: \"auto\" (if no probe reports ARP), \
         \"always\" or \"off\".",
    ),
    Key::new(
        "identity.provisional",
        "Work as on a kernel without netns cookies (before 5.14): for tests.",
    ),
    Key::new("cni.cache_dirs", "Directories of the result cache."),
    Key::new("cni.bin_dirs", "Directories of the plugins whose runs are observed."),
    Key::new(
        "cni.logs",
        "Logs of the runtime, files or directories of *.log: they say why a plugin failed.",
    ),
    Key::new("ipam.conf_dirs", "CNI network configurations, which name the ranges."),
    Key::new(
        "ipam.data_dirs",
        "host-local: its directories, besides each dataDir of the configurations.",
    ),
    Key::new("ipam.aws_checkpoint", "AWS VPC CNI: its file."),
    Key::new("ipam.cilium_state", "Cilium: its directory of endpoints."),
    Key::new("ipam.docker_data_root", "dockerd: its data-root, with libnetwork's store."),
    Key::new("ipam.terway_dir", "Terway: its directory."),
    Key::new("ipam.netavark_db", "podman: the file of assigned IPs."),
    Key::new("ipam.netavark_networks", "podman: the directory of its networks."),
    Key::new(
        "runtime.sockets",
        "Sockets of the runtimes, each a path or { path = \"/run/x.sock\", kind = \"docker\" } \
         (or \"cri\"); default: those that are found in the usual places; []: none is asked.",
    )
    .example("[\"/run/containerd/containerd.sock\"]"),
    Key::new(
        "runtime.ignore",
        "Sockets, or directories of sockets, of runtimes that have no pod of this node. Any other \
         that runs and is not asked makes every container that it may own unknown.",
    ),
    Key::new(
        "kubernetes.enabled",
        "Ask it. Default: where a kubeconfig is named, or in a pod that has a service account's \
         token.",
    )
    .example("false"),
    Key::new(
        "kubernetes.kubeconfig",
        "A kubeconfig with a token or a certificate; the kubelet's own may do all that is needed.",
    )
    .example("\"/etc/kubernetes/kubelet.conf\""),
    Key::new(
        "kubernetes.service_account",
        "Directory of a service account (token, ca.crt). Default: a pod's own, else \
         /etc/ipwatch-api.",
    )
    .example("\"/var/run/secrets/kubernetes.io/serviceaccount\""),
    Key::new(
        "kubernetes.whereabouts",
        "Follow Whereabouts' pools too. Every node then receives every change of every pool: for \
         small clusters.",
    ),
    Key::new(
        "kubernetes.calico",
        "Follow Calico's blocks and pools too, and what it says of this node's pods. Every node \
         then receives every change of every block: for small clusters. Not used where \
         `calico.etcd_endpoints` names an etcd.",
    ),
    Key::new(
        "kubernetes.events",
        "Write an Event for each firing finding on the pod that it affects: `kubectl describe pod` \
         shows it.",
    ),
    Key::new(
        "kubernetes.event_namespaces",
        "The namespaces in which Events may be written; `default` has those about the Node. Empty: in all.",
    ),
    Key::new(
        "kubernetes.node_conditions",
        "Keep the conditions PodIPExhausted, PodIPHeld and PodIPConflict on this node's Node \
         object: `kubectl describe node` shows them.",
    ),
    Key::new(
        "kubernetes.node",
        "This node's name in the cluster. Default: the variable NODE_NAME, else `node`, else the \
         host name.",
    )
    .example("\"node-17\""),
    Key::new(
        "kubernetes.cluster",
        "The cluster's name, for telemetry (`k8s.cluster.name`): Kubernetes itself has none.",
    )
    .example("\"production\""),
    Key::new(
        "kubernetes.kubelet_socket",
        "Socket of the kubelet's pod API, asked for its pods where the API server is not: where \
         there is neither a kubeconfig nor a service account. A socket that is not there is no \
         error. \"\": it is not asked.",
    ),
    Key::new("calico.etcd_endpoints", "The members of the etcd. Empty: it is not asked."),
    Key::new(
        "calico.etcd_api",
        "\"v3\", or \"v2\" for Calico 2 and before: etcd then runs with --enable-v2.",
    ),
    Key::new(
        "calico.etcd_ca_file",
        "Whose certificates to trust, PEM. Default: those that the system trusts.",
    )
    .example("\"/etc/ipwatch/etcd-ca.pem\""),
    Key::new("calico.etcd_cert_file", "Our own certificate, PEM.")
        .example("\"/etc/ipwatch/etcd.pem\""),
    Key::new("calico.etcd_key_file", "Its key, PEM.").example("\"/etc/ipwatch/etcd-key.pem\""),
    Key::new(
        "calico.etcd_user_file",
        "A file with one line USER:PASSWORD, for an etcd that asks for them. Over https:// only, \
         but on this node.",
    )
    .example("\"/etc/ipwatch/etcd-user\""),
    Key::new(
        "otlp.endpoint",
        "The collector: http://, https:// or unix:///PATH. Default: OTEL_EXPORTER_OTLP_ENDPOINT, \
         else nothing is sent.",
    )
    .example("\"http://127.0.0.1:4317\"")
    .hide(Hide::UserInfo),
    Key::new(
        "otlp.protocol",
        "grpc or http/protobuf. Default: OTEL_EXPORTER_OTLP_PROTOCOL, else grpc.",
    )
    .example("\"http/protobuf\""),
    Key::new(
        "otlp.timeout",
        "Longest wait for one export. Default: OTEL_EXPORTER_OTLP_TIMEOUT, else 5s.",
    )
    .example("\"10s\""),
    Key::new(
        "otlp.headers",
        "Sent with each request, for example a token. Default: OTEL_EXPORTER_OTLP_HEADERS.",
    )
    .own(headers)
    .example("{ authorization = \"Bearer TOKEN\" }")
    .hide(Hide::Values),
    Key::new(
        "otlp.ca_file",
        "Whose certificates to trust, PEM. Default: OTEL_EXPORTER_OTLP_CERTIFICATE, else those \
         that the system trusts.",
    )
    .example("\"/etc/ipwatch/collector-ca.pem\""),
    Key::new(
        "otlp.client_cert_file",
        "Our own certificate, PEM, for a collector that asks for one.",
    )
    .example("\"/etc/ipwatch/client.pem\""),
    Key::new("otlp.client_key_file", "Its key, PEM.").example("\"/etc/ipwatch/client-key.pem\""),
    Key::new("otlp.signals", "What is exported: traces, logs, metrics."),
    Key::new(
        "otlp.cni_calls",
        "Which runs of CNI plugins have a span: failed, all or none; and those that a finding \
         concerns, unless it is none.",
    ),
    Key::new(
        "otlp.tenures",
        "A span for every tenure of an IP, not only for those that a finding concerns.",
    ),
    Key::new(
        "metrics.listen",
        "Where they are served: a loopback address, or unix:/PATH. Absent: nothing listens.",
    )
    .example("\"127.0.0.1:9469\""),
    Key::new(
        "metrics.allow_non_loopback",
        "Allow an address that other machines can reach. They can then read pods' names and IPs.",
    ),
    Key::new(
        "metrics.address_info",
        "ipwatch_address_info, a series for each IP of a pod; needs pod_cidrs.",
    ),
    Key::new(
        "metrics.pod_cidrs",
        "The pods' IPs: only these have a series of ipwatch_address_info.",
    ),
    Key::new("metrics.max_address_series", "Maximum number of these series; the rest is counted."),
    Key::new("retention.max_age", "How long history is kept."),
    Key::new("retention.max_mib", "Maximum size of the history, in MiB."),
];

/// Serialised they are hidden; to compare them their values are needed.
fn headers(config: &Config) -> Option<Value> {
    let headers = &config.otlp.headers.0;
    Value::try_from(headers).ok().filter(|_| !headers.is_empty())
}

#[cfg(test)]
mod tests;
