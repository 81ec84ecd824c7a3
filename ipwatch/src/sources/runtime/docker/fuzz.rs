//! Entry point of the fuzz target.

use super::documents::{self, Capped, Event, Inspected, Listed, Version};

/// Parses documents of the Engine API.
pub fn docker(bytes: &[u8]) {
    let _ = documents::read::<Version>("", bytes);
    let _ = documents::read::<Inspected>("", bytes);
    if let Ok(event) = documents::read::<Event>("", bytes) {
        let _ = super::event(event);
    }
    if let Ok(list) = documents::read::<Capped<Listed>>("", bytes) {
        let _ = super::sorted("docker", &list);
    }
}
