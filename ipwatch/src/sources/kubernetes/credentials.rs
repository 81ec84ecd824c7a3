//! The API server's address and our identity: a pod's service account, or a kubeconfig.
//!
//! Every file is read up to a limit, and again after a failure; a token file is read for each request, on a thread. A
//! daemon on every node must not run a program that a kubeconfig names, skip the verification of the server, or use a
//! proxy. The content of these files is never logged.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use rustls::pki_types::ServerName;
use serde_json::json;

use super::client::Api;
use super::connection::ServerAddress;
use super::error::ApiError;
use super::kubeconfig::{self, Cluster, Secret, User};
use super::program::Program;
use crate::sources::errors::within;
use crate::{bounded, tls};

/// Maximum size in bytes of each file that is read here.
const LIMIT: usize = 1 << 20;
/// The directory of a pod's service account.
const IN_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The same below the node's root (`--host-root`), where the manifests mount it.
const IN_HOST_ROOT: &str = "/etc/ipwatch-api";
/// The step of reading the credentials, in errors.
const WHAT: &str = "the credentials";
const NO_AUTHORITY: &str = "TLS: the certificate authority is no PEM";

/// Where the credentials come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// A kubeconfig. A program in it is not run.
    Kubeconfig(PathBuf),
    /// A person's own kubeconfig: with this context, or the current one, and its program is run, as cloud providers
    /// need it. For commands that a person runs, never for a daemon.
    Person { path: PathBuf, context: Option<String> },
    /// A pod's: a URL, and the directory of a service account.
    Pod { url: String, account: PathBuf },
}

/// A token or password. Its text is never shown.
#[derive(Clone)]
pub(super) enum Token {
    /// A client certificate, or no authentication.
    None,
    Text(String),
    /// `USER:PASSWORD`.
    Basic(String),
    /// Renewed by another process, so it is read for each request.
    File(PathBuf),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

impl Token {
    /// The current token.
    pub(super) async fn read(&self) -> Result<Option<Self>, ApiError> {
        match self {
            Self::None => Ok(None),
            Self::Text(_) | Self::Basic(_) => Ok(Some(self.clone())),
            Self::File(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || text(&path)).await;
                let unread = |_| ApiError::Setting("the token cannot be read".to_owned());
                Ok(Some(Self::Text(read.map_err(unread)??)))
            }
        }
    }

    pub(super) fn bearer(&self) -> String {
        match self {
            Self::Text(token) => format!("Bearer {}", token.trim()),
            Self::Basic(both) => format!("Basic {}", STANDARD.encode(both)),
            _ => String::new(),
        }
    }
}

impl Credentials {
    /// The credentials of a pod, if this is one.
    pub(crate) fn of_a_pod(account: Option<&Path>) -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host = variable("KUBERNETES_SERVICE_HOST")?;
        let port = variable("KUBERNETES_SERVICE_PORT")?;
        let usual = [Path::new(IN_POD), Path::new(IN_HOST_ROOT)];
        let account = match account {
            Some(account) => account,
            None => usual.into_iter().find(|dir| dir.join("token").is_file())?,
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Some(Self::Pod { url: format!("https://{host}:{port}"), account: account.to_owned() })
    }

    /// Opens the client on a thread.
    pub(crate) async fn enter(&self, limit: Duration) -> Result<Api, ApiError> {
        let door = self.clone();
        let opened = tokio::task::spawn_blocking(move || door.open());
        within(WHAT, limit, async {
            opened
                .await
                .map_err(|_| ApiError::Setting("the credentials cannot be read".to_owned()))?
        })
        .await
    }

    /// Opens the client. Reads files and may run a program, so never call it on an async worker, but within the tokio
    /// runtime (`spawn_blocking`).
    pub(crate) fn open(&self) -> Result<Api, ApiError> {
        match self {
            Self::Kubeconfig(path) => kubeconfig(path, None, false),
            Self::Person { path, context } => kubeconfig(path, context.as_deref(), true),
            Self::Pod { url, account } => {
                let token = account.join("token");
                // Reports a missing token now rather than at the first request.
                text(&token)?;
                let authority = account.join("ca.crt");
                let wrong = |why: &str| ApiError::Setting(format!("{url}: {why}"));
                let mut way = server(url).map_err(wrong)?;
                let authorities = tls::certificates(&pem(&authority)?);
                way.authorities = Some(authorities.ok_or_else(|| file(&authority, NO_AUTHORITY))?);
                Api::new(way, Token::File(token), None).map_err(|why| wrong(&why))
            }
        }
    }
}

