//! `ipwatch doctor`: the daemon's own word, or a try of our own where there is no daemon.

use super::args::{Configured, Global};
use super::output::Out;
use super::{Failure, Outcome, complain, daemon, wait_for};
use crate::api::Ask;
use crate::api::client::{Client, ClientError};

pub(super) fn doctor(
    global: &Global,
    out: &Out,
    configured: &Configured,
) -> Result<Outcome, Failure> {
    let client = Client::new(global.socket());
    let document = match wait_for(client.ask(&Ask::Doctor))? {
        Ok(document) => document,
        Err(ClientError::NoDaemon(path)) => {
            complain(&format!(
                "no daemon answers on {}: trying what this command may see",
                path.display()
            ));
            crate::daemon::doctor(&daemon::config(global, configured)?)?
        }
        Err(error) => return Err(error.into()),
    };
    out.document(&document, true)?;
    Ok(Outcome::Fine)
}
