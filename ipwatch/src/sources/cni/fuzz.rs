//! Entry points of the fuzz targets.

use super::{cache, log};
use crate::fact::CniCommand;

/// Parses a file of the result cache.
pub fn cni_cache(bytes: &[u8]) {
    let _ = cache::parse(bytes);
}

/// Searches the end of a runtime's log for the failure of a call.
pub fn cni_log(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for command in [CniCommand::Add, CniCommand::Del, CniCommand::Check] {
        let container_id = "5b1ebf0e7f1c4d0b".to_owned();
        let failure = log::Failure { container_id, command, since: 1_714_557_600_000_000_000 };
        if let Some(said) = log::reason(&text, &failure) {
            assert!(said.len() <= log::LONGEST + "[…]".len());
            let ends = |char: char| char == '/' || char.is_whitespace();
            let user = |rest: &str| rest.split(ends).next().is_some_and(|host| host.contains('@'));
            assert!(!said.split("://").skip(1).any(user), "{said}");
        }
    }
}
