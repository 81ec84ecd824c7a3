use super::*;

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
