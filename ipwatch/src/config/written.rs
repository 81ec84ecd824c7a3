//! Values as people write them: durations, paths, and IPs with prefixes.

use std::path::Path;

use jiff::SignedDuration;
use serde::Deserialize as _;

use crate::contract::Prefix;

/// A duration as people write it.
pub(super) fn duration<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<SignedDuration, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        let help = "is not a duration: write it as \"500ms\", \"30s\" or \"1h 30m\", days as hours";
        serde::de::Error::custom(format!("{text:?} {help}"))
    })
}

/// As people write it, and as it is read back.
pub(super) fn span<S: serde::Serializer>(
    duration: &SignedDuration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{duration:#}"))
}

/// A path that the command line may have given, where it need not be text.
pub(super) fn lossily<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// IPs and prefixes as people write them.
pub(super) fn prefixes<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Prefix>, D::Error> {
    let prefix = |text: String| {
        let help = "is neither an IP nor a prefix: write it as \"10.0.0.1\" or \"10.0.0.0/24\"";
        text.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} {help}")))
    };
    Vec::<String>::deserialize(deserializer)?.into_iter().map(prefix).collect()
}
