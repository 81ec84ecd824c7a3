//! Completions: the script that has a shell ask this program, and the names that the running daemon knows. A shell that
//! waits for them is told nothing rather than late, and no error.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::CommandFactory as _;
use clap::builder::StyledStr;
use clap_complete::Shell;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};

use super::args::Cli;
use super::wait_for;
use crate::api::client::Client;
use crate::api::{Ask, Selector};
use crate::config::{Config, DEFAULT_SOCKET};
use crate::contract::{Address, Body, Pod};
use crate::finding::Code;

/// The variable by which the script asks.
const ASKS: &str = "IPWATCH_COMPLETE";
const NAME: &str = env!("CARGO_PKG_NAME");
/// A person has pressed a key and waits.
const PATIENCE: Duration = Duration::from_millis(500);
/// No shell shows more.
const MOST: usize = 4096;
/// Longest word that is offered, in bytes: a namespace and a pod with the longest names have 317.
const LONGEST: usize = 512;

/// Answers a shell that asks for completions; `false`: none does.
///
/// # Errors
/// It cannot be told: stdout is closed, or the shell is not known.
pub(super) fn answered(args: &[OsString]) -> Result<bool, clap::Error> {
    let here = std::env::current_dir().ok();
    CompleteEnv::with_factory(Cli::command).var(ASKS).bin(NAME).try_complete(args, here.as_deref())
}

/// The script that has a shell ask.
///
/// # Errors
/// The shell is not known.
pub(super) fn script(shell: Shell) -> io::Result<Vec<u8>> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string());
    let completer = completer.ok_or_else(|| io::Error::other("no script for this shell"))?;
    completer.write_registration(ASKS, NAME, NAME, NAME, &mut script)?;
    Ok(script)
}

/// IPs that are up, and whose.
pub(super) fn ips() -> Vec<CompletionCandidate> {
    offered(What::Ips, ask(&Ask::Addresses(Selector::Ip(None))))
}

/// Pods, with their namespaces.
pub(super) fn pods() -> Vec<CompletionCandidate> {
    offered(What::Pods, ask(&Ask::Addresses(Selector::Pod(None))))
}

/// Names of netns' mounts.
pub(super) fn netns() -> Vec<CompletionCandidate> {
    offered(What::Netns, ask(&Ask::Addresses(Selector::Netns(None))))
}

/// Networks that IPAM hands out IPs of.
pub(super) fn networks() -> Vec<CompletionCandidate> {
    offered(What::Networks, ask(&Ask::Ipam { ip: None, network: None }))
}

/// Ids of open findings.
pub(super) fn findings() -> Vec<CompletionCandidate> {
    offered(What::Findings, ask(&Ask::Findings { all: false, what: None }))
}

/// The same, and every code.
pub(super) fn findings_and_codes() -> Vec<CompletionCandidate> {
    let codes = Code::ALL.iter().map(|code| (code.to_string(), String::new()));
    findings().into_iter().chain(candidates(codes)).collect()
}

/// What is being typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Ips,
    Pods,
    Netns,
    Networks,
    Findings,
}

/// The words that an answer of the daemon has for it.
fn offered(what: What, answer: Option<Body>) -> Vec<CompletionCandidate> {
    let pod = |address: &Address| address.pod.as_ref().and_then(pod_name);
    let of_address = |address: Address| {
        let pod = pod(&address);
        Some(match what {
            What::Ips => (address.ip?.to_string(), pod.unwrap_or_default()),
            What::Pods => (pod?, String::new()),
            _ => {
                let name = address.netns.path.as_deref()?.rsplit('/').next()?.to_owned();
                (name, pod.unwrap_or_default())
            }
        })
    };
    match answer {
        Some(Body::Addresses(all)) => candidates(all.into_iter().filter_map(of_address)),
        Some(Body::Ranges(all)) => {
            candidates(all.into_iter().map(|range| (range.network, range.store)))
        }
        Some(Body::Findings(all)) => {
            candidates(all.into_iter().map(|finding| (finding.id, finding.code.to_string())))
        }
        _ => Vec::new(),
    }
}

fn pod_name(pod: &Pod) -> Option<String> {
    Some(format!("{}/{}", pod.namespace.as_deref()?, pod.name.as_deref()?))
}

/// What the daemon answers at once.
fn ask(what: &Ask) -> Option<Body> {
    let client = Client::new(socket(std::env::args().collect()));
    let answer = wait_for(async { tokio::time::timeout(PATIENCE, client.ask(what)).await });
    Some(answer.ok()?.ok()?.ok()?.body)
}

