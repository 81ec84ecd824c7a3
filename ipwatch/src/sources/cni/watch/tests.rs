use std::fs;
use std::time::Duration;

use super::super::cache::tests::sample;
use super::*;
use tokio::sync::mpsc;

/// A running follower of `results` and `cache/results` below a directory of the test's own.
struct Following {
    dir: tempfile::TempDir,
    facts: mpsc::Receiver<Vec<Fact>>,
}

impl Following {
    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn put(&self, below: &str, content: &str) {
        fs::write(self.path(below), content).unwrap();
    }

    /// The next batch.
    async fn next(&mut self) -> Vec<Observation> {
        let batch = tokio::time::timeout(Duration::from_secs(20), self.facts.recv()).await;
        batch.expect("facts").expect("a watch").into_iter().map(|fact| fact.what).collect()
    }

    /// Reads until `wanted` accepts a fact; `seen` collects all facts.
    async fn until(&mut self, seen: &mut Vec<Observation>, wanted: impl Fn(&Observation) -> bool) {
        let mut from = seen.len();
        while !seen[from..].iter().any(&wanted) {
            from = seen.len();
            seen.extend(self.next().await);
        }
    }
}

fn follow(prepare: impl FnOnce(&Path), test: impl AsyncFnOnce(&mut Following)) {
    follow_refused(0, broken, prepare, test);
}

/// A follower whose watches cannot be opened the first few times.
struct Refused {
    times: u32,
    why: fn() -> io::Error,
    cache: Cache,
}

impl FileFollower for Refused {
    fn open(&mut self) -> io::Result<OwnedFd> {
        match self.times.checked_sub(1) {
            Some(left) => {
                self.times = left;
                Err((self.why)())
            }
            None => self.cache.open(),
        }
    }

    fn read_anew(&mut self) {
        self.cache.read_anew();
    }

    fn unwatched(&mut self, error: &io::Error) {
        self.cache.unwatched(error);
    }

    fn turn(&mut self) -> Result<Option<BootNs>, Stopped> {
        self.cache.turn()
    }

    async fn down(&mut self, error: &io::Error) -> Result<(), Closed> {
        self.cache.down(error).await
    }
}

fn broken() -> io::Error {
    rustix::io::Errno::MFILE.into()
}

fn follow_refused(
    times: u32,
    why: fn() -> io::Error,
    prepare: impl FnOnce(&Path),
    test: impl AsyncFnOnce(&mut Following),
) {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (emit, facts) = Emit::channel(64);
        let paths = ["results", "cache/results"].map(|below| dir.path().join(below)).to_vec();
        let new = move || Refused { times, why, cache: Cache::new(paths.clone(), emit.clone()) };
        let running = tokio::spawn(files::run(NAME, NAME, new, Readings::default(), None));
        test(&mut Following { dir, facts }).await;
        running.abort();
    });
}

fn attached(what: &Observation, container: &str) -> bool {
    matches!(what, Observation::Attachment(attachment) if attachment.container_id == container)
}

fn gone(what: &Observation, container: &str) -> bool {
    matches!(what, Observation::AttachmentGone { container_id, .. } if container_id == container)
}

fn status(what: &Observation) -> Option<(SourceStatus, &str)> {
    match what {
        Observation::Source(source) if source.name == "cni" => {
            Some((source.status, &source.detail))
        }
        _ => None,
    }
}

#[test]
fn what_is_there_comes_first_and_whole() {
    let prepare = |dir: &Path| {
        for below in ["results", "cache/results"] {
            fs::create_dir_all(dir.join(below)).unwrap();
        }
        fs::write(dir.join("results/a"), sample("a", "10.0.0.2/24")).unwrap();
        fs::write(dir.join("cache/results/b"), sample("b", "10.0.0.3/24")).unwrap();
    };
    follow(prepare, async |following| {
        let first = following.next().await;
        assert_eq!(first.first(), Some(&Observation::Began(Scope::Cni)));
        assert!(attached(&first[1], "b") && attached(&first[2], "a"), "{first:?}");
        assert!(matches!(first[3], Observation::Ended { scope: Scope::Cni, complete: true, .. }));
        assert_eq!(status(&first[4]), Some((SourceStatus::Active, "")));
        assert_eq!(first.len(), 5);
        let facts = serde_json::to_string(&first).unwrap();
        assert!(!facts.contains("canary"), "{facts}");
    });
}

#[test]
fn files_come_change_and_go() {
    let prepare = |dir: &Path| fs::create_dir(dir.join("results")).unwrap();
    follow(prepare, async |following| {
        let mut seen = following.next().await;
        following.put("results/x", &sample("a", "10.0.0.2/24"));
        following.until(&mut seen, |what| attached(what, "a")).await;
        // Another container's entry under the same name, and a move.
        following.put("results/x", &sample("b", "10.0.0.3/24"));
        following.until(&mut seen, |what| attached(what, "b")).await;
        assert!(seen.iter().any(|what| gone(what, "a")), "{seen:?}");
        fs::rename(following.path("results/x"), following.path("results/y")).unwrap();
        following.put("results/z", &sample("c", "10.0.0.4/24"));
        following.until(&mut seen, |what| attached(what, "c")).await;
        fs::remove_file(following.path("results/y")).unwrap();
        let before = seen.len();
        following.until(&mut seen, |what| gone(what, "b")).await;
        assert!(seen[before..].iter().all(|what| !gone(what, "c")));
    });
}

