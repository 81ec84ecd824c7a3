//! Many nodes behind a kubectl that is a shell script.

use std::ffi::OsStr;
use std::path::Path;

use super::*;
use crate::cli::show::sample_text;

/// A kubectl that lists these lines of node, pod and phase, and the nodes in them, and runs `exec` as the script says, in which `$pod` is the
/// pod and `$docs` the directory of the contract's examples.
struct Kubectl {
    _dir: tempfile::TempDir,
    program: std::path::PathBuf,
}

impl Kubectl {
    fn new(agents: &str, exec: &str) -> Self {
        let nodes = agents.lines().filter_map(|line| line.split('\t').next());
        let nodes: String = nodes.map(|node| format!("{node}\n")).collect();
        Self::of(agents, &format!("printf '%s' '{nodes}'"), exec)
    }

    /// With this script for `get nodes`.
    fn of(agents: &str, nodes: &str, exec: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/contract");
        std::fs::write(dir.path().join("agents"), agents).unwrap();
        let script = format!(
            "docs='{docs}'\ncase \"$*\" in\n*'config view'*) printf shop ;;\n\
             *'get pods'*) cat '{}/agents' ;;\n*'get nodes'*) {nodes} ;;\n*' exec '*|exec*) for pod in \"$@\"; do\n\
             case \"$pod\" in ipwatch-*) break ;; esac; done\n{exec} ;;\nesac\n",
            dir.path().display()
        );
        let program = dir.path().join("kubectl");
        std::fs::write(&program, script).unwrap();
        Self { _dir: dir, program }
    }

    fn run(&self, line: &str) -> (Result<u8, Failure>, String) {
        self.run_within(ROOM, line)
    }

    fn run_within(&self, room: u64, line: &str) -> (Result<u8, Failure>, String) {
        let words = line.split_whitespace().map(OsString::from);
        let words = std::iter::once(OsString::from("kubectl-ipwatch")).chain(words).collect();
        let Ok(super::super::Meant::Fleet(asked)) = super::super::read(words) else {
            panic!("{line}")
        };
        let mut printed = String::new();
        let kubectl =
            Program { program: OsStr::new("sh"), words: &[Path::new(&self.program).as_os_str()] };
        let code = asked.run(kubectl, room, &mut |_, text| {
            printed.push_str(text);
            Ok(())
        });
        (code, printed)
    }
}

/// The answer to this command line when the nodes have answered so.
pub(in crate::cli) fn answered(line: &str, fleet: &Fleet) -> String {
    let words = ["kubectl-ipwatch"].into_iter().chain(line.split_whitespace());
    let words = words.map(OsString::from).collect();
    let Ok(super::super::Meant::Fleet(asked)) = super::super::read(words) else { panic!("{line}") };
    let out = Out::of(match asked.how().output {
        Shape::Table => Format::Table,
        Shape::Json => Format::Json,
    });
    asked.answer(fleet, asked.own.namespace.as_deref(), &out).unwrap().0
}

const ANSWERS: &str = "cat \"$docs/scan.json\"";

fn agents(count: usize) -> String {
    (0..count).map(|n| format!("node-{n:03}\tipwatch-{n:03}\tRunning\n")).collect()
}

#[test]
fn five_hundred_nodes_are_asked_and_those_that_do_not_answer_are_named() {
    let exec = format!(
        "case \"$pod\" in\n*-007) exec sleep 600 ;;\n*-123) echo 'error: no route to host' >&2; exit 1 ;;\n\
         *-321) echo '{{\"kind\":\"other\"}}' ;;\n*) {ANSWERS} ;;\nesac"
    );
    let agents = agents(499) + "node-499\tipwatch-499\tPending\n\tipwatch-500\tPending\n";
    let nodes = "for n in $(seq -f 'node-%03g' 0 500); do echo \"$n\"; done";
    let kubectl = Kubectl::of(&agents, nodes, &exec);
    let (code, text) = kubectl.run("findings -A --timeout 8 --all");
    assert_eq!(code.unwrap(), FINDINGS, "{text}");
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("496 of 501 nodes   "), "{first}");
    assert!(text.contains("5 nodes have not answered; nothing is known of them:\n"), "{text}");
    for line in [
        "  node-007: \"no answer within 8 s\"",
        "  node-123: \"error: no route to host\"",
        "  node-321: \"its answer is no document of ipwatch/v1: is it another version?\"",
        "  node-499: \"its pod ipwatch-499 is Pending\"",
        "  node-500: \"no pod of ipwatch is on it\"",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    // Of the same id on each node: a row for all of them.
    assert!(text.contains("node-000 +495"), "{text}");
    assert!(
        text.contains("Next: kubectl exec -n ipwatch ipwatch-000 -c ipwatch -- ipwatch explain ")
    );
}

