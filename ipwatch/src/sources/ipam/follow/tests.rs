use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use tokio::sync::mpsc;

use super::*;
use crate::bounded;
use crate::fact::{Fact, Origin, RangePart};
use crate::sources::ipam::Settings;
use crate::sources::ipam::cilium::Cilium;
use crate::sources::ipam::host_local::HostLocal;

/// A follower of host-local below a directory of the test's own; the test calls each turn.
struct Following {
    dir: tempfile::TempDir,
    follower: Follower,
    facts: mpsc::Receiver<Vec<Fact>>,
    next: Option<BootNs>,
}

impl Following {
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        Self::of(prepare, |settings| Arc::new(HostLocal::new(settings)))
    }

    fn of(prepare: impl FnOnce(&Path), store: impl FnOnce(&Settings) -> Arc<dyn Store>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let store = store(&settings(dir.path()));
        let (emit, facts) = Emit::channel(4_096);
        let mut follower = Follower::new(store, emit);
        follower.open().unwrap();
        Self { dir, follower, facts, next: None }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join("networks").join(below)
    }

    fn reserve(&self, below: &str, id: &str) {
        fs::write(self.path(below), format!("{id}\r\neth0")).unwrap();
    }

    /// Runs one turn and returns its facts as words.
    fn turn(&mut self) -> Vec<String> {
        self.next = self.follower.turn().unwrap();
        let mut words = Vec::new();
        while let Ok(batch) = self.facts.try_recv() {
            assert!(batch.len() <= 1_024 && batch.iter().all(|fact| fact.origin == Origin::Ipam));
            words.extend(batch.into_iter().map(|fact| self.word(fact.what)));
        }
        words
    }

    /// Runs turns until nothing is left to be checked again.
    fn settle(&mut self) -> Vec<String> {
        let mut words = self.turn();
        while let Some(next) = self.next {
            std::thread::sleep(Duration::from_nanos(next.since(clock::now())));
            words.extend(self.turn());
        }
        words
    }

    fn word(&self, what: Observation) -> String {
        let root = format!("{}/", self.path("").display());
        let short = |path: &str| path.replace(root.trim_end_matches('/'), "").replacen('/', "", 1);
        match what {
            Observation::Began(Scope::Reservations { .. }) => "began".to_owned(),
            Observation::Ended { scope: Scope::Reservations { .. }, complete, .. } => {
                if complete { "whole" } else { "cut" }.to_owned()
            }
            Observation::Reservation(it) => {
                let id = it.container_id.unwrap();
                assert!(it.since.is_some());
                assert!(
                    it.store == "cilium" || it.key.ends_with(&format!("{}/{}", it.network, it.ip))
                );
                format!("{} {id}", short(&it.key))
            }
            Observation::ReservationGone { key, .. } => format!("{} gone", short(&key)),
            Observation::Source(it) => {
                format!("{:?} {}", it.status, short(&it.detail)).trim().to_owned()
            }
            Observation::SourceGone { name } => format!("no {name}"),
            Observation::StoreUnreadable(it) => {
                assert!(it.effect.is_some() || it.path.ends_with("cbr0"), "{it:?}");
                format!("{} unreadable: {}", short(&it.path), it.reason)
            }
            Observation::StoreReadable { path, .. } => format!("{} readable", short(&path)),
            Observation::Began(Scope::Ranges { .. }) => "ranges".to_owned(),
            Observation::Ended { scope: Scope::Ranges { .. }, complete: true, .. } => {
                "end".to_owned()
            }
            Observation::Range(it) => {
                let usable: Vec<u64> =
                    it.sets.iter().map(|set| set.iter().map(RangePart::usable).sum()).collect();
                format!("{} {usable:?}", it.network)
            }
            Observation::Configured(it) => format!("named {}", it.name),
            other => format!("{other:?}"),
        }
    }
}

/// Settings with all paths below a directory of the test's own.
fn settings(dir: &Path) -> Settings {
    Settings {
        conf_dirs: vec![dir.join("net.d")],
        data_dirs: vec![dir.join("networks")],
        aws_checkpoint: dir.join("aws-node/ipam.json"),
        cilium_state: dir.join("cilium"),
        docker_data_root: dir.join("docker"),
        terway_dir: dir.join("terway"),
        netavark_db: dir.join("podman/ipam.db"),
        netavark_networks: dir.join("podman-networks"),
    }
}

