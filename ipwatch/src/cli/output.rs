//! Writes answers: the formats that all commands share, and stdout.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use clap::ColorChoice;
use serde::Serialize;

use super::args::{Format, Global};
use super::table::Paint;
use super::text::{self, Now};
use super::view::View;
use super::{Failure, show};
use crate::contract::{Body, Document};
use crate::escape::escape;

/// How a command prints its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Out {
    pub(super) format: Format,
    headers: bool,
    paint: Paint,
    /// Width of the terminal in columns, if stdout is one.
    width: Option<usize>,
    ascii: bool,
}

impl Out {
    pub(super) fn new(global: &Global) -> Self {
        let color = match global.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => wants_colour(),
        };
        Self {
            format: global.format(),
            headers: !global.no_headers,
            paint: Paint(color),
            width: width(),
            ascii: !is_utf8(|name| std::env::var_os(name)),
        }
    }

    /// Without the options of `ipwatch`: for the plugin of kubectl.
    pub(super) fn of(format: Format) -> Self {
        let color = wants_colour();
        let ascii = !is_utf8(|name| std::env::var_os(name));
        Self { format, headers: true, paint: Paint(color), width: width(), ascii }
    }

    /// The layout at this time.
    pub(super) fn view_at(&self, date: &str, all: bool) -> View {
        View {
            now: Now::at(date),
            wide: self.format == Format::Wide,
            headers: self.headers,
            all,
            asked: true,
            pods: false,
            paint: self.paint,
            width: self.width,
            ascii: self.ascii,
        }
    }

    /// Whether the format is for people.
    pub(super) fn for_people(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide | Format::Tree)
    }

    /// The layout for this document.
    pub(super) fn view(&self, document: &Document) -> View {
        self.view_at(&document.taken_at, false)
    }

    /// Prints a document; `all` as in [`View::all`].
    pub(super) fn document(&self, document: &Document, all: bool) -> Result<(), Failure> {
        self.raw(self.render(document, View { all, ..self.view(document) })?.as_bytes())
    }

    /// The text of a document in the chosen format; `view` is the layout of formats for people.
    pub(super) fn render(&self, document: &Document, view: View) -> Result<String, Failure> {
        match self.format {
            Format::Table | Format::Wide => Ok(show::document(document, view)),
            Format::Tree => Ok(show::trees(document, &[], view)),
            Format::Json => json(document),
            Format::Jsonl => json_lines(&document.body),
            Format::Yaml => yaml(document),
            Format::Name => Ok(names(&document.body)),
        }
    }

    /// Prints bytes unchanged, except that text for people is in ASCII if the locale is not UTF-8.
    pub(super) fn raw(&self, bytes: &[u8]) -> Result<(), Failure> {
        let own = std::str::from_utf8(bytes).ok().filter(|_| self.ascii && self.for_people());
        let own = own.map(text::in_ascii);
        let bytes = own.as_deref().map_or(bytes, str::as_bytes);
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => anyhow::anyhow!("cannot write the answer: {error}: look where stdout goes").into(),
        })
    }

    /// Clears the terminal, if stdout is one.
    pub(super) fn clear(&self) -> Result<(), Failure> {
        if self.for_people() && io::stdout().is_terminal() {
            self.raw(b"\x1b[2J\x1b[H")?;
        }
        Ok(())
    }

    pub(super) fn paint(&self) -> Paint {
        self.paint
    }

    /// Whether the locale has ASCII alone.
    pub(super) fn is_ascii(&self) -> bool {
        self.ascii
    }
}

/// Whether stdout is a terminal on which colours are not unwanted (`NO_COLOR`).
fn wants_colour() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !unwanted && io::stdout().is_terminal()
}

/// Width of the terminal in columns, if stdout is a terminal that reports it.
fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Whether the locale uses UTF-8, determined as in setlocale(3): the first variable that is set decides.
fn is_utf8(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let mut names = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter();
    let locale = names.find_map(|name| variable(name).filter(|value| !value.is_empty()));
    let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

fn json(document: &Document) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(document).map_err(anyhow::Error::from)?;
    text.push('\n');
    Ok(quiet(&text))
}

fn json_lines(body: &Body) -> Result<String, Failure> {
    fn lines<T: Serialize>(items: &[T]) -> Result<String, serde_json::Error> {
        let mut text = String::new();
        for item in items {
            text.push_str(&serde_json::to_string(item)?);
            text.push('\n');
        }
        Ok(text)
    }
    let text = match body {
        Body::Addresses(items) => lines(items),
        Body::Findings(items) => lines(items),
        Body::Neighbours(items) => lines(items),
        Body::History(items) => lines(items),
        Body::Probes(items) => lines(items),
        Body::Ranges(items) => lines(items),
        Body::Verdict(verdict) => lines(std::slice::from_ref(verdict)),
        Body::Cluster(cluster) => lines(&cluster.findings),
        Body::Fix(fix) => lines(&fix.items),
        Body::Held(held) => lines(&held.addresses),
    };
    Ok(quiet(&text.map_err(anyhow::Error::from)?))
}

/// Escapes JSON for terminals without changing its meaning: serde_json escapes what JSON requires (U+0000 to U+001F),
/// but not C1 controls and bidi overrides, on which terminals act too.
pub(super) fn quiet(json: &str) -> String {
    spell_out(json, |c, text| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    })
}

/// Copies JSON, but calls `spelt` for characters that must not reach a terminal.
fn spell_out(json: &str, spelt: impl Fn(char, &mut String)) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        // Outside strings JSON is plain ASCII, and strings contain no raw newline.
        let harmless = matches!(c, ' '..='~' | '\n')
            || matches!(escape(c.encode_utf8(&mut [0; 4])), Cow::Borrowed(_));
        if harmless { text.push(c) } else { spelt(c, &mut text) }
    }
    text
}

