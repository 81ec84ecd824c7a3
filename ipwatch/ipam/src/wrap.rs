//! Wraps the IPAM plugins in the text of a network configuration with `ipwatch-ipam`, and unwraps them.
//!
//! Only the value of `ipam` is replaced: `X` becomes `{"type": "ipwatch-ipam", "delegate": X}`. Every other byte stays as it
//! was, and unwrapping is the exact inverse. A configuration that is not understood is refused with the reason.

use std::ops::Range;

use serde_json::Value;

use crate::config::OWN;

/// IPAM plugins that can be wrapped: those whose stores ipwatch reads, and that give an address to a container id.
const KNOWN: [&str; 2] = ["host-local", "whereabouts"];
/// Main plugins that do not read `ipam` themselves. Others may: calico replaces `usePodCidr` only if the type is
/// `host-local`.
const MAINS: [&str; 6] = ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device"];
/// Maximum nesting of a configuration.
const DEEPEST: usize = 64;
/// Maximum nesting of lists of plugins: Multus in a list, and lists in Multus.
const DEEPEST_LISTS: usize = 4;

/// Whether an IPAM plugin is wrapped, or can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// `ipwatch-ipam` runs this IPAM plugin.
    Wrapped(String),
    /// This IPAM plugin is not wrapped, and can be.
    Plain(String),
    /// It cannot be wrapped, for this reason.
    Refused(String),
}

/// One plugin of a configuration that has, or could have, an IPAM plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// Its type.
    pub kind: String,
    /// Whether its IPAM plugin is wrapped, or can be.
    pub standing: Standing,
    /// Where the value of `ipam` is in the text.
    span: Range<usize>,
    /// Where the delegate's configuration is, within a wrapped one.
    delegate: Range<usize>,
}

/// A parsed configuration.
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
/// It is not a network configuration, or has a key twice.
pub fn read(text: &str) -> Result<Read, String> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| format!("it is not valid JSON: {error}"))?;
    let whole = value.as_object().ok_or("it is not a JSON object")?;
    let network = whole.get("name").and_then(Value::as_str).ok_or("it has no name")?.to_owned();
    let mut plugins = Vec::new();
    plugins_in(text, start(text, 0)?, 0, &mut plugins)?;
    // `edit` goes through them in the order of the text.
    plugins.sort_by_key(|plugin| plugin.span.start);
    Ok(Read { network, plugins })
}

/// Adds the plugins of the configuration that begins at `at`: of a list, those in `plugins`; of Multus, those of the
/// configurations in `delegates`; otherwise the configuration itself.
fn plugins_in(text: &str, at: usize, depth: usize, into: &mut Vec<Plugin>) -> Result<(), String> {
    if depth > DEEPEST_LISTS {
        return Err(odd());
    }
    let members = Scan(text).members(at)?;
    let lists = [member(&members, "plugins")?, member(&members, "delegates")?];
    if lists.iter().any(Option::is_some) {
        for list in lists.into_iter().flatten() {
            for body in Scan(text).elements(list)? {
                plugins_in(text, body.start, depth + 1, into)?;
            }
        }
        return Ok(());
    }
    let kind = string(text, member(&members, "type")?).unwrap_or_default();
    match member(&members, "ipam")? {
        Some(span) => into.push(ipam(text, kind, span)?),
        None => into.extend(
            refused_without(&kind)
                .map(|why| plain(kind.clone(), Standing::Refused(why.to_owned()), 0..0)),
        ),
    }
    Ok(())
}

fn plain(kind: String, standing: Standing, span: Range<usize>) -> Plugin {
    Plugin { kind, standing, span, delegate: 0..0 }
}

fn ipam(text: &str, kind: String, span: Range<usize>) -> Result<Plugin, String> {
    if text.as_bytes().get(span.start) != Some(&b'{') {
        return Ok(plain(kind, Standing::Refused("ipam is not an object".into()), span));
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
        return Ok(plain(kind, Standing::Refused("the delegate is not an object".into()), span));
    }
    let inner = Scan(text).members(delegate.start)?;
    let behind = string(text, member(&inner, "type")?).unwrap_or_default();
    Ok(Plugin { kind, standing: Standing::Wrapped(behind), span, delegate })
}

/// Why an IPAM plugin cannot be wrapped, and what to use instead.
fn refused(kind: &str) -> Option<String> {
    let why = match kind {
        kind if KNOWN.contains(&kind) => return None,
        "" => "ipam has no type",
        "calico-ipam" => {
            "Calico's IPAM has other options and frees addresses by handle. Use `ipwatch check IP`; the finding \
             ip-released-but-held warns before the next pod is given a held IP"
        }
        "dhcp" => "a DHCP server assigns the addresses",
        "static" => "the addresses are fixed in the configuration",
        _ => "ipwatch does not read its store",
    };
    Some(format!("ipam.type {kind}: {why}"))
}

