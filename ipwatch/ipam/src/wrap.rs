//! Puts `ipwatch-ipam` into the text of a network configuration, and takes it out again.
//!
//! Only the value of `ipam` is replaced: `X` becomes `{"type": "ipwatch-ipam", "delegate": X}`, and back, so that every
//! other byte stays as a person or an installer has written it, and taking it out is the exact inverse. What is not
//! understood is refused with its reason, and nothing of its file is changed.

use std::ops::Range;

use serde_json::Value;

use crate::config::OWN;

/// IPAM plugins that can be wrapped: those whose stores ipwatch reads, and that give an address to a container id.
const KNOWN: [&str; 2] = ["host-local", "whereabouts"];
/// Main plugins that leave `ipam` to the IPAM plugin. Another one may read it: calico puts the node's CIDR in only where
/// it finds `host-local` there.
const MAINS: [&str; 6] = ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device"];
/// How deep a configuration may be.
const DEEPEST: usize = 64;

/// Where `ipwatch-ipam` stands in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Before this IPAM plugin.
    Wrapped(String),
    /// This one can be wrapped.
    Plain(String),
    /// It cannot be, for this reason.
    Refused(String),
}

/// One plugin of a configuration that has, or could have, an IPAM plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// Its type.
    pub kind: String,
    /// How it stands.
    pub standing: Standing,
    /// Where the value of `ipam` is in the text.
    span: Range<usize>,
    /// Where the delegate's configuration is, within a wrapped one.
    delegate: Range<usize>,
}

/// A configuration as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The network's name.
    pub network: String,
    /// Its plugins.
    pub plugins: Vec<Plugin>,
}

/// Reads a configuration: a list, or one plugin.
///
/// # Errors
/// It is no network configuration, or has a key twice.
pub fn read(text: &str) -> Result<Read, String> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?;
    let whole = value.as_object().ok_or("it is no JSON object")?;
    let network = whole.get("name").and_then(Value::as_str).ok_or("it has no name")?.to_owned();
    let top = Scan(text).members(start(text, 0)?)?;
    let bodies = match member(&top, "plugins")? {
        Some(list) => Scan(text).elements(list)?,
        None => Vec::from([Range { start: start(text, 0)?, end: text.len() }]),
    };
    let mut plugins = Vec::new();
    for body in bodies {
        let members = Scan(text).members(body.start)?;
        let kind = string(text, member(&members, "type")?).unwrap_or_default();
        let found = match member(&members, "ipam")? {
            Some(span) => ipam(text, kind, span)?,
            None => match refused_without(&kind) {
                Some(why) => plain(kind, Standing::Refused(why.to_owned()), 0..0),
                None => continue,
            },
        };
        plugins.push(found);
    }
    Ok(Read { network, plugins })
}

fn plain(kind: String, standing: Standing, span: Range<usize>) -> Plugin {
    Plugin { kind, standing, span, delegate: 0..0 }
}

fn ipam(text: &str, kind: String, span: Range<usize>) -> Result<Plugin, String> {
    if text.as_bytes().get(span.start) != Some(&b'{') {
        return Ok(plain(kind, Standing::Refused("ipam is no object".into()), span));
    }
    let members = Scan(text).members(span.start)?;
    let own = string(text, member(&members, "type")?).unwrap_or_default();
    if own != OWN {
        let why = refused(&own)
            .or_else(|| refused_main(&kind))
            .or_else(|| refused_subnet(text.get(span.clone()).unwrap_or_default()));
        let standing = why.map_or(Standing::Plain(own), Standing::Refused);
        return Ok(plain(kind, standing, span));
    }
    let Some(delegate) = member(&members, "delegate")? else {
        return Ok(plain(kind, Standing::Refused("ipwatch-ipam has no delegate".into()), span));
    };
    if text.as_bytes().get(delegate.start) != Some(&b'{') {
        return Ok(plain(kind, Standing::Refused("the delegate is no object".into()), span));
    }
    let inner = Scan(text).members(delegate.start)?;
    let behind = string(text, member(&inner, "type")?).unwrap_or_default();
    Ok(Plugin { kind, standing: Standing::Wrapped(behind), span, delegate })
}

