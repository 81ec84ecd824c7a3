//! `ipwatch config default|check|show`: prints the default configuration, validates a file, prints the effective
//! configuration.

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
    // A file given on the command line must exist; the default file may be missing.
    let config = Config::load(file.as_deref()).map_err(anyhow::Error::from)?;
    // Files named in `[otlp]` must be readable: without them the daemon does not start.
    config.otlp.settings(&|_| None).context("the configuration is wrong")?;
    // Without the files named in `[calico]` the daemon starts, and reports a source that is down.
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
    // The environment applies if the file has no endpoint.
    let endpoint = config.otlp.endpoint;
    config.otlp.endpoint = endpoint.or_else(|| environment("OTEL_EXPORTER_OTLP_ENDPOINT"));
    Ok(text::effective(&config))
}
