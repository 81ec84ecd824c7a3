//! Examples for the help of each command. A test parses each.

pub(super) const RUN: &str = "Examples:
  ipwatch run --config ./ipwatch.toml --socket /tmp/ipwatch.sock --state-dir /tmp/ipwatch";
pub(super) const SCAN: &str = "Examples:
  ipwatch scan                 what is wrong on this node now, without a daemon
  ipwatch scan --grace 2s      a process counts as stuck after two seconds
  ipwatch scan -o json         for a program";
pub(super) const CLUSTER: &str = "Examples:
  ipwatch cluster scan
  ipwatch cluster scan --context production";
pub(super) const QUERY: &str = "Examples:
  ipwatch query ip 10.0.3.17          everything that is known of one IP
  ipwatch query pod shop/api-0        a pod: its IPs and who holds them
  ipwatch query findings -w           what is wrong, again whenever it changes";
pub(super) const CNI: &str = "Examples:
  ipwatch cni install --dry-run    what would change
  ipwatch cni status               what is wrapped, parked, counted
  ipwatch cni release              release parked IPs that are no longer held";
pub(super) const IP: &str = "Examples:
  ipwatch query ip 10.0.3.17
  ipwatch query ip 10.0.3.0/24 -o tree
  ipwatch query ip 10.0.3.17 --reach  who else shares its link";
pub(super) const NETNS: &str = "Examples:
  ipwatch query netns 4026532177      the number in net:[...]
  ipwatch query netns cni-3f6c9a1e    the name of its mount";
pub(super) const POD: &str = "Examples:
  ipwatch query pod shop/api-0
  ipwatch query pod 7f3a91c2          the beginning of a uid or a container id";
pub(super) const PID: &str = "Examples:
  ipwatch query pid 812";
pub(super) const FINDINGS: &str = "Examples:
  ipwatch query findings
  ipwatch query findings 10.0.3.17
  ipwatch query findings ip-duplicate --all";
pub(super) const HISTORY: &str = "Examples:
  ipwatch query history 10.0.3.17
  ipwatch query history 10.0.3.17 --at 03:12    who had it at 03:12 UTC
  ipwatch query history --pod shop/api-0";
pub(super) const NEIGH: &str = "Examples:
  ipwatch query neigh 10.0.3.17";
pub(super) const IPAM: &str = "Examples:
  ipwatch query ipam                  ranges, and what disagrees
  ipwatch query ipam cbr0             every reservation of a network";
pub(super) const CHECK: &str = "Examples:
  ipwatch check 10.0.3.17 && echo free
  ipwatch check 10.0.3.17 --container 7f3a91c26e0b";
pub(super) const WATCH: &str = "Examples:
  ipwatch watch
  ipwatch watch neigh
  ipwatch watch -o jsonl | jq .";
pub(super) const TOP: &str = "Examples:
  ipwatch top                         `?` shows the keys";
pub(super) const EXPLAIN: &str = "Examples:
  ipwatch explain k3f9                a finding
  ipwatch explain ip-duplicate        a runbook, also without a daemon
  ipwatch explain 'failed to allocate for range 0: no IP addresses available in range set'";
pub(super) const FIX: &str = "Examples:
  ipwatch fix k3f9 --dry-run          what would be changed for a finding, each with its proof
  ipwatch fix cbr0                    every leaked reservation of a network, after a question
  ipwatch fix cbr0 --only 10.0.3.18 --yes
  ipwatch fix cbr0 --undo             restores what has not been given out since";
pub(super) const REPORT: &str = "Examples:
  ipwatch report k3f9 -o incident.html
  ipwatch report 10.0.3.17 --md
  ipwatch report shop/api-0 --html --redact -o incident.html    without names and IPs";
pub(super) const ACK: &str = "Examples:
  ipwatch ack k3f9 --for 8h --note 'node is drained tomorrow'";
pub(super) const UNACK: &str = "Examples:
  ipwatch unack k3f9";
pub(super) const DOCTOR: &str = "Examples:
  ipwatch doctor
  ipwatch doctor --canary             makes each event once and sees whether it is reported";
pub(super) const CONFIG: &str = "Examples:
  ipwatch config default > /etc/ipwatch/ipwatch.toml
  ipwatch config check
  ipwatch config show";
pub(super) const RECORD: &str = "Examples:
  ipwatch record --duration 10m --out case.jsonl";
pub(super) const REPLAY: &str = "Examples:
  ipwatch replay case.jsonl";
pub(super) const COMPLETIONS: &str = "Examples:
  ipwatch completions bash > /etc/bash_completion.d/ipwatch";
