//! TLS as configured by a kubeconfig: the trusted CA, the name in the certificate, and our identity.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::net::TcpListener;

use super::*;
use crate::sources::kubernetes::{ApiError, Credentials};
use crate::testing::authority::Authority;

const PATIENCE: Duration = Duration::from_secs(30);

impl Authority {
    /// A server with a certificate for this name, which answers with the request and whether its client has a
    /// certificate. With `asks`, it requires a client certificate from this CA.
    async fn serve(&self, name: &str, asks: bool) -> SocketAddr {
        let acceptor = self.server(name, asks, &[]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let known = stream.get_ref().1.peer_certificates().is_some();
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let header = |name| {
                        let value = request.headers().get(name).map(|one| one.to_str().unwrap());
                        value.unwrap_or("-").to_owned()
                    };
                    let (user, token) = (header("impersonate-user"), header("authorization"));
                    let text = format!("{} {known} {user} {token}", request.uri());
                    async move { Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(text)))) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        at
    }

    /// A cluster in a kubeconfig that trusts this CA.
    fn cluster(&self, server: &str, more: &str) -> String {
        let ca = STANDARD.encode(self.pem());
        format!("{{server: \"{server}\", certificate-authority-data: {ca}{more}}}")
    }
}

/// The answer to a request with this kubeconfig.
async fn asked(cluster: &str, user: &str) -> Result<String, ApiError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    let text = format!(
        "current-context: here\ncontexts:\n- {{name: here, context: {{cluster: c, user: u}}}}\n\
         clusters:\n- {{name: c, cluster: {cluster}}}\nusers:\n- {{name: u, user: {{{user}}}}}\n"
    );
    std::fs::write(&path, text).unwrap();
    let api = Credentials::Person { path, context: None }.enter(PATIENCE).await?;
    let body = api.get("it", "/api?limit=1", PATIENCE).await?;
    Ok(String::from_utf8(body.whole(1 << 16, PATIENCE).await?).unwrap())
}

#[tokio::test]
async fn a_certificate_must_be_for_the_name_that_is_asked_for() {
    let authority = Authority::new();
    let (ip, name) = (authority.serve("127.0.0.1", false), authority.serve("api.test", false));
    let (ip, name) = (ip.await, name.await);
    let at = |at: SocketAddr, path: &str| format!("https://{at}{path}");
    // An IP, and a path before all others.
    let told = asked(&authority.cluster(&at(ip, "/k8s/"), ""), "token: t, as: jane").await;
    assert_eq!(told.unwrap(), "/k8s/api?limit=1 false jane Bearer t");
    // A name that differs from the address.
    let error = asked(&authority.cluster(&at(name, ""), ""), "").await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    let named = authority.cluster(&at(name, ""), ", tls-server-name: api.test");
    assert_eq!(asked(&named, "").await.unwrap(), "/api?limit=1 false - -");
    let other = authority.cluster(&at(ip, ""), ", tls-server-name: api.test");
    assert!(asked(&other, "").await.is_err());
    // A server whose CA is not trusted.
    let stranger = Authority::new().cluster(&at(ip, ""), "");
    let error = asked(&stranger, "").await.unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
    let nobody = format!("{{server: \"{}\"}}", at(ip, ""));
    assert!(asked(&nobody, "").await.is_err());
}

#[tokio::test]
async fn our_own_certificate_is_shown() {
    let authority = Authority::new();
    let at = authority.serve("127.0.0.1", true).await;
    let cluster = authority.cluster(&format!("https://{at}"), "");
    assert!(asked(&cluster, "").await.is_err());
    let (certificate, key) = authority.sign("me");
    let (certificate, key) = (certificate.pem(), key.serialize_pem());
    let data = |pem: &str| STANDARD.encode(pem);
    let user =
        format!("client-certificate-data: {}, client-key-data: {}", data(&certificate), data(&key));
    assert_eq!(asked(&cluster, &user).await.unwrap(), "/api?limit=1 true - -");
    // Both in one file, as the kubelet stores them.
    let dir = tempfile::tempdir().unwrap();
    let both = dir.path().join("both.pem");
    std::fs::write(&both, format!("{certificate}{key}")).unwrap();
    let user = format!("client-certificate: {both:?}, client-key: {both:?}");
    assert_eq!(asked(&cluster, &user).await.unwrap(), "/api?limit=1 true - -");
}

/// A plugin that returns `status` each time; `$n` is the number of the run.
fn program(dir: &Path, status: &str) -> String {
    let (script, count) = (dir.join("program"), dir.join("count"));
    let answer = format!(
        r#"{{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {status}}}"#
    );
    let text =
        format!("echo >> {0}\nn=$(wc -l < {0})\ncat <<END\n{answer}\nEND\n", count.display());
    std::fs::write(&script, text).unwrap();
    format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [{script:?}], interactiveMode: Never}}"
    )
}

#[tokio::test]
async fn a_program_gives_a_certificate_or_a_token_that_is_renewed() {
    let authority = Authority::new();
    let at = authority.serve("127.0.0.1", true).await;
    let cluster = authority.cluster(&format!("https://{at}"), "");
    let (certificate, key) = authority.sign("me");
    let pem = |text: String| serde_json::to_string(&text).unwrap();
    let (certificate, key) = (pem(certificate.pem()), pem(key.serialize_pem()));
    let pair = format!(r#""clientCertificateData": {certificate}, "clientKeyData": {key}"#);
    let dir = tempfile::tempdir().unwrap();
    let user = program(dir.path(), &format!("{{{pair}}}"));
    assert_eq!(asked(&cluster, &user).await.unwrap(), "/api?limit=1 true - -");
    // A credential that has expired is requested again before the first request.
    let dir = tempfile::tempdir().unwrap();
    let status =
        format!(r#"{{{pair}, "token": "t$n", "expirationTimestamp": "2020-01-01T00:00:00Z"}}"#);
    let user = program(dir.path(), &status);
    assert_eq!(asked(&cluster, &user).await.unwrap(), "/api?limit=1 true - Bearer t2");
}
