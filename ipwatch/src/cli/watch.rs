//! `ipwatch watch`: prints events as they arrive.

use super::args::{Followed, Format, Global, Watched};
use super::output::{self, Out};
use super::show::event;
use super::{Failure, Outcome};
use crate::api::client::Client;
use crate::api::{Ask, Stream};
use crate::escape::escape;

pub(super) async fn watch(global: &Global, out: &Out, what: Watched) -> Result<Outcome, Failure> {
    let client = Client::new(global.socket());
    let stream = match what.what {
        None => Stream::Events,
        Some(Followed::Neigh) => Stream::Neighbours,
    };
    // Subscribe before asking, so that no event is lost in between.
    let mut watch = client.watch(stream).await?;
    if out.for_people() && !global.no_headers {
        out.raw(beginning(&client, out).await?.as_bytes())?;
    }
    while let Some(line) = watch.next_line().await? {
        out.raw(printed(line, out)?.as_bytes())?;
    }
    let path = client.path().display();
    Err(anyhow::anyhow!(
        "the daemon on {path} has closed the connection: `systemctl status ipwatch` says why"
    )
    .into())
}

/// The text of an event; none if it is not known.
pub(super) fn printed(line: String, out: &Out) -> Result<String, Failure> {
    let format = out.format;
    if matches!(format, Format::Json | Format::Jsonl) {
        // As the daemon wrote it, so that fields of a newer daemon are kept.
        return Ok(output::quiet(&(line + "\n")));
    }
    // The contract may grow: unknown events of a newer daemon are skipped.
    let Ok(event) = serde_json::from_str(&line) else { return Ok(String::new()) };
    match format {
        Format::Yaml => output::yaml_item(&event),
        Format::Name => Ok(event::name(&event)),
        _ => Ok(event::line(&event, out.paint(), format == Format::Wide)),
    }
}

/// The daemon's socket, and the open findings, as context for later events.
async fn beginning(client: &Client, out: &Out) -> Result<String, Failure> {
    let document = client.ask(&Ask::Findings { all: false, what: None }).await?;
    let open = out.render(&document, out.view(&document))?;
    let socket = client.path().display().to_string();
    Ok(format!("Following {} until Ctrl-C. Open now:\n{open}\n", escape(&socket)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AskError, fake};
    use crate::cli::args::Cli;
    use crate::cli::show::sample;

    #[tokio::test]
    async fn it_begins_with_whom_it_follows_and_what_is_open() {
        let fake = fake::daemon(|ask| match ask {
            Ask::Findings { all: false, what: None } => Ok(sample("scan.json")),
            _ => Err(AskError::NotFound("nothing else is asked".into())),
        });
        let cli = Cli::read(["ipwatch", "watch"].map(Into::into).into()).unwrap();
        let text = beginning(&fake.client, &Out::new(&cli.global)).await.unwrap();
        let socket = fake.client.path().display().to_string();
        assert!(text.starts_with(&format!("Following {socket} until Ctrl-C.")), "{text}");
        assert!(text.contains("k3f9") && text.contains("ip-held-by-stuck-process"), "{text}");
    }
}