/// The answer of a node without findings.
fn nothing_found() -> String {
    let none = sample_text("query-history.json").replace("\"history\"", "\"findings\"");
    let none: serde_json::Value = serde_json::from_str(&none).unwrap();
    let mut none = none.as_object().unwrap().clone();
    none.insert("findings".to_owned(), serde_json::json!([]));
    serde_json::Value::Object(none).to_string()
}

#[test]
fn a_node_without_a_pod_of_ipwatch_is_not_taken_for_healthy() {
    let exec = format!("printf '%s' '{}'", nothing_found());
    let nodes = "printf 'node-000\\nnode-001\\narm-1\\n'";
    let (code, text) = Kubectl::of(&agents(2), nodes, &exec).run("findings -A");
    assert_eq!(code.unwrap(), ERROR, "{text}");
    assert!(text.starts_with("2 of 3 nodes   nothing wrong is known\n"), "{text}");
    assert!(text.contains("  arm-1: \"no pod of ipwatch is on it\"\n"), "{text}");
    // A pod whose node is gone from the API server is still asked.
    let (code, text) = Kubectl::of(&agents(2), "echo node-000", &exec).run("findings -A");
    assert_eq!((code.unwrap(), text.as_str()), (0, "2 nodes   nothing wrong is known\n"));
    let refused = "printf 'a warning\\nError from server (Forbidden)\\n' >&2; exit 1";
    let kubectl = Kubectl::of(&agents(2), refused, &exec);
    let (code, text) = kubectl.run("findings -A");
    assert_eq!(code.unwrap(), ERROR, "{text}");
    assert!(text.contains("\nOnly nodes with a pod of ipwatch are known, because"), "{text}");
    let (_, json) = kubectl.run("findings -A -o json");
    let fleet: Fleet = serde_json::from_str(&json).unwrap();
    let why = fleet.nodes_unlisted.as_deref();
    assert_eq!(why, Some("kubectl failed: Error from server (Forbidden)"));
    assert_eq!(fleet.nodes.len(), 2, "{json}");
}

#[test]
fn an_answer_that_is_cut_short_is_no_list() {
    let exec = format!("printf '%s' '{}'", nothing_found());
    let nodes = "printf '%6000000s' ''";
    let (code, text) = Kubectl::of(&agents(1), nodes, &exec).run("findings -A");
    assert_eq!(code.unwrap(), ERROR, "{text}");
    assert!(text.contains("the nodes cannot be listed"), "{text}");
}

#[test]
fn the_printed_command_asks_the_same_cluster() {
    let kubectl = Kubectl::new(&agents(1), ANSWERS);
    let (_, text) = kubectl.run("findings -A --context prod --kubeconfig=/k");
    let next = "Next: kubectl --kubeconfig /k --context prod exec -n ipwatch ipwatch-000 -c ipwatch -- ipwatch explain ";
    assert!(text.contains(next), "{text}");
}

#[test]
fn no_finding_is_news_only_if_every_node_answered() {
    let none = nothing_found();
    let all = Kubectl::new(&agents(3), &format!("printf '%s' '{none}'"));
    let (code, text) = all.run("findings -A");
    assert_eq!((code.unwrap(), text.as_str()), (0, "3 nodes   nothing wrong is known\n"));
    let some = format!("case \"$pod\" in\n*-001) exit 1 ;;\n*) printf '%s' '{none}' ;;\nesac");
    let (code, text) = Kubectl::new(&agents(3), &some).run("findings -A");
    assert_eq!(code.unwrap(), ERROR);
    assert!(text.contains("node-001: \"kubectl failed and said nothing\""), "{text}");
}

#[test]
fn where_no_node_is_asked_nothing_is_absent() {
    for line in ["findings -A", "ip 10.0.3.17"] {
        let (code, _) = Kubectl::new("", "exit 1").run(line);
        let Err(failure @ Failure::Other(_)) = code else { panic!("{line}: {code:?}") };
        assert!(failure.to_string().contains("is the DaemonSet of ipwatch there?"), "{failure}");
    }
}

