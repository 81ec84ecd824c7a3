//! Connections to an etcd: its endpoints, how they are verified, our identity, and TCP with or without TLS. The files
//! are read again for each session, because certificates are renewed and passwords change.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use hyper::Uri;
use rustls::ClientConfig;

use super::error::EtcdError;
use super::settings::{Settings, Version};
use crate::bounded;
use crate::dial::{self, Io, Tls};
use crate::tls::{Files, Unusable};

/// Maximum size in bytes of the file with user name and password.
const USER_LIMIT: usize = 4 << 10;

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) secure: bool,
    /// Name or IP.
    host: String,
    port: u16,
}

impl Endpoint {
    /// Errors never quote the URL, which may contain a password.
    pub(super) fn parse(url: &str) -> Result<Self, &'static str> {
        const FORM: &str = "an endpoint is written as \"https://10.0.0.1:2379\"";
        let uri: Uri = url.parse().map_err(|_| FORM)?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(FORM),
        };
        let authority = uri.authority().ok_or(FORM)?;
        if authority.as_str().contains('@') {
            return Err("name and password belong into a file: calico.etcd_user_file");
        }
        if uri.path_and_query().is_some_and(|rest| rest.as_str() != "/") {
            return Err("an endpoint has no path");
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(FORM);
        }
        Ok(Self { secure, host, port: authority.port_u16().unwrap_or(2379) })
    }

    /// Its URL, for people.
    pub(super) fn url(&self) -> String {
        format!("{}://{}", if self.secure { "https" } else { "http" }, self.authority())
    }

    pub(super) fn authority(&self) -> String {
        let (host, port) = (&self.host, self.port);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Whether it is on this node.
    pub(super) fn is_near(&self) -> bool {
        matches!(&*self.host, "localhost" | "127.0.0.1" | "::1")
    }
}

/// User name and password. Never shown.
#[derive(Clone)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("User(hidden)")
    }
}

/// What a session needs.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) endpoints: Vec<Endpoint>,
    tls: Option<Arc<ClientConfig>>,
    pub(super) user: Option<User>,
}

/// How to connect to one member.
#[derive(Clone)]
pub(super) struct Dial {
    pub(super) at: Endpoint,
    tls: Option<Tls>,
}

impl Connection {
    /// Reads files, so never call it on an async worker.
    pub(super) fn open(settings: &Settings) -> Result<Self, EtcdError> {
        if let Some(wrong) = settings.wrong() {
            return Err(EtcdError::Setting(wrong));
        }
        let endpoints = settings.etcd_endpoints.iter().map(|url| Endpoint::parse(url));
        let endpoints: Vec<Endpoint> = endpoints
            .collect::<Result<_, _>>()
            .map_err(|why| EtcdError::Setting(why.to_owned()))?;
        let tls = match endpoints.iter().any(|one| one.secure) {
            true => Some(config(settings)?),
            false => None,
        };
        let user = settings.etcd_user_file.as_deref().map(user).transpose()?;
        Ok(Self { endpoints, tls, user })
    }

    /// How to connect to member `n`, modulo the number of members.
    pub(super) fn dial(&self, n: usize) -> Result<Dial, EtcdError> {
        let at = match self.endpoints.len() {
            0 => return Err(EtcdError::Setting("calico.etcd_endpoints is empty".to_owned())),
            all => self.endpoints[n % all].clone(),
        };
        let tls = match &self.tls {
            Some(config) if at.secure => {
                let wrong = |_| EtcdError::Setting(format!("{}: no name or IP", at.url()));
                Some(Tls::to(config, &at.host).map_err(wrong)?)
            }
            _ => None,
        };
        Ok(Dial { at, tls })
    }
}

impl Dial {
    /// Connects. The caller must set a timeout.
    pub(super) async fn connect(&self) -> io::Result<Box<dyn Io>> {
        dial::tcp(&self.at.host, self.at.port, self.tls.as_ref()).await
    }
}

fn config(settings: &Settings) -> Result<Arc<ClientConfig>, EtcdError> {
    let certificate = settings.etcd_cert_file.as_deref();
    let files = Files {
        authorities: settings.etcd_ca_file.as_deref(),
        identity: certificate.zip(settings.etcd_key_file.as_deref()),
    };
    let protocol: &[u8] = match settings.etcd_api {
        Version::V3 => b"h2",
        Version::V2 => b"http/1.1",
    };
    files.client(protocol).map_err(|unusable| match unusable {
        Unusable::File { path, why } => EtcdError::File { path, why },
        Unusable::Setup(why) => EtcdError::Setting(format!("TLS: {why}")),
        Unusable::NoAuthority => EtcdError::Setting(
            "TLS: this system trusts no certificate: name one with calico.etcd_ca_file".to_owned(),
        ),
    })
}

/// Errors never quote the file.
fn user(path: &Path) -> Result<User, EtcdError> {
    let wrong = || file(path, "it does not hold one line USER:PASSWORD");
    let text = String::from_utf8(read(path, USER_LIMIT)?).map_err(|_| wrong())?;
    let (name, password) = text.trim_end_matches(['\r', '\n']).split_once(':').ok_or_else(wrong)?;
    let has_control = |text: &str| text.chars().any(char::is_control);
    if name.is_empty() || has_control(name) || has_control(password) {
        return Err(wrong());
    }
    Ok(User { name: name.to_owned(), password: password.to_owned() })
}

fn read(path: &Path, limit: usize) -> Result<Vec<u8>, EtcdError> {
    let read = bounded::read_linked(path, limit).map_err(|error| file(path, &error.to_string()))?;
    if read.truncated {
        return Err(file(path, &format!("it is larger than {} KiB", limit >> 10)));
    }
    Ok(read.bytes)
}

fn file(path: &Path, why: &str) -> EtcdError {
    EtcdError::File { path: path.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_without_more() {
        let parse = |text| Endpoint::parse(text).map(|one| one.url());
        assert_eq!(parse("https://etcd-1").unwrap(), "https://etcd-1:2379");
        assert_eq!(parse("http://[fd00::1]:4001/").unwrap(), "http://[fd00::1]:4001");
        for wrong in [
            "",
            "etcd-1:2379",
            "unix:///x",
            "https://:2379",
            "ftp://a",
            "https://a/v2",
            "https://a/?b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let error = parse("https://root:hunter2@a").unwrap_err();
        assert!(error.contains("etcd_user_file") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_user_is_one_line_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("user");
        let with = |text: &str| {
            std::fs::write(&path, text).unwrap();
            user(&path)
        };
        let known = with("ipwatch:pass:word\n").unwrap();
        assert_eq!((&*known.name, &*known.password), ("ipwatch", "pass:word"));
        assert!(!format!("{known:?}").contains("word"));
        for wrong in ["", "hunter2", ":hunter2", "a:hunter2\nb:c", "a:hun\tter2"] {
            let error = with(wrong).unwrap_err().to_string();
            assert!(error.contains("USER:PASSWORD") && !error.contains("hun"), "{error}");
        }
        assert!(with(&"a:b".repeat(9000)).unwrap_err().to_string().contains("4 KiB"));
    }
}