/// Parses the URL of a server.
fn server(url: &str) -> Result<ServerAddress, &'static str> {
    let url: Uri = url.parse().map_err(|_| "its server is no URL")?;
    let host = url.host().ok_or("its server is no URL with a host")?;
    let (secure, port) = match url.scheme_str() {
        Some("https") => (true, url.port_u16().unwrap_or(443)),
        // For example of `kubectl proxy`.
        Some("http") if matches!(host, "localhost" | "127.0.0.1" | "[::1]") => {
            (false, url.port_u16().unwrap_or(80))
        }
        _ => return Err("its server must be https://, or http:// on this node"),
    };
    // The URL is rebuilt, because it may contain a user name, a password or a query, which must not be shown.
    let scheme = if secure { "https" } else { "http" };
    let path = url.path().trim_end_matches('/');
    let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(name).map_err(|_| "its server is no URL with a host")?;
    Ok(ServerAddress {
        url: format!("{scheme}://{host}:{port}{path}"),
        secure,
        name,
        // Without TLS nothing is verified, and the system's CAs need not be read or exist.
        authorities: (!secure).then(Vec::new),
        identity: None,
        headers: Vec::new(),
    })
}

/// Opens a kubeconfig with one of its contexts, or the current one if none is named. `programs`: whether a program in
/// it is run.
fn kubeconfig(path: &Path, context: Option<&str>, programs: bool) -> Result<Api, ApiError> {
    let wrong = |why: &str| file(path, why);
    let text = String::from_utf8(pem(path)?).map_err(|_| wrong("it is no kubeconfig"))?;
    let (cluster, mut user) = kubeconfig::chosen(&text, context).map_err(wrong)?;
    refuse(&cluster, &user, programs).map_err(wrong)?;
    // Paths are relative to the kubeconfig, as in kubectl.
    let dir = path.parent().unwrap_or(Path::new("/"));
    let read = |data: Option<&str>, file: Option<&str>| match (data, file) {
        (Some(data), _) => STANDARD
            .decode(data.trim())
            .map(Some)
            .map_err(|_| wrong("it has data that is no base64")),
        (None, Some(file)) => pem(&dir.join(file)).map(Some),
        (None, None) => Ok(None),
    };
    let mut way = server(cluster.server.as_deref().unwrap_or_default()).map_err(wrong)?;
    if let Some(name) = &cluster.tls_server_name {
        let none = |_| wrong("TLS: tls-server-name is no name or IP");
        way.name = ServerName::try_from(name.clone()).map_err(none)?;
    }
    let data = cluster.certificate_authority_data.as_deref();
    let authorities = read(data, cluster.certificate_authority.as_deref())?;
    if let Some(pem) = &authorities {
        let all = tls::certificates(pem);
        way.authorities = Some(all.ok_or_else(|| wrong(NO_AUTHORITY))?);
    }
    let certificate =
        read(user.client_certificate_data.as_deref(), user.client_certificate.as_deref())?;
    let data = user.client_key_data.as_ref().map(|Secret(data)| data.as_str());
    let key = read(data, user.client_key.as_deref())?;
    // A certificate or a key alone is useless.
    way.identity = certificate.zip(key).map(|(certificate, key)| [certificate, key].join(&b'\n'));
    way.headers = impersonation(&user).ok_or_else(|| {
        wrong("whom it is to act as (as, as-groups, as-user-extra) cannot be said in a header")
    })?;
    let token = token(&mut user, dir);
    let program = match user.exec.take() {
        // A user name and password take precedence.
        Some(exec) if !matches!(token, Token::Basic(_)) => {
            let told = told(&cluster, authorities.as_deref());
            let program = Program::new(exec, dir, told);
            Some(program.map_err(|error| wrong(&error.to_string()))?)
        }
        _ => None,
    };
    Api::new(way, token, program).map_err(|why| wrong(&why))
}

fn token(user: &mut User, dir: &Path) -> Token {
    if let (Some(name), Some(Secret(password))) = (user.username.take(), user.password.take()) {
        return Token::Basic(format!("{name}:{password}"));
    }
    match (user.token_file.take(), user.token.take()) {
        (Some(file), _) => Token::File(dir.join(file)),
        (None, Some(Secret(token))) => Token::Text(token),
        (None, None) => Token::None,
    }
}

/// The description of the cluster that a plugin may get (`ExecCredentialSpec.cluster`).
fn told(cluster: &Cluster, authorities: Option<&[u8]>) -> serde_json::Value {
    let mut told = json!({ "server": cluster.server });
    let mut say = |key: &str, value: Option<serde_json::Value>| {
        if let Some(value) = value {
            told[key] = value;
        }
    };
    say("tls-server-name", cluster.tls_server_name.clone().map(Into::into));
    say("certificate-authority-data", authorities.map(|pem| STANDARD.encode(pem).into()));
    say("config", cluster.told().cloned());
    told
}

