//! The pictures in `docs/images`: each `NAME.svg` is made from `NAME.dot` by Graphviz.
//!
//! Graphviz's output differs from version to version, so a picture is compared with its source by a checksum that is
//! written into it, not by drawing it again.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::place;
use crate::setup;
use crate::shell::{command, output};

/// Draws every picture anew.
pub(crate) fn draw() -> Result<()> {
    setup::packages(&["graphviz"])?;
    for source in sources()? {
        let text = fs::read_to_string(&source)?;
        let name = source.to_string_lossy();
        let drawn = output(&mut command(&["dot", "-Tsvg", &name]))?;
        let (_, body) = drawn.split_once("<svg").with_context(|| format!("{name}: no picture"))?;
        let picture = format!("{}\n<svg{body}", mark(&text));
        fs::write(source.with_extension("svg"), picture)?;
    }
    Ok(())
}

fn sources() -> Result<Vec<PathBuf>> {
    let dir = place::repository().join("docs/images");
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "dot") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The first line of a picture.
fn mark(source: &str) -> String {
    // FNV-1a, 64 bit: `DefaultHasher` may change with the compiler.
    let sum = source.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("<!-- made by cargo xtask pictures from a source with the checksum {sum:016x} -->")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_picture_is_made_from_its_source() {
        let sources = sources().unwrap();
        assert!(sources.len() >= 3);
        for source in sources {
            let picture = fs::read_to_string(source.with_extension("svg")).unwrap();
            let wanted = mark(&fs::read_to_string(&source).unwrap());
            assert!(picture.starts_with(&wanted), "{}: cargo xtask pictures", source.display());
        }
    }
}
