//! The events that followers get (`watch`, `top`). A follower that reads slowly costs the others nothing: of each stream the
//! last events are kept once for all, and whoever is further behind loses its own and is told how many. Near the memory's
//! ceiling it may be less far behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use tokio::sync::broadcast;

use super::Event;
use crate::finding::Code;

/// How many events a follower may be behind while memory is short: more than one who reads at once is.
const SHORT: usize = 64;

/// Codes of findings that are sent to followers of neighbours.
const NEIGHBOURS: [Code; 4] =
    [Code::IpDuplicate, Code::NeighbourConflict, Code::NeighbourFailed, Code::GatewayNeighbourLost];

/// A stream of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Findings and addresses.
    Events,
    /// Neighbour entries, and findings about them.
    Neighbours,
}

/// Broadcasts events to followers. There are two streams, so that a follower of the first loses no event to a burst
/// of neighbours.
#[derive(Debug, Clone)]
pub struct Streams {
    events: Fan,
    neighbours: Fan,
}

impl Streams {
    /// Two streams; a follower may be this many events behind.
    #[must_use]
    pub fn new(lag: usize) -> Self {
        Self { events: Fan::new(lag), neighbours: Fan::new(lag) }
    }

    /// Sends an event to the followers. Findings about neighbours go to both streams.
    pub fn send(&self, event: Event) {
        let about_neighbours = match &event {
            Event::Neighbour(_) => true,
            Event::Finding(change) => NEIGHBOURS.contains(&change.finding.code),
            _ => false,
        };
        if about_neighbours {
            self.neighbours.send(event.clone());
        }
        if !matches!(event, Event::Neighbour(_)) {
            self.events.send(event);
        }
    }

    /// Reports to followers of neighbours that this many of them were left out.
    pub fn neighbours_lagged(&self, dropped: u64) {
        if dropped > 0 {
            self.neighbours.send(Event::Lagged { dropped });
        }
    }

    /// Whether there are followers of findings and addresses.
    #[must_use]
    pub fn has_followers(&self) -> bool {
        self.events.sender.receiver_count() > 0
    }

    /// Whether there are followers of neighbours.
    #[must_use]
    pub fn wants_neighbours(&self) -> bool {
        self.neighbours.sender.receiver_count() > 0
    }

    /// Memory is short, or no longer is.
    pub fn set_memory_short(&self, short: bool) {
        for fan in [&self.events, &self.neighbours] {
            fan.short.store(short, Ordering::Relaxed);
            fan.shed();
        }
    }

    /// Subscribes to a stream from now on.
    pub(crate) fn follow(&self, stream: Stream) -> Follower {
        match stream {
            Stream::Events => self.events.follow(),
            Stream::Neighbours => self.neighbours.follow(),
        }
    }
}

/// A stream, and who follows it.
#[derive(Debug, Clone)]
struct Fan {
    /// Holds pointers: the channel makes all its places at the start, each as large as what it holds.
    sender: broadcast::Sender<Arc<Event>>,
    short: Arc<AtomicBool>,
    places: Arc<std::sync::Mutex<Vec<Weak<Place>>>>,
}

/// Locked by the follower while it takes an event, which it does in no time, or waits for one: then it is not behind.
type Place = tokio::sync::Mutex<Behind>;

/// Where a follower is.
#[derive(Debug)]
struct Behind {
    events: broadcast::Receiver<Arc<Event>>,
    /// Number of events that were taken from it.
    shed: u64,
}

impl Fan {
    fn new(lag: usize) -> Self {
        let (sender, _) = broadcast::channel(lag);
        Self { sender, short: Arc::default(), places: Arc::default() }
    }

    fn send(&self, event: Event) {
        // An error means that there are no followers.
        let _ = self.sender.send(Arc::new(event));
        self.shed();
    }