#[test]
fn directories_that_come_later_and_go_again() {
    follow(
        |_| {},
        async |following| {
            let mut seen = following.next().await;
            assert!(matches!(seen[1], Observation::Ended { complete: true, .. }), "{seen:?}");
            fs::create_dir_all(following.path("cache/results")).unwrap();
            following.put("cache/results/a", &sample("a", "10.0.0.2/24"));
            following.until(&mut seen, |what| attached(what, "a")).await;
            fs::remove_dir_all(following.path("cache")).unwrap();
            following.until(&mut seen, |what| gone(what, "a")).await;
            fs::create_dir_all(following.path("cache/results")).unwrap();
            following.put("cache/results/b", &sample("b", "10.0.0.2/24"));
            following.until(&mut seen, |what| attached(what, "b")).await;
        },
    );
}

#[test]
fn a_torn_file_is_reported_and_read_when_it_is_whole() {
    let prepare = |dir: &Path| {
        fs::create_dir(dir.join("results")).unwrap();
        fs::write(dir.join("results/torn"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.join("results/link")).unwrap();
        fs::write(dir.join("results/good"), sample("good", "10.0.0.2/24")).unwrap();
    };
    follow(prepare, async |following| {
        let mut seen = following.next().await;
        assert!(seen.iter().any(|what| attached(what, "good")));
        assert!(seen.iter().any(|what| matches!(what, Observation::Ended { complete: false, .. })));
        let told = |what: &Observation, part: &str| {
            status(what).is_some_and(|(status, detail)| {
                status == SourceStatus::Degraded && detail.contains(part)
            })
        };
        assert!(seen.iter().any(|what| told(what, "results/link") && told(what, "2 files")));
        fs::remove_file(following.path("results/link")).unwrap();
        following.until(&mut seen, |what| told(what, "results/torn: torn: it is empty")).await;
        following.put("results/torn", &sample("late", "10.0.0.3/24"));
        following.until(&mut seen, |what| attached(what, "late")).await;
        let last = seen.iter().rev().find_map(status);
        assert_eq!(last, Some((SourceStatus::Active, "")));
        // A file that was rewritten in place and is truncated keeps its former content.
        following.put("results/good", "{");
        following.until(&mut seen, |what| told(what, "results/good: torn: 1 bytes")).await;
        assert!(!seen.iter().any(|what| gone(what, "good")), "{seen:?}");
    });
}

#[test]
fn a_torn_file_is_tried_again_when_anything_happens() {
    let prepare = |dir: &Path| {
        fs::create_dir(dir.join("results")).unwrap();
        fs::write(dir.join("results/slow"), "").unwrap();
    };
    follow(prepare, async |following| {
        let mut seen = following.next().await;
        // Still open for writing, so that it causes no event of its own.
        let mut slow =
            fs::File::options().write(true).open(following.path("results/slow")).unwrap();
        io::Write::write_all(&mut slow, sample("slow", "10.0.0.2/24").as_bytes()).unwrap();
        following.put("results/other", &sample("other", "10.0.0.3/24"));
        following.until(&mut seen, |what| attached(what, "slow")).await;
        drop(slow);
    });
}

#[test]
fn an_entry_in_both_directories_goes_with_the_last() {
    let prepare = |dir: &Path| {
        for below in ["results", "cache/results"] {
            fs::create_dir_all(dir.join(below)).unwrap();
            fs::write(dir.join(below).join("a"), sample("a", "10.0.0.2/24")).unwrap();
        }
    };
    follow(prepare, async |following| {
        let mut seen = following.next().await;
        fs::remove_file(following.path("results/a")).unwrap();
        following.put("results/b", &sample("b", "10.0.0.3/24"));
        following.until(&mut seen, |what| attached(what, "b")).await;
        assert!(!seen.iter().any(|what| gone(what, "a")));
        fs::remove_file(following.path("cache/results/a")).unwrap();
        following.until(&mut seen, |what| gone(what, "a")).await;
    });
}

/// As if other processes of this user had used up the inotify watches.
#[test]
fn where_nothing_can_be_watched_it_is_read_all_the_same() {
    let prepare = |dir: &Path| {
        fs::create_dir_all(dir.join("results")).unwrap();
        fs::write(dir.join("results/c"), sample("c", "10.0.0.4/24")).unwrap();
    };
    let full = || crate::sources::inotify::scarce(rustix::io::Errno::NOSPC.into());
    follow_refused(1, full, prepare, async |following: &mut Following| {
        let mut seen = following.next().await;
        assert!(attached(&seen[1], "c"), "at once: {seen:?}");
        let said = seen.iter().find_map(status).expect("how it stands");
        assert_eq!(said.0, SourceStatus::Degraded);
        assert!(said.1.contains("raise fs.inotify.max_user_watches"), "{said:?}");
        following.until(&mut seen, |what| status(what) == Some((SourceStatus::Active, ""))).await;
        assert!(seen.iter().all(|what| !gone(what, "c")), "{seen:?}");
    });
}

#[test]
fn where_inotify_breaks_it_is_tried_again() {
    let prepare = |dir: &Path| {
        fs::create_dir_all(dir.join("results")).unwrap();
        fs::write(dir.join("results/c"), sample("c", "10.0.0.4/24")).unwrap();
    };
    follow_refused(1, broken, prepare, async |following: &mut Following| {
        let mut seen = following.next().await;
        let down = status(&seen[0]).expect("how it stands");
        assert!(down.0 == SourceStatus::Down && down.1.contains("open files"), "{down:?}");
        following.until(&mut seen, |what| status(what) == Some((SourceStatus::Active, ""))).await;
        assert!(seen.iter().any(|what| matches!(what, Observation::Attachment(_))), "{seen:?}");
    });
}
