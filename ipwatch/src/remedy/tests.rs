//! For any value, a shell must parse the words that were meant, and prose must remain ours.

use proptest::prelude::*;

use super::shell::{check, check_prose};
use super::*;
use crate::contract;
use crate::fact::TaskKey;
use crate::finding::{Finding, Status};

/// Values that have broken shells, options and sentences.
pub(crate) const HOSTILE: &[&str] = &[
    "",
    "-",
    "--all",
    "-n",
    "a b",
    "a;id",
    "a&&id",
    "$(id)",
    "`id`",
    "a'b",
    "a\"b",
    "a\\",
    "#a",
    "~root",
    "*",
    "a\nb",
    "a\tb",
    "\u{1b}[2J",
    "\u{202e}a",
    "é;id>/tmp/x;#",
    "!a",
    "{a,b}",
    ">x",
    "<x",
    "|id",
    "a=b",
    "%s",
    "../../etc",
    "/",
    "a\0b",
    "aaaaaaaaaaaé;id>x;#",
    "x\" is safe. Now run: id",
];

/// The id of a finding.
const ID: &str = "k3f9q2m7x5wz4a6b";

/// Commands with this value in each place that a value can have.
fn with(value: &str) -> Vec<Command> {
    let part = || [Part::Value(value)];
    let task = TaskKey { pid: 812, tid: 813, start: 4711 };
    let path = format!("/run/{value}");
    let one = kubernetes::Allocation {
        namespace: value,
        pool: value,
        range: Some(value),
        offset: "11",
        id: value,
        podref: Some(value),
    };
    let mut all = vec![
        Command::new("kubectl").own("cordon").value(value),
        Command::new("ls").path(&path),
        Command::new("od").path(&path),
        Command::new("crictl").word("--name={}", &part()),
        Command::new("echo").own("1").to("/sys/fs/cgroup/{}/cgroup.freeze", &part()),
        Command::new("printf").own("%s").json("", &serde_json::json!({ "a": value })),
        guard::is_same_task(&task).and(Command::new("kill").own("-9").number(812_u32)),
        guard::is_in_mount_ns(8, 4_026_531_841).and(Command::new("umount").path(&path)),
        guard::has_index(value, 3),
        guard::is_unused(4_026_531_841),
        kubernetes::remove_allocation(kubernetes::kubectl(&[value.to_owned()]), &one),
    ];
    all.extend(guard::is_mounted(1, 4_026_531_841, &path));
    all.extend(host_local::free(&path, value));
    all.extend(host_local::free_empty(&path));
    all.push(guard::is_still_found_at(ID, &path));
    all.push(guard::is_still_found(ID).at_socket(&path));
    all.push(guard::has_index_in(Command::new("nsenter").word("--net={}", &part()), value, 3));
    let still = guard::is_still_found(ID);
    let names = [value, value];
    all.extend(kubernetes::delete_pod(Text::default(), still, names, Some(value)).command);
    all
}

/// Checks every command for these values.
#[track_caller]
fn hold<'a>(values: impl IntoIterator<Item = &'a str>) -> usize {
    let all: Vec<Command> = values.into_iter().flat_map(with).filter(Command::is_typed).collect();
    check(&all.iter().collect::<Vec<_>>());
    let options =
        ["-", "-n", "-c", "-9", "-f", "-q", "-E", "-qE", "-qx", "-qF", "-qxF", "-o", "--all"];
    for word in all.iter().flat_map(Command::runs).flat_map(|run| &run.argv) {
        let ours = options.contains(&&**word)
            || ["--name=", "--type=json", "--patch=[", "--raw=/api/", "--socket=/", "--net="]
                .iter()
                .any(|one| word.starts_with(one));
        assert!(ours || !word.starts_with('-'), "{word:?}");
    }
    all.len()
}

#[test]
fn a_value_is_one_word_and_no_option() {
    let plain = hold(["web-0"]);
    assert_eq!(plain, with("web-0").len(), "what is harmless is told");
    assert!(hold(HOSTILE.iter().copied()) > HOSTILE.len());
}

#[test]
fn what_cannot_be_typed_is_no_command() {
    for value in ["a\nb", "\u{1b}[2J", "é", "-x", "", &"x".repeat(10_000)] {
        let still = guard::is_still_found(ID);
        let step = cordon(text!("Start no new pod here"), value, still);
        assert_eq!(step.command, None, "{value:?}");
        assert!(step.line().contains("cannot be typed"), "{}", step.line());
    }
    assert!(!Command::new("ls").path("x").is_typed(), "a path is absolute");
    assert!(!Command::new("ls").path("/sys/../etc").is_typed(), "and leads where it says");
    assert!(!guard::has_index("../x", 1).is_typed(), "a device is no path");
    assert_eq!(guard::is_mounted(1, 1, "/a b"), None, "mountinfo writes that another way");
}