/// YAML that is safe to print. The emitter escapes control characters, but not bidi overrides; a document with such
/// characters is written in YAML's JSON form, in which every string can be escaped.
fn yaml(item: &impl Serialize) -> Result<String, Failure> {
    let text = serde_norway::to_string(item).map_err(anyhow::Error::from)?;
    if text.lines().all(|line| matches!(escape(line), Cow::Borrowed(_))) {
        return Ok(text);
    }
    let json = serde_json::to_string_pretty(item).map_err(anyhow::Error::from)? + "\n";
    // YAML has no surrogates.
    Ok(spell_out(&json, |c, text| text.push_str(&format!("\\U{:08x}", u32::from(c)))))
}

/// One item of a stream, as a separate YAML document.
pub(super) fn yaml_item(item: &impl Serialize) -> Result<String, Failure> {
    Ok(format!("---\n{}", yaml(item)?))
}

fn names(body: &Body) -> String {
    let mut names: Vec<String> = match body {
        Body::Addresses(items) => items.iter().map(text::address_name).collect(),
        Body::Findings(items) => items.iter().map(|finding| finding.id.clone()).collect(),
        Body::Neighbours(items) => items.iter().map(|entry| entry.ip.to_string()).collect(),
        Body::History(items) => items.iter().map(|tenure| tenure.ip.to_string()).collect(),
        Body::Probes(items) => items.iter().map(|probe| probe.event.clone()).collect(),
        Body::Ranges(items) => items.iter().map(|range| range.network.clone()).collect(),
        Body::Verdict(verdict) => vec![verdict.ip.to_string()],
        Body::Cluster(cluster) => cluster.findings.iter().map(text::cluster_name).collect(),
        Body::Fix(fix) => fix.items.iter().map(text::fix_name).collect(),
        Body::Held(held) => held.addresses.iter().map(|one| one.ip.to_string()).collect(),
    };
    names.dedup();
    names.iter().map(|name| format!("{}\n", escape(name))).collect()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::cli::show::sample;

    /// A hostile process name.
    const EVIL: &str = "a\u{1b}[2J\u{9b}1m\u{202e}\u{7f}\u{e0041}\"\n#";

    /// A document with such a name.
    fn hostile() -> Document {
        let mut document = sample("scan.json");
        let Body::Findings(findings) = &mut document.body else { panic!("findings") };
        findings[0].holders[0].comm = Some(EVIL.into());
        document
    }

    /// A document of addresses in which every text of others is hostile.
    fn hostile_addresses() -> Document {
        let evil = || Some(EVIL.repeat(20));
        let mut document = sample("query-netns.json");
        let Body::Addresses(addresses) = &mut document.body else { panic!("addresses") };
        for address in addresses {
            address.netns.path = evil();
            for holder in &mut address.holders {
                (holder.comm, holder.mount_path, holder.socket) = (evil(), evil(), evil());
            }
            let (pod, container) = (&mut address.pod, &mut address.container);
            let (pod, container) = (pod.get_or_insert_default(), container.get_or_insert_default());
            (pod.namespace, pod.name, pod.uid, pod.state) = (evil(), evil(), evil(), evil());
            (container.name, container.id, container.state) = (evil(), evil(), evil());
            container.runtime = evil();
        }
        document
    }

    fn out(format: Format) -> Out {
        Out { format, headers: true, paint: Paint(false), width: None, ascii: false }
    }

    fn rendered(format: Format, document: &Document) -> String {
        let out = out(format);
        out.render(document, View { all: true, ..out.view(document) }).unwrap()
    }

    #[test]
    fn json_is_exact_and_safe_to_print() {
        let document = hostile();
        let text = rendered(Format::Json, &document);
        assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), document);
        assert!(text.contains(r"\u001b[2J\u009b1m\u202e\u007f\udb40\udc41"), "{text}");
        let lines = rendered(Format::Jsonl, &document);
        assert_eq!(lines.lines().count(), 3);
        for line in lines.lines() {
            serde_json::from_str::<crate::finding::Finding>(line).unwrap();
        }
    }

    #[test]
    fn yaml_is_exact() {
        let document = hostile();
        let text = rendered(Format::Yaml, &document);
        assert_eq!(serde_norway::from_str::<Document>(&text).unwrap(), document);
    }

    #[test]
    fn the_first_variable_that_is_set_tells_the_locale() {
        let locale = |set: &[(&str, &str)]| {
            is_utf8(|name| {
                let value = set.iter().find(|(known, _)| *known == name)?.1;
                Some(value.into())
            })
        };
        assert!(locale(&[("LANG", "de_DE.UTF-8")]));
        assert!(locale(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8"), ("LANG", "C")]));
        assert!(!locale(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]));
        assert!(!locale(&[]));
    }

    #[test]
    fn no_format_lets_a_terminal_be_steered() {
        for format in Format::value_variants() {
            for document in [hostile(), hostile_addresses()] {
                let text = rendered(*format, &document);
                for line in text.lines() {
                    assert_eq!(escape(line), line, "{format:?}");
                }
            }
        }
    }

    #[test]
    fn names_are_what_other_commands_take() {
        let names = |name| rendered(Format::Name, &sample(name));
        let ids = "k3f9q2m7x5wz4a6b\np81cn3t6v2ye7rkd\nr7d2h5kq4wz6xa3m\n";
        assert_eq!(names("scan.json"), ids);
        assert_eq!(names("query-history.json"), "10.0.3.17\n");
        assert!(names("query-netns.json").ends_with("netns/4026532340\n"));
    }
}
