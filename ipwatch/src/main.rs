//! The `ipwatch` command.

fn main() {}
