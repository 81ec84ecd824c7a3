//! A bound token of a service account, signed like by the API server (`TokenRequest`), which itself signs none that
//! expires within ten minutes.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::control::{ACCOUNT, ISSUER};

/// How long a token is accepted after its expiry, for clock skew (`DefaultLeeway` of go-jose's jwt), in seconds.
const LEEWAY: i64 = 60;

/// A token that is accepted for this many seconds.
pub(super) fn sign(key: &Path, uid: &str, seconds: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set");
    let now = i64::try_from(now.as_secs()).expect("a date of this age");
    let (_, names) = ACCOUNT.rsplit_once("account:").expect("a service account");
    let (namespace, name) = names.split_once(':').expect("its namespace");
    let header = json!({ "alg": "RS256", "typ": "JWT" }).to_string();
    let claims = json!({
        "iss": ISSUER, "aud": [ISSUER], "sub": ACCOUNT,
        "iat": now - 3600, "nbf": now - 3600, "exp": now + seconds - LEEWAY,
        "kubernetes.io": {
            "namespace": namespace, "serviceaccount": { "name": name, "uid": uid },
        },
    });
    let said = format!("{}.{}", text(header.as_bytes()), text(claims.to_string().as_bytes()));
    let mut sign = Command::new("openssl");
    sign.args(["dgst", "-sha256", "-sign"]).arg(key);
    let signature = filter(&mut sign, said.as_bytes());
    format!("{said}.{}", text(&signature))
}

/// base64url without padding.
fn text(bytes: &[u8]) -> String {
    base64(bytes).trim_end_matches('=').replace('+', "-").replace('/', "_")
}

/// base64 in one line.
pub(super) fn base64(bytes: &[u8]) -> String {
    let text = filter(Command::new("openssl").args(["base64", "-A"]), bytes);
    String::from_utf8(text).expect("base64").trim_end().to_owned()
}

fn filter(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run openssl");
    child.stdin.take().expect("a pipe").write_all(input).expect("write to openssl");
    let out = child.wait_with_output().expect("wait for openssl");
    assert!(out.status.success(), "openssl: {}", out.status);
    out.stdout
}
