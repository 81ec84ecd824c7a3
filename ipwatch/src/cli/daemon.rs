//! `ipwatch run` and `ipwatch record`: the commands that run until they are stopped.

use std::sync::Arc;

use super::args::{Configured, Global, Record, Run};
use super::{Failure, Outcome};
use crate::config::{Config, environment};
use crate::daemon;

pub(super) fn run(global: &Global, run: Run) -> Result<Outcome, Failure> {
    let Run { configured, state_dir } = run;
    let socket = global.named_socket();
    let read = move || {
        let mut config = Config::load(configured.config.as_deref())?;
        // The command line overrides file and environment, at a reload as well.
        config.socket = socket.clone().unwrap_or(config.socket);
        config.state_dir = state_dir.clone().unwrap_or(config.state_dir);
        Ok(config)
    };
    let config = read().map_err(anyhow::Error::from)?;
    warn_of_unknown_variables();
    daemon::run(config, Arc::new(read))?;
    Ok(Outcome::Fine)
}

pub(super) fn record(global: &Global, record: Record) -> Result<Outcome, Failure> {
    let Record { configured, out, duration } = record;
    let file = Some(out).filter(|out| out.as_os_str() != "-");
    warn_of_unknown_variables();
    daemon::record(config(global, &configured)?, file, duration)?;
    Ok(Outcome::Fine)
}

/// The complete and validated configuration; the command line overrides it.
pub(super) fn config(global: &Global, configured: &Configured) -> Result<Config, Failure> {
    let loaded = Config::load(configured.config.as_deref());
    let mut config = loaded.map_err(anyhow::Error::from)?;
    if let Some(socket) = global.named_socket() {
        config.socket = socket;
    }
    Ok(config)
}

/// Warns of variables that look like ours and are none: a misspelt one is not silently ignored. It is no error, because
/// others may set such variables: Kubernetes does for a Service with the name `ipwatch`.
pub(super) fn warn_of_unknown_variables() {
    for line in environment::unknown(std::env::vars_os()) {
        tracing::warn!("{line}");
    }
}
