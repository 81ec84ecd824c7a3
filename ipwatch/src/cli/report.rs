//! `ipwatch report`: one file for the incident channel or the post-mortem.
//!
//! `case` asks the daemon. All other parts are pure: `build` and `timeline` make the report from its answers, `redact` and
//! `names` replace the names, and `html` (with `picture` and `rows`) and `markdown` write it.

mod build;
mod case;
mod html;
mod markdown;
mod names;
mod picture;
mod redact;
mod rows;
#[cfg(test)]
pub(super) mod tests;
mod timeline;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use self::case::Case;
use super::args::{Format, Global, Output, Reported, Written};
use super::output::{self, Out};
use super::{Failure, Outcome};
use crate::api::client::Client;
use crate::contract::report::Report;
use crate::escape::escape;

/// How many names are tried for the temporary file, because a killed run may have left some.
const MOST_TRIES: u32 = 64;

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

/// The form: the requested one, otherwise by the extension of the file, otherwise Markdown.
fn form(wanted: &Reported, output: &Output) -> Result<Written, Failure> {
    if let Some(form) = wanted.form() {
        return Ok(form);
    }
    match output {
        Output::Format(Format::Table) => Ok(Written::Markdown),
        Output::Format(Format::Json) => Ok(Written::Json),
        Output::Format(_) => {
            Err(anyhow::anyhow!("a report has no such format: use --html, --md or --json, and -o FILE to write it to a file")
                .into())
        }
        Output::File(path) => match path.extension().and_then(|end| end.to_str()) {
            Some("html" | "htm") => Ok(Written::Html),
            Some("md") => Ok(Written::Markdown),
            Some("json") => Ok(Written::Json),
            _ => {
                let name = path.display().to_string();
                Err(anyhow::anyhow!("{name} does not end in .html, .md or .json: choose the format with --html, --md or --json")
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

/// Writes the file atomically, readable by its owner only. It may be in a directory that all users may write to, such as
/// `/tmp`: an existing file is never opened, and only a regular file is replaced.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    replace(path, text.as_bytes()).map_err(|error| {
        let path = path.to_string_lossy();
        anyhow::anyhow!("cannot write {}: {error}", escape(&path)).into()
    })
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => {
            return Err(io::Error::other(
                "it exists and is not a regular file: choose another name",
            ));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (beside, mut file) = beside(path)?;
    let written = file
        .write_all(text)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The first error is the one that is reported.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// A new file in the same directory.
fn beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut tries = 0;
    loop {
        let name = format!(".ipwatch-report-{}-{tries}", std::process::id());
        let beside = path.with_file_name(name);
        match options.open(&beside) {
            Ok(file) => return Ok((beside, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < MOST_TRIES => {
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}
