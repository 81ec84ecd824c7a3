//! The program: one call of the plugin.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipwatch_ipam::plugin::main()
}
