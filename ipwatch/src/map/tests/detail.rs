//! Data that one source reports and another does not.

use super::*;
use crate::fact::Parent;

fn eth0() -> Link {
    Link { ifindex: 2, name: "eth0".into(), up: true, ..Link::default() }
}

#[test]
fn the_driver_of_a_device_outlives_word_that_does_not_tell_it() {
    let mut feed = Feed::new(Sight::default());
    let netns = NetnsRef::cookie(7);
    feed.tell(Observation::Netns { netns });
    let tell = |feed: &mut Feed, address: &str, driver: Option<&str>| {
        let parent =
            Parent { bus: "pci".into(), address: address.into(), driver: driver.map(Into::into) };
        feed.tell(Observation::Link { netns, link: Link { parent: Some(parent), ..eth0() } });
    };
    let driver = |feed: &Feed| {
        let id = feed.map.find(&netns).unwrap();
        let link = feed.map.netns(id).unwrap().link(2).unwrap();
        link.parent.as_ref().unwrap().driver.clone()
    };
    tell(&mut feed, "0000:00:05.0", Some("ena"));
    tell(&mut feed, "0000:00:05.0", None);
    assert_eq!(driver(&feed).as_deref(), Some("ena"));
    tell(&mut feed, "0000:00:06.0", None);
    assert_eq!(driver(&feed), None, "another device");
}

#[test]
fn a_pass_over_files_says_nothing_of_orphans() {
    let mut feed = Feed::new(Sight::default());
    let netns = NetnsRef::cookie(7);
    feed.tell(Observation::Netns { netns });
    let orphan = Holder::Orphan { text: "tcp a → b FIN_WAIT1".into() };
    let fd = Holder::Fd { pid: 4, fd: 5, comm: "x".into() };
    for holder in [&orphan, &fd] {
        feed.tell(Observation::Holder { netns, holder: holder.clone() });
    }
    let holders = |feed: &Feed| {
        let id = feed.map.find(&netns).unwrap();
        feed.map.netns(id).unwrap().holders().cloned().collect::<Vec<_>>()
    };
    feed.tell(Observation::Began(Scope::Files));
    let began = feed.at;
    feed.tell(Observation::Ended { scope: Scope::Files, began, complete: true });
    assert_eq!(holders(&feed), [orphan]);
    feed.tell(Observation::HoldersSearched { netns, complete: true });
    assert!(holders(&feed).is_empty(), "a search of everything did not meet it");
}