fn network(dir: &Path) {
    fs::create_dir_all(dir.join("networks/cbr0")).unwrap();
}

fn filled(dir: &Path) {
    network(dir);
    for ip in ["10.0.0.2", "fd00::2"] {
        fs::write(dir.join("networks/cbr0").join(ip), "a\r\neth0").unwrap();
    }
    fs::write(dir.join("networks/cbr0/lock"), "").unwrap();
    fs::write(dir.join("networks/cbr0/last_reserved_ip.0"), "10.0.0.2").unwrap();
    fs::write(dir.join("networks/stray"), "").unwrap();
}

fn sorted(mut words: Vec<String>) -> Vec<String> {
    words.sort();
    words
}

#[test]
fn what_is_there_comes_first_and_whole() {
    let mut following = Following::new(filled);
    let mut words = following.turn();
    assert_eq!(
        (words.remove(0), words.split_off(2)),
        ("began".into(), vec!["whole".into(), "Active".into()])
    );
    assert_eq!(sorted(words), ["cbr0/10.0.0.2 a", "cbr0/fd00::2 a"]);
    assert_eq!(following.turn(), [""; 0]);
}

#[test]
fn reservations_come_change_and_go() {
    let mut following = Following::new(network);
    assert_eq!(following.turn(), ["began", "whole", "Active"]);
    following.reserve("cbr0/10.0.0.2", "a");
    assert_eq!(following.turn(), ["cbr0/10.0.0.2 a"]);
    following.reserve("cbr0/10.0.0.2", "b");
    assert_eq!(following.turn(), ["cbr0/10.0.0.2 b"]);
    fs::rename(following.path("cbr0/10.0.0.2"), following.path("cbr0/10.0.0.3")).unwrap();
    assert_eq!(sorted(following.turn()), ["cbr0/10.0.0.2 gone", "cbr0/10.0.0.3 b"]);
    fs::remove_file(following.path("cbr0/10.0.0.3")).unwrap();
    assert_eq!(following.turn(), ["cbr0/10.0.0.3 gone"]);
    // A network whose directory is created and filled at once.
    fs::create_dir(following.path("other")).unwrap();
    following.reserve("other/10.0.0.9", "c");
    assert_eq!(following.turn(), ["other/10.0.0.9 c"]);
    following.reserve("other/10.0.0.10", "d");
    assert_eq!(following.turn(), ["other/10.0.0.10 d"]);
    assert_eq!(following.next, None);
}

#[test]
fn a_store_that_is_not_there_is_no_source() {
    let mut following = Following::new(|_| {});
    assert_eq!(following.turn(), [""; 0]);
    network(following.dir.path());
    following.reserve("cbr0/10.0.0.2", "a");
    assert_eq!(following.turn(), ["began", "cbr0/10.0.0.2 a", "whole", "Active"]);
    fs::remove_dir_all(following.path("")).unwrap();
    let words = following.settle();
    assert_eq!(words, ["cbr0/10.0.0.2 gone", "no host-local"]);
    network(following.dir.path());
    assert_eq!(following.settle(), ["began", "whole", "Active"]);
}

#[test]
fn an_empty_file_is_looked_at_twice_before_it_is_told() {
    let mut following = Following::new(network);
    following.turn();
    fs::write(following.path("cbr0/10.0.0.2"), "").unwrap();
    let before = clock::now();
    assert_eq!(following.turn(), [""; 0]);
    assert!(following.next.is_some());
    let unreadable = "cbr0/10.0.0.2 unreadable: it is empty";
    assert_eq!(following.settle(), [unreadable, "Degraded cbr0/10.0.0.2: it is empty"]);
    assert!(clock::now().since(before) >= super::super::trouble::CONFIRM);
    // Reported once, while the rest continues.
    fs::write(following.path("cbr0/10.0.0.2"), "").unwrap();
    following.reserve("cbr0/10.0.0.3", "a");
    assert_eq!(following.settle(), ["cbr0/10.0.0.3 a"]);
    following.reserve("cbr0/10.0.0.2", "b");
    assert_eq!(following.settle(), ["cbr0/10.0.0.2 readable", "cbr0/10.0.0.2 b", "Active"]);
    // When the file is truncated again, its former content stays valid.
    fs::write(following.path("cbr0/10.0.0.2"), "\r\n").unwrap();
    let words = following.settle();
    assert_eq!(words[0], "cbr0/10.0.0.2 unreadable: it names no container");
    fs::remove_file(following.path("cbr0/10.0.0.2")).unwrap();
    assert_eq!(following.settle(), ["cbr0/10.0.0.2 readable", "cbr0/10.0.0.2 gone", "Active"]);
}

