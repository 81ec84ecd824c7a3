//! CNI's protocol: what a runtime puts into the environment, and what it reads from the standard output.
//!
//! Specification 0.3.1 to 1.1.0 (`CNI_COMMAND`s, and the error codes 0 to 99 that are CNI's own).

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

/// The versions of the specification that are understood. Those of a configuration that has another one are passed on.
pub const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Reserve addresses.
    Add,
    /// Give them back.
    Del,
    /// Are they still reserved?
    Check,
    /// Give back what is not among these.
    Gc,
    /// Could an ADD be served?
    Status,
    /// Which versions?
    Version,
}

impl Command {
    /// As the specification writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    fn read(text: &str) -> Option<Self> {
        let all = [Self::Add, Self::Del, Self::Check, Self::Gc, Self::Status, Self::Version];
        all.into_iter().find(|command| command.as_str() == text)
    }
}

/// The environment of a call.
#[derive(Debug, Clone)]
pub struct Environment {
    /// `CNI_COMMAND`.
    pub command: Command,
    /// `CNI_CONTAINERID`; empty where the command has none.
    pub container: String,
    /// `CNI_NETNS`; empty where the runtime knows none.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: Vec<PathBuf>,
}

impl Environment {
    /// Reads it by `get`, which is `std::env::var_os` but in tests.
    ///
    /// # Errors
    /// There is no command, or one that is none.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, Failure> {
        let text = |name: &str| {
            let value = get(name).unwrap_or_default();
            value.into_string().unwrap_or_default()
        };
        let command = text("CNI_COMMAND");
        let command = Command::read(&command).ok_or_else(|| {
            // In the words of CNI's own skeleton, which callers look for (`skel.getCmdArgsFromEnv`).
            Failure::new(Code::Environment, format!("unknown CNI_COMMAND: {command}"))
        })?;
        let path = get("CNI_PATH").unwrap_or_default();
        Ok(Self {
            command,
            container: text("CNI_CONTAINERID"),
            netns: text("CNI_NETNS"),
            ifname: text("CNI_IFNAME"),
            args: text("CNI_ARGS"),
            path: std::env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect(),
        })
    }

    /// The value of a key of `CNI_ARGS`.
    #[must_use]
    pub fn arg(&self, key: &str) -> Option<&str> {
        let mut pairs = self.args.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

/// CNI's codes of errors, as far as they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// An environment variable is missing or wrong.
    Environment = 4,
    /// Reading or writing failed.
    Io = 5,
    /// The configuration is no JSON.
    Decode = 6,
    /// The configuration says nothing that can be done.
    Config = 7,
    /// Try again later.
    TryAgain = 11,
    /// What has no code.
    Other = 999,
}

/// An error of this plugin itself. Those of the delegate are passed through as they are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}")]
pub struct Failure {
    /// Which.
    pub code: Code,
    /// What is wrong, and what to do.
    pub msg: String,
}

impl Failure {
    /// An error.
    #[must_use]
    pub fn new(code: Code, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into() }
    }

    /// As a runtime reads it.
    #[must_use]
    pub fn json(&self, version: &str) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Written<'a> {
            cni_version: &'a str,
            code: u32,
            msg: &'a str,
        }
        let written = Written { cni_version: version, code: self.code as u32, msg: &self.msg };
        let mut json = serde_json::to_vec(&written).unwrap_or_default();
        json.push(b'\n');
        json
    }
}

/// What `VERSION` answers: nothing is known of a delegate then, libcni gives no configuration.
#[must_use]
pub fn version_answer(asked: &str) -> Vec<u8> {
    let version = if asked.is_empty() { VERSIONS[VERSIONS.len() - 1] } else { asked };
    let answer = serde_json::json!({ "cniVersion": version, "supportedVersions": VERSIONS });
    format!("{answer}\n").into_bytes()
}

/// The addresses of a result of ADD. `None`: it is none that is understood.
#[must_use]
pub fn addresses(result: &[u8]) -> Option<Vec<IpAddr>> {
    let result: Value = serde_json::from_slice(result).ok()?;
    let ips = result.get("ips")?.as_array()?;
    let ip = |entry: &Value| {
        let address = entry.get("address")?.as_str()?;
        let (ip, _) = address.split_once('/')?;
        ip.parse::<IpAddr>().ok()
    };
    let all: Option<Vec<IpAddr>> = ips.iter().map(ip).collect();
    all.filter(|all| !all.is_empty())
}

/// The code and the words of an error that a delegate answered with.
#[must_use]
pub fn error_of(answer: &[u8]) -> Option<(u64, String)> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let msg = answer.get("msg").and_then(Value::as_str).unwrap_or_default();
    Some((answer.get("code")?.as_u64()?, msg.to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read() {
        let get = |name: &str| {
            Some(OsString::from(match name {
                "CNI_COMMAND" => "ADD",
                "CNI_CONTAINERID" => "abc",
                "CNI_ARGS" => "IgnoreUnknown=1;K8S_POD_NAME=web=0;IP=10.1.2.3",
                "CNI_PATH" => "/opt/cni/bin::/usr/lib/cni",
                _ => return None,
            }))
        };
        let read = Environment::read(get).unwrap();
        assert_eq!((read.command, read.container.as_str()), (Command::Add, "abc"));
        assert_eq!(read.path, [PathBuf::from("/opt/cni/bin"), PathBuf::from("/usr/lib/cni")]);
        assert_eq!(read.arg("K8S_POD_NAME"), Some("web=0"));
        assert_eq!(read.arg("IP"), Some("10.1.2.3"));
        assert_eq!(read.arg("K8S"), None);
        let wrong = Environment::read(|_| None).unwrap_err();
        assert_eq!((wrong.code, wrong.msg.as_str()), (Code::Environment, "unknown CNI_COMMAND: "));
    }

    #[test]
    fn addresses_are_all_or_none() {
        let of = |text: &str| addresses(text.as_bytes());
        let both = r#"{"ips":[{"address":"10.1.2.3/24"},{"version":"6","address":"fd00::3/64"}]}"#;
        assert_eq!(of(both).unwrap().len(), 2);
        for none in ["", "{}", r#"{"ips":[]}"#, r#"{"ips":[{"address":"10.1.2.3"}]}"#] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn an_error_is_cnis() {
        let json = Failure::new(Code::TryAgain, "later \"x\"").json("1.0.0");
        assert_eq!(error_of(&json), Some((11, "later \"x\"".to_owned())));
        let answer = String::from_utf8(version_answer("0.4.0")).unwrap();
        assert!(answer.contains("\"cniVersion\":\"0.4.0\"") && answer.contains("\"1.1.0\""));
    }
}
