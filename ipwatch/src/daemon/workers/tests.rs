//! Threads that end a few times and then work.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use super::super::restarts::Pace;
use super::*;
use crate::fact::SourceName;

const PACE: Pace = Pace {
    again: (Duration::from_millis(2), Duration::from_millis(8)),
    settles: Duration::from_millis(40),
};
const PART: Part = Part { name: "the hand", sources: &[SourceName::Procfs], is_vital: true };
const PATIENCE: Duration = Duration::from_secs(30);

/// A post whose threads call `begin` with the number of the thread, then do jobs and send them back.
fn post(
    begin: impl Fn(usize) -> Ended + Send + Sync + 'static,
) -> (Post<u32>, SyncSender<u32>, Receiver<u32>, Troubles) {
    let (jobs, queue) = sync_channel(16);
    let (done, came) = sync_channel(16);
    let (troubles, hired) = (Troubles::default(), AtomicUsize::default());
    let restarts = Restarts::new(PART, PACE, &troubles);
    let starter = Starter::start().unwrap();
    let named = ("test", Rights::Read, &starter);
    let post = Post::start(named, restarts, &Readings::default(), queue, move |worker| {
        begin(hired.fetch_add(1, Relaxed))?;
        while let Some(job) = worker.next() {
            worker.during(|| done.send(job).unwrap());
        }
        Ok(())
    });
    (post.unwrap(), jobs, came, troubles)
}

/// Looks until something has changed.
fn news(post: &mut Post<u32>) -> News {
    for _ in 0..30_000 {
        if let Some(news) = post.look() {
            return news;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("nothing")
}

fn after_three_ends(end: impl Fn() -> Ended + Send + Sync + 'static) {
    let (mut post, jobs, came, troubles) = post(move |at| if at < 3 { end() } else { Ok(()) });
    jobs.send(7).unwrap();
    assert!(matches!(news(&mut post), News::Works(part) if part.name == PART.name));
    let report = troubles.report();
    assert_eq!((report[0].source, report[0].is_blind), ("procfs", true), "until it is told");
    assert_eq!(came.recv_timeout(PATIENCE), Ok(7), "no job is lost");
}

#[test]
fn a_thread_that_ends_is_replaced_until_one_works() {
    after_three_ends(|| Err("no socket".to_owned()));
}

#[test]
fn a_thread_that_panics_is_replaced() {
    after_three_ends(|| panic!("half way"));
}

#[test]
fn a_job_that_panics_costs_that_job_alone() {
    let (jobs, queue) = sync_channel(16);
    let (done, came) = sync_channel(16);
    let troubles = Troubles::default();
    let restarts = Restarts::new(PART, PACE, &troubles);
    let starter = Starter::start().unwrap();
    let named = ("test", Rights::Read, &starter);
    let mut post = Post::start(named, restarts, &Readings::default(), queue, move |worker| {
        while let Some(job) = worker.next() {
            worker.during(|| if job == 1 { panic!("this one") } else { done.send(job).unwrap() });
        }
        Ok(())
    })
    .unwrap();
    [1, 2].into_iter().for_each(|job| jobs.send(job).unwrap());
    assert!(matches!(news(&mut post), News::Works(_)));
    assert_eq!(came.recv_timeout(PATIENCE), Ok(2));
    assert!(troubles.report()[0].text.ends_with("it panicked: this one"));
}

#[test]
fn nobody_takes_the_place_of_a_thread_that_ends_with_the_daemon() {
    let (mut post, jobs, _came, troubles) = post(|_| Ok(()));
    drop(jobs);
    let thread = post.thread.as_ref().unwrap();
    while !thread.0.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(post.look().is_none() && post.thread.is_none() && post.due.is_none());
    assert_eq!(troubles.report(), []);
}

/// A post that is never to be looked at by the clock.
struct Resting(Arc<AtomicUsize>);

impl Watched for Resting {
    fn look(&mut self) -> Option<News> {
        self.0.fetch_add(1, Relaxed);
        None
    }

    fn next_look(&self) -> Option<Duration> {
        None
    }
}

#[tokio::test]
async fn posts_without_work_cost_no_wake_up() {
    let (looks, readings) = (Arc::<AtomicUsize>::default(), Readings::default());
    let (out, _facts) = Emit::channel(1);
    let posts: Vec<Box<dyn Watched>> = vec![Box::new(Resting(Arc::clone(&looks)))];
    let watching = watch(posts, readings.clone(), Troubles::default(), out, || ());
    let long = 3 * crate::reading::LOOK_EVERY;
    assert!(tokio::time::timeout(long, watching).await.is_err());
    assert_eq!(looks.load(Relaxed), 0);
}

#[test]
fn a_post_is_looked_at_when_its_thread_may_hang_and_not_before() {
    let (mut post, jobs, came, _) = post(|_| Ok(()));
    assert_eq!(post.next_look(), None, "it waits for a job");
    let slot = Arc::clone(&post.slot);
    let (next, _) = slot.during(|| post.next_look());
    let next = next.expect("it works");
    assert!(next > Duration::from_secs(1) && next <= Duration::from_millis(2_001), "{next:?}");
    assert_eq!(post.next_look(), None, "it waits again");
    drop((jobs, came));
    for _ in 0..30_000 {
        if post.next_look() == Some(Duration::ZERO) {
            assert!(post.look().is_none(), "the daemon shuts down");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the end of the thread is not seen");
}
