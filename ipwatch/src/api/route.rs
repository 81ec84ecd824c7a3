//! Request targets: writes a question as a path and a query, and parses them.
//!
//! The client writes targets and the server parses them, so both directions are here.

use std::fmt::Write as _;
use std::net::IpAddr;

use jiff::Timestamp;

use super::{Ask, Past, Prefix, Selector, Stream};
use crate::contract::{HeldCall, HeldQuestion};

/// Every route, as listed in the error about an unknown route.
pub const ROUTES: &[&str] = &[
    "/v1/addresses?ip=IP|CIDR or ?netns=NAME or ?pod=NAMESPACE/NAME or ?pid=PID, and &reach=true",
    "/v1/neighbours?ip=IP|CIDR",
    "/v1/findings?all=true&what=ID|CODE|IP|NAMESPACE/NAME",
    "/v1/history?ip=IP|CIDR&pod=NAMESPACE/NAME&at=TIME",
    "/v1/ipam?ip=IP|CIDR&network=NAME",
    "/v1/check?ip=IP&container=ID",
    "/v1/held?call=add|del&store=TYPE&network=NAME&container=ID&ifname=NAME&ips=IP,IP&netns=INODE&parked=IP@COOKIE,…",
    "/v1/doctor",
    "POST /v1/canary",
    "POST /v1/ack?what=ID&for=SECONDS&note=TEXT",
    "POST /v1/unack?what=ID",
    "/v1/watch?what=neigh",
    "/v1/health",
];

/// Path of the streams of events.
const WATCH: &str = "/v1/watch";
/// Path of the health check.
pub const HEALTH: &str = "/v1/health";

/// Maximum length of a parameter, in bytes.
const LONGEST_VALUE: usize = 4096;

/// A parsed request target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// A question to the core.
    Ask(Ask),
    /// A stream of events.
    Watch(Stream),
    /// The health check.
    Health,
}

/// Why a request target is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// No such path.
    #[error("no route {0}")]
    NoRoute(String),
    /// The path is known, but a parameter is invalid.
    #[error("{0}")]
    Parameter(String),
}

/// Parses a request target.
///
/// # Errors
/// The path is unknown, or a parameter is unknown, doubled or malformed.
pub fn parse(path: &str, query: Option<&str>) -> Result<Route, BadTarget> {
    let mut parameters = Parameters::read(query.unwrap_or_default())?;
    let route = match path {
        "/v1/addresses" => {
            let reach = parameters.flag("reach")?;
            let selector = selector(&mut parameters)?;
            Route::Ask(if reach { Ask::Reach(selector) } else { Ask::Addresses(selector) })
        }
        "/v1/neighbours" => Route::Ask(Ask::Neighbours(parameters.prefix("ip")?)),
        "/v1/history" => Route::Ask(Ask::History(Past {
            ip: parameters.prefix("ip")?,
            pod: parameters.take("pod").filter(|pod| !pod.is_empty()),
            at: parameters.moment("at")?,
        })),
        "/v1/findings" => Route::Ask(Ask::Findings {
            all: parameters.flag("all")?,
            what: parameters.take("what").filter(|what| !what.is_empty()),
        }),
        "/v1/ipam" => Route::Ask(Ask::Ipam {
            ip: parameters.prefix("ip")?,
            network: parameters.take("network").filter(|network| !network.is_empty()),
        }),
        "/v1/check" => Route::Ask(Ask::Check {
            ip: parameters.ip("ip")?,
            container: parameters.take("container").filter(|id| !id.is_empty()),
        }),
        "/v1/held" => Route::Ask(Ask::Held(held(&mut parameters)?)),
        "/v1/doctor" => Route::Ask(Ask::Doctor),
        "/v1/canary" => Route::Ask(Ask::Canary),
        "/v1/ack" => Route::Ask(Ask::Ack {
            what: parameters.id()?,
            seconds: parameters.seconds("for")?,
            note: parameters.take("note").filter(|note| !note.is_empty()),
        }),
        "/v1/unack" => Route::Ask(Ask::Unack { what: parameters.id()? }),
        WATCH => Route::Watch(stream(&mut parameters)?),
        HEALTH => Route::Health,
        other => return Err(BadTarget::NoRoute(other.to_owned())),
    };
    parameters.finish(path)?;
    Ok(route)
}

