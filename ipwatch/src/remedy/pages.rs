//! Tests: a command in a page that changes something must have its precondition in the same command, or an exception
//! with a reason.

use std::path::{Path, PathBuf};

use super::forms::{files, repository, text};

/// Commands without a precondition that are permitted: the page, the beginning of the code, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "docs/findings/netns-teardown-stuck.md",
        "echo w > /proc/sysrq-trigger",
        "it changes nothing: the kernel writes stacks into its log",
    ),
    (
        "docs/service.md",
        "systemctl restart ipwatch",
        "ipwatch's own service, whose restart changes nothing on the node",
    ),
    (
        "docs/kubernetes.md",
        "kubectl patch node NODE --subresource=status",
        "ipwatch's own conditions, by their type",
    ),
    ("README.md", "DON'T  kill -9", "what a finding says not to do"),
];

/// The section of a runbook about what not to do.
const DONT: &str = "Don't";

/// A piece of code in a page: a command of a block, with its comment, or a text between backticks.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    line: usize,
    /// The page advises against it.
    advised_against: bool,
    code: String,
}

/// The code in a Markdown page.
fn shown(page: &str) -> Vec<Shown> {
    let (mut all, mut fenced, mut advised_against) = (Vec::new(), false, false);
    // A command that continues on the next line, and a paragraph, each with the number of its first line.
    let (mut command, mut prose) = (None::<(usize, String)>, None::<(usize, String)>);
    for (at, line) in page.lines().chain([""]).enumerate() {
        let fence = line.trim_start().starts_with("```");
        let is_code = !fence && (fenced || line.starts_with("    ")) && !line.trim().is_empty();
        if is_code {
            let (_, code) = command.get_or_insert((at + 1, String::new()));
            code.push_str(line.trim());
            code.push('\n');
            if goes_on(code) {
                continue;
            }
        }
        if let Some((line, code)) = command.take() {
            all.push(Shown { line, advised_against, code });
        }
        if !is_code && !fence && !line.trim().is_empty() && !line.starts_with('#') {
            let (_, paragraph) = prose.get_or_insert((at + 1, String::new()));
            paragraph.push_str(line);
            paragraph.push('\n');
        } else if let Some((first, paragraph)) = prose.take() {
            let mut line = first;
            for (n, piece) in paragraph.split('`').enumerate() {
                if n % 2 == 1 {
                    all.push(Shown { line, advised_against, code: piece.to_owned() });
                }
                line += piece.matches('\n').count();
            }
        }
        fenced ^= fence;
        if let Some(heading) = line.strip_prefix('#').filter(|_| !fenced) {
            advised_against = heading.trim_start_matches('#').trim() == DONT;
        }
    }
    all
}

/// Whether the command continues on the next line. Not after `&&`: a person who copies one line must have its
/// precondition in the same line.
fn goes_on(code: &str) -> bool {
    let bare = code.split(" # ").next().unwrap_or_default().trim_end();
    let quotes = |quote| bare.matches(quote).count() % 2 == 1;
    bare.ends_with(['\\', '|']) || quotes('\'')
}

/// The lines of any other file.
fn lines(file: &str) -> Vec<Shown> {
    let line = |(at, line): (usize, &str)| Shown {
        line: at + 1,
        advised_against: false,
        code: line.to_owned(),
    };
    file.lines().enumerate().map(line).collect()
}

/// Programs and the verbs with which they change something.
const VERBS: &[(&[&str], &[&str])] = &[
    (
        &["kubectl"],
        &["scale", "delete", "cordon", "uncordon", "drain", "patch", "replace", "taint", "evict"],
    ),
    (&["crictl"], &["stop", "stopp", "rm", "rmp"]),
    (&["docker", "podman", "nerdctl", "ctr"], &["stop", "rm", "kill", "restart", "pause"]),
    (&["calicoctl"], &["delete", "release", "apply", "patch", "replace"]),
    (&["systemctl"], &["stop", "restart", "kill"]),
    (&["mount"], &["-t", "--bind", "-o"]),
    (&["sysctl"], &["-w"]),
    (&["multipathd"], &["disablequeueing"]),
    (&["multipath", "dmsetup"], &["-f", "-F", "remove", "message"]),
];

/// Programs that always change something.
const CHANGES: [&str; 10] =
    ["umount", "kill", "pkill", "killall", "mv", "rm", "rmdir", "unlink", "truncate", "fsfreeze"];

/// The objects of `ip`, and the verbs that change them.
const IP_OBJECTS: [&str; 8] =
    ["link", "route", "addr", "address", "neigh", "neighbour", "netns", "rule"];
