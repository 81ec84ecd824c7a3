//! `ipwatch config default|check|show`: what may be configured, whether it is right, what is in force.

use std::path::PathBuf;

use anyhow::Context as _;

use super::args::{ConfigCommand, ConfigWhat, Configured, Global};
use super::output::Out;
use super::{Failure, Outcome, daemon};
use crate::config::{Config, DEFAULT_PATH, text};
use crate::escape::escape;
use crate::sinks::otlp::config::environment;

pub(super) fn config(
    global: &Global,
    out: &Out,
    command: ConfigCommand,
) -> Result<Outcome, Failure> {
    let text = match command.what {
        ConfigWhat::Default => text::defaults(),
        ConfigWhat::Check { file } => check(file)?,
        ConfigWhat::Show(configured) => show(global, &configured)?,
    };
    out.raw(text.as_bytes())?;
    Ok(Outcome::Fine)
}

fn check(file: Option<PathBuf>) -> Result<String, Failure> {
    // A file that is named must be there; the usual one may be absent.
    let config = Config::load(file.as_deref()).map_err(anyhow::Error::from)?;
    // The files that it names too: without them the daemon would not start.
    config.otlp.settings(&|_| None).context("the configuration is wrong")?;
    // Without these it would, and say so as a source that is down.
    config.calico.check().context("the configuration is wrong")?;
    let file = file.unwrap_or_else(|| DEFAULT_PATH.into());
    let shown = file.to_string_lossy();
    let shown = escape(&shown);
    Ok(if file.exists() {
        format!("{shown} is right\n")
    } else {
        format!("there is no {shown}: the defaults are in force\n")
    })
}

fn show(global: &Global, configured: &Configured) -> Result<String, Failure> {
    let mut config = daemon::config(global, configured)?;
    // The environment has its say where the file has none.
    let endpoint = config.otlp.endpoint;
    config.otlp.endpoint = endpoint.or_else(|| environment("OTEL_EXPORTER_OTLP_ENDPOINT"));
    Ok(text::effective(&config))
}