/// The request target of a question.
#[must_use]
pub fn target(ask: &Ask) -> String {
    let mut target = Target::default();
    match ask {
        Ask::Addresses(selector) | Ask::Reach(selector) => {
            target.path("/v1/addresses");
            match selector {
                Selector::Ip(prefix) => target.optional("ip", prefix.map(|p| p.to_string())),
                Selector::Netns(name) => target.with("netns", name.as_deref().unwrap_or_default()),
                Selector::Pod(name) => target.with("pod", name.as_deref().unwrap_or_default()),
                Selector::Pid(pid) => target.with("pid", &pid.to_string()),
            }
            let reach = matches!(ask, Ask::Reach(_));
            target.optional("reach", reach.then(|| "true".to_owned()));
        }
        Ask::Neighbours(prefix) => {
            target.path("/v1/neighbours");
            target.optional("ip", prefix.map(|prefix| prefix.to_string()));
        }
        Ask::History(Past { ip, pod, at }) => {
            target.path("/v1/history");
            target.optional("ip", ip.map(|prefix| prefix.to_string()));
            target.optional("pod", pod.clone());
            let date = at.and_then(|at| Timestamp::from_millisecond(at).ok());
            target.optional("at", date.map(|date| date.to_string()));
        }
        Ask::Findings { all, what } => {
            target.path("/v1/findings");
            target.optional("all", all.then(|| "true".to_owned()));
            target.optional("what", what.clone());
        }
        Ask::Ipam { ip, network } => {
            target.path("/v1/ipam");
            target.optional("ip", ip.map(|prefix| prefix.to_string()));
            target.optional("network", network.clone());
        }
        Ask::Check { ip, container } => {
            target.path("/v1/check");
            target.with("ip", &ip.to_string());
            target.optional("container", container.clone());
        }
        Ask::Held(question) => held_target(&mut target, question),
        Ask::Doctor => target.path("/v1/doctor"),
        Ask::Canary => target.path("/v1/canary"),
        Ask::Ack { what, seconds, note } => {
            target.path("/v1/ack");
            target.with("what", what);
            target.optional("for", seconds.map(|seconds| seconds.to_string()));
            target.optional("note", note.clone());
        }
        Ask::Unack { what } => {
            target.path("/v1/unack");
            target.with("what", what);
        }
    }
    target.0
}

/// The request target of a stream.
#[must_use]
pub fn watch(stream: Stream) -> &'static str {
    match stream {
        Stream::Events => WATCH,
        Stream::Neighbours => "/v1/watch?what=neigh",
    }
}

fn stream(parameters: &mut Parameters) -> Result<Stream, BadTarget> {
    match parameters.take("what").as_deref() {
        None => Ok(Stream::Events),
        Some("neigh") => Ok(Stream::Neighbours),
        Some(_) => Err(BadTarget::Parameter("what must be neigh, or absent".into())),
    }
}

fn selector(parameters: &mut Parameters) -> Result<Selector, BadTarget> {
    let ip = parameters.prefix("ip")?;
    let netns = parameters.take("netns");
    let pod = parameters.take("pod");
    let pid = parameters.take("pid");
    let given = [ip.is_some(), netns.is_some(), pod.is_some(), pid.is_some()];
    if given.iter().filter(|given| **given).count() > 1 {
        return Err(BadTarget::Parameter("give one of ip, netns, pod and pid, not several".into()));
    }
    let named = |name: String| Some(name).filter(|name| !name.is_empty());
    if let Some(netns) = netns {
        return Ok(Selector::Netns(named(netns)));
    }
    if let Some(pod) = pod {
        return Ok(Selector::Pod(named(pod)));
    }
    match pid.map(|pid| pid.parse()) {
        Some(Ok(pid)) => Ok(Selector::Pid(pid)),
        Some(Err(_)) => Err(BadTarget::Parameter("pid must be a process id, as pid=812".into())),
        None => Ok(Selector::Ip(ip)),
    }
}

/// Addresses of one question: an ADD has two, and eight are parked at most.
const MOST_IPS: usize = 64;