const IP_VERBS: [&str; 9] =
    ["del", "delete", "set", "flush", "add", "replace", "change", "append", "attach"];

/// Whether a word ends a command, so that earlier conditions no longer apply.
fn ends(word: &str) -> bool {
    word.ends_with(';') || word == "||" || word == "#"
}

/// A Kubernetes patch that is rejected if the object has changed.
const TEST: &str = "\"op\":\"test\"";

/// A command that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It names its target.
    Typed,
    /// It is only mentioned, without a target: pasting it gives an error.
    Named,
}

impl Change {
    fn with(objects: &[&str]) -> Self {
        if objects.iter().all(|word| word.starts_with('-')) { Self::Named } else { Self::Typed }
    }
}

/// The change made by the command that begins with the first of these words.
fn change(words: &[&str]) -> Option<Change> {
    let end = words.iter().position(|word| ends(word) || ["&&", "|"].contains(word));
    let words = &words[..end.map_or(words.len(), |end| end + usize::from(words[end].len() > 2))];
    let (program, rest) = words.split_first()?;
    let into = |word: &str| word.starts_with("/proc/") || word.starts_with("/sys/");
    if *program == ">" || *program == ">>" || *program == "tee" {
        return rest.iter().any(|word| into(word)).then_some(Change::Typed);
    }
    if program.strip_prefix('>').is_some_and(into) || *program == "CNI_COMMAND=DEL" {
        return Some(Change::Typed);
    }
    if *program == "kill" && !rest.is_empty() {
        // With a signal it is a command, wherever the pid is.
        return Some(Change::Typed);
    }
    if CHANGES.contains(program) {
        return Some(Change::with(rest));
    }
    let verbs = |verbs: &[&str]| rest.iter().position(|word| verbs.contains(word));
    let at = if *program == "ip" {
        let object = rest.iter().position(|word| IP_OBJECTS.contains(word))?;
        let verb = rest.get(object + 1).filter(|word| IP_VERBS.contains(word));
        verb.map(|_| object + 1)
    } else {
        let of = VERBS.iter().find(|(programs, _)| programs.contains(program));
        of.and_then(|(_, of)| verbs(of))
    }?;
    Some(Change::with(&rest[at + 1..]))
}

/// What is wrong with a piece of code, if anything.
fn wrong(code: &str) -> Option<&'static str> {
    let asks_daemon = code.contains("query findings") && code.contains("\"status\":");
    if asks_daemon && !code.contains("\"id\":") {
        return Some("another finding of the same IP, pod or code would count");
    }
    let code = code.replace("\\\n", " ").replace(" ;", ";");
    let trim = |word| str::trim_matches(word, ['\'', '"', '(', ')', '`', ',']);
    let words: Vec<&str> = code.split_whitespace().map(trim).collect();
    // Whether a condition was tested, and what follows runs only if it holds.
    let (mut asks, mut asked, mut by_name) = (false, false, false);
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).copied().unwrap_or_default();
        by_name |= *word == "xargs";
        asks |= ["[", "test"].contains(word) || word.contains(TEST);
        asks |= ["grep", "mountpoint"].contains(word) && next.starts_with("-q");
        let change = change(&words[at..]);
        if by_name && change.is_some() {
            return Some("xargs gives it whatever a pattern finds by then");
        }
        let tests_itself = || words[at..].iter().any(|word| word.contains(TEST));
        let guarded = asked || (*word == "kubectl" && tests_itself());
        if change == Some(Change::Typed) && !guarded {
            return Some("nothing asks before it whether it is still to be done");
        }
        if *word == "nsenter" && words.len() > at + 2 && !asked {
            return Some("nothing asks before it where that leads by now");
        }
        if *word == "&&" {
            asked |= std::mem::take(&mut asks);
        } else if ends(word) {
            (asks, asked, by_name) = (false, false, false);
        }
    }
    let of_netns = code.contains("net:[") && code.contains("umount");
    (of_netns && !code.contains("/ns/net")).then_some("nothing asks whether somebody is in it")
}