/// Why the IPAM plugin of a main plugin cannot be wrapped.
fn refused_main(kind: &str) -> Option<String> {
    if MAINS.contains(&kind) {
        return None;
    }
    let why = match kind {
        "calico" => {
            "Calico changes the configuration of the IPAM plugins that it knows, and would not change a wrapped one. The \
             finding ip-released-but-held warns before the next pod is given a held IP"
        }
        _ => "this main plugin may read the configuration of its IPAM plugin itself",
    };
    Some(format!("type {kind}: {why}"))
}

/// Why a subnet cannot be passed to the IPAM plugin as it is: another program is to replace it.
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
    Some(format!("ipam.subnet {odd}: this is not a CIDR, and the main plugin must replace it"))
}

/// Why a main plugin without `ipam` in its configuration has no IPAM plugin that could be wrapped.
fn refused_without(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "flannel" => {
            "flannel writes the IPAM configuration itself. A configuration of bridge with host-local in its place can be \
             wrapped"
        }
        "cilium-cni" => {
            "Cilium's agent assigns addresses. The finding ip-released-but-held warns of a held IP"
        }
        "aws-cni" => "AWS' ipamd assigns addresses, and reuses an address 30 s after its release",
        "terway" => "Terway's daemon assigns addresses",
        "calico" => "Calico is configured without an IPAM plugin",
        _ => return None,
    })
}

/// The text with every IPAM plugin wrapped that can be. `None`: there is nothing to change.
///
/// # Errors
/// The configuration is not understood.
pub fn wrap(text: &str) -> Result<Option<String>, String> {
    edit(text, |text, plugin| {
        let before = text.get(plugin.span.clone())?;
        matches!(plugin.standing, Standing::Plain(_))
            .then(|| format!("{{\"type\": \"{OWN}\", \"delegate\": {before}}}"))
    })
}

/// The text with every wrapped IPAM plugin unwrapped. `None`: none is wrapped.
///
/// # Errors
/// The configuration is not understood.
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
    // From the end, so that the spans of the other plugins stay valid.
    for plugin in read.plugins.iter().rev() {
        if let Some(new) = new(text, plugin) {
            edited.replace_range(plugin.span.clone(), &new);
            changed = true;
        }
    }
    if !changed {
        return Ok(None);
    }
    // The result must be valid as well.
    self::read(&edited)?;
    Ok(Some(edited))
}

/// The spans of the key (in an object) and the value of an element.
type Part = (Option<Range<usize>>, Range<usize>);

/// The members of an object: the key and the span of the value.
type Members = Vec<(String, Range<usize>)>;

fn member(members: &Members, key: &str) -> Result<Option<Range<usize>>, String> {
    let mut found = members.iter().filter(|(own, _)| own == key);
    let first = found.next().map(|(_, span)| span.clone());
    match found.next() {
        Some(_) => Err(format!("it has the key {key:?} twice")),
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
    format!("its JSON is not understood, or is nested more than {DEEPEST} levels deep")
}

/// Finds values in a text that is known to be JSON.
struct Scan<'a>(&'a str);

impl Scan<'_> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.0.as_bytes().get(at).copied()
    }

    /// The position of the next byte that is not white space.
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

    /// The spans of the elements of a list.
    fn elements(&self, list: Range<usize>) -> Result<Vec<Range<usize>>, String> {
        let parts = self.parts(list.start, b'[').ok_or("plugins or delegates is not a list")?;
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
    fn what_multus_delegates_to_is_wrapped_as_well() {
        let multus = r#"{"name":"m","type":"multus","delegates":[
            {"name":"a","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]},
            {"name":"b","type":"macvlan","ipam":{"type":"whereabouts","range":"10.1.0.0/24"}},
            {"name":"c","type":"flannel"}]}"#;
        let wrapped = wrap(multus).unwrap().unwrap();
        let value: Value = serde_json::from_str(&wrapped).unwrap();
        assert_eq!(value["delegates"][0]["plugins"][0]["ipam"]["type"], OWN);
        assert_eq!(value["delegates"][1]["ipam"]["delegate"]["type"], "whereabouts");
        assert_eq!(unwrap(&wrapped).unwrap().as_deref(), Some(multus));
        let is_refused = |plugin: &Plugin| matches!(plugin.standing, Standing::Refused(_));
        assert!(read(multus).unwrap().plugins.iter().any(is_refused), "flannel is named");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (text, why) in [
            ("[]", "not a JSON object"),
            ("{", "not valid JSON"),
            (r#"{"type":"bridge"}"#, "no name"),
            (r#"{"name":"n","type":"bridge","ipam":{"type":"host-local"},"ipam":{}}"#, "twice"),
            (r#"{"name":"n","plugins":{}}"#, "not a list"),
            (r#"{"name":"n","type":"multus","delegates":{}}"#, "not a list"),
            (r#"{"name":"n","type":"multus","delegates":[1]}"#, "not understood"),
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
