//! Options that every command takes, and how answers are written.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{EnumValueParser, OsStringValueParser, PossibleValue, TypedValueParser};
use clap::{Args, ColorChoice, ValueEnum};

use super::REPORT;
use crate::config::{Config, DEFAULT_SOCKET};

const GLOBALS: &str = "Global options";

/// Options that every command takes.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct Global {
    /// The daemon's socket [default: /run/ipwatch/ipwatch.sock]
    #[arg(long, global = true, help_heading = GLOBALS, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// In a container: where the node's root directory is mounted; all other paths are below it
    #[arg(
        long,
        global = true,
        help_heading = GLOBALS,
        value_name = "DIR",
        env = "IPWATCH_HOST_ROOT",
        // An empty variable is not set: that is how a pod of our image takes its variable back.
        value_parser = OsStringValueParser::new().map(PathBuf::from)
    )]
    pub(in crate::cli) host_root: Option<PathBuf>,
    /// Output format; `report` also takes a file
    #[arg(
        short,
        long,
        global = true,
        help_heading = GLOBALS,
        value_name = "OUTPUT",
        value_parser = OutputParser,
        default_value = "table"
    )]
    pub(in crate::cli) output: Output,
    /// Print rows only: no header lines, no hints
    #[arg(long, global = true, help_heading = GLOBALS)]
    pub(in crate::cli) no_headers: bool,
    /// Colours: `auto` means on a terminal, unless NO_COLOR is set
    #[arg(
        long,
        global = true,
        help_heading = GLOBALS,
        value_name = "WHEN",
        default_value = "auto"
    )]
    pub(in crate::cli) color: ColorChoice,
}

impl Global {
    /// Where the daemon is: as named here, or in the usual configuration where that may be read.
    pub(in crate::cli) fn socket(&self) -> PathBuf {
        let configured =
            || Config::load(None).map_or(DEFAULT_SOCKET.into(), |config| config.socket);
        self.socket.clone().unwrap_or_else(configured)
    }

    /// The format. A file has the one that its command gives it.
    pub(in crate::cli) fn format(&self) -> Format {
        match &self.output {
            Output::Format(format) => *format,
            Output::File(_) => Format::default(),
        }
    }

    /// The socket, when it was named.
    pub(in crate::cli) fn named_socket(&self) -> Option<PathBuf> {
        self.socket.clone()
    }
}

/// What `-o` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum Output {
    /// How the answer is written, to stdout.
    Format(Format),
    /// Where a report is written to.
    File(PathBuf),
}

/// Reads `-o`: a format, and behind `report`, which has forms of its own, else the name of a file.
#[derive(Debug, Clone)]
struct OutputParser;

impl TypedValueParser for OutputParser {
    type Value = Output;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Output, clap::Error> {
        let format = EnumValueParser::<Format>::new().parse_ref(command, arg, value);
        match format {
            Err(_) if command.get_name() == REPORT && !value.is_empty() => {
                Ok(Output::File(value.into()))
            }
            format => format.map(Output::Format),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Format::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

/// How answers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(in crate::cli) enum Format {
    /// For people
    #[default]
    Table,
    /// For people with wide terminals: more columns
    Wide,
    /// Addresses and who holds them, drawn as a tree
    Tree,
    /// One document, schema ipwatch/v1
    Json,
    /// One JSON object a line for each item
    Jsonl,
    /// The same document as YAML
    Yaml,
    /// What identifies each item, one a line
    Name,
}