/// The impersonation headers of each request (`client-go`, `transport/round_trippers.go`). `None`: a value is not valid
/// in a header.
fn impersonation(user: &User) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut all = Vec::new();
    let mut say = |name: HeaderName, value: &str| {
        all.push((name, HeaderValue::from_str(value).ok()?));
        Some(())
    };
    if let Some(name) = &user.acts_as {
        say(HeaderName::from_static("impersonate-user"), name)?;
    }
    if let Some(uid) = &user.as_uid {
        say(HeaderName::from_static("impersonate-uid"), uid)?;
    }
    for group in user.as_groups.iter().flatten() {
        say(HeaderName::from_static("impersonate-group"), group)?;
    }
    for (key, values) in user.as_user_extra.iter().flatten() {
        let name = format!("impersonate-extra-{}", escaped(key));
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        for value in values {
            say(name.clone(), value)?;
        }
    }
    Some(all)
}

/// Escapes a key for use in a header name: characters that are not allowed, and `%`, as `%2f`.
fn escaped(key: &str) -> String {
    let mut text = String::new();
    for byte in key.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => text.push(char::from(byte)),
            _ if b"!#$&'*+-.^_`|~".contains(&byte) => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text
}

/// Rejects what is not supported in a kubeconfig.
fn refuse(cluster: &Cluster, user: &User, programs: bool) -> Result<(), &'static str> {
    if cluster.insecure_skip_tls_verify == Some(true) {
        return Err("insecure-skip-tls-verify is not supported: name the certificate authority");
    }
    if cluster.proxy_url.is_some() {
        return Err("proxy-url is not supported");
    }
    if user.exec.is_some() && !programs {
        return Err(
            "its user is named by a program (exec), which is not run: name one with a token or a certificate",
        );
    }
    // Some of them run a program, too.
    if user.auth_provider.is_some() {
        return Err(
            "auth-provider is not supported, as in kubectl since 1.26: name a user with a token or a certificate",
        );
    }
    Ok(())
}

fn file(path: &Path, why: &str) -> ApiError {
    ApiError::File { path: path.to_owned(), why: why.to_owned() }
}

/// Reads a file. Links are followed, because the kubelet creates them.
fn pem(path: &Path) -> Result<Vec<u8>, ApiError> {
    let wrong = |why: String| ApiError::File { path: path.to_owned(), why };
    let read = bounded::read_linked(path, LIMIT).map_err(|error| wrong(error.to_string()))?;
    if read.truncated { Err(wrong("it is larger than 1 MiB".to_owned())) } else { Ok(read.bytes) }
}

