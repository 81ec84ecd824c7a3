//! Runs a credential plugin, as cloud providers use them (`client-go`, `plugin/pkg/client/auth/exec`). Only for
//! commands that a person runs.
//!
//! Its output is read up to a limit, and waited for no longer than a person needs to log in. The output is never shown;
//! its standard error is the person's.

use std::fmt;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::kubeconfig::{Exec, Interactive, Secret};

/// The supported versions of the protocol.
const VERSIONS: [&str; 2] =
    ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// Maximum size in bytes of the output: a certificate chain and a key.
const LIMIT: usize = 1 << 20;
/// A person may have to log in, for example in a browser.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between two checks whether it has ended.
const LOOK: Duration = Duration::from_millis(10);
/// How long before its credential expires the plugin is run again.
const EARLY: SignedDuration = SignedDuration::from_secs(60);

/// Why the plugin returned no credential. Without its output.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    #[error("the kubeconfig's credential program (exec) cannot be run: {0}")]
    Start(#[from] io::Error),
    #[error(
        "the program that names its user speaks another version than client.authentication.k8s.io/v1 and v1beta1"
    )]
    Version,
    #[error(
        "the kubeconfig's credential program (exec) needs a terminal (interactiveMode: Always): use a service account or a certificate"
    )]
    NoTerminal,
    #[error("the kubeconfig's credential program (exec) does not answer within {0:?}")]
    Silent(Duration),
    #[error("the kubeconfig's credential program (exec) returned no usable credentials")]
    Useless,
}

pub(super) struct Program {
    exec: Exec,
    command: String,
    /// The description of the cluster, if the plugin wants it.
    cluster: Option<Value>,
    patience: Duration,
}

/// The plugin's answer.
pub(super) struct Credential {
    pub(super) token: Option<Secret>,
    /// A certificate and its key, in PEM.
    pub(super) identity: Option<Secret>,
    until: Option<Timestamp>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Program(hidden)")
    }
}

impl Credential {
    /// Whether it does not expire soon.
    pub(super) fn is_good(&self) -> bool {
        self.until.is_none_or(|until| Timestamp::now().duration_until(until) > EARLY)
    }
}

/// The plugin's output, `ExecCredential`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    kind: String,
    api_version: String,
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<Secret>,
    client_certificate_data: Option<String>,
    client_key_data: Option<Secret>,
}

impl Program {
    /// `dir`: the directory of the kubeconfig, to which a command with a `/` is relative. `cluster`: the description of
    /// the cluster for plugins that want it.
    pub(super) fn new(exec: Exec, dir: &Path, cluster: Value) -> Result<Self, ProgramError> {
        if !VERSIONS.iter().any(|one| Some(*one) == exec.api_version.as_deref()) {
            return Err(ProgramError::Version);
        }
        let command = exec.command.clone().unwrap_or_default();
        let command = match command.contains('/') {
            true => dir.join(&command).to_string_lossy().into_owned(),
            false => command,
        };
        let cluster = exec.provide_cluster_info.then_some(cluster);
        Ok(Self { exec, command, cluster, patience: PATIENCE })
    }

