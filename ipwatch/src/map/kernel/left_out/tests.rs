use super::*;

fn full(cookie: u64, inode: u32, nsid: i32) -> NetnsRef {
    NetnsRef { cookie: Some(cookie), inode: Some(inode), nsid: Some(nsid) }
}

fn left_out(all: &[NetnsRef]) -> LeftOut {
    let mut left_out = LeftOut { most: 4, ..LeftOut::default() };
    for names in all {
        left_out.add(names, None, (State::Unread, Some(BootNs(10))), BootNs(10));
    }
    left_out.assert_is_true();
    left_out
}

#[test]
fn one_is_met_by_any_of_its_names_and_learns_the_others() {
    let mut left_out = left_out(&[NetnsRef::inode(70), NetnsRef::nsid(4)]);
    let slot = left_out.find(&NetnsRef::inode(70)).unwrap();
    assert_eq!(left_out.meet(&full(7, 70, 3), BootNs(11)), Met::Is(slot));
    for names in [NetnsRef::cookie(7), NetnsRef::nsid(3), NetnsRef::inode(70)] {
        assert_eq!(left_out.meet(&names, BootNs(12)), Met::Is(slot));
    }
    assert_eq!(left_out.meet(&NetnsRef::cookie(8), BootNs(12)), Met::No);
    // Two turn out to be one.
    assert_eq!(left_out.meet(&full(7, 70, 4), BootNs(13)), Met::Is(slot));
    assert_eq!((left_out.len(), left_out.find(&NetnsRef::nsid(3))), (1, None));
    left_out.assert_is_true();
}

#[test]
fn a_reused_name_is_another_netns_unless_the_fact_is_older() {
    let mut left_out = left_out(&[full(7, 70, 3), full(8, 80, 4)]);
    assert_eq!(left_out.meet(&full(9, 70, 5), BootNs(9)), Met::Older);
    assert_eq!(left_out.len(), 2);
    assert_eq!(left_out.meet(&full(9, 70, 4), BootNs(11)), Met::No);
    assert_eq!(left_out.find(&NetnsRef::cookie(7)), None, "its inode is free: it has ended");
    assert!(left_out.find(&NetnsRef::cookie(8)).is_some(), "an nsid is free before the end");
    assert_eq!(left_out.find(&NetnsRef::nsid(4)), None);
    left_out.assert_is_true();
    left_out.strip(&NetnsRef { cookie: None, inode: Some(80), nsid: None });
    assert!(left_out.is_empty());
}

#[test]
fn an_end_by_all_names_ends_what_was_known_by_each() {
    let mut left_out = left_out(&[NetnsRef::cookie(7), NetnsRef::inode(70), full(8, 80, 3)]);
    assert!(left_out.ended(&full(7, 70, 3), BootNs(20)));
    assert_eq!(left_out.len(), 1, "that nsid is another netns's");
    assert!(!left_out.ended(&NetnsRef::inode(80), BootNs(5)), "the one before");
    assert!(left_out.ended(&NetnsRef::inode(80), BootNs(20)));
    left_out.assert_is_true();
}

#[test]
fn one_whose_teardown_has_begun_before_it_was_read_stays_until_its_end() {
    let mut left_out = left_out(&[full(7, 70, 3), full(8, 80, 4), NetnsRef::nsid(5)]);
    for names in [full(7, 70, 3), NetnsRef::nsid(4), NetnsRef::nsid(5)] {
        assert!(left_out.ends(&names, BootNs(20)));
        left_out.assert_is_true();
    }
    assert_eq!(left_out.len(), 2, "of one that has no other name nothing would tell the end");
    assert_eq!(left_out.find(&NetnsRef::nsid(4)), None);
    assert!(left_out.has_unread(), "that nsid may have been another's");
    left_out.sweep(BootNs(30), true);
    left_out.assert_is_true();
    assert_eq!((left_out.len(), left_out.next()), (2, None), "no walk finds it");
    assert!(left_out.is_unclear() && !left_out.has_unread());
    left_out.doubt_all();
    assert!(left_out.ended(&NetnsRef::inode(70), BootNs(40)));
    assert_eq!((left_out.len(), left_out.has_unread()), (1, false));
    left_out.sweep(BootNs(50), false);
    assert!(left_out.is_empty());
}

/// `netns_bpf_pernet_init` runs before `setup_net` puts a netns into the list that is walked (6.12).
#[test]
fn one_that_a_later_walk_finds_has_not_ended() {
    let mut left_out = left_out(&[full(7, 70, 3)]);
    left_out.sweep(BootNs(20), true);
    assert!(!left_out.has_unread());
    assert!(!left_out.found(&NetnsRef::inode(70), BootNs(20)), "that is from before");
    assert!(left_out.found(&full(7, 70, 3), BootNs(30)) && left_out.has_never_read());
    left_out.assert_is_true();
    assert!(!left_out.found(&full(7, 70, 3), BootNs(40)), "it is known");
    assert!(left_out.ends(&full(7, 70, 3), BootNs(50)));
    assert!(!left_out.found(&full(7, 70, 3), BootNs(45)), "a fact that is late");
    assert!(!left_out.has_unread());
}

#[test]
fn one_that_ends_is_unclear_after_it_was_put_back() {
    let mut left_out = left_out(&[]);
    let ending = (State::Ending, Some(BootNs(10)));
    assert!(left_out.add(&NetnsRef::cookie(7), None, ending, BootNs(20)));
    left_out.assert_is_true();
    assert!(left_out.is_unclear() && !left_out.has_apart());
}

#[test]
fn what_finds_no_room_is_known_to_be_there_until_a_walk_shows_that_it_is_not() {
    let mut left_out = left_out(&[1, 2, 3, 4].map(NetnsRef::cookie));
    assert!(!left_out.is_more());
    assert!(!left_out.add(&NetnsRef::cookie(5), None, (State::Apart, None), BootNs(20)));
    assert!(left_out.is_more() && left_out.is_unclear());
    left_out.meet(&NetnsRef::cookie(1), BootNs(20));
    assert!(!left_out.has_unknown_since(BootNs(9)) && left_out.has_unknown_since(BootNs(10)));
    left_out.sweep(BootNs(20), false);
    assert_eq!((left_out.len(), left_out.is_more()), (1, true));
    left_out.sweep(BootNs(30), false);
    assert!(left_out.is_empty());
    left_out.assert_is_true();
}

#[test]
fn the_newest_and_the_oldest_that_were_not_read_come_in_turn() {
    let mut left_out = left_out(&[1, 2, 3].map(NetnsRef::cookie));
    let apart = (State::Apart, None);
    assert!(left_out.add(&NetnsRef::cookie(4), Some((1000, true)), apart, BootNs(11)));
    let mut next = || {
        let slot = left_out.next()?;
        left_out.remove(slot)?.names.cookie
    };
    assert_eq!(
        [next(), next(), next(), next(), next()],
        [Some(3), Some(1), Some(2), Some(4), None]
    );
    left_out.add(&NetnsRef::cookie(6), None, apart, BootNs(12));
    assert!(!left_out.is_unclear());
    left_out.doubt_all();
    assert!(left_out.is_unclear() && left_out.has_unread());
    left_out.assert_is_true();
}