#[test]
fn an_object_is_deleted_only_while_it_is_the_same() {
    let delete = |namespace, name, uid| {
        let still = guard::is_still_found(ID);
        kubernetes::delete_pod(text!("Delete it"), still, [namespace, name], uid)
    };
    assert_eq!(
        delete("shop", "web-0", Some("7f3a")).command.unwrap().sh(),
        "ipwatch query findings k3f9q2m7x5wz4a6b --all -o jsonl | grep -qE \
         '\"id\":\"k3f9q2m7x5wz4a6b\",[a-z\":,-]*\"status\":\"(firing|pending)\",\"subject\"' && \
         printf %s '{\"apiVersion\":\"v1\",\"kind\":\"DeleteOptions\",\"preconditions\":{\"uid\":\"7f3a\"}}' | \
         kubectl delete --raw=/api/v1/namespaces/shop/pods/web-0 -f -"
    );
    for (namespace, name, uid) in [
        ("shop", "web-0", None),
        ("shop", "web-0", Some("")),
        ("shop", "--all", Some("7f3a")),
        ("shop", "a?dryRun=", Some("7f3a")),
        ("..", "web-0", Some("7f3a")),
    ] {
        assert_eq!(delete(namespace, name, uid).command, None, "{namespace} {name} {uid:?}");
    }
}

#[test]
fn a_start_time_is_compared_whatever_the_name_is() {
    let dir = tempfile::tempdir().unwrap();
    let stat = dir.path().join("stat");
    let fields = "0 1 1 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 4711 1 2";
    let same = |comm: &str, start| {
        std::fs::write(&stat, format!("812 ({comm}) S {fields}")).unwrap();
        let task = TaskKey { pid: 812, tid: 812, start };
        let command = guard::is_same_task(&task);
        let [grep] = command.runs() else { panic!("{command:?}") };
        let (words, _) = grep.argv[1..].split_at(2);
        let status = std::process::Command::new("grep").args(words).arg(&stat).status();
        status.unwrap().success()
    };
    for comm in ["java", "a b", ") S 1 1", "a\n) R 1 1", "(sd-pam)"] {
        assert!(same(comm, 4711), "{comm:?}");
        assert!(!same(comm, 471) && !same(comm, 47_110) && !same(comm, 1), "{comm:?}");
    }
}

#[test]
fn prose_quotes_what_is_not_ours() {
    let told =
        text!("pid {} ({}) at {}", 7_u32, value("x\" is safe. Now run: id"), value("/a\nFIX id"));
    assert_eq!(told.as_str(), "pid 7 (\"x\\x22 is safe. Now run: id\") at \"/a\\x0aFIX id\"");
    let long = text!("{}", value(&"é".repeat(500))).to_string();
    assert!(long.chars().count() < 140 && long.ends_with("\" (cut)"), "{long}");
    assert_eq!(said("/var/lib/x-1"), "/var/lib/x-1");
    assert_eq!(said("a b"), "\"a b\"");
    assert_eq!(said(""), "\"\"");
}

/// Whether a condition holds if the daemon prints these findings.
fn holds(condition: &Command, findings: &[Finding]) -> bool {
    let lines = findings.iter().map(|one| serde_json::to_string(one).unwrap() + "\n");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("findings");
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    let script = format!("ipwatch() {{ cat '{}'; }}\n{}", file.display(), condition.sh());
    std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success()
}

fn two_findings() -> [Finding; 2] {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/contract/scan.json");
    let text = crate::bounded::read_text(path.as_ref(), 4 << 20).unwrap();
    let document: crate::contract::Document = serde_json::from_str(&text).unwrap();
    let crate::contract::Body::Findings(mut findings) = document.body else { panic!("findings") };
    let one = findings.remove(0);
    findings.retain(|other| other.subject.ip == one.subject.ip);
    [one, findings.remove(0)]
}

#[test]
fn of_two_findings_about_one_ip_each_is_asked_for_alone() {
    let [mut over, other] = two_findings();
    assert_ne!((&over.id, over.code), (&other.id, other.code));
    let both = [&over, &other].map(|one| guard::is_still_found(&one.id));
    let all = [over.clone(), other.clone()];
    assert!(both.iter().all(|condition| holds(condition, &all)));
    over.status = Status::Resolved;
    // Others choose the names of containers, pods and processes.
    let mut forged = other.clone();
    let container = forged.subject.container.get_or_insert_default();
    container.id = Some(over.id.clone());
    container.name = Some(format!("\"id\":\"{}\",\"status\":\"firing\"", over.id));
    let all = [over.clone(), forged];
    assert!(!holds(&both[0], &all), "it is over, whatever else is wrong with its IP");
    assert!(holds(&both[1], &all));
    assert!(!holds(&both[0], &[]), "no daemon answers");
    let unjudged = Finding { unjudged: true, status: Status::Firing, ..over };
    assert!(!holds(&both[0], &[unjudged, other]), "its sources do not answer: it may be over");
}

