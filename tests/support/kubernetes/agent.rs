//! The daemon's side of the API server: its way in, its accounts, and what it has asked.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::asked::{self, Asked};
use super::control::{ACCOUNT, CERTIFICATE, KEY, kubeconfig_of, random, secret};
use super::door::Door;
use super::{Api, ControlPlane, token};

impl ControlPlane {
    /// The daemon's way in.
    #[must_use]
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// What the daemon has asked so far, and what it was answered. For one with
    /// [`ControlPlane::start_as`].
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        asked::all(&self.base)
    }

    /// Makes the daemon's service account. Its uid is the answer.
    pub fn make_account(&self) -> String {
        let (_, names) = ACCOUNT.rsplit_once("account:").expect("a service account");
        let (namespace, name) = names.split_once(':').expect("its namespace");
        self.api.create("/api/v1/namespaces", &json!({ "metadata": { "name": namespace } }));
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let account = self.api.create(&path, &json!({ "metadata": { "name": name } }));
        account["metadata"]["uid"].as_str().expect("a uid").to_owned()
    }

    /// A token of the daemon's service account that the API server takes for so many seconds more.
    #[must_use]
    pub fn sign(&self, uid: &str, seconds: i64) -> String {
        token::sign(&self.base.join(KEY), uid, seconds)
    }

    /// What is to be asked with that token, by other hands than the daemon's.
    #[must_use]
    pub fn api_with(&self, token: &str) -> Api {
        let dir = self.dir.join(format!("with-{}", random()));
        fs::create_dir(&dir).expect("make a directory");
        Api::new(&dir, self.netns.path(), &self.base.join(CERTIFICATE), token)
    }

    /// A kubeconfig of the daemon's that names a file with its token.
    #[must_use]
    pub fn agent_config_with(&self, token: &Path) -> PathBuf {
        let file = self.dir.join("file.kubeconfig");
        let user = json!({ "tokenFile": token });
        secret(&file, &kubeconfig_of(&self.door.url(), &self.base.join(CERTIFICATE), &user));
        file
    }

    /// What the daemon's own token may be used for, by other hands: the same as it.
    #[must_use]
    pub fn as_agent(&self) -> Api {
        let config = fs::read(self.agent_config()).expect("the kubeconfig");
        let config: Value = serde_json::from_slice(&config).expect("a kubeconfig");
        self.api_with(config["users"][0]["user"]["token"].as_str().expect("a token"))
    }
}
