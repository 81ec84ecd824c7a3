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