#[test]
fn findings_are_those_of_one_namespace_unless_all_are_asked_for() {
    let kubectl = Kubectl::new(&agents(1), ANSWERS);
    let (_, all) = kubectl.run("findings -A --all");
    let (code, shop) = kubectl.run("findings");
    assert_eq!(code.unwrap(), FINDINGS, "the context's namespace is shop: {shop}");
    let (code, none) = kubectl.run("findings -n elsewhere");
    assert_eq!(code.unwrap(), 0);
    assert!(none.starts_with("1 node   nothing wrong is known\n"), "{none}");
    assert!(none.contains("of other namespaces or of no pod: -A"), "{none}");
    assert!(all.lines().count() >= shop.lines().count());
}

#[test]
fn an_ip_is_looked_for_on_every_node() {
    let exec = "case \"$pod $*\" in\n*-001*' ip '*) cat \"$docs/query-ip.json\" ;;\n\
                *' ip '*) sed 's/\"addresses\": \\[/\"addresses\": [], \"x\": [/' \"$docs/query-ip.json\"; exit 3 ;;\n\
                *-002*' history '*) cat \"$docs/query-history.json\" ;;\n\
                *' history '*) sed 's/\"history\": \\[/\"history\": [], \"x\": [/' \"$docs/query-history.json\"; exit 3 ;;\n\
                *) sed 's/\"ranges\": \\[/\"ranges\": [], \"x\": [/; s/\"reservations\"/\"y\"/' \"$docs/query-ipam.json\" ;;\nesac";
    let kubectl = Kubectl::new(&agents(3), exec);
    let (code, text) = kubectl.run("ip 10.0.3.17");
    assert_eq!(code.unwrap(), 0, "{text}");
    assert!(text.starts_with("10.0.3.17 is up in one network namespace\n"), "{text}");
    assert!(text.contains("node-001  HELD: unsafe to hand out  shop/api-0"), "{text}");
    let (_, before) = text.split_once("\nBefore:\n").expect("its past");
    assert!(before.contains("node-002") && before.contains("shop/api-1"), "{text}");
    assert!(before.contains("netns-gone"), "{text}");
    let (_, json) = kubectl.run("ip 10.0.3.17 -o json");
    let fleet: Fleet = serde_json::from_str(&json).unwrap();
    assert_eq!(fleet.nodes.len(), 3);
    assert!(fleet.nodes.iter().all(|node| node.documents.len() == 3 && node.error.is_none()));
}

/// Three nodes with nearly half of the room each, and one with little.
#[test]
fn answers_that_are_too_long_together_are_named_and_the_others_are_shown() {
    let exec =
        "case \"$pod\" in\n*-003) ;;\n*) printf '%300000s' '' ;;\nesac\ncat \"$docs/scan.json\"";
    let kubectl = Kubectl::new(&agents(4), exec);
    let (code, text) = kubectl.run_within(700_000, "findings -A --at-once 1");
    assert_eq!(code.unwrap(), FINDINGS, "what the others answered is known: {text}");
    assert!(text.starts_with("2 of 4 nodes   "), "{text}");
    let why = "\"no room is left for its answer beside those of the others: ask it by itself\"";
    for node in ["node-001", "node-002"] {
        assert!(text.contains(&format!("  {node}: {why}\n")), "{node}: {text}");
    }
    let (code, text) = kubectl.run("findings -A --at-once 1");
    assert_eq!(code.unwrap(), FINDINGS, "{text}");
    assert!(text.starts_with("4 nodes   "), "{text}");
}

#[test]
fn one_pod_of_each_node_is_asked_the_one_that_runs() {
    let told = "b\tipwatch-1\tFailed\nb\tipwatch-2\tRunning\na\tipwatch-3\tPending\nodd\n";
    let all: Vec<(String, String)> =
        super::agents(told).into_iter().map(|agent| (agent.node, agent.pod)).collect();
    let pair = |node: &str, pod: &str| (node.to_owned(), pod.to_owned());
    assert_eq!(all, [pair("a", "ipwatch-3"), pair("b", "ipwatch-2")]);
}

#[test]
fn pods_of_such_names_are_still_pods() {
    let read = |line: &str| {
        let words = line.split_whitespace().map(OsString::from);
        super::super::read(std::iter::once("kubectl-ipwatch".into()).chain(words).collect())
    };
    use super::super::Meant;
    assert!(matches!(read("pod/findings"), Ok(Meant::Plugin(_))));
    assert!(matches!(read("-n shop findings --all"), Ok(Meant::Fleet(_))));
    assert!(matches!(read("ip 10.0.3.17 --context c"), Ok(Meant::Fleet(_))));
    for wrong in ["ip", "ip no-ip", "findings web-0", "findings --at-once 0"] {
        assert!(read(wrong).is_err_and(|error| error.use_stderr()), "{wrong}");
    }
}
