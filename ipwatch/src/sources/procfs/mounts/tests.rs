use std::process::Command;

use super::*;
use crate::sources::netlink::testing::{in_new_netns, root, run};

#[test]
fn netns_mounts_are_told_from_others() {
    let line = b"812 31 0:4 net:[4026532177] /run/netns/with\\040a\\012space\\134 rw shared:5 - nsfs nsfs rw";
    let mount = Mount::parse(line).unwrap();
    assert_eq!(mount.netns(), Some(4_026_532_177));
    assert_eq!(mount.path(), Path::new("/run/netns/with a\nspace\\"));
    // Another namespace, another file system, a similar source, truncated lines.
    for other in [
        &b"1 2 0:4 mnt:[4026532177] /x rw - nsfs nsfs rw"[..],
        b"1 2 0:5 net:[4026532177] /x rw - ext4 /dev/sda rw",
        b"1 2 0:5 / /x rw - fuse nsfs rw",
        b"1 2 0:4 net:[4026532177] /x rw -",
        b"1 2 0:4 net:[4026532177]",
        b"",
    ] {
        assert_eq!(Mount::parse(other).and_then(|mount| mount.netns()), None);
    }
}

#[test]
fn escapes_that_are_none_stay_as_they_are() {
    assert_eq!(&*unescape(b"a\\04"), b"a\\04");
    assert_eq!(&*unescape(b"\\999\\"), b"\\999\\");
    assert_eq!(&*unescape(b"\\777"), b"\\777", "more than a byte");
    assert_eq!(&*unescape(b"\\134040"), b"\\040", "unescaped once");
}

/// A mountinfo that goes on for ever without the end of a line, after these bytes.
fn endless(begin: &'static [u8]) -> impl Read {
    begin.chain(io::repeat(b'x'))
}

#[test]
fn of_a_line_that_is_too_long_only_a_netns_mount_is_told_and_little_of_its_path() {
    let tail = "\n9 1 0:4 net:[4026532178] /run/b rw - nsfs nsfs rw\n";
    let of = |fields: &str| {
        let text = format!("{fields}{}{tail}", "/d".repeat(10 << 20));
        let mut told = Vec::new();
        let whole = lines_of(text.as_bytes(), BootNs(u64::MAX), |line| {
            assert!(line.len() <= LONGEST_LINE);
            let mount = Mount::parse(line).unwrap();
            told.push((mount.id, mount.netns(), mount.path().as_os_str().len() > 4_096));
        });
        assert!(whole.unwrap());
        told
    };
    let after = (9, Some(4_026_532_178), false);
    assert_eq!(of("7 2 0:4 net:[4026532177] /"), [(7, Some(4_026_532_177), true), after]);
    assert_eq!(of("7 2 0:4 /"), [after], "of another file system");
    assert_eq!(of(""), [after]);
    // The limit itself is no longer than a line may be.
    let long = format!("7 2 0:4 / /{} rw - tmpfs tmpfs rw", "x".repeat(LONGEST_LINE - 31));
    let mut seen = 0;
    lines_of(long.as_bytes(), BootNs(u64::MAX), |line| seen = line.len()).unwrap();
    assert_eq!((long.len(), seen), (LONGEST_LINE, LONGEST_LINE));
}

#[test]
fn a_mountinfo_without_an_end_is_given_up_in_time() {
    let until = clock::now().plus(50_000_000);
    assert!(!lines_of(endless(b"7 2 0:4 / /"), until, |_| {}).unwrap());
}

#[test]
fn a_mount_wakes_the_watch_and_others_do_not() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (netns, plain) = (dir.path().join("netns"), dir.path().join("plain"));
    File::create(&netns).unwrap();
    File::create(&plain).unwrap();
    let held = in_new_netns(|| File::open("/proc/thread-self/ns/net").unwrap());
    let fd = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&held));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(async {
        let mut watch = MountWatch::new(&Proc::new(), Readings::default())?;
        let wait = Duration::from_millis(300);
        // Other tests of this process mount netns too: only paths below `dir` count here.
        let here =
            |watch: &MountWatch| watch.mounted.iter().flatten().any(|(_, path)| *path == netns);
        run(Command::new("mount").arg("--bind").arg(&plain).arg(&plain));
        let _ = tokio::time::timeout(wait, watch.changed()).await;
        let before = here(&watch);
        run(Command::new("mount").arg("--bind").arg(&fd).arg(&netns));
        for _ in 0..20 {
            let _ = tokio::time::timeout(wait, watch.changed()).await;
            if here(&watch) {
                break;
            }
        }
        io::Result::Ok((before, here(&watch)))
    });
    run(Command::new("umount").arg(&plain));
    run(Command::new("umount").arg(&netns));
    assert_eq!(outcome.unwrap(), (false, true));
}

/// What was cut is longer than any path, so that no command is made of it, wherever it was cut.
#[test]
fn a_text_is_not_as_long_as_a_directory_is_deep() {
    assert_eq!(text(b"/run/netns/my\\040pod"), "/run/netns/my pod");
    let longest = "/x".repeat(2_047);
    assert_eq!(text(longest.as_bytes()), longest);
    for part in ["/deep", "\\303\\244", "\\040", "\u{e4}", "\u{1f4a9}", "\\377"] {
        let len = text(part.repeat(20_000).as_bytes()).len();
        assert!((4097..=LONGEST_TEXT).contains(&len), "{part}: {len}");
    }
}