fn text(path: &Path) -> Result<String, ApiError> {
    let none = || ApiError::File { path: path.to_owned(), why: "it holds no token".to_owned() };
    let text = String::from_utf8(pem(path)?).map_err(|_| none())?;
    if text.trim().is_empty() { Err(none()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(text: &str) -> Result<Api, String> {
        opened_by(text, Credentials::Kubeconfig)
    }

    fn opened_by(text: &str, door: impl Fn(PathBuf) -> Credentials) -> Result<Api, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(&path, text).unwrap();
        std::fs::write(dir.path().join("token"), "hunter2\n").unwrap();
        door(path).open().map_err(|error| error.to_string())
    }

    fn config(server: &str, cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\ncontexts:\n- name: here\n  context: {{cluster: c, user: u}}\n\
             clusters:\n- name: c\n  cluster: {{server: \"{server}\"{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        )
    }

    #[tokio::test]
    async fn a_kubeconfig_names_server_and_token() {
        let api = opened(&config("http://127.0.0.1:8001/k8s/", "", "token: hunter2")).unwrap();
        assert_eq!(api.url(), "http://127.0.0.1:8001/k8s");
        assert_eq!(api.token.bearer(), "Bearer hunter2");
        assert_eq!(format!("{:?}", api.token), "Token(hidden)");
    }

    #[tokio::test]
    async fn a_tokens_file_is_read_anew_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let token = Token::File(path.clone());
        for text in ["one\n", "two\n"] {
            std::fs::write(&path, text).unwrap();
            let read = token.read().await.unwrap().unwrap();
            assert_eq!(read.bearer(), format!("Bearer {}", text.trim()));
        }
        std::fs::write(&path, " \n").unwrap();
        assert!(token.read().await.unwrap_err().to_string().contains("holds no token"));
    }

    #[tokio::test]
    async fn a_url_is_shown_without_what_else_it_holds() {
        let urls = [
            ("http://me:hunter2@localhost:6443/a/?x=hunter2", "http://localhost:6443/a"),
            ("http://localhost", "http://localhost:80"),
            ("http://[::1]", "http://[::1]:80"),
        ];
        for (url, shown) in urls {
            assert_eq!(opened(&config(url, "", "token: hunter2")).unwrap().url(), shown);
        }
    }

    /// A plugin that always returns the same token, and leaves a file when it was run.
    fn program(user: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let (path, ran) = (dir.path().join("program"), dir.path().join("ran"));
        let script = format!(
            "#!/bin/sh\n: > {}\necho '{{\"kind\": \"ExecCredential\", \"apiVersion\": \"client.authentication.k8s.io/v1\", \"status\": {{\"token\": \"x\"}}}}'\n",
            ran.display()
        );
        crate::testing::program::script(&path, &script);
        (dir, user.replace("PROGRAM", path.to_str().unwrap()))
    }

    #[tokio::test]
    async fn a_program_runs_for_a_person_alone() {
        const EXEC: &str = "exec: {apiVersion: client.authentication.k8s.io/v1, command: PROGRAM, \
                            interactiveMode: Never, provideClusterInfo: true}";
        const PROVIDER: &str =
            "auth-provider: {name: gcp, config: {cmd-path: PROGRAM, token-key: '{.status.token}'}}";
        for (user, person) in [(EXEC, true), (EXEC, false), (PROVIDER, true), (PROVIDER, false)] {
            let (dir, user) = program(user);
            let door = |path| match person {
                true => Credentials::Person { path, context: None },
                false => Credentials::Kubeconfig(path),
            };
            let api = opened_by(&config("http://127.0.0.1:1", "", &user), door);
            let may = person && user.starts_with("exec");
            assert_eq!((api.is_ok(), dir.path().join("ran").exists()), (may, may), "{user}");
        }
    }

    #[tokio::test]
    async fn what_is_not_supported_is_said_and_nothing_is_quoted() {
        let local = "http://127.0.0.1:1";
        let cases = [
            ("token: [hunter2".to_owned(), "no kubeconfig"),
            ("users: hunter2".to_owned(), "no kubeconfig"),
            ("{}".to_owned(), "no current context"),
            (config("http://10.0.0.1", "", "token: hunter2"), "must be https"),
            (config("ftp://hunter", "", ""), "must be https"),
            (config(local, ", insecure-skip-tls-verify: true", "token: hunter2"), "insecure"),
            (config(local, ", proxy-url: \"http://x\"", "token: hunter2"), "proxy-url"),
            (
                config(local, "", "exec: {command: aws, env: [{name: A, value: hunter2}]}"),
                "a program",
            ),
            (config(local, "", "client-certificate-data: \"~hunter2~\""), "no base64"),
            (config(local, "", "auth-provider: {name: gcp}"), "auth-provider"),
            (
                config(
                    local,
                    "",
                    "client-certificate-data: aHVudGVyMg==, client-key-data: aHVudGVyMg==",
                ),
                "no PEM",
            ),
            (config(local, ", tls-server-name: \"hunter2 \"", "token: hunter2"), "no name or IP"),
            (config("https://a", ", certificate-authority-data: aHVudGVyMg==", ""), "no PEM"),
        ];
        for (text, says) in cases {
            let error = opened(&text).map(|api| api.url()).unwrap_err();
            assert!(error.contains(says) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn a_name_and_a_password_go_along() {
        let user = "username: me, password: hunter2";
        let api = opened(&config("http://127.0.0.1:1", "", user)).unwrap();
        assert_eq!(api.token.bearer(), "Basic bWU6aHVudGVyMg==");
    }

    #[test]
    fn whom_to_act_as_is_said_in_headers() {
        let config = config(
            "http://127.0.0.1:1",
            "",
            "as: jane, as-uid: \"7\", as-groups: [a, b], as-user-extra: {example.com/Scope: [x, y]}",
        );
        let (_, user) = kubeconfig::chosen(&config, None).unwrap();
        let all = impersonation(&user).unwrap();
        let all: Vec<_> = all.iter().map(|(k, v)| (k.as_str(), v.to_str().unwrap())).collect();
        let expected = [
            ("impersonate-user", "jane"),
            ("impersonate-uid", "7"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-extra-example.com%2fscope", "x"),
            ("impersonate-extra-example.com%2fscope", "y"),
        ];
        assert_eq!(all, expected);
        assert_eq!(escaped("a%2f"), "a%252f");
        let torn = User { acts_as: Some("a\nb".to_owned()), ..user };
        assert_eq!(impersonation(&torn), None);
    }

    #[test]
    fn a_service_account_without_a_token_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let door =
            Credentials::Pod { url: "https://127.0.0.1:1".into(), account: dir.path().to_owned() };
        let text = door.open().err().unwrap().to_string();
        assert!(text.contains("/token: No such file"), "{text}");
    }
}
