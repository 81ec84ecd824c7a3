//! The `ipwatch` command. Everything is in the library; this is its door.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipwatch::cli::main()
}