fn held(parameters: &mut Parameters) -> Result<HeldQuestion, BadTarget> {
    let wrong = |text: &str| BadTarget::Parameter(text.to_owned());
    let list = |value: Option<String>| -> Vec<String> {
        let value = value.unwrap_or_default();
        let parts = value.split(',').filter(|part| !part.is_empty());
        parts.take(MOST_IPS + 1).map(str::to_owned).collect()
    };
    let call = match parameters.take("call").as_deref() {
        Some("add") => HeldCall::Add,
        Some("del") => HeldCall::Del,
        _ => return Err(wrong("call must be add or del")),
    };
    let ips = list(parameters.take("ips"));
    let parked = list(parameters.take("parked"));
    if ips.len() > MOST_IPS || parked.len() > MOST_IPS {
        return Err(wrong("at most 64 addresses in one question"));
    }
    let ips: Result<Vec<IpAddr>, _> = ips.iter().map(|ip| ip.parse()).collect();
    let parked: Option<Vec<(IpAddr, u64)>> = parked
        .iter()
        .map(|one| {
            let (ip, cookie) = one.split_once('@')?;
            Some((ip.parse().ok()?, cookie.parse().ok()?))
        })
        .collect();
    let netns = parameters.take("netns").filter(|netns| !netns.is_empty());
    let netns = netns.map(|netns| netns.parse()).transpose();
    Ok(HeldQuestion {
        call,
        store: parameters.take("store").unwrap_or_default(),
        network: parameters.take("network").unwrap_or_default(),
        container: parameters.take("container").unwrap_or_default(),
        ifname: parameters.take("ifname").filter(|name| !name.is_empty()),
        ips: ips.map_err(|_| wrong("ips must be IPs, as ips=10.0.3.17,fd00::17"))?,
        netns: netns.map_err(|_| wrong("netns must be an inode, as netns=4026532008"))?,
        parked: parked
            .ok_or_else(|| wrong("parked must be IPs with cookies, as parked=10.0.3.17@812"))?,
    })
}

fn held_target(target: &mut Target, question: &HeldQuestion) {
    target.path("/v1/held");
    target.with("call", if question.call == HeldCall::Add { "add" } else { "del" });
    let named = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    target.optional("store", named(&question.store));
    target.optional("network", named(&question.network));
    target.optional("container", named(&question.container));
    target.optional("ifname", question.ifname.clone());
    let ips: Vec<String> = question.ips.iter().map(IpAddr::to_string).collect();
    target.optional("ips", named(&ips.join(",")));
    target.optional("netns", question.netns.map(|inode| inode.to_string()));
    let parked = question.parked.iter().map(|(ip, cookie)| format!("{ip}@{cookie}"));
    target.optional("parked", named(&parked.collect::<Vec<_>>().join(",")));
}

/// The decoded parameters of a query that nobody has asked for yet.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn read(query: &str) -> Result<Self, BadTarget> {
        let mut read: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if read.iter().any(|(known, _)| *known == name) {
                return Err(BadTarget::Parameter(format!("{name} is given twice")));
            }
            read.push((name, value));
        }
        Ok(Self(read))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    fn prefix(&mut self, name: &str) -> Result<Option<Prefix>, BadTarget> {
        match self.take(name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) => value
                .parse()
                .map(Some)
                .map_err(|why| BadTarget::Parameter(format!("{name}={value}: {why}"))),
        }
    }

    fn ip(&mut self, name: &str) -> Result<IpAddr, BadTarget> {
        let value = self.take(name).unwrap_or_default();
        let wrong = || BadTarget::Parameter(format!("{name} must be an IP, as {name}=10.0.3.17"));
        value.parse().map_err(|_| wrong())
    }

    /// A finding's id. It must not be empty: an empty prefix would match any finding.
    fn id(&mut self) -> Result<String, BadTarget> {
        let missing = || BadTarget::Parameter("what must be a finding's id, as what=k3f9".into());
        self.take("what").filter(|what| !what.is_empty()).ok_or_else(missing)
    }

    fn seconds(&mut self, name: &str) -> Result<Option<u64>, BadTarget> {
        /// A hundred years; longer values are rejected, as without end.
        const MOST: u64 = 100 * 366 * 86_400;
        let Some(value) = self.take(name).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let seconds = value.parse().ok().filter(|seconds| (1..=MOST).contains(seconds));
        let wrong = || BadTarget::Parameter(format!("{name} must be seconds, as {name}=3600"));
        seconds.map(Some).ok_or_else(wrong)
    }

    /// A date, as milliseconds since the Unix epoch.
    fn moment(&mut self, name: &str) -> Result<Option<i64>, BadTarget> {
        let Some(value) = self.take(name).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let wrong = || {
            BadTarget::Parameter(format!("{name} must be a date, as {name}=2026-01-01T03:12:00Z"))
        };
        value.parse().map(|date: Timestamp| Some(date.as_millisecond())).map_err(|_| wrong())
    }

    fn flag(&mut self, name: &str) -> Result<bool, BadTarget> {
        match self.take(name).as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(_) => Err(BadTarget::Parameter(format!("{name} must be true or false"))),
        }
    }

    fn finish(self, path: &str) -> Result<(), BadTarget> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(BadTarget::Parameter(format!("{path} takes no parameter {name}")))
            }
        }
    }
}

