//! `ipwatch ack` and `unack`: acknowledge a finding, so that it does not page again.

use super::args::{Acked, Global, Unacked};
use super::output::Out;
use super::{Failure, Outcome};
use crate::api::Ask;
use crate::api::client::Client;

pub(super) async fn ack(global: &Global, out: &Out, acked: Acked) -> Result<Outcome, Failure> {
    let Acked { finding, lasts, note } = acked;
    let seconds = lasts.map(|lasts| lasts.as_secs());
    say(global, out, &Ask::Ack { what: finding, seconds, note }).await
}

pub(super) async fn unack(
    global: &Global,
    out: &Out,
    unacked: Unacked,
) -> Result<Outcome, Failure> {
    say(global, out, &Ask::Unack { what: unacked.finding }).await
}

/// Prints the current state of the finding.
async fn say(global: &Global, out: &Out, ask: &Ask) -> Result<Outcome, Failure> {
    let document = Client::new(global.socket()).ask(ask).await?;
    out.document(&document, true)?;
    Ok(Outcome::Fine)
}