/// Why an IPAM plugin cannot be wrapped, and what helps there.
fn refused(kind: &str) -> Option<String> {
    let why = match kind {
        kind if KNOWN.contains(&kind) => return None,
        "" => "ipam has no type",
        "calico-ipam" => {
            "Calico's IPAM is called with options of its own, and frees by handle: `ipwatch check IP`, and the finding \
             ip-released-but-held tells before the next pod has the IP"
        }
        "dhcp" => "the addresses are a DHCP server's",
        "static" => "the addresses are those of the configuration",
        _ => "ipwatch does not read its store",
    };
    Some(format!("ipam.type {kind}: {why}"))
}

/// Why an IPAM plugin cannot be wrapped below a main plugin.
fn refused_main(kind: &str) -> Option<String> {
    if MAINS.contains(&kind) {
        return None;
    }
    let why = match kind {
        "calico" => {
            "Calico changes the configuration of its IPAM plugin, and only of one that it knows: the finding \
             ip-released-but-held tells before the next pod has an IP that is held"
        }
        _ => "it may read the configuration of its IPAM plugin itself",
    };
    Some(format!("type {kind}: {why}"))
}

/// Why ranges cannot be those of an IPAM plugin as they are: somebody is to put the subnet in.
fn refused_subnet(ipam: &str) -> Option<String> {
    let ipam: Value = serde_json::from_str(ipam).ok()?;
    let sets = ipam.get("ranges").and_then(Value::as_array).into_iter().flatten();
    let ranges = sets.filter_map(Value::as_array).flatten().chain([&ipam]);
    let is_cidr = |subnet: &Value| {
        let parts = subnet.as_str().and_then(|subnet| subnet.split_once('/'));
        parts.is_some_and(|(ip, length)| {
            ip.parse::<std::net::IpAddr>().is_ok() && length.parse::<u8>().is_ok()
        })
    };
    let odd = ranges.filter_map(|range| range.get("subnet")).find(|subnet| !is_cidr(subnet))?;
    Some(format!("ipam.subnet {odd}: it is no CIDR, and is put in by whoever reads it"))
}

/// Main plugins that hand out addresses without an IPAM plugin of the configuration.
fn refused_without(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "flannel" => {
            "flannel writes the IPAM part of its delegate itself: a configuration of bridge with host-local can be \
             wrapped in its place"
        }
        "cilium-cni" => {
            "Cilium's agent hands out addresses: the finding ip-released-but-held tells of one that is held"
        }
        "aws-cni" => "AWS' ipamd hands out addresses, and cools them down for 30 s",
        "terway" => "Terway's daemon hands out addresses",
        "calico" => "Calico is configured without an IPAM plugin",
        _ => return None,
    })
}

/// The text with `ipwatch-ipam` before every IPAM plugin that can be wrapped. `None`: it is there already, or there is
/// none.
///
/// # Errors
/// What is not understood.
pub fn wrap(text: &str) -> Result<Option<String>, String> {
    edit(text, |text, plugin| {
        let before = text.get(plugin.span.clone())?;
        matches!(plugin.standing, Standing::Plain(_))
            .then(|| format!("{{\"type\": \"{OWN}\", \"delegate\": {before}}}"))
    })
}

/// The text without it. `None`: it is not there.
///
/// # Errors
/// What is not understood.
pub fn unwrap(text: &str) -> Result<Option<String>, String> {
    edit(text, |text, plugin| {
        let is_wrapped = matches!(plugin.standing, Standing::Wrapped(_));
        is_wrapped.then(|| text.get(plugin.delegate.clone()).map(str::to_owned)).flatten()
    })
}

fn edit(
    text: &str,
    new: impl Fn(&str, &Plugin) -> Option<String>,
) -> Result<Option<String>, String> {
    let read = read(text)?;
    let mut edited = text.to_owned();
    let mut changed = false;
    // From the end, so that the spans before stay true.
    for plugin in read.plugins.iter().rev() {
        if let Some(new) = new(text, plugin) {
            edited.replace_range(plugin.span.clone(), &new);
            changed = true;
        }
    }
    if !changed {
        return Ok(None);
    }
    // What a runtime cannot read is never written.
    self::read(&edited)?;
    Ok(Some(edited))
}