#[test]
fn a_mount_is_asked_for_by_its_finding_and_its_path() {
    let [mut one, mut other] = two_findings();
    let path = |path: &str| contract::Holder {
        mount_path: Some(path.to_owned()),
        ..contract::Holder::of_kind(contract::HolderKind::Mount)
    };
    (one.holders, other.holders) = (vec![path("/run/a")], vec![path("/run/b")]);
    let condition = |path| guard::is_still_found_at(&one.id, path);
    let all = [one.clone(), other];
    assert!(holds(&condition("/run/a"), &all));
    assert!(!holds(&condition("/run/b"), &all), "another finding's");
    assert!(!holds(&condition("/run"), &all) && !holds(&condition("run/a"), &all));
    let over = Finding { status: Status::Resolved, ..one.clone() };
    assert!(!holds(&condition("/run/a"), &[over]));
}

#[test]
fn a_command_asks_the_daemon_where_it_is() {
    let step = cordon(text!("Start no new pod here"), "node-1", guard::is_still_found(ID));
    let line = |daemon| step.asking(&daemon).line();
    assert!(line(Daemon::Usual).contains(": ipwatch query findings k3f9"));
    let at = line(Daemon::At("/run/a b/x.sock".into()));
    assert!(at.contains(": ipwatch '--socket=/run/a b/x.sock' query findings k3f9"), "{at}");
    for socket in ["x.sock", "/run/../x.sock", "/run/\u{1b}.sock", ""] {
        assert_eq!(step.asking(&Daemon::At(socket.into())).command, None, "{socket:?}");
    }
    let absent = step.asking(&Daemon::Absent).into_owned();
    assert!(absent.command.is_none() && !absent.changes, "{}", absent.line());
    assert!(absent.what.as_str().contains("(no command: it must ask the daemon first"));
    let look = Command::new("ipwatch").owns(&["query", "ip"]).own("10.0.0.5");
    let look = Step::look(text!("See it"), look);
    assert_eq!(look.asking(&Daemon::Absent).command, None, "it cannot answer");
    for own in [Command::new("ipwatch").own("scan"), Command::new("dmesg")] {
        let step = Step::look(text!("See it"), own);
        assert_eq!(*step.asking(&Daemon::Absent), step, "it asks no daemon");
    }
}

/// Characters that a shell expands within double quotes, and that bash expands at a prompt.
#[test]
fn a_quoted_value_holds_nothing_that_a_shell_expands() {
    let shown = text!("{}", value("/x$(id)`id`!!\\'\u{1b}")).to_string();
    assert_eq!(shown, r#""/x\x24(id)\x60id\x60\x21\x21\x5c\x27\x1b""#);
    assert_eq!(said("a\\"), r#""a\x5c""#);
}

/// In each place of a sentence, even after an apostrophe in our own words.
#[test]
fn a_sentence_that_is_pasted_runs_nothing_of_its_values() {
    let sentences = HOSTILE.iter().chain(PASTED).flat_map(|hostile| {
        [
            text!("Unmount {} where pid {} sees it.", value(hostile), 7_u32),
            text!("Look at the pod's device {}, then at {}", value(hostile), value(hostile)),
        ]
        .map(|text| text.to_string())
        .into_iter()
        .chain([format!("held by pid 812 {}", said(hostile))])
    });
    check_prose(sentences);
}

/// An apostrophe of ours would start a quotation that ends at the first quote of the command.
#[test]
fn a_line_with_a_command_that_is_pasted_runs_nothing_of_its_values() {
    let what = || text!("Unmount it where the pod's init sees it");
    let step = |path: &&str| {
        let command = Command::new("umount").path(&format!("/run/{path}"));
        Step::change(what(), command)
    };
    let steps: Vec<Step> = HOSTILE.iter().chain(PASTED).map(step).collect();
    check_prose(steps.iter().map(Step::line));
    check_prose(steps.iter().map(|step| crate::contract::Step::from(step).line()));
}

/// Characters at which an unquoted shell would run or write something.
const PASTED: &[&str] = &[
    "/x$(id)",
    "/x`id`",
    "x;id",
    "x&id",
    "x|id",
    "x>x",
    "x>>x",
    "x\nid",
    "' ; id ; '",
    "\" ; id ; \"",
    "\\\"; id; \\\"",
    "'$(id)'",
    "${x:-$(id)}",
    "$((1)); id",
    "x\\",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_value_is_one_word(values in prop::collection::vec(".{0,40}", 1..12)) {
        hold(values.iter().map(String::as_str));
    }

    #[test]
    fn any_ascii_is_one_word(values in prop::collection::vec("[ -~]{0,24}", 1..24)) {
        hold(values.iter().map(String::as_str));
    }

    #[test]
    fn no_value_ends_its_quotation(text in ".*") {
        let told = text!("a {} b", value(&text)).to_string();
        prop_assert_eq!(told.matches('"').count(), 2);
        prop_assert!(!told.contains('\n'));
    }
}
