//! Where the API server is and who we are: a pod's service account, or a kubeconfig.
//!
//! Of a kubeconfig: the current context, its cluster and its user, with a token, a token's file or a client
//! certificate. One that wants a program to be run, or the server not to be verified, is refused. Nothing
//! that these files say is ever logged.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

use super::client::Api;
use super::error::ApiError;
use crate::bounded;

/// No file that is read here is longer.
const LIMIT: usize = 1 << 20;
/// Where a pod has its service account.
const IN_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The same below the node's root (`--host-root`), where the manifests mount it.
const IN_HOST_ROOT: &str = "/etc/ipwatch-api";

/// The way in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Door {
    /// A kubeconfig.
    Kubeconfig(PathBuf),
    /// The same, by another of its contexts than the current one.
    Context(PathBuf, String),
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
    pub(super) fn of_a_pod(account: Option<&Path>) -> Option<Self> {
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

    /// Opens it: reads files, so never on an async worker.
    pub(super) fn open(&self) -> Result<Api, ApiError> {
        match self {
            Self::Kubeconfig(path) => kubeconfig(path, None),
            Self::Context(path, name) => kubeconfig(path, Some(name)),
            Self::Pod { url, account } => {
                let token = account.join("token");
                // Told now rather than with the first request.
                text(&token)?;
                let way = Way {
                    server: url.clone(),
                    name: None,
                    roots: Some(pem(&account.join("ca.crt"))?),
                    own: None,
                    token: Token::File(token),
                };
                way.api()
            }
        }
    }
}

/// All that a connection needs.
struct Way {
    server: String,
    /// Whose name the server's certificate has, if not its own.
    name: Option<String>,
    /// PEM.
    roots: Option<Vec<u8>>,
    /// Certificate and key, PEM.
    own: Option<(Vec<u8>, Vec<u8>)>,
    token: Token,
}

