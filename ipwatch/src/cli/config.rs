//! `ipwatch config default|check|show`: prints the default configuration, validates a file, prints the effective
//! configuration.

use std::path::PathBuf;

use anyhow::Context as _;

use super::args::{ConfigCommand, ConfigWhat, Configured, Global};
use super::output::Out;
use super::{Failure, Outcome, daemon};
use crate::config::keys::Key;
use crate::config::{Config, DEFAULT_PATH, Origin, text};
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
    daemon::warn_of_unknown_variables();
    let file = file.unwrap_or_else(|| DEFAULT_PATH.into());
    let shown = file.to_string_lossy();
    let shown = escape(&shown);
    Ok(if file.exists() {
        format!("{shown} is right\n")
    } else {
        format!("there is no {shown}: the defaults are in force\n")
    })
}

/// The variable that applies if nothing else names an endpoint.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

fn show(global: &Global, configured: &Configured) -> Result<String, Failure> {
    let loaded = Config::load_with_origins(configured.config.as_deref());
    let mut loaded = loaded.map_err(anyhow::Error::from)?;
    daemon::warn_of_unknown_variables();
    let socket = global.named_socket();
    let named = socket.is_some();
    loaded.config.socket = socket.unwrap_or(loaded.config.socket);
    let endpoint = loaded.config.otlp.endpoint.take();
    let inherited = endpoint.is_none().then(|| environment(ENDPOINT)).flatten();
    let inherits = inherited.is_some();
    loaded.config.otlp.endpoint = endpoint.or(inherited);
    let origin = |key: &Key| match key.name {
        "socket" if named => Origin::Option("--socket"),
        "otlp.endpoint" if inherits => Origin::Variable(ENDPOINT.to_owned()),
        _ => loaded.origin(key),
    };
    Ok(text::effective(&loaded.config, &origin))
}