#[test]
fn a_change_needs_its_precondition() {
    for code in [
        "ip link del DEVICE",
        "ip -n x route del IP dev DEVICE",
        "ip netns del NAME",
        "kubectl cordon NODE",
        "kubectl -n x delete pod NAME",
        "kubectl scale -n N deployment/D --replicas=0",
        "crictl stopp ID && crictl rmp ID",
        "crictl inspectp ID && crictl rmp ID",
        "crictl pods -q | xargs -r -n 1 crictl rmp",
        "grep -q x f && crictl pods -q | xargs crictl rmp",
        "docker stop ID",
        "umount PATH",
        "umount -i -c -f PATH",
        "kill -CONT",
        "kill -9 PID",
        "kill PID",
        "mv A B",
        "rm -- \"$1\"",
        "echo b > /proc/sysrq-trigger",
        "echo 1 >/sys/fs/fuse/connections/57/abort",
        "echo 1 | tee /sys/x",
        "CNI_COMMAND=DEL CNI_NETNS= /opt/cni/bin/host-local",
        "grep -q x f; rm f",
        "grep -q x f || rm f",
        "grep -q x f && cat f # or rm f",
        "[ -f A ] | rm A",
        "nsenter --net=/proc/PID/ns/net ip neigh",
        "grep -qF ' net:[INODE] PATH ' /proc/1/mountinfo && umount PATH",
        "kubectl patch ippools x --type=json '--patch=[{\"op\":\"remove\"}]'",
        "ipwatch query findings ID -o jsonl | grep -q '\"status\":\"firing\"' && kubectl cordon NODE",
    ] {
        assert!(wrong(code).is_some(), "{code}");
    }
    for code in [
        "kubectl cordon",
        "umount -N",
        "rm",
        "ip netns add",
        "ip link show dev DEVICE",
        "crictl pods -q",
        "grep x f 2>/dev/null",
        "readlink /proc/PID/ns/mnt | grep -qxF 'mnt:[N]' && umount -N PID PATH",
        "flock D/lock sh -c '[ -f \"$1\" ] && [ ! -s \"$1\" ] && rm -- \"$1\"' sh D/IP",
        "crictl inspectp ID | grep -q x && crictl stopp ID && crictl rmp ID",
        "kubectl patch x '--patch=[{\"op\":\"test\"},{\"op\":\"remove\"}]' && kubectl delete --raw=x -f -",
        "nsenter --net",
        "! mountpoint -q D && mount -t fusectl fusectl D",
        "stat -Lc %i PATH | grep -qx INODE && nsenter --net=PATH ip -br addr",
    ] {
        assert_eq!(wrong(code), None, "{code}");
    }
}

#[test]
fn code_is_found_in_a_page() {
    let page = "# x\n\nRun `a\nb` and `c`:\n\n    d \\\n      e    # it's f\n    g\n\n## Don't\n\n- `h`\n\n```\ni\n```\n";
    let all: Vec<(usize, bool, String)> =
        shown(page).into_iter().map(|it| (it.line, it.advised_against, it.code)).collect();
    let wanted = [
        (3, false, "a\nb"),
        (4, false, "c"),
        (6, false, "d \\\ne    # it's f\n"),
        (8, false, "g\n"),
        (12, true, "h"),
        (15, true, "i\n"),
    ];
    let wanted = wanted.map(|(line, against, code)| (line, against, code.to_owned()));
    assert_eq!(all, wanted);
}

/// Pages with commands for people, and the comments and annotations of deployments.
fn pages() -> Vec<(PathBuf, Vec<Shown>)> {
    let mut all = Vec::new();
    for dir in ["docs", "deploy"] {
        files(&repository().join(dir), &mut all);
    }
    for file in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"] {
        let path = repository().join(file);
        let page = text(&path).unwrap();
        all.push((path, page));
    }
    let found = |(path, text): (PathBuf, String)| {
        let code = match path.extension()?.to_str()? {
            "md" => shown(&text),
            "yaml" | "yml" | "tpl" => lines(&text),
            _ => return None,
        };
        Some((path.strip_prefix(repository()).unwrap().to_owned(), code))
    };
    all.into_iter().filter_map(found).collect()
}

#[test]
fn no_page_has_a_change_without_its_precondition() {
    let pages = pages();
    assert!(pages.len() > 50, "{}", pages.len());
    let (mut bad, mut used) = (Vec::new(), vec![false; EXCEPTIONS.len()]);
    for (path, code) in &pages {
        for shown in code.iter().filter(|shown| !shown.advised_against) {
            let Some(why) = wrong(&shown.code) else { continue };
            let excepted = EXCEPTIONS.iter().position(|(page, begins, _)| {
                path == Path::new(page) && shown.code.trim_start().starts_with(begins)
            });
            match excepted {
                Some(at) => used[at] = true,
                None => bad.push(format!(
                    "{}:{}: {why}\n    {}",
                    path.display(),
                    shown.line,
                    shown.code.trim()
                )),
            }
        }
    }
    assert!(bad.is_empty(), "{} in all\n{}", bad.len(), bad.join("\n"));
    let idle: Vec<_> = EXCEPTIONS.iter().zip(used).filter(|(_, used)| !used).collect();
    assert!(idle.is_empty(), "no page has these any more: {idle:#?}");
}
