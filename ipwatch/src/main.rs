//! The `ipwatch` command. Everything is in the library; this is its door.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(panic = "unwind")]
    abort_on_panic();
    ipwatch::cli::main()
}

/// What is shipped aborts on a panic (`[profile.release]` in `Cargo.toml`), so that no daemon goes on without one of
/// its threads. What is tested has the profile of the tests, which unwind, and does the same.
#[cfg(panic = "unwind")]
fn abort_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        say(panic);
        std::process::abort();
    }));
}
