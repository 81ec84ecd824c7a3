use super::super::{plain, sample};
use super::*;
use crate::contract::Body;

fn addresses() -> (Vec<Address>, View) {
    let document = sample("query-netns.json");
    let view = plain(&document);
    let Body::Addresses(list) = document.body else { panic!("addresses") };
    (list, view)
}

fn findings() -> Vec<Finding> {
    let Body::Findings(findings) = sample("scan.json").body else { panic!("findings") };
    findings
}

#[test]
fn a_tree_a_netns() {
    let (list, view) = addresses();
    let expected = "\
shop/api-0   sandbox NotReady, attempt 3   netns 4026532177 (/run/netns/cni-7f3a11c2-0b8e-4d07-9a57-2d1f6a9c0e44)
├─ container api 7f3a91c26e0b of containerd, Running
├─ 10.0.3.17/24 on eth0 0a:58:0a:00:03:11, up 6d
├─ fd00:3::17/64 on eth0 0a:58:0a:00:03:11, up 6d
├─ pid 640 pause
├─ pid 812 java, exiting for 5m, state D
└─ finding k3f9 warn ip-held-by-stuck-process for 5m (ipwatch explain k3f9)

netns host
├─ 10.0.3.1/24 on cni0 0a:58:0a:00:03:01
└─ pid 1 systemd

netns 4026532290
├─ 10.0.3.23/24 on eth0 0a:58:0a:00:03:17, up 12m
│  └─ host-local cbr0 reserves it for b1946ac92492
├─ mount /run/netns/cni-aa10 in the mount namespace of pid 1840 node-agent
├─ fd 14 of pid 1977 node-agent
├─ socket fd 15 of pid 1977 node-agent
├─ socket tcp 10.0.3.23:443 → 10.0.9.9:51234 FIN-WAIT-1 of no process
└─ pid 2204, by its threads alone
   ├─ thread 2207 worker, state S
   └─ thread 2209 worker, exiting for 20s, state D

netns 4026532311   being torn down
├─ no address
└─ kernel reference

netns 4026532340
├─ no address
├─ kernel reference
└─ perhaps pid 4711 mesh-agent, 2 fds wait unread at its Unix socket (fd 12)
";
    assert_eq!(render(&list, &findings(), view), expected);
}

#[test]
fn threads_hang_under_their_process() {
    let (mut list, view) = addresses();
    let mut process = list[3].holders[0].clone();
    process.kind = HolderKind::Process;
    process.tid = None;
    list[3].holders.push(process);
    let text = render(&list[3..4], &[], view);
    assert!(text.contains("└─ pid 2204 worker, state S\n   ├─ thread 2207"), "{text}");
    assert!(!text.contains("alone"), "{text}");
}

#[test]
fn without_utf_8_the_drawing_is_ascii() {
    let (list, view) = addresses();
    let text = render(&list[..1], &[], View { ascii: true, ..view });
    assert!(text.is_ascii(), "{text}");
    assert!(text.contains("\n|- pid 640 pause\n") && text.contains("\n`- finding k3f9 "), "{text}");
}

#[test]
fn loopback_is_shown_where_it_is_all_there_is() {
    let (mut list, view) = addresses();
    list[1].ip = Some("::1".parse().unwrap());
    let text = render(&list[..2], &[], view);
    assert!(text.contains("10.0.3.17") && !text.contains("::1"), "{text}");
    assert!(render(&list[1..2], &[], view).contains("├─ ::1/64 on"));
}

#[test]
fn a_long_line_goes_on_below_itself() {
    let (list, view) = addresses();
    let text = render(&list[3..4], &[], View { width: Some(40), ..view });
    let expected = "\
netns 4026532290
├─ 10.0.3.23/24 on eth0
│  │  … 0a:58:0a:00:03:17, up 12m
│  └─ host-local cbr0 reserves it
│        … for b1946ac92492
";
    assert!(text.starts_with(expected), "{text}");
    for line in text.lines() {
        assert!(line.width() <= 40 && line.trim_end() == line, "{line:?}");
    }
}