#[test]
fn a_file_that_is_being_written_is_no_trouble() {
    let mut following = Following::new(network);
    fs::write(following.path("cbr0/10.0.0.2"), "").unwrap();
    assert_eq!(following.turn(), ["began", "cut", "Active"]);
    following.reserve("cbr0/10.0.0.2", "a");
    // An incomplete dump is repeated when everything can be read.
    let words = following.settle();
    assert_eq!(words, ["cbr0/10.0.0.2 a", "began", "cbr0/10.0.0.2 a", "whole"]);
}

#[test]
fn what_is_no_file_is_not_opened() {
    let prepare = |dir: &Path| {
        network(dir);
        let at = |name: &str| dir.join("networks/cbr0").join(name);
        fs::write(at("10.0.0.9"), "canary").unwrap();
        fs::write(dir.join("secret"), "canary").unwrap();
        symlink(dir.join("secret"), at("10.0.0.1")).unwrap();
        symlink(dir.join("nowhere"), at("10.0.0.2")).unwrap();
        fs::create_dir(at("10.0.0.3")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("10.0.0.4"), FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        fs::write(at("10.0.0.5"), [b'x'; 2_000]).unwrap();
    };
    let mut following = Following::new(prepare);
    let words = following.settle();
    for n in 1..=5 {
        let told = format!("cbr0/10.0.0.{n} unreadable: ");
        assert_eq!(words.iter().filter(|word| word.starts_with(&told)).count(), 1, "{words:?}");
    }
    assert_eq!(
        words.iter().filter(|word| word.contains("canary")).collect::<Vec<_>>(),
        ["cbr0/10.0.0.9 canary"]
    );
    assert!(words.last().unwrap().ends_with("; 5 files in all"), "{words:?}");
    for n in 1..=5 {
        let path = following.path(&format!("cbr0/10.0.0.{n}"));
        fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
    }
    let words = following.settle();
    assert_eq!(words.iter().filter(|word| word.ends_with("readable")).count(), 5);
    assert!(
        words.ends_with(&[
            "began".into(),
            "cbr0/10.0.0.9 canary".into(),
            "whole".into(),
            "Active".into()
        ]),
        "{words:?}"
    );
}

#[test]
fn a_directory_replaced_while_it_is_watched() {
    let mut following = Following::new(filled);
    following.turn();
    // By two renames, as some stores do: nothing counts as gone meanwhile.
    fs::create_dir(following.path("next")).unwrap();
    following.reserve("next/10.0.0.2", "z");
    following.settle();
    let name = |name: &str| following.path(name);
    fs::rename(name("cbr0"), name("stale")).unwrap();
    let halfway = following.turn();
    assert!(!halfway.iter().any(|word| word.starts_with("cbr0")), "{halfway:?}");
    fs::rename(following.path("next"), following.path("cbr0")).unwrap();
    let words = following.settle();
    let of_it: Vec<_> = words.iter().filter(|word| word.starts_with("cbr0/")).collect();
    assert_eq!(of_it.len(), 2, "{words:?}");
    for word in ["cbr0/fd00::2 gone", "cbr0/10.0.0.2 z"] {
        assert!(of_it.contains(&&word.to_owned()), "{words:?}");
    }
    // The new directory is watched, and the old one no longer takes its place.
    following.reserve("stale/10.0.0.7", "old");
    following.reserve("cbr0/10.0.0.8", "new");
    assert_eq!(sorted(following.settle()), ["cbr0/10.0.0.8 new", "stale/10.0.0.7 old"]);
    // A link that leads out of the store.
    fs::remove_dir_all(following.path("cbr0")).unwrap();
    symlink(following.path("stale"), following.path("cbr0")).unwrap();
    let words = following.settle();
    assert!(
        !words.iter().any(|word| word.starts_with("cbr0/") && !word.ends_with(" gone")),
        "{words:?}"
    );
}

/// As where other processes of the user have used up what inotify has.
#[test]
fn without_watches_each_look_tells_what_has_changed() {
    let mut following = Following::new(filled);
    let all = following.settle();
    let full = crate::sources::inotify::scarce(rustix::io::Errno::NOSPC.into());
    following.follower.unwatched(&full);
    let said = following.settle();
    assert!(said.len() == 1 && said[0].contains("max_user_watches"), "nothing else: {said:?}");
    following.reserve("cbr0/10.0.0.9", "nine");
    assert_eq!(following.settle(), [""; 0], "until the next look");
    following.follower.unwatched(&full);
    let said = following.settle();
    assert!(said.len() == 1 && said[0].contains("10.0.0.9"), "{said:?}");
    // There are watches again.
    following.follower.open().unwrap();
    let said = following.settle();
    assert_eq!(said, all[all.len() - 1..], "the source alone: what is known was told");
    following.reserve("cbr0/10.0.0.10", "ten");
    let said = following.settle();
    assert!(said.len() == 1 && said[0].contains("10.0.0.10"), "{said:?}");
}

#[test]
fn everything_is_read_again_after_an_overflow() {
    let most = bounded::read_text(Path::new("/proc/sys/fs/inotify/max_queued_events"), 64).unwrap();
    let most: usize = most.trim().parse().unwrap();
    let mut following = Following::new(filled);
    following.turn();
    fs::remove_file(following.path("cbr0/fd00::2")).unwrap();
    for n in 0..=most / 2 {
        let path = following.path(&format!("cbr0/x{n}"));
        fs::write(&path, "").unwrap();
        fs::remove_file(path).unwrap();
    }
    following.reserve("cbr0/10.0.0.3", "late");
    let words = following.settle();
    assert_eq!(sorted(words), ["cbr0/10.0.0.3 late", "cbr0/fd00::2 gone"]);
    following.reserve("cbr0/10.0.0.4", "later");
    assert_eq!(following.turn(), ["cbr0/10.0.0.4 later"]);
}

#[test]
fn a_store_that_grows_while_it_is_read() {
    let mut following = Following::new(network);
    let directory = following.path("cbr0");
    let writer = std::thread::spawn(move || {
        for n in 0..2_000_u32 {
            let ip = std::net::Ipv4Addr::from_bits(0x0a00_0100 + n);
            fs::write(directory.join(ip.to_string()), format!("c{n}\r\neth0")).unwrap();
        }
    });
    let mut seen = BTreeSet::new();
    while !writer.is_finished() {
        seen.extend(following.turn());
    }
    writer.join().unwrap();
    seen.extend(following.settle());
    // A writer that gets no CPU time between open and write leaves an empty file for long.
    let reserved = |word: &&String| word.contains(" c") && !word.contains("readable");
    let told: Vec<_> =
        seen.iter().filter(reserved).filter(|word| word.starts_with("cbr0/")).collect();
    assert_eq!(told.len(), 2_000);
    assert!(!seen.iter().any(|word| word.contains("gone")));
}

/// A configuration of network `a`, with a canary text that must appear nowhere.
fn configure(dir: &Path, more: &str) {
    let text = format!(
        r#"{{"name": "a", "type": "bridge", "token": "canary", "ipam": {{"type": "host-local"{more}}}}}"#
    );
    fs::write(dir.join("net.d/a.conf"), text).unwrap();
}

#[test]
fn ranges_come_change_and_end_with_their_configuration() {
    let prepare = |dir: &Path| {
        network(dir);
        fs::create_dir(dir.join("net.d")).unwrap();
        configure(dir, r#", "subnet": "10.1.0.0/24""#);
    };
    let mut following = Following::new(prepare);
    let words = ["began", "whole", "ranges", "a [253]", "named a", "end", "Active"];
    assert_eq!(following.turn(), words);
    following.reserve("cbr0/10.0.0.2", "x");
    assert_eq!(following.turn(), ["cbr0/10.0.0.2 x"]);
    configure(following.dir.path(), r#", "subnet": "10.1.0.0/25""#);
    assert_eq!(following.settle(), ["ranges", "a [125]", "named a", "end"]);
    // The former content of an unreadable file stays valid.
    fs::write(following.dir.path().join("net.d/a.conf"), "{").unwrap();
    let words = following.settle();
    assert!(
        words[0].ends_with("a.conf unreadable: torn: 1 bytes") && words.len() == 2,
        "{words:?}"
    );
    fs::remove_file(following.dir.path().join("net.d/a.conf")).unwrap();
    let words = following.settle();
    assert_eq!(words[1..], ["ranges", "end", "Active"]);
}

#[test]
fn a_directory_of_reservations_that_a_configuration_names() {
    let mut following = Following::new(|dir| fs::create_dir(dir.join("net.d")).unwrap());
    let dir = following.dir.path().to_owned();
    let data = dir.join("elsewhere");
    assert_eq!(following.turn(), [""; 0]);
    let named = format!(r#", "dataDir": "{}", "subnet": "10.1.0.0/24""#, data.display());
    configure(&dir, &named);
    let words = ["began", "whole", "ranges", "a [253]", "named a", "end", "Active"];
    assert_eq!(following.settle(), words);
    fs::create_dir_all(data.join("a")).unwrap();
    fs::write(data.join("a/10.1.0.2"), "x\r\neth0").unwrap();
    let words = following.settle();
    assert!(words.len() == 1 && words[0].ends_with("elsewhere/a/10.1.0.2 x"), "{words:?}");
}

#[test]
fn flannel_says_which_range_later() {
    let mut following = Following::new(|dir| {
        network(dir);
        fs::create_dir(dir.join("net.d")).unwrap();
        let file = dir.join("flannel/subnet.env");
        let text = format!(r#"{{"name": "cbr0", "type": "flannel", "subnetFile": {file:?}}}"#);
        fs::write(dir.join("net.d/a.conf"), text).unwrap();
    });
    assert_eq!(following.turn(), ["began", "whole", "ranges", "named cbr0", "end", "Active"]);
    let file = following.dir.path().join("flannel/subnet.env");
    fs::create_dir(file.parent().unwrap()).unwrap();
    fs::write(&file, "FLANNEL_SUBNET=10.244.7.1/24\n").unwrap();
    assert_eq!(following.settle(), ["ranges", "cbr0 [253]", "named cbr0", "end"]);
    fs::remove_file(&file).unwrap();
    assert_eq!(following.settle(), ["ranges", "named cbr0", "end"]);
}

/// A store that is busy for some time.
struct Busy(PathBuf);

impl Store for Busy {
    fn name(&self) -> &'static str {
        "busy"
    }

    fn directories(&self) -> Vec<Directory> {
        vec![Directory { path: self.0.clone(), nested: false }]
    }

    fn is_part(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == "db")
    }

    fn read(&self, path: &Path) -> Result<crate::sources::ipam::Content, Trouble> {
        match bounded::read_text(path, 64) {
            Ok(text) if text == "busy" => Err(Trouble::Busy("locked".to_owned())),
            Ok(_) => Ok(crate::sources::ipam::Content::default()),
            Err(_) => Err(Trouble::Gone),
        }
    }
}

#[test]
fn a_busy_store_is_tried_again_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("db"), "busy").unwrap();
    let (emit, mut facts) = Emit::channel(64);
    let mut follower = Follower::new(Arc::new(Busy(dir.path().to_owned())), emit);
    follower.open().unwrap();
    let mut pauses = Vec::new();
    let told = loop {
        let next = follower.turn().unwrap().expect("another try");
        pauses.push(next.since(clock::now()));
        let told = std::iter::from_fn(|| facts.try_recv().ok()).flatten();
        let told: Vec<_> =
            told.filter(|it| matches!(it.what, Observation::StoreUnreadable(_))).collect();
        if !told.is_empty() {
            break told;
        }
        std::thread::sleep(Duration::from_nanos(next.since(clock::now())));
    };
    assert!(
        matches!(&told[0].what, Observation::StoreUnreadable(it) if it.reason.contains("locked"))
    );
    // The release of a lock is no event.
    assert!(pauses.len() >= 4 && pauses.is_sorted(), "{pauses:?}");
}

#[test]
fn it_runs_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = settings(dir.path());
        let (emit, mut facts) = Emit::channel(64);
        let mut first = crate::sources::ipam::start(&settings, &emit, &Readings::default());
        first.wait().await;
        let dump = facts.try_recv().expect("a dump before the first word is out");
        assert!(matches!(dump[0].what, Observation::Began(_)), "{dump:?}");
        fs::write(dir.path().join("networks/cbr0/10.0.0.3"), "b").unwrap();
        let later = tokio::time::timeout(Duration::from_secs(20), facts.recv()).await;
        let later = later.expect("in time").expect("facts");
        assert!(
            matches!(&later[0].what, Observation::Reservation(it) if it.ifname.is_none()),
            "{later:?}"
        );
    });
    runtime.shutdown_background();
}

