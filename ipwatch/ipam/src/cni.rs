//! The CNI protocol, versions 0.3.1 to 1.1.0: the environment of a call, results and errors.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

/// The versions of the specification that are understood. A call with another version is passed to the delegate.
pub const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Reserve addresses for a container.
    Add,
    /// Free the addresses of a container.
    Del,
    /// Check whether they are still reserved.
    Check,
    /// Free the addresses of all containers that are not listed.
    Gc,
    /// Check whether an ADD could be served.
    Status,
    /// Report the supported versions.
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
    /// `CNI_CONTAINERID`; empty if the command has none.
    pub container: String,
    /// `CNI_NETNS`; empty if the runtime gives none.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: Vec<PathBuf>,
}

impl Environment {
    /// Reads it with `get`, which is `std::env::var_os` except in tests.
    ///
    /// # Errors
    /// `CNI_COMMAND` is missing or unknown.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, Failure> {
        let text = |name: &str| {
            let value = get(name).unwrap_or_default();
            value.into_string().unwrap_or_default()
        };
        let command = text("CNI_COMMAND");
        let command = Command::read(&command).ok_or_else(|| {
            // The text of CNI's `skel.getCmdArgsFromEnv`, which callers compare.
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

/// The error codes of CNI that this plugin uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// An environment variable is missing or wrong.
    Environment = 4,
    /// Reading or writing failed.
    Io = 5,
    /// The configuration is not valid JSON.
    Decode = 6,
    /// The configuration is invalid.
    Config = 7,
    /// Try again later.
    TryAgain = 11,
    /// Any other error.
    Other = 999,
}

/// An error of this plugin. Errors of the delegate are passed through unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}")]
pub struct Failure {
    /// Its code.
    pub code: Code,
    /// What is wrong, and what to do.
    pub msg: String,
}

impl Failure {
    /// An error with a code and a message.
    #[must_use]
    pub fn new(code: Code, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into() }
    }

    /// The error as a runtime reads it from the standard output.
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

/// The answer to `VERSION`. libcni gives no configuration with this command, so the delegate is not known.
#[must_use]
pub fn version_answer(asked: &str) -> Vec<u8> {
    let version = if asked.is_empty() { VERSIONS[VERSIONS.len() - 1] } else { asked };
    let answer = serde_json::json!({ "cniVersion": version, "supportedVersions": VERSIONS });
    format!("{answer}\n").into_bytes()
}

/// The addresses in a result of ADD. `None`: it could not be parsed.
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

/// The code and the message of an error from a delegate.
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
