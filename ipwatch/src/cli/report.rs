//! `ipwatch report`: one file for the incident channel or the post-mortem.
//!
//! `case` asks the daemon; all else is pure: `build` and `timeline` make the report of what it told, `redact` and `names`
//! take the names out, `html` with `picture` and `rows`, and `markdown`, write it.

mod build;
mod case;
mod html;
mod markdown;
mod names;
mod picture;
mod redact;
mod rows;
#[cfg(test)]
mod tests;
mod timeline;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use self::case::Case;
use super::args::{Format, Global, Output, Reported, Written};
use super::output::{self, Out};
use super::{Failure, Outcome};
use crate::api::client::Client;
use crate::contract::report::Report;
use crate::escape::escape;

pub(super) async fn report(
    global: &Global,
    out: &Out,
    wanted: Reported,
) -> Result<Outcome, Failure> {
    let form = form(&wanted, &global.output)?;
    let client = Client::new(global.socket());
    let case = Case::ask(&client, wanted.what.trim()).await?;
    let mut report = build::report(&case);
    if wanted.redact {
        report = redact::redact(&report, &case).map_err(anyhow::Error::from)?;
    }
    let text = text(&report, form)?;
    match &global.output {
        Output::File(path) => write(path, &text)?,
        Output::Format(_) => out.raw(text.as_bytes())?,
    }
    Ok(Outcome::Fine)
}

/// In which form: as asked for, else as the file's name ends, else Markdown, which is read where it is printed.
fn form(wanted: &Reported, output: &Output) -> Result<Written, Failure> {
    if let Some(form) = wanted.form() {
        return Ok(form);
    }
    match output {
        Output::Format(Format::Table) => Ok(Written::Markdown),
        Output::Format(Format::Json) => Ok(Written::Json),
        Output::Format(_) => {
            Err(anyhow::anyhow!("a report is --html, --md or --json; -o FILE writes it to a file")
                .into())
        }
        Output::File(path) => match path.extension().and_then(|end| end.to_str()) {
            Some("html" | "htm") => Ok(Written::Html),
            Some("md") => Ok(Written::Markdown),
            Some("json") => Ok(Written::Json),
            _ => {
                let name = path.display().to_string();
                Err(anyhow::anyhow!("{name} does not end in .html, .md or .json: say which by --html, --md or --json")
                    .into())
            }
        },
    }
}

fn text(report: &Report, form: Written) -> Result<String, Failure> {
    Ok(match form {
        Written::Html => html::page(report),
        Written::Markdown => markdown::document(report),
        Written::Json => {
            let text = serde_json::to_string_pretty(report).map_err(anyhow::Error::from)?;
            output::quiet(&(text + "\n"))
        }
    })
}

/// Writes the file anew. A link in its place is not followed: root may write it to a directory that all may write to.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options.custom_flags(libc::O_NOFOLLOW).mode(0o644);
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        let path = path.to_string_lossy();
        anyhow::anyhow!("cannot write {}: {error}", escape(&path)).into()
    })
}