#[test]
fn a_long_word_stays_whole() {
    let (mut list, view) = addresses();
    let name = "n".repeat(253);
    list[0].pod.as_mut().unwrap().name = Some(name.clone());
    let text = render(&list[..1], &[], View { width: Some(40), ..view });
    assert!(
        text.starts_with(&format!("shop/{name}\n│  … sandbox NotReady, attempt 3   netns\n")),
        "{text}"
    );
    // A quoted text is one word too: a part that is pasted alone would be a command.
    assert_eq!(text::wrapped("pid 1 \"a ;id; b\" c", Some(8)), ["pid 1 \"a ;id; b\"", "c"]);
    assert_eq!(text::wrapped("", Some(30)), [""]);
    assert_eq!(text::wrapped("a  b", Some(1)), ["a", "b"]);
}

#[test]
fn a_name_cannot_draw_a_branch() {
    let (mut list, view) = addresses();
    list[0].holders[0].comm = Some("x\n└─ pid 1 init\u{1b}[2J\u{202e}".into());
    list[0].netns.path = Some("/run/netns/\u{9b}2J\r".into());
    list[0].container.as_mut().unwrap().name = Some("\t".repeat(9));
    let text = render(&list, &findings(), view);
    assert!(text.contains("pid 640 \"x\\x0a└─ pid 1 init\\x1b[2J\\u{202e}\"\n"), "{text}");
    assert!(text.lines().all(|line| escape(line) == line), "{text}");
}

#[test]
fn netns_without_a_cookie_are_told_apart_by_what_is_known() {
    let (mut list, view) = addresses();
    for address in &mut list {
        address.netns.cookie = None;
    }
    assert_eq!(render(&list, &[], view).matches("netns 4026532177").count(), 1);
    list[1].netns.inode = Some(7);
    assert_eq!(render(&list, &[], view).matches("\n\n").count(), 5);
}

#[test]
fn who_holds_it_may_be_unknown() {
    let (mut list, view) = addresses();
    list[3].holders.clear();
    assert!(render(&list[3..4], &[], view).ends_with("└─ no holder is known\n"));
    // The host's netns lists no holders, because everybody holds it.
    list[2].holders.clear();
    assert!(!render(&list[2..3], &[], view).contains("known"));
}

#[test]
fn what_shares_a_link_hangs_below_the_address() {
    let document = sample("query-ip-reach.json");
    let view = plain(&document);
    let Body::Addresses(mut list) = document.body else { panic!("addresses") };
    let text = render(&list, &[], view);
    let expected = "\
├─ 10.0.3.17/24 on eth0 0a:58:0a:00:03:11, up 6d
│  ├─ link bridge cni0 in netns host
│  │  ├─ 10.0.3.1 on cni0 0a:58:0a:00:03:01 of netns host
│  │  └─ 10.0.3.17 on eth0 0a:58:0a:00:03:17 of shop/web-1, netns 4026532290: THE SAME IP
│  └─ router netns host
│     └─ 10.0.3.32 on eth0 0a:58:0a:00:03:20 of netns 4026532400
";
    assert!(text.contains(expected), "{text}");
    list[0].reach = Some(Vec::new());
    assert!(render(&list, &[], view).contains("shares its link with nobody known"));
}

/// Any user who may start a container chooses its name.
#[test]
fn no_line_begins_with_the_name_of_a_container() {
    let (mut list, view) = addresses();
    list[0].pod = None;
    list[0].container.as_mut().unwrap().name = Some("reboot".into());
    let tree = render(&list[..1], &[], view);
    assert!(tree.starts_with("container reboot "), "{tree}");
    let table = super::super::addresses::table(&list[..1], View { pods: true, ..view });
    assert!(
        table.lines().nth(1).is_some_and(|row| row.starts_with("container reboot ")),
        "{table}"
    );
}
