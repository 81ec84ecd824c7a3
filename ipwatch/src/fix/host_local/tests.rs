#![allow(clippy::disallowed_methods, reason = "files that the test made")]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;

use super::*;

const ID: &str = "3d1f2a9d7e6f5041322314a5b6c7d8e9";
const IP: &str = "10.0.3.18";

/// A store with one reservation, and a directory for what is moved away.
struct Store {
    _dir: tempfile::TempDir,
    network: PathBuf,
    record: File,
    kept: PathBuf,
    since: String,
}

impl Store {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (network, kept) = (dir.path().join("cbr0"), dir.path().join("kept"));
        fs::create_dir(&network).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(network.join(IP), format!("{ID}\r\neth0")).unwrap();
        fs::write(network.join("last_reserved_ip.0"), IP).unwrap();
        let modified = fs::metadata(network.join(IP)).unwrap();
        use std::os::unix::fs::MetadataExt as _;
        let at = modified.mtime() * 1_000_000_000 + modified.mtime_nsec();
        let since = Calendar::default().date(BootNs(at.try_into().unwrap()));
        let record = File::open(&kept).unwrap();
        Self { _dir: dir, network, record, kept, since }
    }

    fn expected(&self) -> Expected<'_> {
        Expected { container_id: ID, ifname: Some("eth0"), since: Some(&self.since) }
    }

    async fn free(&self, expected: Expected<'_>) -> Result<(), Refused> {
        let locked = Locked::take(&self.network).await?;
        locked.move_away(IP.as_ref(), expected, self.record.as_fd(), "0")
    }

    async fn restore(&self) -> Result<(), Refused> {
        let locked = Locked::take(&self.network).await?;
        locked.move_back(self.record.as_fd(), "0", IP.as_ref())
    }

    fn is_there(&self) -> bool {
        self.network.join(IP).exists()
    }
}

#[tokio::test]
async fn a_reservation_goes_and_comes_back_as_it_was() {
    let store = Store::new();
    store.free(store.expected()).await.unwrap();
    assert!(!store.is_there() && store.kept.join("0").exists());
    assert!(matches!(store.free(store.expected()).await, Err(Refused::Gone)));
    assert_eq!(fs::read_to_string(store.network.join("last_reserved_ip.0")).unwrap(), IP);
    store.restore().await.unwrap();
    assert_eq!(fs::read_to_string(store.network.join(IP)).unwrap(), format!("{ID}\r\neth0"));
    assert!(matches!(store.restore().await, Err(Refused::NotKept)));
}

#[tokio::test]
async fn one_that_is_another_containers_by_now_stays() {
    let store = Store::new();
    let expected = store.expected();
    for other in [
        Expected { container_id: "3d1f2a9d7e6f5041322314a5b6c7d8e90", ..expected },
        Expected { ifname: Some("net1"), ..expected },
        Expected { ifname: None, ..expected },
        Expected { since: Some("2026-01-02T03:04:05.000Z"), ..expected },
        Expected { since: None, ..expected },
    ] {
        assert!(matches!(store.free(other).await, Err(Refused::Changed)), "{other:?}");
        assert!(store.is_there(), "{other:?}");
    }
    fs::write(store.network.join(IP), "").unwrap();
    assert!(matches!(store.free(expected).await, Err(Refused::NoReservation(_))));
    assert!(store.is_there());
}

#[tokio::test]
async fn what_was_given_out_since_is_not_overwritten() {
    let store = Store::new();
    store.free(store.expected()).await.unwrap();
    fs::write(store.network.join(IP), "successor\r\neth0").unwrap();
    assert!(matches!(store.restore().await, Err(Refused::GivenOut)));
    assert_eq!(fs::read_to_string(store.network.join(IP)).unwrap(), "successor\r\neth0");
    assert!(store.kept.join("0").exists(), "it is kept for later");
}

#[tokio::test]
async fn no_link_is_followed_and_what_others_may_write_to_is_left() {
    let store = Store::new();
    let file = store.network.join(IP);
    fs::rename(&file, store.kept.join("x")).unwrap();
    std::os::unix::fs::symlink(store.kept.join("x"), &file).unwrap();
    assert!(store.free(store.expected()).await.is_err());
    assert!(file.is_symlink() && store.kept.join("x").exists());
    let link = store.kept.join("link");
    std::os::unix::fs::symlink(&store.network, &link).unwrap();
    assert!(Locked::take(&link).await.is_err(), "a link to a directory was followed");
    fs::set_permissions(&store.network, PermissionsExt::from_mode(0o777)).unwrap();
    assert!(matches!(Locked::take(&store.network).await, Err(Refused::Foreign(_))));
}

#[tokio::test]
async fn whoever_has_the_plugins_lock_is_waited_for() {
    // The plugin's own file, and the directory, which old ones lock.
    for name in ["lock", "."] {
        let store = Store::new();
        drop(Locked::take(&store.network).await.unwrap());
        let held = File::open(store.network.join(name)).unwrap();
        held.lock().unwrap();
        let freed = store.free(store.expected());
        tokio::pin!(freed);
        let early = tokio::time::timeout(Duration::from_millis(100), &mut freed).await;
        assert!(early.is_err() && store.is_there(), "{name}: {early:?}");
        held.unlock().unwrap();
        freed.await.unwrap();
        assert!(!store.is_there());
    }
}

/// Somebody without the lock has written a file between the two moves.
#[tokio::test]
async fn what_cannot_be_put_back_is_said_to_be_in_the_record() {
    let store = Store::new();
    let locked = Locked::take(&store.network).await.unwrap();
    locked.move_away(IP.as_ref(), store.expected(), store.record.as_fd(), "0").unwrap();
    fs::write(store.network.join(IP), "successor\r\neth0").unwrap();
    let refused = locked.put_back(IP.as_ref(), store.record.as_fd(), "0");
    assert!(matches!(refused, Refused::Stranded(_)), "{refused}");
    assert!(store.kept.join("0").exists());
    fs::remove_file(store.network.join(IP)).unwrap();
    let refused = locked.put_back(IP.as_ref(), store.record.as_fd(), "0");
    assert!(matches!(refused, Refused::Changed), "{refused}");
    assert!(store.is_there());
}
