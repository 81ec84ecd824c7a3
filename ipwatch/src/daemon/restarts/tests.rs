//! Parts that end a few times and then work, with short pauses.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::mpsc;

use super::*;

const PACE: Pace = Pace {
    again: (Duration::from_millis(2), Duration::from_millis(8)),
    settles: Duration::from_millis(40),
};
const PART: Part =
    Part { name: "the ear", sources: &[SourceName::Netlink, SourceName::Routes], is_vital: true };
const PATIENCE: Duration = Duration::from_secs(30);

/// A part under [`keep_at`], and all that is visible of it.
struct Kept {
    troubles: Troubles,
    facts: mpsc::Receiver<Vec<Fact>>,
    starts: Arc<AtomicUsize>,
    running: tokio::task::JoinHandle<()>,
}

impl Kept {
    /// Each session ends with the result of `end`; it runs on when `end` returns `None`.
    fn new(end: impl Fn(usize) -> Option<io::Result<()>> + Send + Sync + 'static) -> Self {
        let (emit, facts) = Emit::channel(64);
        let (troubles, starts) = (Troubles::default(), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&starts);
        let session = async move || match end(count.fetch_add(1, Relaxed)) {
            Some(ended) => ended,
            None => std::future::pending().await,
        };
        let running = tokio::spawn(keep_at(PACE, PART, troubles.clone(), emit, session));
        Self { troubles, facts, starts, running }
    }

    /// The next fact.
    async fn fact(&mut self) -> Observation {
        let batch = tokio::time::timeout(PATIENCE, self.facts.recv()).await.expect("no fact");
        batch.expect("it runs").remove(0).what
    }

    /// Waits until the troubles match.
    async fn until(&self, wanted: impl Fn(&[Trouble]) -> bool) -> Vec<Trouble> {
        let wait = async {
            loop {
                let report = self.troubles.report();
                if wanted(&report) {
                    return report;
                }
                self.troubles.changed().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("never so")
    }
}

fn broken() -> Option<io::Result<()>> {
    Some(Err(io::Error::other("the socket broke")))
}

#[tokio::test]
async fn a_part_that_fails_is_told_and_started_again_until_it_works() {
    let mut kept = Kept::new(|at| if at < 4 { broken() } else { None });
    let report = kept.until(|report| !report.is_empty()).await;
    let text = "the ear has ended and is started again: the socket broke";
    let trouble = |source| Trouble {
        source,
        text: text.to_owned(),
        ended: Some(text.to_owned()),
        is_blind: true,
    };
    assert_eq!(report, [trouble("netlink"), trouble("routes")]);
    assert_eq!(kept.fact().await, Observation::Lost { count: None, calls: false });
    assert_eq!(kept.starts.load(Relaxed), 5);
    kept.until(<[_]>::is_empty).await;
    assert!(kept.facts.try_recv().is_err(), "read again once");
    assert!(!kept.running.is_finished());
}

#[tokio::test]
async fn a_panic_is_an_end_like_any_other() {
    let mut kept = Kept::new(|at| match at {
        0 => panic!("half way"),
        _ => None,
    });
    let report = kept.until(|report| !report.is_empty()).await;
    assert!(report[0].text.ends_with("it panicked: half way"), "{report:?}");
    kept.fact().await;
    kept.until(<[_]>::is_empty).await;
}

#[tokio::test]
async fn a_part_that_works_from_the_start_has_nothing_read_again() {
    let mut kept = Kept::new(|_| None);
    tokio::time::sleep(2 * PACE.settles).await;
    assert_eq!(kept.troubles.report(), []);
    assert!(kept.facts.try_recv().is_err());
}

#[tokio::test]
async fn one_that_ends_whenever_it_is_started_never_works() {
    let mut kept = Kept::new(|_| broken());
    kept.until(|report| !report.is_empty()).await;
    while kept.starts.load(Relaxed) < 8 {
        assert!(!kept.troubles.report().is_empty());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(kept.facts.try_recv().is_err(), "it is not read again at each try");
}

#[tokio::test]
async fn nothing_is_started_again_when_the_daemon_goes_down() {
    let mut kept = Kept::new(|_| broken());
    kept.until(|report| !report.is_empty()).await;
    kept.facts.close();
    tokio::time::timeout(PATIENCE, kept.running).await.expect("it goes on").unwrap();
}

#[tokio::test]
async fn two_parts_of_a_source_are_both_named() {
    let troubles = Troubles::default();
    let other = Part { name: "the eye", sources: &[SourceName::Netlink], is_vital: false };
    troubles.put(other, "dust".to_owned());
    assert!(!troubles.report()[0].is_blind);
    troubles.put(PART, "noise".to_owned());
    let report = troubles.report();
    let netlink = report.iter().find(|trouble| trouble.source == "netlink").unwrap();
    assert!(netlink.is_blind && netlink.text.contains("noise") && netlink.text.contains("dust"));
    assert_eq!(netlink.ended.as_ref(), Some(&netlink.text));
    let (emit, _facts) = Emit::channel(4);
    troubles.over(&PART, &emit).await.unwrap();
    assert_eq!(troubles.report().len(), 1);
}

#[test]
fn pauses_grow_and_begin_anew_after_a_part_that_has_lasted() {
    let s = Duration::from_secs;
    let pace = Pace { again: (s(8), s(60)), settles: s(1) };
    let mut restarts = Restarts::new(PART, pace, &Troubles::default());
    let now = || clock::now();
    let is_about = |pause: Duration, of| (s(of) / 2..s(of) * 3 / 2).contains(&pause);
    for of in [8, 16, 32] {
        assert!(is_about(restarts.ended(now(), String::new()), of));
    }
    let long_ago = BootNs(now().0.saturating_sub(61_000_000_000));
    assert!(is_about(restarts.ended(long_ago, String::new()), 8));
}

#[tokio::test]
async fn a_thread_tells_what_came_of_it() {
    let starter = Starter::start().unwrap();
    let named = ("test", Rights::Read, &starter);
    assert_eq!(on_a_thread(named, || Ok::<_, io::Error>(())).await, Ok(()));
    let broken = || Err::<(), _>(io::Error::other("broken"));
    assert_eq!(on_a_thread(named, broken).await, Err("broken".to_owned()));
    let panics = || -> io::Result<()> { panic!("half way") };
    assert_eq!(on_a_thread(named, panics).await, Err("it panicked: half way".to_owned()));
}