/// The socket that is named on the line that is being typed, else the configured one.
fn socket(words: Vec<String>) -> PathBuf {
    let mut named = None;
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.strip_prefix("--socket") {
            Some("") => named = words.next(),
            Some(path) => named = path.strip_prefix('=').map(str::to_owned).or(named),
            None => {}
        }
    }
    let configured = || Config::load(None).map_or(DEFAULT_SOCKET.into(), |config| config.socket);
    named.filter(|path| !path.is_empty()).map_or_else(configured, PathBuf::from)
}

/// Names, each with a word about it. One that a shell could take for anything else than a word is none.
fn candidates(all: impl Iterator<Item = (String, String)>) -> Vec<CompletionCandidate> {
    let mut all: Vec<(String, String)> = all.filter(|(name, _)| is_word(name)).collect();
    all.sort_unstable();
    all.dedup_by(|one, other| one.0 == other.0);
    all.truncate(MOST);
    let candidate = |(name, about): (String, String)| {
        let about = Some(about).filter(|about| is_word(about)).map(StyledStr::from);
        CompletionCandidate::new(name).help(about)
    };
    all.into_iter().map(candidate).collect()
}

fn is_word(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
    let is_long = text.len() > LONGEST;
    !text.is_empty() && !is_long && !text.starts_with('-') && text.bytes().all(fits)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cli::hostile;
    use crate::cli::show::sample;
    use crate::contract::Document;

    /// Each list that a shell is given when strangers have this word for everything: a word and what is said of it, a
    /// line.
    pub(in crate::cli) fn lists(word: &str) -> Vec<(String, String)> {
        lists_of(|name| hostile::document(name, word))
    }

    /// The same when the daemon answers with these documents.
    fn lists_of(answer: impl Fn(&str) -> Document) -> Vec<(String, String)> {
        let all = [
            (What::Ips, "query-ip.json"),
            (What::Pods, "query-netns.json"),
            (What::Netns, "query-netns.json"),
            (What::Networks, "query-ipam.json"),
            (What::Findings, "scan.json"),
        ];
        let list = |(what, name): (What, &str)| {
            let line = |one: &CompletionCandidate| {
                let word = one.get_value().to_string_lossy();
                format!("{word} {}\n", one.get_help().cloned().unwrap_or_default())
            };
            let words = offered(what, Some(answer(name).body));
            (format!("{what:?}"), words.iter().map(line).collect())
        };
        all.map(list).into()
    }

    #[test]
    fn each_is_offered_what_the_daemon_has_of_it() {
        let all = lists_of(sample);
        for (what, word) in [
            ("Ips", "10.0.3.17 shop/api-0\n"),
            ("Pods", "shop/api-0 \n"),
            ("Netns", "cni-7f3a11c2-0b8e-4d07-9a57-2d1f6a9c0e44 shop/api-0\n"),
            ("Networks", "cbr0 host-local\n"),
            ("Findings", "k3f9q2m7x5wz4a6b ip-held-by-stuck-process\n"),
        ] {
            let (_, text) = all.iter().find(|(name, _)| name == what).unwrap();
            assert!(text.contains(word), "{what}: {text}");
        }
    }

    #[test]
    fn only_plain_words_are_offered_and_each_once() {
        let names = ["shop/api-0", "-rf", "a b", "$(id)", "shop/api-0", "", "fd00::7", "x\u{1b}"];
        let all = candidates(names.iter().map(|name| ((*name).to_owned(), "a;b".to_owned())));
        let values: Vec<_> = all.iter().map(CompletionCandidate::get_value).collect();
        assert_eq!(values, ["fd00::7", "shop/api-0"]);
        assert!(all.iter().all(|one| one.get_help().is_none()), "a;b is no word");
    }

    #[test]
    fn the_socket_on_the_line_is_asked() {
        let of = |line: &str| socket(line.split(' ').map(str::to_owned).collect());
        assert_eq!(of("ipwatch --socket /a query pod "), PathBuf::from("/a"));
        assert_eq!(of("ipwatch --socket=/b ack "), PathBuf::from("/b"));
    }

    #[test]
    fn every_shell_has_a_script_that_asks() {
        use clap::ValueEnum as _;
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell).unwrap()).unwrap();
            assert!(script.contains(ASKS) && script.contains(NAME), "{shell}: {script}");
        }
    }
}
