use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn whoever_holds_an_ip_has_a_name(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            prop::collection::vec(prop::sample::select(b"az09-_./;$ \r\n".as_slice()), 0..200),
        ],
    ) {
        if let Ok(Holder { container_id, ifname }) = parse(&bytes) {
            prop_assert!(Name::ContainerId.fits(&container_id), "{:?}", container_id);
            prop_assert!(ifname.is_none_or(|name| Name::Device.fits(&name)));
        }
    }
}

#[test]
fn both_formats() {
    let holder = |id: &str, ifname: Option<&str>| {
        Ok(Holder { container_id: id.to_owned(), ifname: ifname.map(str::to_owned) })
    };
    assert_eq!(parse(b"abc\r\neth0"), holder("abc", Some("eth0")));
    assert_eq!(parse(b"abc\r\neth0\n"), holder("abc", Some("eth0")));
    assert_eq!(parse(b"abc"), holder("abc", None));
    assert_eq!(parse(b" abc\r\n"), holder("abc", None));
}

#[test]
fn what_is_no_reservation() {
    assert_eq!(parse(b""), Err("it is empty"));
    assert_eq!(parse(b"\r\n"), Err("it names no container"));
    assert_eq!(parse(&[0; 70]), Err("it holds no text"));
    assert_eq!(parse(b"a\nb\nc"), Err("it has more than two lines"));
    assert_eq!(parse(b"\xff\xfe"), Err("it holds no text"));
    for id in ["a b", "--all", "a;id", "é", &"a".repeat(129)] {
        assert_eq!(parse(id.as_bytes()), Err("its first line is no container id"), "{id}");
    }
    // The container is known all the same.
    assert_eq!(parse(b"abc\n$(id)").map(|holder| holder.ifname), Ok(None));
}

#[test]
fn a_file_is_an_ip_by_its_name() {
    let store = HostLocal::new(&Settings::default());
    for name in ["10.0.0.2", "fd00::2", "::1"] {
        assert!(store.is_part(&Path::new("/n/cbr0").join(name)), "{name}");
    }
    for name in ["lock", "last_reserved_ip.0", "10.0.0", "10.0.0.2.tmp", "10.0.0.02", ""] {
        assert!(!store.is_part(&Path::new("/n/cbr0").join(name)), "{name}");
    }
}
