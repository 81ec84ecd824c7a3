//! `ipwatch watch`: what comes and goes, as it does.

use super::args::{Followed, Format, Global, Watched};
use super::output::{self, Out};
use super::show::event;
use super::{Failure, Outcome};
use crate::api::Stream;
use crate::api::client::Client;

pub(super) async fn watch(global: &Global, out: &Out, what: Watched) -> Result<Outcome, Failure> {
    let client = Client::new(global.socket());
    let stream = match what.what {
        None => Stream::Events,
        Some(Followed::Neigh) => Stream::Neighbours,
    };
    let mut watch = client.watch(stream).await?;
    while let Some(line) = watch.next_line().await? {
        match out.format {
            // As the daemon wrote it, so that what a newer one adds is not lost.
            Format::Json | Format::Jsonl => out.raw(output::quiet(&(line + "\n")).as_bytes())?,
            format => {
                // The contract may grow: an event of a newer daemon is passed over.
                let Ok(event) = serde_json::from_str(&line) else { continue };
                let text = match format {
                    Format::Yaml => output::yaml_item(&event)?,
                    Format::Name => event::name(&event),
                    _ => event::line(&event, out.paint(), format == Format::Wide),
                };
                out.raw(text.as_bytes())?;
            }
        }
    }
    let path = client.path().display();
    Err(anyhow::anyhow!("the daemon on {path} has gone: `systemctl status ipwatch` says why")
        .into())
}