/// Where a part of a list or an object is: its key, if it has one, and its value.
type Part = (Option<Range<usize>>, Range<usize>);

/// A member of an object: its key and where its value is.
type Members = Vec<(String, Range<usize>)>;

fn member(members: &Members, key: &str) -> Result<Option<Range<usize>>, String> {
    let mut found = members.iter().filter(|(own, _)| own == key);
    let first = found.next().map(|(_, span)| span.clone());
    match found.next() {
        Some(_) => Err(format!("it has {key:?} twice")),
        None => Ok(first),
    }
}

fn string(text: &str, span: Option<Range<usize>>) -> Option<String> {
    serde_json::from_str(text.get(span?)?).ok()
}

fn start(text: &str, at: usize) -> Result<usize, String> {
    Scan(text).space(at).ok_or_else(odd)
}

fn odd() -> String {
    "its JSON is not understood".to_owned()
}

/// Finds values in a text that is known to be JSON.
struct Scan<'a>(&'a str);

impl Scan<'_> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.0.as_bytes().get(at).copied()
    }

    /// The next byte that is no white space.
    fn space(&self, mut at: usize) -> Option<usize> {
        while matches!(self.byte(at)?, b' ' | b'\t' | b'\r' | b'\n') {
            at += 1;
        }
        Some(at)
    }

    /// The end of the string that begins here.
    fn string(&self, at: usize) -> Option<usize> {
        let mut at = at + 1;
        loop {
            match self.byte(at)? {
                b'"' => return Some(at + 1),
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
    }

    /// The end of the value that begins here.
    fn value(&self, at: usize) -> Option<usize> {
        let (mut at, mut depth) = (at, 0_usize);
        loop {
            match self.byte(at)? {
                b'"' => at = self.string(at)?,
                b'{' | b'[' => {
                    depth += 1;
                    at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    at += 1;
                }
                _ if depth > 0 => at += 1,
                _ => {
                    while !matches!(
                        self.byte(at),
                        None | Some(b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n')
                    ) {
                        at += 1;
                    }
                }
            }
            if depth > DEEPEST {
                return None;
            }
            if depth == 0 {
                return Some(at);
            }
        }
    }

    /// The members of the object that begins here.
    fn members(&self, at: usize) -> Result<Members, String> {
        self.parts(at, b'{')
            .ok_or_else(odd)?
            .into_iter()
            .map(|(key, span)| {
                let key = string(self.0, key).ok_or_else(odd)?;
                Ok((key, span))
            })
            .collect()
    }

    /// The elements of the list that is there.
    fn elements(&self, list: Range<usize>) -> Result<Vec<Range<usize>>, String> {
        let parts = self.parts(list.start, b'[').ok_or("plugins is no list")?;
        Ok(parts.into_iter().map(|(_, span)| span).collect())
    }

    fn parts(&self, at: usize, open: u8) -> Option<Vec<Part>> {
        (self.byte(at)? == open).then_some(())?;
        let mut parts = Vec::new();
        let mut at = self.space(at + 1)?;
        loop {
            if matches!(self.byte(at)?, b'}' | b']') {
                return Some(parts);
            }
            let mut key = None;
            if open == b'{' {
                let end = self.string(at)?;
                key = Some(at..end);
                at = self.space(end)?;
                (self.byte(at)? == b':').then_some(())?;
                at = self.space(at + 1)?;
            }
            let end = self.value(at)?;
            parts.push((key, at..end));
            at = self.space(end)?;
            if self.byte(at)? == b',' {
                at = self.space(at + 1)?;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const LIST: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "net",
  "plugins": [
    { "type": "bridge", "x": "{\"ipam\": [", "ipam": { "type": "host-local",
        "ranges": [[{"subnet":"10.1.0.0/24"}]] } },
    {"type":"portmap","capabilities":{"portMappings":true}}
  ]
}
"#;

    #[test]
    fn out_is_the_exact_inverse_of_in() {
        let wrapped = wrap(LIST).unwrap().unwrap();
        let value: Value = serde_json::from_str(&wrapped).unwrap();
        let before: Value = serde_json::from_str(LIST).unwrap();
        let ipam = &value["plugins"][0]["ipam"];
        assert_eq!(
            (ipam["type"].as_str(), &ipam["delegate"]),
            (Some(OWN), &before["plugins"][0]["ipam"])
        );
        assert_eq!(wrap(&wrapped).unwrap(), None, "it is idempotent");
        assert_eq!(unwrap(&wrapped).unwrap().as_deref(), Some(LIST));
        assert_eq!(unwrap(LIST).unwrap(), None);
        let read = read(&wrapped).unwrap();
        assert_eq!(read.network, "net");
        assert_eq!(read.plugins[0].standing, Standing::Wrapped("host-local".into()));
        assert_eq!(read.plugins.len(), 1);
    }

    #[test]
    fn one_plugin_and_several() {
        let one = r#" {"name":"n","type":"macvlan","ipam":{"type":"whereabouts"},"n":1}"#;
        let wrapped = wrap(one).unwrap().unwrap();
        assert_eq!(unwrap(&wrapped).unwrap().as_deref(), Some(one));
        let two = r#"{"name":"n","plugins":[{"type":"ptp","ipam":{"type":"host-local"}},{"type":"vlan","ipam":{"type":"host-local","b":1}}]}"#;
        let wrapped = wrap(two).unwrap().unwrap();
        assert_eq!(wrapped.matches(OWN).count(), 2);
        assert_eq!(unwrap(&wrapped).unwrap().as_deref(), Some(two));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (text, why) in [
            ("[]", "no JSON object"),
            ("{", "no JSON"),
            (r#"{"type":"bridge"}"#, "no name"),
            (r#"{"name":"n","type":"bridge","ipam":{"type":"host-local"},"ipam":{}}"#, "twice"),
            (r#"{"name":"n","plugins":{}}"#, "no list"),
        ] {
            let error = wrap(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        for kind in ["calico-ipam", "dhcp", "static", "unknown", ""] {
            let text = format!(r#"{{"name":"n","type":"bridge","ipam":{{"type":"{kind}"}}}}"#);
            assert_eq!(wrap(&text).unwrap(), None, "{kind}");
            let standing = &read(&text).unwrap().plugins[0].standing;
            assert!(matches!(standing, Standing::Refused(_)), "{kind}: {standing:?}");
        }
        for kind in ["flannel", "cilium-cni", "aws-cni", "terway"] {
            let text = format!(r#"{{"name":"n","plugins":[{{"type":"{kind}"}}]}}"#);
            let standing = &read(&text).unwrap().plugins[0].standing;
            assert!(matches!(standing, Standing::Refused(_)), "{kind}: {standing:?}");
        }
        for (kind, ipam) in [
            ("calico", r#"{"type":"host-local","subnet":"usePodCidr"}"#),
            ("calico", r#"{"type":"host-local","subnet":"10.1.0.0/24"}"#),
            ("other", r#"{"type":"host-local","subnet":"10.1.0.0/24"}"#),
            ("bridge", r#"{"type":"host-local","subnet":"usePodCidr"}"#),
            ("bridge", r#"{"type":"host-local","ranges":[[{"subnet":"10.1.0.0"}]]}"#),
        ] {
            let text = format!(r#"{{"name":"n","plugins":[{{"type":"{kind}","ipam":{ipam}}}]}}"#);
            assert_eq!(wrap(&text).unwrap(), None, "{kind} {ipam}");
            let standing = &read(&text).unwrap().plugins[0].standing;
            assert!(matches!(standing, Standing::Refused(_)), "{kind} {ipam}: {standing:?}");
        }
        let deep = format!(r#"{{"name":"n","x":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
        assert!(wrap(&deep).is_err());
    }
}
