//! `ipwatch doctor`: the daemon's report, or our own attempt if no daemon answers.

use super::args::{Doctor, Global};
use super::output::Out;
use super::{Failure, Outcome, complain, daemon, wait_for};
use crate::api::Ask;
use crate::api::client::{Client, ClientError};

pub(super) fn doctor(global: &Global, out: &Out, asked: &Doctor) -> Result<Outcome, Failure> {
    let Doctor { configured, canary } = asked;
    // With `--config`, the daemon is the one that uses this configuration.
    let socket = match configured.config {
        Some(_) => daemon::config(global, configured)?.socket,
        None => global.socket(),
    };
    let client = Client::new(socket);
    let document = match wait_for(client.ask(if *canary { &Ask::Canary } else { &Ask::Doctor }))? {
        Ok(document) => document,
        Err(ClientError::NoDaemon(path)) => {
            complain(&format!(
                "no daemon answers on {}: checking what this command can see",
                path.display()
            ));
            crate::daemon::doctor(&daemon::config(global, configured)?, *canary)?
        }
        Err(error) => return Err(error.into()),
    };
    out.document(&document, true)?;
    Ok(Outcome::Fine)
}
