//! Parses the used parts of a kubeconfig (`client-go`, `tools/clientcmd/api/v1/types.go`), and selects those of a
//! context. Its content is never shown.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The extension of a cluster with data for its plugins (`client-go`, `tools/auth/exec`).
const EXTENSION: &str = "client.authentication.k8s.io/exec";

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
    contexts: Option<Vec<NamedContext>>,
    current_context: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Cluster {
    pub(super) server: Option<String>,
    pub(super) tls_server_name: Option<String>,
    pub(super) insecure_skip_tls_verify: Option<bool>,
    pub(super) certificate_authority: Option<String>,
    pub(super) certificate_authority_data: Option<String>,
    pub(super) proxy_url: Option<String>,
    extensions: Option<Vec<Extension>>,
}

#[derive(Debug, Deserialize)]
struct Extension {
    name: String,
    extension: serde_json::Value,
}

impl Cluster {
    /// The cluster's own data for its plugins.
    pub(super) fn told(&self) -> Option<&serde_json::Value> {
        let mut all = self.extensions.iter().flatten();
        all.find(|one| one.name == EXTENSION).map(|one| &one.extension)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct User {
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) token: Option<Secret>,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: Option<String>,
    pub(super) client_certificate: Option<String>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key: Option<String>,
    pub(super) client_key_data: Option<Secret>,
    /// The user to impersonate.
    #[serde(rename = "as")]
    pub(super) acts_as: Option<String>,
    pub(super) as_uid: Option<String>,
    pub(super) as_groups: Option<Vec<String>>,
    pub(super) as_user_extra: Option<BTreeMap<String, Vec<String>>>,
    pub(super) exec: Option<Exec>,
    pub(super) auth_provider: Option<IgnoredAny>,
}

/// A credential plugin.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Exec {
    pub(super) api_version: Option<String>,
    pub(super) command: Option<String>,
    pub(super) args: Option<Vec<String>>,
    pub(super) env: Option<Vec<Variable>>,
    pub(super) interactive_mode: Option<Interactive>,
    #[serde(default)]
    pub(super) provide_cluster_info: bool,
}

/// Hidden, because arguments and variables may contain a password.
impl fmt::Debug for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exec(hidden)")
    }
}

#[derive(Clone, Deserialize)]
pub(super) struct Variable {
    pub(super) name: String,
    #[serde(default)]
    pub(super) value: String,
}

/// Whether a plugin needs the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum Interactive {
    Never,
    IfAvailable,
    Always,
}

/// Cluster and user of a context, or of the current one if none is named. `Err`: what is wrong, without any content.
pub(super) fn chosen(text: &str, context: Option<&str>) -> Result<(Cluster, User), &'static str> {
    // The parser's own message would quote the content. Of several documents the first is used, as in kubectl.
    const UNREAD: &str = "it is no kubeconfig";
    let first = serde_norway::Deserializer::from_str(text).next().ok_or(UNREAD)?;
    let config = Kubeconfig::deserialize(first).map_err(|_| UNREAD)?;
    let none =
        if context.is_some() { "it has no such context" } else { "it has no current context" };
    let name = context.map(str::to_owned).or(config.current_context).unwrap_or_default();
    let mut contexts = config.contexts.into_iter().flatten();
    let context = contexts.find(|one| one.name == name).and_then(|one| one.context).ok_or(none)?;
    let mut clusters = config.clusters.into_iter().flatten();
    let cluster = clusters.find(|one| one.name == context.cluster).and_then(|one| one.cluster);
    let mut users = config.users.into_iter().flatten();
    let user = users.find(|one| Some(&one.name) == context.user.as_ref());
    Ok((
        cluster.ok_or("the context names no cluster of it")?,
        user.and_then(|one| one.user).ok_or("the context names no user of it")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "---
apiVersion: v1
kind: Config
preferences: {}
current-context: one
contexts:
- {name: one, context: {cluster: c, user: u, namespace: shop}}
- {name: 2, context: {cluster: c, user: nobody}}
clusters:
- name: c
  cluster:
    server: https://a
    extensions:
    - {name: client.authentication.k8s.io/exec, extension: {audience: x}}
users:
- name: u
  user:
    token: 12345
    as: admin
    as-groups: [a, b]
    as-user-extra: {scopes: [view]}
    client-key-data: hunter2
    exec:
      command: x
      args: [hunter2]
      interactiveMode: IfAvailable
      installHint: none
---
kind: Other
";

    #[test]
    fn a_context_chooses_cluster_and_user() {
        let (cluster, user) = chosen(TEXT, None).unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://a"));
        assert_eq!(cluster.told(), Some(&serde_json::json!({ "audience": "x" })));
        assert_eq!(user.token, Some(Secret("12345".to_owned())));
        assert_eq!(user.acts_as.as_deref(), Some("admin"));
        assert_eq!(user.as_groups.as_deref(), Some(&["a".to_owned(), "b".to_owned()][..]));
        assert_eq!(user.exec.as_ref().unwrap().interactive_mode, Some(Interactive::IfAvailable));
        assert!(!format!("{user:?}").contains("hunter2"), "{user:?}");
        assert_eq!(chosen(TEXT, Some("2")).unwrap_err(), "the context names no user of it");
        assert_eq!(chosen(TEXT, Some("3")).unwrap_err(), "it has no such context");
    }

    #[test]
    fn empty_lists_are_no_lists() {
        for text in ["current-context: a\nclusters: null\nusers:\ncontexts: ~\n", ""] {
            assert_eq!(chosen(text, None).unwrap_err(), "it has no current context");
        }
        for text in ["x", "[]", "users: [{user: {}}]"] {
            assert_eq!(chosen(text, None).unwrap_err(), "it is no kubeconfig", "{text}");
        }
    }
}