#[test]
fn a_configuration_may_be_a_link() {
    let mut following = Following::new(|dir| {
        network(dir);
        for (version, subnet) in [("..1", "10.1.0.0/24"), ("..2", "10.1.0.0/25")] {
            fs::create_dir_all(dir.join("net.d").join(version)).unwrap();
            let text = format!(
                r#"{{"name": "cbr0", "type": "bridge",
                    "ipam": {{"type": "host-local", "subnet": "{subnet}"}}}}"#
            );
            fs::write(dir.join("net.d").join(version).join("10.conf"), text).unwrap();
        }
        symlink("..1", dir.join("net.d/..data")).unwrap();
        symlink("..data/10.conf", dir.join("net.d/10.conf")).unwrap();
        symlink("../nowhere", dir.join("net.d/20.conf")).unwrap();
    });
    let words = following.settle();
    assert!(words.contains(&"cbr0 [253]".to_owned()), "{words:?}");
    assert!(words.ends_with(&["Active".into()]), "{words:?}");
    // As a projected volume is changed.
    let at = |name: &str| following.dir.path().join("net.d").join(name);
    symlink("..2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    assert_eq!(following.settle(), ["ranges", "cbr0 [125]", "named cbr0", "end"]);
}

/// An upgraded agent writes the newer format beside the older one, and then removes the older: the endpoint keeps its
/// IP. A downgraded agent does the reverse.
#[test]
fn an_endpoint_keeps_its_ip_while_its_shape_changes() {
    let json = |id: &str| format!(r#"{{"ID": 42, "dockerID": "{id}", "IPv4": "10.0.1.5"}}"#);
    let header = |id: &str| {
        use base64::Engine as _;
        let coded = base64::engine::general_purpose::STANDARD.encode(json(id));
        format!(" * CILIUM_BASE64_1.9:{coded}\n")
    };
    let prepare = |dir: &Path| {
        fs::create_dir_all(dir.join("cilium/42")).unwrap();
        fs::write(dir.join("cilium/42/ep_config.h"), header("c1")).unwrap();
    };
    let mut it = Following::of(prepare, |settings| Arc::new(Cilium::new(settings)));
    let endpoint = it.dir.path().join("cilium/42");
    let (older, newer) = (endpoint.join("ep_config.h"), endpoint.join("ep_config.json"));
    let key = format!("{}#42/10.0.1.5", endpoint.display()).replacen('/', "", 1);
    assert_eq!(
        it.settle(),
        ["began".to_owned(), format!("{key} c1"), "whole".into(), "Active".into()]
    );

    fs::write(&newer, json("c1")).unwrap();
    let told = it.settle();
    assert!(told.iter().all(|word| *word == format!("{key} c1")), "{told:?}");
    fs::write(&older, header("c1")).unwrap();
    fs::remove_file(&older).unwrap();
    assert_eq!(it.settle(), Vec::<String>::new());

    fs::write(&older, header("c1")).unwrap();
    fs::remove_file(&newer).unwrap();
    let told = it.settle();
    assert!(told.iter().all(|word| *word == format!("{key} c1")), "{told:?}");
    fs::remove_file(&older).unwrap();
    assert_eq!(it.settle(), [format!("{key} gone")]);
}
