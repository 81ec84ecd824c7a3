//! Where the API server is and who we are: a pod's service account, or a kubeconfig.
//!
//! `kube` knows what a kubeconfig says and makes the connection of it. Ours is how it is read: every file to a bound,
//! and anew after a failure; a token for each request, on a thread; and what a daemon on every node does not do:
//! run a program that a kubeconfig names, believe a server without verifying it, or go through a proxy. Nothing
//! that these files say is ever logged.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use kube::Config;
use kube::client::{AuthError, RustlsTlsError};
use kube::config::{AuthInfo, Cluster, ExecAuthCluster, Kubeconfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use secrecy::ExposeSecret as _;

use super::client::Api;
use super::error::ApiError;
use crate::bounded;
use crate::sources::errors::within;

/// No file that is read here is longer.
const LIMIT: usize = 1 << 20;
/// Where a pod has its service account.
const IN_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The same below the node's root (`--host-root`), where the manifests mount it.
const IN_HOST_ROOT: &str = "/etc/ipwatch-api";
/// What reading them is, for people.
const WHAT: &str = "the credentials";
const NO_AUTHORITY: &str = "TLS: the certificate authority is no PEM";

/// The way in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Door {
    /// A kubeconfig. A program that it names is not run.
    Kubeconfig(PathBuf),
    /// A person's own: by this of its contexts, or the current one, and with its program run, as clouds have it.
    /// For a person's command, never for a daemon.
    Person { path: PathBuf, context: Option<String> },
    /// As a pod: a URL, and the directory of a service account.
    Pod { url: String, account: PathBuf },
}

/// What says who we are. Its text is shown nowhere.
#[derive(Clone)]
pub(super) enum Token {
    /// A client certificate, or nothing.
    None,
    Text(String),
    /// Renewed by others, so it is read for each request.
    File(PathBuf),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

impl Token {
    /// The token as it is now.
    pub(super) async fn read(&self) -> Result<Option<Self>, ApiError> {
        match self {
            Self::None => Ok(None),
            Self::Text(_) => Ok(Some(self.clone())),
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
            _ => String::new(),
        }
    }
}

impl Door {
    /// The way in that there is for a pod, if this is one.
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

    /// Opens it on a thread.
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

    /// Opens it: reads files, and may run a program, so never on an async worker, but within the runtime of
    /// tokio (`spawn_blocking`).
    pub(crate) fn open(&self) -> Result<Api, ApiError> {
        match self {
            Self::Kubeconfig(path) => kubeconfig(path, None, false),
            Self::Person { path, context } => kubeconfig(path, context.as_deref(), true),
            Self::Pod { url, account } => {
                let token = account.join("token");
                // Told now rather than with the first request.
                text(&token)?;
                let authority = account.join("ca.crt");
                let wrong = |why: &str| ApiError::Setting(format!("{url}: {why}"));
                let mut config = server(url).map_err(wrong)?;
                let roots = certificates(&pem(&authority)?);
                config.root_cert = Some(roots.ok_or_else(|| file(&authority, NO_AUTHORITY))?);
                api(&config, Token::File(token)).map_err(|why| wrong(&why))
            }
        }
    }
}

/// What `kube` needs for this server, and nothing that the environment says.
fn server(url: &str) -> Result<Config, &'static str> {
    let url: Uri = url.parse().map_err(|_| "its server is no URL")?;
    let host = url.host().ok_or("its server is no URL with a host")?;
    let port = match url.scheme_str() {
        Some("https") => url.port_u16().unwrap_or(443),
        // As of `kubectl proxy`.
        Some("http") if matches!(host, "localhost" | "127.0.0.1" | "[::1]") => {
            url.port_u16().unwrap_or(80)
        }
        _ => return Err("its server must be https://, or http:// on this node"),
    };
    // Made anew: a name and a password in it, or a query, are nobody's business.
    let path = url.path().trim_end_matches('/');
    let clean = Uri::builder()
        .scheme(url.scheme_str().unwrap_or("https"))
        .authority(format!("{host}:{port}"))
        .path_and_query(if path.is_empty() { "/" } else { path })
        .build();
    let mut config = Config::new(clean.map_err(|_| "its server is no URL")?);
    if url.scheme_str() == Some("http") {
        // Nobody is to be verified: the node's own authorities need not be read, nor be there.
        config.root_cert = Some(Vec::new());
    }
    Ok(config)
}

/// The way that `config` says. `Err`: what is wrong, without a word of any file.
fn api(config: &Config, token: Token) -> Result<Api, String> {
    let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    Api::new(config, url, token).map_err(|error| match error {
        kube::Error::RustlsTls(error) => format!("TLS: {}", tls(&error)),
        kube::Error::Auth(AuthError::AuthExecStart(error)) => {
            format!("the program that names its user cannot be run: {error}")
        }
        kube::Error::Auth(_) => {
            "the program that names its user says nothing that can be used".to_owned()
        }
        _ => "what it says cannot be used".to_owned(),
    })
}

/// What `kube` says of it can quote a key.
fn tls(error: &RustlsTlsError) -> &'static str {
    use RustlsTlsError as E;
    match error {
        E::InvalidIdentityPem(_)
        | E::MissingPrivateKey
        | E::MissingCertificate
        | E::UnknownPrivateKeyFormat => "the client certificate or its key is no PEM",
        E::InvalidPrivateKey(_) => "the client certificate and its key do not go together",
        E::AddRootCertificate(_) | E::NoValidNativeRootCA(_) => {
            "no certificate authority is trusted, or one is no certificate: name one in the kubeconfig"
        }
        E::InvalidServerName(_) => "tls-server-name is no name or IP",
    }
}

