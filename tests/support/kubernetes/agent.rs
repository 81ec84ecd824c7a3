//! The daemon's side of the API server: its connection, its accounts, and its requests.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::asked::{self, Asked};
use super::control::{ACCOUNT, CERTIFICATE, KEY, kubeconfig_of, random, secret};
use super::door::Door;
use super::{Api, ControlPlane, token};

impl ControlPlane {
    /// The daemon's connection.
    #[must_use]
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// The daemon's requests so far, with the status of their answers. Requires [`ControlPlane::start_as`].
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        asked::all(&self.base)
    }

    /// Creates the daemon's service account; returns its uid.
    pub fn make_account(&self) -> String {
        let (_, names) = ACCOUNT.rsplit_once("account:").expect("a service account");
        let (namespace, name) = names.split_once(':').expect("its namespace");
        self.api.create("/api/v1/namespaces", &json!({ "metadata": { "name": namespace } }));
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let account = self.api.create(&path, &json!({ "metadata": { "name": name } }));
        account["metadata"]["uid"].as_str().expect("a uid").to_owned()
    }

    /// A token of the daemon's service account that the API server accepts for this many seconds.
    #[must_use]
    pub fn sign(&self, uid: &str, seconds: i64) -> String {
        token::sign(&self.base.join(KEY), uid, seconds)
    }

    /// The API with that token, for the test itself.
    #[must_use]
    pub fn api_with(&self, token: &str) -> Api {
        let dir = self.dir.join(format!("with-{}", random()));
        fs::create_dir(&dir).expect("make a directory");
        Api::new(&dir, self.netns.path(), &self.base.join(CERTIFICATE), token)
    }

    /// A kubeconfig of the daemon that names a file with its token.
    #[must_use]
    pub fn agent_config_with(&self, token: &Path) -> PathBuf {
        let file = self.dir.join("file.kubeconfig");
        let user = json!({ "tokenFile": token });
        secret(&file, &kubeconfig_of(&self.door.url(), &self.base.join(CERTIFICATE), &user));
        file
    }

    /// The API with the daemon's own token, for the test itself.
    #[must_use]
    pub fn as_agent(&self) -> Api {
        self.api_of(&self.agent_config())
    }

    /// The API with the token of the node's kubelet.
    #[must_use]
    pub fn as_kubelet(&self) -> Api {
        self.api_of(&self.node_config())
    }

    fn api_of(&self, config: &Path) -> Api {
        let config = fs::read(config).expect("the kubeconfig");
        let config: Value = serde_json::from_slice(&config).expect("a kubeconfig");
        self.api_with(config["users"][0]["user"]["token"].as_str().expect("a token"))
    }
}