    /// Runs the plugin. Never call it on an async worker.
    pub(super) fn run(&self) -> Result<Credential, ProgramError> {
        let deadline = Instant::now() + self.patience;
        let mut child = self.command()?.spawn()?;
        let said = self.hear(&mut child, deadline);
        if said.is_err() {
            // It may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.read(&said?)
    }

    fn command(&self) -> Result<Command, ProgramError> {
        let terminal = io::stdin().is_terminal();
        let interactive = match self.exec.interactive_mode {
            Some(Interactive::Never) => false,
            Some(Interactive::Always) if !terminal => return Err(ProgramError::NoTerminal),
            _ => terminal,
        };
        let mut spec = json!({ "interactive": interactive });
        if let Some(cluster) = &self.cluster {
            spec["cluster"] = cluster.clone();
        }
        let version = self.exec.api_version.as_deref();
        let info = json!({ "kind": "ExecCredential", "apiVersion": version, "spec": spec });
        let mut command = Command::new(&self.command);
        command.args(self.exec.args.iter().flatten());
        command.envs(self.exec.env.iter().flatten().map(|one| (&one.name, &one.value)));
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        command.stdin(if interactive { Stdio::inherit() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        Ok(command)
    }

    /// The output, if the plugin ends successfully.
    fn hear(&self, child: &mut Child, deadline: Instant) -> Result<Vec<u8>, ProgramError> {
        let out = child.stdout.take().ok_or(ProgramError::Useless)?;
        let (told, came) = mpsc::sync_channel(1);
        thread::Builder::new().name("credentials".to_owned()).spawn(move || {
            let mut text = Vec::new();
            let read = out.take(LIMIT as u64 + 1).read_to_end(&mut text);
            let _ = told.send(read.map(|_| text));
        })?;
        let silent = ProgramError::Silent(self.patience);
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(text) = came.recv_timeout(left) else { return Err(silent) };
        let text = text?;
        if text.len() > LIMIT {
            return Err(ProgramError::Useless);
        }
        loop {
            match child.try_wait()? {
                Some(status) if status.success() => return Ok(text),
                Some(_) => return Err(ProgramError::Useless),
                None if Instant::now() >= deadline => return Err(silent),
                None => thread::sleep(LOOK),
            }
        }
    }

    /// Usually JSON; some print YAML, which client-go accepts too.
    fn read(&self, text: &[u8]) -> Result<Credential, ProgramError> {
        let answer: Option<Answer> = serde_json::from_slice(text).ok();
        let answer = answer.or_else(|| serde_norway::from_slice(text).ok());
        let answer = answer.ok_or(ProgramError::Useless)?;
        if answer.kind != "ExecCredential" {
            return Err(ProgramError::Useless);
        }
        if Some(&answer.api_version) != self.exec.api_version.as_ref() {
            return Err(ProgramError::Version);
        }
        let status = answer.status;
        let until = status.expiration_timestamp.map(|text| text.parse::<Timestamp>()).transpose();
        let until = until.map_err(|_| ProgramError::Useless)?;
        let identity = match (status.client_certificate_data, status.client_key_data) {
            (Some(certificate), Some(Secret(key))) => {
                Some(Secret(format!("{certificate}\n{key}\n")))
            }
            (None, None) => None,
            _ => return Err(ProgramError::Useless),
        };
        let token = status.token.filter(|token| !token.0.trim().is_empty());
        if token.is_none() && identity.is_none() {
            return Err(ProgramError::Useless);
        }
        Ok(Credential { token, identity, until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = VERSIONS[0];

    /// A plugin that runs this shell script, with `$1` and `$WORD`.
    fn program(script: &str) -> Program {
        let exec = json!({
            "apiVersion": V1,
            "command": "sh",
            "args": ["-c", script, "sh", "argument"],
            "env": [{ "name": "WORD", "value": "variable" }],
            "interactiveMode": "Never",
            "provideClusterInfo": true,
        });
        let exec = serde_json::from_value(exec).unwrap();
        Program::new(exec, Path::new("/"), json!({ "server": "https://a" })).unwrap()
    }

    fn says(status: &Value) -> String {
        let text = json!({ "kind": "ExecCredential", "apiVersion": V1, "status": status });
        format!("echo '{text}'")
    }

    #[test]
    fn it_is_told_what_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("told");
        let script = format!(
            "echo \"$1 $WORD $KUBERNETES_EXEC_INFO\" > {}; {}",
            path.display(),
            says(&json!({ "token": "t" }))
        );
        let told = program(&script).run().unwrap();
        assert_eq!(told.token, Some(Secret("t".to_owned())));
        let told = crate::bounded::read_regular(&path, 1 << 16).unwrap().bytes;
        let told = String::from_utf8(told).unwrap();
        let info = told.strip_prefix("argument variable ").unwrap();
        let spec = json!({ "interactive": false, "cluster": { "server": "https://a" } });
        let whole = json!({ "kind": "ExecCredential", "apiVersion": V1, "spec": spec });
        assert_eq!(serde_json::from_str::<Value>(info).unwrap(), whole);
    }

    #[test]
    fn what_expires_is_good_until_a_minute_before() {
        let at = |seconds: i64| {
            let until = Timestamp::now() + SignedDuration::from_secs(seconds);
            program(&says(&json!({ "token": "t", "expirationTimestamp": until.to_string() })))
                .run()
                .unwrap()
                .is_good()
        };
        assert_eq!((at(3600), at(30), at(-5)), (true, false, false));
        assert!(program(&says(&json!({ "token": "t" }))).run().unwrap().is_good());
    }

    #[test]
    fn a_certificate_and_its_key_or_yaml_will_do() {
        let pair = json!({ "clientCertificateData": "c", "clientKeyData": "k" });
        let told = program(&says(&pair)).run().unwrap();
        assert_eq!((told.token, told.identity), (None, Some(Secret("c\nk\n".to_owned()))));
        let yaml =
            format!("printf 'kind: ExecCredential\\napiVersion: {V1}\\nstatus: {{token: t}}\\n'");
        assert!(program(&yaml).run().unwrap().token.is_some());
    }

    #[test]
    fn what_is_of_no_use_is_said_and_not_quoted() {
        let half = says(&json!({ "clientCertificateData": "hunter2" }));
        let other = says(&json!({ "token": "hunter2" })).replace("/v1", "/v1beta1");
        let torn = "echo '{\"kind\": \"hunter2'".to_owned();
        let long = format!("head -c {} /dev/zero", LIMIT + 1);
        let failed = format!("{}; exit 3", says(&json!({ "token": "hunter2" })));
        for script in [half, says(&json!({})), torn, long, failed] {
            let error = program(&script).run().err().unwrap().to_string();
            assert!(error.ends_with("returned no usable credentials"), "{script}: {error}");
        }
        let error = program(&other).run().err().unwrap();
        assert!(matches!(error, ProgramError::Version), "{error}");
        let old = json!({ "apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "sh" });
        let old = Program::new(serde_json::from_value(old).unwrap(), Path::new("/"), json!({}));
        assert!(matches!(old.unwrap_err(), ProgramError::Version));
    }

    #[test]
    fn one_that_hangs_is_ended() {
        let mut hangs = program("exec sleep 1000");
        hangs.patience = Duration::from_millis(100);
        let began = Instant::now();
        assert!(matches!(hangs.run().err().unwrap(), ProgramError::Silent(_)));
        assert!(began.elapsed() < Duration::from_secs(500));
        // The output has ended, but the plugin has not.
        let mut hangs = program("exec sleep 1000 >&-");
        hangs.patience = Duration::from_millis(100);
        assert!(matches!(hangs.run().err().unwrap(), ProgramError::Silent(_)));
    }
}
