//! A terminal's screen as an SVG, light and dark: lines of text with the looks that `tests/support/screen.rs` writes.

use std::fmt::Write as _;

/// A cell in pixels, and the margin around the screen.
const WIDTH: f32 = 8.4;
const HEIGHT: f32 = 18.0;
const MARGIN: f32 = 12.0;

const STYLE: &str = "
:root { --ground: #ffffff; --text: #1f2328; --dim: #6e7781; --red: #cf222e; --yellow: #8a5a00; --green: #116329; --edge: #d0d7de; }
@media (prefers-color-scheme: dark) {
:root { --ground: #0d1117; --text: #e6edf3; --dim: #8b949e; --red: #ff7b72; --yellow: #e3b341; --green: #56d364; --edge: #30363d; }
}
text { font: 14px ui-monospace, \"DejaVu Sans Mono\", monospace; white-space: pre; }
.plain { fill: var(--text); } .dim { fill: var(--dim); } .red { fill: var(--red); } .yellow { fill: var(--yellow); }
.green { fill: var(--green); } .bold { font-weight: 700; } .back { fill: var(--text); } .on { fill: var(--ground); }
.ground { fill: var(--ground); stroke: var(--edge); }
";

/// The look of a run of cells, by its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    colour: &'static str,
    is_bold: bool,
    is_reversed: bool,
}

impl Look {
    fn of(parameters: &str) -> Self {
        let mut look = Look { colour: "plain", is_bold: false, is_reversed: false };
        for parameter in parameters.split(';') {
            match parameter {
                "1" => look.is_bold = true,
                "2" => look.colour = "dim",
                "7" => look.is_reversed = true,
                "31" => look.colour = "red",
                "32" => look.colour = "green",
                "33" => look.colour = "yellow",
                _ => {}
            }
        }
        look
    }
}

/// The picture of a screen.
pub(super) fn svg(screen: &str) -> String {
    let lines: Vec<Vec<(Look, String)>> = screen.lines().map(runs).collect();
    let columns = lines.iter().map(|line| width(line)).max().unwrap_or(0);
    let (width, height) =
        (columns as f32 * WIDTH + 2.0 * MARGIN, lines.len() as f32 * HEIGHT + 2.0 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" xml:space=\"preserve\">\n\
         <title>ipwatch top</title>\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" x=\"0.5\" y=\"0.5\" width=\"{:.0}\" height=\"{:.0}\" rx=\"6\"/>\n",
        width - 1.0,
        height - 1.0
    );
    for (at, line) in lines.iter().enumerate() {
        let mut column = 0;
        for (look, text) in line {
            run(&mut out, at, column, look, text);
            column += text.chars().count();
        }
    }
    out.push_str("</svg>\n");
    out
}

fn width(line: &[(Look, String)]) -> usize {
    line.iter().map(|(_, text)| text.chars().count()).sum()
}

/// The runs of a line: cells with one look, and the parts of a bar by themselves.
fn runs(line: &str) -> Vec<(Look, String)> {
    let mut runs: Vec<(Look, String)> = Vec::new();
    for (at, part) in line.split("\x1b[").enumerate() {
        let (parameters, text) =
            if at == 0 { ("", part) } else { part.split_once('m').unwrap_or(("", part)) };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let filled = shade(first);
            let end = rest.find(|c| shade(c) != filled).unwrap_or(rest.len());
            let (run, after) = rest.split_at(end);
            runs.push((Look::of(parameters), run.to_owned()));
            rest = after;
        }
    }
    runs
}

/// How much of a cell of a bar is filled.
fn shade(c: char) -> Option<f32> {
    Some(match c {
        '█' => 1.0,
        '▓' => 0.8,
        '▒' => 0.6,
        '▚' => 0.5,
        '░' => 0.25,
        _ => return None,
    })
}

fn run(out: &mut String, line: usize, column: usize, look: &Look, text: &str) {
    let (x, y) = (MARGIN + column as f32 * WIDTH, MARGIN + line as f32 * HEIGHT);
    let cells = text.chars().count();
    let wide = cells as f32 * WIDTH;
    if look.is_reversed {
        let _ = writeln!(
            out,
            "<rect class=\"back\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{HEIGHT:.1}\"/>"
        );
    }
    // A bar is drawn as one: fonts leave gaps between its cells.
    if let Some(shade) = text.chars().next().and_then(shade) {
        let _ = writeln!(
            out,
            "<rect class=\"{}\" opacity=\"{shade}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"{:.1}\"/>",
            look.colour,
            y + 3.0,
            HEIGHT - 6.0
        );
        return;
    }
    let trimmed = text.trim_end();
    if trimmed.trim_start().is_empty() {
        return;
    }
    let colour = if look.is_reversed { "on" } else { look.colour };
    let bold = if look.is_bold { " bold" } else { "" };
    let start = trimmed.len() - trimmed.trim_start().len();
    let shown = trimmed.trim_start();
    let _ = writeln!(
        out,
        "<text class=\"{colour}{bold}\" x=\"{:.1}\" y=\"{:.1}\" textLength=\"{:.1}\">{}</text>",
        x + start as f32 * WIDTH,
        y + HEIGHT - 5.0,
        shown.chars().count() as f32 * WIDTH,
        escaped(shown)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_classes_and_bars_become_bars() {
        let picture = svg(
            "\x1b[0;1;31mCRIT\x1b[0m  a<b\x1b[0m\n\x1b[0;7m> x\x1b[0m  n ██ \x1b[0;33m▓▓\x1b[0m\n",
        );
        assert!(picture.contains("class=\"red bold\" x=\"12.0\""), "{picture}");
        assert!(picture.contains(">a&lt;b</text>"), "{picture}");
        assert!(picture.contains("<rect class=\"back\""), "{picture}");
        assert!(picture.contains("<rect class=\"yellow\" opacity=\"0.8\""), "{picture}");
        assert!(picture.contains("<rect class=\"plain\" opacity=\"1\" x=\"70.8\""), "{picture}");
        assert!(picture.contains("prefers-color-scheme: dark"), "{picture}");
    }
}
