//! The text of a page: asks the daemon what a row leads to, in the words of the command that the page names.

use super::questions::Question;
use crate::api::Ask;
use crate::api::client::Client;
use crate::cli::output::Out;
use crate::cli::table::Paint;
use crate::cli::view::View;
use crate::cli::{Failure, explain, query, show};
use crate::contract::{Body, Document};
use crate::escape::escape;

/// The answer, or why there is none. `width`: that of the screen.
pub(super) async fn text(client: &Client, question: &Question, out: &Out, width: usize) -> String {
    // The page takes its styles from the colours, and leaves them out where they are not wanted.
    let view =
        |document: &Document| View { width: Some(width), paint: Paint(true), ..out.view(document) };
    match told(client, question, view).await {
        Ok(text) => text,
        Err(failure) => format!("{}\n", escape(&failure.to_string())),
    }
}

async fn told(
    client: &Client,
    question: &Question,
    view: impl Fn(&Document) -> View,
) -> Result<String, Failure> {
    let ask = match question {
        Question::Explain(what) => return explain::story_about(client, what, view).await,
        Question::Tree(selector) => Ask::Addresses(selector.clone()),
        Question::History(past) => Ask::History(past.clone()),
        Question::Network(network) => Ask::Ipam { ip: None, network: Some(network.clone()) },
    };
    let document = client.ask(&ask).await?;
    match &document.body {
        Body::Addresses(addresses) => {
            let findings = query::open_findings(client, addresses).await;
            Ok(show::trees(&document, &findings, view(&document)))
        }
        _ => Ok(show::document(&document, view(&document))),
    }
}
