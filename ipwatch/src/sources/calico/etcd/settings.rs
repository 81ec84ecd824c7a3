//! `[calico]`: the address of the etcd, and the files with our credentials.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::connection::{Connection, Endpoint};
use super::error::EtcdError;

/// Maximum number of endpoints, more than any cluster has.
const MOST: usize = 32;

/// `[calico]`: Calico's datastore, if it is an etcd of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The members of the cluster. Empty: not asked.
    pub etcd_endpoints: Vec<String>,
    pub etcd_api: Version,
    /// Trusted CAs, PEM.
    pub etcd_ca_file: Option<PathBuf>,
    /// Our certificate, PEM.
    pub etcd_cert_file: Option<PathBuf>,
    /// Its key, PEM.
    pub etcd_key_file: Option<PathBuf>,
    /// `USER:PASSWORD`.
    pub etcd_user_file: Option<PathBuf>,
}

/// An API of etcd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// gRPC: Calico 3 and later.
    #[default]
    V3,
    /// HTTP: Calico 2 and before.
    V2,
}

impl Settings {
    /// What is wrong with the settings, if anything.
    pub(crate) fn wrong(&self) -> Option<String> {
        let relative = self.files().into_iter().flatten().find(|path| !path.is_absolute());
        if let Some(path) = relative {
            return Some(format!("calico: {} must begin with /", path.display()));
        }
        if self.etcd_endpoints.len() > MOST {
            return Some(format!("calico.etcd_endpoints has more than {MOST} entries"));
        }
        let endpoints: Vec<Endpoint> =
            match self.etcd_endpoints.iter().map(|url| Endpoint::parse(url)).collect() {
                Ok(endpoints) => endpoints,
                Err(wrong) => return Some(format!("calico.etcd_endpoints: {wrong}")),
            };
        if self.etcd_cert_file.is_some() != self.etcd_key_file.is_some() {
            let both = "calico.etcd_cert_file and calico.etcd_key_file go together: name both";
            return Some(both.to_owned());
        }
        let open = endpoints.iter().find(|one| !one.secure && !one.is_near());
        match (open, &self.etcd_user_file) {
            (Some(open), Some(_)) => Some(format!(
                "calico.etcd_user_file: anybody between here and {} could read the password: use https://",
                open.url()
            )),
            _ => None,
        }
    }

    /// Reads every configured file, to report what is wrong with it.
    ///
    /// # Errors
    /// A file cannot be read, or has unexpected content.
    pub fn check(&self) -> Result<(), EtcdError> {
        Connection::open(self).map(drop)
    }

    fn files(&self) -> [Option<&Path>; 4] {
        [
            self.etcd_ca_file.as_deref(),
            self.etcd_cert_file.as_deref(),
            self.etcd_key_file.as_deref(),
            self.etcd_user_file.as_deref(),
        ]
    }
}
