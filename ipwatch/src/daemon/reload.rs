//! Reading the configuration again on SIGHUP. The map, the probes and the ledger stay as they are.
//!
//! What the map reads at each turn (graces, shared IPs) takes effect at once. Keys that are used only at the start
//! need a restart, and are listed. An invalid configuration changes nothing.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::core::Core;
use super::service::Service;
use crate::config::{Config, ConfigError, keys};
use crate::escape::escape;

/// Reads the configuration again, with the overrides of the command line.
pub type Reread = Arc<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

type Read = Result<Config, ConfigError>;

/// Runs reloads one at a time.
pub(super) struct Reloads {
    reread: Reread,
    /// What the daemon works with now.
    running: Config,
    reading: Option<JoinHandle<Read>>,
    /// Another reload was requested while one was running.
    again: bool,
}

impl Reloads {
    /// `running` is the configuration that the daemon was started with.
    pub(super) fn new(reread: Reread, running: Config) -> Self {
        Self { reread, running, reading: None, again: false }
    }

    /// Requests a reload.
    pub(super) fn begin(&mut self) {
        if self.reading.is_some() {
            self.again = true;
            return;
        }
        Service::reloading();
        let reread = Arc::clone(&self.reread);
        // The file may be on a disk that hangs.
        self.reading = Some(tokio::task::spawn_blocking(move || reread()));
    }

    /// The next configuration that was read. Cancel-safe; never completes while no reload is requested.
    pub(super) async fn read(&mut self) -> Read {
        let Some(reading) = &mut self.reading else { return std::future::pending().await };
        let read = reading.await;
        self.reading = None;
        read.unwrap_or(Err(ConfigError::Unread))
    }

    /// Takes over what was read, and logs and reports the result.
    pub(super) fn finish(&mut self, read: Read, core: &mut Core, service: &mut Service) {
        match read {
            Ok(config) => service.reloaded(&self.adopt(config, core)),
            Err(error) => {
                let error = error.to_string();
                tracing::error!(
                    "the configuration was not reloaded, and the old one stays in force: {}",
                    escape(&error)
                );
                service.reloaded(&format!("not reloaded: {error}"));
            }
        }
        if std::mem::take(&mut self.again) {
            self.begin();
        }
    }

    fn adopt(&mut self, config: Config, core: &mut Core) -> String {
        let changed = keys::differences(&self.running, &config);
        let names = |live: bool| -> String {
            let names = changed.iter().filter(|key| key.live == live).map(|key| key.name);
            names.collect::<Vec<_>>().join(", ")
        };
        let (now, later) = (names(true), names(false));
        // Must take over exactly the keys marked `live` in the table of keys; a test compares the two.
        take_live(&mut self.running, config);
        core.retune(self.running.thresholds(), self.running.addresses.shared.clone());
        let mut line = match now.is_empty() {
            true => "reloaded: nothing to take over".to_owned(),
            false => format!("reloaded: {now}"),
        };
        if !later.is_empty() {
            line.push_str(&format!("; changed, but waits for a restart: {later}"));
        }
        tracing::info!("{line}");
        line
    }
}

/// Copies the keys that need no restart.
fn take_live(running: &mut Config, from: Config) {
    running.stuck = from.stuck;
    running.holders = from.holders;
    running.addresses = from.addresses;
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A reload must take over what the table of keys promises.
    #[test]
    fn what_is_marked_as_live_is_taken_over_and_nothing_else() {
        let odd = Config::load(Some(Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/fixtures/every-key.toml"
        ))))
        .unwrap();
        let defaults = Config::default();
        let all: Vec<_> = keys::differences(&odd, &defaults).iter().map(|key| key.name).collect();
        let known: Vec<_> = keys::KEYS.iter().map(|key| key.name).collect();
        assert_eq!(all, known, "every key has another value there");
        let mut running = defaults.clone();
        take_live(&mut running, odd);
        let taken: Vec<_> =
            keys::differences(&running, &defaults).iter().map(|key| key.name).collect();
        let live: Vec<_> = keys::KEYS.iter().filter(|key| key.live).map(|key| key.name).collect();
        assert_eq!(taken, live);
    }
}