impl Way {
    fn api(self) -> Result<Api, ApiError> {
        let setting = |text: &str| ApiError::Setting(format!("{}: {text}", self.server));
        let url: Uri = self.server.parse().map_err(|_| setting("is no URL"))?;
        let host = url.host().ok_or_else(|| setting("is no URL with a host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let prefix = url.path().trim_end_matches('/').to_owned();
        let tls = match url.scheme_str() {
            Some("https") => {
                let name = self.name.clone().unwrap_or_else(|| host.clone());
                let name = ServerName::try_from(name).map_err(|_| setting("is no name or IP"))?;
                Some((tls(self.roots.as_deref(), self.own.as_ref())?, name))
            }
            // As of `kubectl proxy`.
            Some("http") if matches!(&*host, "localhost" | "127.0.0.1" | "::1") => None,
            _ => return Err(setting("must be https://, or http:// on this node")),
        };
        let port = url.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        Ok(Api { host, port, tls, token: self.token, prefix })
    }
}

fn tls(
    roots: Option<&[u8]>,
    own: Option<&(Vec<u8>, Vec<u8>)>,
) -> Result<Arc<ClientConfig>, ApiError> {
    let wrong = |text: &str| ApiError::Setting(format!("TLS: {text}"));
    let mut trusted = RootCertStore::empty();
    match roots {
        Some(pem) => {
            for one in
                certificates(pem).ok_or_else(|| wrong("the certificate authority is no PEM"))?
            {
                trusted
                    .add(one)
                    .map_err(|_| wrong("the certificate authority is no certificate"))?;
            }
        }
        None => {
            trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if trusted.is_empty() {
        return Err(wrong("no certificate authority is trusted: name one in the kubeconfig"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error.to_string()))?
        .with_root_certificates(trusted);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate)
                .ok_or_else(|| wrong("the client certificate is no PEM"))?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| wrong("the client key is no PEM"))?;
            let unfit = |_| wrong("the client certificate and its key do not go together");
            builder.with_client_auth_cert(chain, key).map_err(unfit)?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok().filter(|all| !all.is_empty())
}

/// Kubeconfig, as far as it is used.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    #[serde(default)]
    current_context: String,
    #[serde(default)]
    contexts: Vec<Named<Context>>,
    #[serde(default)]
    clusters: Vec<Named<Cluster>>,
    #[serde(default)]
    users: Vec<Named<User>>,
}

#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user")]
    value: T,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    tls_server_name: Option<String>,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    exec: Option<serde::de::IgnoredAny>,
}

fn kubeconfig(path: &Path, context: Option<&str>) -> Result<Api, ApiError> {
    let wrong = |why: &str| ApiError::File { path: path.to_owned(), why: why.to_owned() };
    // Where, and what, would quote the file.
    let config: Kubeconfig =
        serde_norway::from_slice(&pem(path)?).map_err(|_| wrong("it is no kubeconfig"))?;
    let none =
        if context.is_some() { "it has no such context" } else { "it has no current context" };
    let context = named(&config.contexts, context.unwrap_or(&config.current_context));
    let context = context.ok_or_else(|| wrong(none))?;
    let cluster = named(&config.clusters, &context.cluster);
    let cluster = cluster.ok_or_else(|| wrong("its current context names no cluster of it"))?;
    let user = named(&config.users, &context.user);
    let user = user.ok_or_else(|| wrong("its current context names no user of it"))?;
    if cluster.insecure_skip_tls_verify {
        return Err(wrong(
            "insecure-skip-tls-verify is not supported: name the certificate authority",
        ));
    }
    if cluster.proxy_url.is_some() {
        return Err(wrong("proxy-url is not supported"));
    }
    if user.exec.is_some() {
        return Err(wrong(
            "its user is named by a program (exec), which is not run: name one with a token or a certificate",
        ));
    }
    // Relative to itself, as kubectl takes it.
    let dir = path.parent().unwrap_or(Path::new("/"));
    let either = |data: &Option<String>, file: &Option<PathBuf>| match (data, file) {
        (Some(data), _) => STANDARD
            .decode(data.trim())
            .map(Some)
            .map_err(|_| wrong("it has data that is no base64")),
        (None, Some(file)) => pem(&dir.join(file)).map(Some),
        (None, None) => Ok(None),
    };
    let certificate = either(&user.client_certificate_data, &user.client_certificate)?;
    let key = either(&user.client_key_data, &user.client_key)?;
    let token = match (&user.token_file, &user.token) {
        (Some(file), _) => Token::File(dir.join(file)),
        (None, Some(token)) => Token::Text(token.clone()),
        (None, None) => Token::None,
    };
    let way = Way {
        server: cluster.server.clone(),
        name: cluster.tls_server_name.clone(),
        roots: either(&cluster.certificate_authority_data, &cluster.certificate_authority)?,
        own: certificate.zip(key),
        token,
    };
    way.api()
}

fn named<'a, T>(all: &'a [Named<T>], name: &str) -> Option<&'a T> {
    all.iter().find(|one| one.name == name).map(|one| &one.value)
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
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(&path, text).unwrap();
        std::fs::write(dir.path().join("token"), "hunter2\n").unwrap();
        Door::Kubeconfig(path).open().map_err(|error| error.to_string())
    }

    fn config(server: &str, cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\ncontexts:\n- name: here\n  context: {{cluster: c, user: u}}\n\
             clusters:\n- name: c\n  cluster: {{server: \"{server}\"{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        )
    }

    #[test]
    fn a_kubeconfig_names_server_and_token() {
        let api = opened(&config("http://127.0.0.1:8001/k8s/", "", "token: hunter2")).unwrap();
        assert_eq!((api.host.as_str(), api.port, api.prefix.as_str()), ("127.0.0.1", 8001, "/k8s"));
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

    #[test]
    fn what_is_not_supported_is_said_and_nothing_is_quoted() {
        let local = "http://127.0.0.1:1";
        let cases = [
            ("token: [hunter2".to_owned(), "no kubeconfig"),
            ("users: hunter2".to_owned(), "no kubeconfig"),
            ("{}".to_owned(), "no current context"),
            (config("http://10.0.0.1", "", "token: hunter2"), "must be https"),
            (config("ftp://hunter", "", ""), "must be https"),
            (config(local, ", insecure-skip-tls-verify: true", "token: hunter2"), "insecure"),
            (config(local, ", proxy-url: \"http://x\"", "token: hunter2"), "proxy-url"),
            (config(local, "", "exec: {command: aws, env: [hunter2]}"), "a program"),
            (config(local, "", "client-certificate-data: \"~hunter2~\""), "no base64"),
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
