//! The pictures in `docs/images`: each `NAME.svg` is made from `NAME.dot` by Graphviz; `report.svg` is the timeline of a
//! report about a real pod that hangs, and `top-80.svg` and `top-200.svg` are screens of `ipwatch top` over real pods with so
//! many columns. End-to-end tests make these. Each picture has the colours of a light and of a dark page.
//!
//! Graphviz's output differs from version to version, and no two runs take the same time, so a picture is compared with
//! its sources by a checksum that is written into it, not by drawing it again.

mod screen;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::shell::{command, output, run};
use crate::{build, place, setup, test};

/// The variable that says where the tests leave what a picture is made of.
const VARIABLE: &str = "IPWATCH_TEST_PICTURES";

/// The test that makes a report, and what its picture is made by.
const REPORT: &str = "report::one_file_tells";
const REPORT_SOURCES: &[&str] =
    &["ipwatch/src/cli/report/picture.rs", "ipwatch/src/cli/report/style.css"];

/// The test that has screens, its screens, and what their pictures are made by.
const TOP: &str = "top::a_person_looks";
const SCREENS: [&str; 2] = ["top-80", "top-200"];
const TOP_SOURCES: &[&str] = &[
    "ipwatch/src/cli/top/columns.rs",
    "ipwatch/src/cli/top/draw.rs",
    "ipwatch/src/cli/top/layout.rs",
    "xtask/src/pictures/screen.rs",
];

/// Draws every picture again.
pub(crate) fn draw() -> Result<()> {
    setup::need_root("making a report of a real pod")?;
    graphs()?;
    let dir = place::target().join("pictures");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    let tests = [REPORT, TOP];
    let mut e2e = test::end_to_end(&build::for_tests()?, &tests)?;
    run(e2e.args(["--jobs", "1"]).args(tests).env(VARIABLE, &dir))?;
    let page = fs::read_to_string(dir.join("redacted.html"))?;
    keep("report.svg", REPORT_SOURCES, &timeline(&page)?)?;
    for name in SCREENS {
        let screen = fs::read_to_string(dir.join(format!("{name}.screen")))?;
        keep(&format!("{name}.svg"), TOP_SOURCES, &screen::svg(&screen))?;
    }
    Ok(())
}

/// Writes a picture, with the checksum of what it is made by.
fn keep(name: &str, sources: &[&str], picture: &str) -> Result<()> {
    Ok(fs::write(images().join(name), format!("{}\n{picture}", mark(&joined(sources)?)))?)
}

/// The timeline of a page as a picture of its own, with the page's style.
fn timeline(page: &str) -> Result<String> {
    let between = |from: &str, to: &str| {
        let rest = page.split_once(from)?.1;
        Some(rest.split_once(to)?.0)
    };
    let style = between("<style>", "</style>").context("no style in the page")?;
    let svg = between("<svg", "</svg>").context("no picture in the page")?;
    let (attributes, body) = svg.split_once('>').context("no picture in the page")?;
    // A picture's root is no body: it has neither a font nor a ground.
    let own =
        "svg { background: var(--card); font-family: system-ui, \"DejaVu Sans\", sans-serif; }";
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\"{attributes}>\n<style>{style}{own}\n</style>{body}</svg>\n"
    ))
}

/// The texts of these files.
fn joined(sources: &[&str]) -> Result<String> {
    let texts = sources.iter().map(|source| fs::read_to_string(place::repository().join(source)));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.concat())
}

fn graphs() -> Result<()> {
    setup::packages(&["graphviz"])?;
    for source in sources()? {
        let text = fs::read_to_string(&source)?;
        let name = source.to_string_lossy();
        let drawn = output(&mut command(&["dot", "-Tsvg", &name]))?;
        let (_, body) = drawn.split_once("<svg").with_context(|| format!("{name}: no picture"))?;
        let picture = format!("{}\n{}", mark(&text), with_themes(&format!("<svg{body}"))?);
        fs::write(source.with_extension("svg"), picture)?;
    }
    Ok(())
}

/// The colours of the graphs, and those of a dark page.
const THEME: [(&str, &str); 9] = [
    ("#ffffff", "#0d1117"),
    ("#f6f8fa", "#161b22"),
    ("#ddf4ff", "#0c2d6b"),
    ("#fff8c5", "#3b2f00"),
    ("#24292f", "#e6edf3"),
    ("#57606a", "#9ea7b3"),
    ("#8c959f", "#6e7681"),
    ("#0969da", "#58a6ff"),
    ("#9a6700", "#d29922"),
];

/// A graph that is dark on a dark page. Graphviz knows one set of colours, which it writes as attributes.
fn with_themes(svg: &str) -> Result<String> {
    let (root, body) = svg.split_once('>').context("no picture")?;
    let mut style = String::from("svg { background: #0d1117; }\n");
    for (light, dark) in THEME {
        for what in ["fill", "stroke"] {
            style.push_str(&format!("[{what}=\"{light}\"] {{ {what}: {dark}; }}\n"));
        }
    }
    Ok(format!(
        "{root}>\n<style>\n@media (prefers-color-scheme: dark) {{\n{style}}}\n</style>{body}"
    ))
}

fn images() -> PathBuf {
    place::repository().join("docs/images")
}

fn sources() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(images())? {
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
            // A colour that is not of the theme is unreadable on one of the pages.
            assert!(picture.contains("prefers-color-scheme: dark"), "{}", source.display());
            let (_, graph) = picture.split_once("</style>").unwrap();
            for attribute in graph.split([' ', '>']).filter(|word| word.contains("=\"#")) {
                let (_, colour) = attribute.split_once("=\"").unwrap();
                let colour = colour.split('"').next().unwrap();
                let known = THEME.iter().any(|(light, _)| *light == colour);
                assert!(known, "{}: {attribute}", source.display());
            }
        }
        let screens = SCREENS.map(|name| (name, TOP_SOURCES));
        for (name, sources) in [("report", REPORT_SOURCES)].into_iter().chain(screens) {
            let picture = fs::read_to_string(images().join(format!("{name}.svg"))).unwrap();
            assert!(!picture.contains("/tmp/"), "{name}.svg: a path of the run that made it");
            assert!(picture.contains("prefers-color-scheme: dark"), "{name}.svg");
            let wanted = mark(&joined(sources).unwrap());
            assert!(picture.starts_with(&wanted), "{name}.svg: cargo xtask pictures");
        }
    }

    #[test]
    fn a_timeline_is_taken_out_of_its_page() {
        let page = "<style>\nb {}</style><p/><svg viewBox=\"0 0 1 1\">\n<g/></svg>";
        let picture = timeline(page).unwrap();
        assert!(picture.starts_with("<svg xmlns=") && picture.contains(" viewBox=\"0 0 1 1\">"));
        assert!(picture.contains("b {}svg {") && picture.ends_with("<g/></svg>\n"), "{picture}");
        assert!(timeline("<p/>").is_err());
    }
}