/// Decodes percent-encoding. `+` is kept: it means a space in forms, not in targets.
fn decode(text: &str) -> Result<String, BadTarget> {
    let malformed = || BadTarget::Parameter(format!("{text:?} is not percent-encoded UTF-8"));
    if text.len() > LONGEST_VALUE {
        return Err(BadTarget::Parameter(format!(
            "a parameter is over {LONGEST_VALUE} bytes long"
        )));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = tail;
            continue;
        }
        let [high, low, tail @ ..] = tail else { return Err(malformed()) };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (Some(high), Some(low)) = (digit(*high), digit(*low)) else { return Err(malformed()) };
        bytes.push((high * 16 + low) as u8);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| malformed())
}

/// A request target that is being built.
#[derive(Default)]
struct Target(String);

impl Target {
    fn path(&mut self, path: &str) {
        self.0.push_str(path);
    }

    fn optional(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value {
            self.with(name, &value);
        }
    }

    fn with(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z'
                | b'a'..=b'z'
                | b'0'..=b'9'
                | b'-'
                | b'.'
                | b'_'
                | b'~'
                | b'/'
                | b':' => self.0.push(char::from(byte)),
                // Writing to a String never fails.
                other => _ = write!(self.0, "%{other:02X}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(target: &str) -> Result<Route, BadTarget> {
        let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
        parse(path, query)
    }

    fn asked(target: &str) -> Ask {
        match read(target).unwrap() {
            Route::Ask(ask) => ask,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn targets_as_people_write_them() {
        let ip = Some("10.0.3.0/24".parse().unwrap());
        assert_eq!(asked("/v1/addresses"), Ask::Addresses(Selector::Ip(None)));
        assert_eq!(asked("/v1/addresses?ip=10.0.3.0%2F24"), Ask::Addresses(Selector::Ip(ip)));
        assert_eq!(asked("/v1/addresses?ip=10.0.3.0/24"), Ask::Addresses(Selector::Ip(ip)));
        assert_eq!(asked("/v1/addresses?netns"), Ask::Addresses(Selector::Netns(None)));
        let reach = Ask::Reach(Selector::Ip(ip));
        assert_eq!(asked("/v1/addresses?ip=10.0.3.0/24&reach"), reach);
        assert_eq!(asked("/v1/addresses?pid=812"), Ask::Addresses(Selector::Pid(812)));
        assert_eq!(
            asked("/v1/addresses?pod=shop/api-0"),
            Ask::Addresses(Selector::Pod(Some("shop/api-0".into())))
        );
        assert_eq!(asked("/v1/findings?all"), Ask::Findings { all: true, what: None });
        assert_eq!(
            asked("/v1/findings?what=k3f9"),
            Ask::Findings { all: false, what: Some("k3f9".into()) }
        );
        for stream in [Stream::Events, Stream::Neighbours] {
            assert_eq!(read(watch(stream)), Ok(Route::Watch(stream)));
        }
        assert!(read("/v1/watch?what=pods").is_err());
        assert_eq!(read("/v1/health"), Ok(Route::Health));
    }

    #[test]
    fn what_makes_no_sense_says_why() {
        assert_eq!(read("/v2/doctor"), Err(BadTarget::NoRoute("/v2/doctor".into())));
        for (target, says) in [
            ("/v1/addresses?ip=10.0.0", "10.0.3.17"),
            ("/v1/addresses?ip=10.0.0.1&pid=1", "one of"),
            ("/v1/addresses?pid=x", "process id"),
            ("/v1/check", "must be an IP"),
            ("/v1/check?ip=10.0.3.0/24", "must be an IP"),
            ("/v1/held?ips=10.0.3.17", "add or del"),
            ("/v1/held?call=add&ips=10.0.3.17,x", "must be IPs"),
            ("/v1/held?call=add&parked=10.0.3.17", "with cookies"),
            ("/v1/held?call=del&netns=x", "an inode"),
            ("/v1/doctor?ip=1.2.3.4", "takes no parameter ip"),
            ("/v1/ack", "a finding's id"),
            ("/v1/ack?what=k3f9&for=soon", "must be seconds"),
            ("/v1/ack?what=k3f9&for=0", "must be seconds"),
            ("/v1/unack?what=", "a finding's id"),
            ("/v1/history?at=yesterday", "must be a date"),
            ("/v1/findings?all=maybe", "true or false"),
            ("/v1/findings?what=a&what=b", "twice"),
            ("/v1/findings?what=%f", "percent-encoded"),
            ("/v1/findings?what=%ff", "percent-encoded"),
        ] {
            let error = read(target).unwrap_err().to_string();
            assert!(error.contains(says), "{target}: {error}");
        }
    }

    fn questions() -> impl Strategy<Value = HeldQuestion> {
        let call = prop_oneof![Just(HeldCall::Add), Just(HeldCall::Del)];
        let name = ".{1,20}";
        let ips = proptest::collection::vec(any::<IpAddr>(), 0..4);
        let parked = proptest::collection::vec((any::<IpAddr>(), any::<u64>()), 0..4);
        let netns = proptest::option::of(any::<u64>());
        (call, name, name, name, proptest::option::of(name), ips, netns, parked).prop_map(
            |(call, store, network, container, ifname, ips, netns, parked)| HeldQuestion {
                call,
                store,
                network,
                container,
                ifname,
                ips,
                netns,
                parked,
            },
        )
    }

    fn asks() -> impl Strategy<Value = Ask> {
        let prefix = proptest::option::of((any::<IpAddr>(), 0..=32_u8))
            .prop_map(|prefix| prefix.map(|(ip, len)| Prefix { ip, len }));
        let prefix_or_not = prefix.clone();
        let name = proptest::option::of(".{1,20}");
        prop_oneof![
            prefix.clone().prop_map(|prefix| Ask::Addresses(Selector::Ip(prefix))),
            prefix.clone().prop_map(|prefix| Ask::Reach(Selector::Ip(prefix))),
            name.clone().prop_map(|name| Ask::Addresses(Selector::Netns(name))),
            name.clone().prop_map(|name| Ask::Addresses(Selector::Pod(name))),
            any::<u32>().prop_map(|pid| Ask::Addresses(Selector::Pid(pid))),
            prefix.clone().prop_map(Ask::Neighbours),
            (prefix, name.clone(), proptest::option::of(0..4_102_444_800_000_i64))
                .prop_map(|(ip, pod, at)| Ask::History(Past { ip, pod, at })),
            (any::<bool>(), name.clone()).prop_map(|(all, what)| Ask::Findings { all, what }),
            (prefix_or_not, name.clone()).prop_map(|(ip, network)| Ask::Ipam { ip, network }),
            (any::<IpAddr>(), name).prop_map(|(ip, container)| Ask::Check { ip, container }),
            questions().prop_map(Ask::Held),
            Just(Ask::Doctor),
            Just(Ask::Canary),
            (".{1,20}", proptest::option::of(1..1_000_000_u64), proptest::option::of(".{1,20}"))
                .prop_map(|(what, seconds, note)| Ask::Ack { what, seconds, note }),
            ".{1,20}".prop_map(|what| Ask::Unack { what }),
        ]
    }

    proptest! {
        #[test]
        fn every_question_survives_the_wire(ask in asks()) {
            prop_assert_eq!(asked(&target(&ask)), ask);
        }

        #[test]
        fn no_target_panics(path in ".{0,40}", query in ".{0,80}") {
            let _ = parse(&path, Some(&query));
            let _ = parse("/v1/findings", Some(&query));
        }
    }
}