    fn follow(&self) -> Follower {
        let place = Arc::new(Place::new(Behind { events: self.sender.subscribe(), shed: 0 }));
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|place| place.strong_count() > 0);
        places.push(Arc::downgrade(&place));
        Follower(place)
    }

    /// While memory is short: takes the oldest of what followers have not read from those that have too much of it.
    fn shed(&self) {
        if !self.short.load(Ordering::Relaxed) || self.sender.len() <= SHORT {
            return;
        }
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        for place in places.iter().filter_map(Weak::upgrade) {
            let Ok(mut place) = place.try_lock() else { continue };
            // The oldest go: who reads at once may have got many in one step.
            while place.events.len() > SHORT {
                place.shed += match place.events.try_recv() {
                    Ok(event) => match *event {
                        Event::Lagged { dropped } => dropped,
                        _ => 1,
                    },
                    Err(broadcast::error::TryRecvError::Lagged(dropped)) => dropped,
                    Err(_) => break,
                };
            }
        }
    }
}

/// A follower of a stream.
#[derive(Debug)]
pub(crate) struct Follower(Arc<Place>);

impl Follower {
    /// The next event, or how many are missing before it. `None`: the daemon ends. Cancel-safe.
    pub(crate) async fn next(&self) -> Option<Event> {
        let mut place = self.0.lock().await;
        if place.shed > 0 {
            return Some(Event::Lagged { dropped: std::mem::take(&mut place.shed) });
        }
        match place.events.recv().await {
            Ok(event) => Some(Arc::unwrap_or_clone(event)),
            Err(broadcast::error::RecvError::Lagged(dropped)) => Some(Event::Lagged { dropped }),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nth(n: u64) -> Event {
        let tenure = json!({"event":"released","ip":"10.0.0.5","netns":{},"from":n.to_string()});
        serde_json::from_value(tenure).unwrap()
    }

    async fn read(follower: &Follower, count: u64) -> Vec<Event> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(follower.next().await.unwrap());
        }
        all
    }

    #[tokio::test]
    async fn while_memory_is_short_who_reads_slowly_loses_its_own_events_and_is_told() {
        let streams = Streams::new(1024);
        let (quick, slow) = (streams.events.follow(), streams.events.follow());
        let send = |from: u64, to: u64| (from..to).for_each(|n| streams.events.send(nth(n)));
        send(0, 900);
        assert_eq!(read(&quick, 900).await.len(), 900);
        streams.set_memory_short(true);
        assert_eq!(streams.events.sender.len(), SHORT);
        send(900, 910);
        assert_eq!(read(&quick, 10).await, (900..910).map(nth).collect::<Vec<_>>());
        assert_eq!(read(&slow, 2).await, [Event::Lagged { dropped: 846 }, nth(846)]);
        // It goes on to read nothing.
        for n in 910..2_000 {
            send(n, n + 1);
            assert_eq!(read(&quick, 1).await, [nth(n)]);
            assert!(streams.events.sender.len() <= SHORT);
        }
        assert_eq!(read(&slow, 2).await, [Event::Lagged { dropped: 1_089 }, nth(1_936)]);
        streams.set_memory_short(false);
        send(2_000, 2_064);
        let rest: Vec<Event> = (1_937..2_064).map(nth).collect();
        assert_eq!(read(&slow, 127).await, rest, "nothing is lost any more");
    }

    #[tokio::test]
    async fn who_loses_word_of_missing_events_is_told_of_all() {
        let streams = Streams::new(1024);
        let follower = streams.neighbours.follow();
        streams.neighbours_lagged(5_000);
        (0..SHORT as u64).for_each(|n| streams.neighbours.send(nth(n)));
        streams.set_memory_short(true);
        assert_eq!(read(&follower, 2).await, [Event::Lagged { dropped: 5_000 }, nth(0)]);
    }

    #[tokio::test]
    async fn who_waits_for_an_event_gets_it_while_memory_is_short() {
        let streams = Streams::new(1024);
        let follower = streams.events.follow();
        streams.set_memory_short(true);
        let waits = tokio::spawn(async move { read(&follower, 3).await });
        tokio::task::yield_now().await;
        (0..3).for_each(|n| streams.events.send(nth(n)));
        assert_eq!(waits.await.unwrap(), [nth(0), nth(1), nth(2)]);
    }
}
