use super::*;

fn written(subnet: &str, start: &str, end: &str, gateway: &str) -> Result<RangePart, String> {
    let name = |text: &str| Some(Name(text.to_owned())).filter(|_| !text.is_empty());
    let (range_start, range_end, gateway) = (name(start), name(end), name(gateway));
    Written { subnet: name(subnet), range_start, range_end, gateway }.part()
}

/// First, last, and the number of IPs that can be allocated.
fn usable(subnet: &str, start: &str, end: &str, gateway: &str) -> (String, String, u64) {
    let part = written(subnet, start, end, gateway).unwrap();
    (part.first.to_string(), part.last.to_string(), part.usable())
}

#[test]
fn the_defaults_of_host_local() {
    let of = |first: &str, last: &str, usable| (first.to_owned(), last.to_owned(), usable);
    assert_eq!(usable("10.1.2.0/24", "", "", ""), of("10.1.2.1", "10.1.2.254", 253));
    assert_eq!(usable("10.1.2.0/30", "", "", ""), of("10.1.2.1", "10.1.2.2", 1));
    assert_eq!(usable("fd00::/120", "", "", ""), of("fd00::1", "fd00::ff", 254));
    assert_eq!(usable("0.0.0.0/0", "", "", "").2, u64::from(u32::MAX) - 2);
    assert_eq!(usable("fd00::/64", "", "", "").2, u64::MAX - 1);
    assert_eq!(usable("::/0", "", "", "").2, u64::MAX);
}

#[test]
fn a_range_and_a_gateway_of_its_own() {
    let of = |first: &str, last: &str, usable| (first.to_owned(), last.to_owned(), usable);
    let range = usable("10.1.2.0/24", "10.1.2.10", "10.1.2.19", "");
    assert_eq!(range, of("10.1.2.10", "10.1.2.19", 10));
    let range = usable("10.1.2.0/24", "10.1.2.10", "10.1.2.19", "10.1.2.15");
    assert_eq!(range, of("10.1.2.10", "10.1.2.19", 9));
    assert_eq!(usable("10.1.2.0/24", "", "", "10.1.2.254"), of("10.1.2.1", "10.1.2.254", 253));
    assert_eq!(usable("10.1.2.0/24", "", "", "10.9.9.9"), of("10.1.2.1", "10.1.2.254", 254));
    assert_eq!(
        usable("10.1.2.0/24", "10.1.2.0", "10.1.2.255", ""),
        of("10.1.2.0", "10.1.2.255", 255)
    );
}

#[test]
fn what_host_local_refuses() {
    for (subnet, start, end, gateway, says) in [
        ("10.1.2.0/31", "", "", "", "too small"),
        ("fd00::/127", "", "", "", "too small"),
        ("10.1.2.3/24", "", "", "", "its first IP is 10.1.2.0"),
        ("10.1.2.0/24", "10.1.3.1", "", "", "10.1.3.1 is no IP of"),
        ("10.1.2.0/24", "fd00::1", "", "", "is no IP of"),
        ("10.1.2.0/24", "10.1.2.9", "10.1.2.8", "", "after its end"),
        ("10.1.2.0/24", "", "", "x", "is no IP"),
        ("10.1.2.0", "", "", "", "is no subnet"),
        ("10.1.2.0/33", "", "", "", "is no subnet"),
        ("", "", "", "", "is no subnet"),
    ] {
        let error = written(subnet, start, end, gateway).unwrap_err();
        assert!(error.contains(says), "{subnet}: {error}");
    }
}

#[test]
fn flannel() {
    let file = b"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\n\
                 FLANNEL_IPV6_SUBNET=fd00:7::1/64\n";
    let sets = parse_flannel(file).unwrap();
    assert_eq!(sets.len(), 2);
    assert_eq!((sets[0][0].first.to_string(), sets[0][0].usable()), ("10.244.7.1".into(), 253));
    assert_eq!(sets[1][0].first.to_string(), "fd00:7::1");
    assert!(parse_flannel(b"").is_err());
    assert!(parse_flannel(b"FLANNEL_SUBNET=10.244.7").unwrap_err().contains("FLANNEL_SUBNET"));
    assert!(parse_flannel(b"\xff").is_err());
}
