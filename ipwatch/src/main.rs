//! The `ipwatch` command, which calls the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(panic = "unwind")]
    abort_on_panic();
    ipwatch::cli::main()
}

/// Aborts on a panic, so that no daemon continues without one of its threads. Release builds abort by themselves
/// (`[profile.release]` in `Cargo.toml`); tested builds have a profile that unwinds.
#[cfg(panic = "unwind")]
fn abort_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        say(panic);
        std::process::abort();
    }));
}