/// In DER.
fn certificates(pem: &[u8]) -> Option<Vec<Vec<u8>>> {
    let all: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(pem).map(|one| one.map(|one| one.to_vec())).collect();
    all.ok().filter(|all| !all.is_empty())
}

/// By one of its contexts, the current one if none is named. `programs`: whether one that it names is run.
fn kubeconfig(path: &Path, context: Option<&str>, programs: bool) -> Result<Api, ApiError> {
    let wrong = |why: &str| file(path, why);
    let (mut cluster, mut user) = chosen(path, context)?;
    refuse(&cluster, &user, programs).map_err(wrong)?;
    // Relative to itself, as kubectl takes it.
    let dir = path.parent().unwrap_or(Path::new("/"));
    let read = |data: Option<&str>, file: Option<&str>| match (data, file) {
        (Some(data), _) => STANDARD
            .decode(data.trim())
            .map(Some)
            .map_err(|_| wrong("it has data that is no base64")),
        (None, Some(file)) => pem(&dir.join(file)).map(Some),
        (None, None) => Ok(None),
    };
    let mut config = server(cluster.server.as_deref().unwrap_or_default()).map_err(wrong)?;
    config.tls_server_name = cluster.tls_server_name.clone();
    let data = cluster.certificate_authority_data.as_deref();
    if let Some(roots) = read(data, cluster.certificate_authority.as_deref())? {
        config.root_cert = Some(certificates(&roots).ok_or_else(|| wrong(NO_AUTHORITY))?);
        cluster.certificate_authority_data = Some(STANDARD.encode(roots));
    }
    // In our hands, so that `kube` reads no file.
    let data = user.client_certificate_data.take();
    let certificate = read(data.as_deref(), user.client_certificate.take().as_deref())?;
    let data = user.client_key_data.take();
    let key =
        read(data.as_ref().map(|data| data.expose_secret()), user.client_key.take().as_deref())?;
    // Neither is of use alone.
    if let Some((certificate, key)) = certificate.zip(key) {
        user.client_certificate_data = Some(STANDARD.encode(certificate));
        user.client_key_data = Some(STANDARD.encode(key).into());
    }
    let token = match (user.token_file.take(), user.token.take()) {
        (Some(file), _) => Token::File(dir.join(file)),
        (None, Some(token)) => Token::Text(token.expose_secret().to_owned()),
        (None, None) => Token::None,
    };
    if let Some(exec) = &mut user.exec {
        if let Some(command) = exec.command.as_mut().filter(|command| command.contains('/')) {
            *command = dir.join(&*command).to_string_lossy().into_owned();
        }
        if exec.provide_cluster_info {
            let told = ExecAuthCluster::try_from(&cluster);
            exec.cluster =
                Some(told.map_err(|_| wrong("its cluster cannot be told to a program"))?);
        }
    }
    config.auth_info = user;
    api(&config, token).map_err(|why| wrong(&why))
}

/// Cluster and user of the current context.
fn chosen(path: &Path, context: Option<&str>) -> Result<(Cluster, AuthInfo), ApiError> {
    let wrong = |why: &str| file(path, why);
    let unread = || wrong("it is no kubeconfig");
    let text = String::from_utf8(pem(path)?).map_err(|_| unread())?;
    // Where, and what, would quote the file.
    let config = Kubeconfig::from_yaml(&text).map_err(|_| unread())?;
    let none =
        if context.is_some() { "it has no such context" } else { "it has no current context" };
    let name = context.map(str::to_owned).or(config.current_context).unwrap_or_default();
    let context = config.contexts.into_iter().find(|one| one.name == name);
    let context = context.and_then(|one| one.context).ok_or_else(|| wrong(none))?;
    let cluster = config.clusters.into_iter().find(|one| one.name == context.cluster);
    let cluster = cluster.and_then(|one| one.cluster);
    let cluster = cluster.ok_or_else(|| wrong("the context names no cluster of it"))?;
    let user = config.auth_infos.into_iter().find(|one| Some(&one.name) == context.user.as_ref());
    let user = user.and_then(|one| one.auth_info);
    let user = user.ok_or_else(|| wrong("the context names no user of it"))?;
    Ok((cluster, user))
}

/// What is not done, whatever a kubeconfig says.
fn refuse(cluster: &Cluster, user: &AuthInfo, programs: bool) -> Result<(), &'static str> {
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

/// A file's bytes. Links are followed, as the kubelet makes them.
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
        opened_by(text, Door::Kubeconfig)
    }

    fn opened_by(text: &str, door: impl Fn(PathBuf) -> Door) -> Result<Api, String> {
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

    /// A program that gives out a token for ever, and says that it was run.
    fn program(user: &str) -> (tempfile::TempDir, String) {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (path, ran) = (dir.path().join("program"), dir.path().join("ran"));
        let script = format!(
            "#!/bin/sh\n: > {}\necho '{{\"kind\": \"ExecCredential\", \"apiVersion\": \"client.authentication.k8s.io/v1\", \"status\": {{\"token\": \"x\"}}}}'\n",
            ran.display()
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
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
                true => Door::Person { path, context: None },
                false => Door::Kubeconfig(path),
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

    #[test]
    fn a_service_account_without_a_token_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let door = Door::Pod { url: "https://127.0.0.1:1".into(), account: dir.path().to_owned() };
        let text = door.open().err().unwrap().to_string();
        assert!(text.contains("/token: No such file"), "{text}");
    }
}
