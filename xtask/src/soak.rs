//! `cargo xtask soak [--minutes N] [--seed N]`: runs `soak` of the end-to-end tests with the release build for that long,
//! ten minutes by default, and draws what it measured as `target/soak/soak.svg`. The same seed makes the same choices.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::place;

const USAGE: &str = "usage: cargo xtask soak [--minutes NUMBER] [--seed NUMBER]";

/// Size of one chart, in pixels.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 90.0;
/// Room at the left for the numbers, and above each chart for its title.
const LEFT: f64 = 60.0;
const ABOVE: f64 = 34.0;

/// Runs it; `false` if it failed. What was measured is drawn all the same.
pub(crate) fn run(args: &[&str]) -> Result<bool> {
    let (mut minutes, mut seed) = (10_u32, None);
    let mut rest = args;
    while let [name, value, more @ ..] = rest {
        match *name {
            "--minutes" => minutes = value.parse().ok().filter(|n| *n > 0).context(USAGE)?,
            "--seed" => seed = Some(value.parse::<u64>().ok().context(USAGE)?),
            _ => bail!(USAGE),
        }
        rest = more;
    }
    if !rest.is_empty() {
        bail!(USAGE);
    }
    let dir = place::target().join("soak");
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let measured = dir.join("soak.tsv");
    let _ = std::fs::remove_file(&measured);
    let mut test = Command::new(std::env::current_exe().context("this program")?);
    test.args(["test", "--only", "soak::", "--release", "--cycles"])
        .arg((minutes * 60).to_string());
    test.env("IPWATCH_TEST_SOAK", &measured);
    test.envs(seed.map(|seed| ("IPWATCH_TEST_SEED", seed.to_string())));
    let passed = test.status().context("cargo xtask test")?.success();
    match draw(&measured, &dir) {
        Ok(picture) => println!("{}", picture.display()),
        Err(error) => println!("nothing is drawn: {error:#}"),
    }
    Ok(passed)
}

fn draw(measured: &Path, dir: &Path) -> Result<PathBuf> {
    let text = std::fs::read_to_string(measured).with_context(|| measured.display().to_string())?;
    let picture = dir.join("soak.svg");
    std::fs::write(&picture, svg(&text)?).with_context(|| picture.display().to_string())?;
    Ok(picture)
}

/// A chart of each quantity over time. `text` is a table with a head, its columns separated by tabs.
fn svg(text: &str) -> Result<String> {
    let rows: Vec<Vec<f64>> = text
        .lines()
        .skip(1)
        .map(|line| line.split('\t').map(|word| Ok(word.parse()?)).collect())
        .collect::<Result<_>>()?;
    let at = |column: usize| -> Vec<f64> {
        rows.iter().filter_map(|row| row.get(column).copied()).collect()
    };
    let times = at(0);
    let charts = [
        ("Resident memory, MiB", at(1).iter().map(|kib| kib / 1024.0).collect()),
        ("Anonymous memory, MiB", at(2).iter().map(|kib| kib / 1024.0).collect()),
        ("CPU, % of a core", rates(&times, &at(3))),
        ("Open files", at(4)),
        ("Events not reported, and readings of everything, since the start of the daemon", at(5)),
        ("Findings that are open", at(6)),
        ("Cycles of pods that have ended", at(7)),
    ];
    let end = times.last().copied().filter(|end| *end > 0.0).context("no measurements")?;
    if charts.iter().any(|(_, values): &(_, Vec<f64>)| values.len() != times.len()) {
        bail!("a line of the measurements is incomplete");
    }
    let (width, height) = (LEFT + WIDTH + 10.0, (HEIGHT + ABOVE) * charts.len() as f64 + 30.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<title>{:.0} minutes of everything at once</title>\n<style>text{{fill:#24292f}}\
         .axis{{stroke:#8c959f}}.line{{stroke:#0969da;fill:none;stroke-width:1.3}}\
         @media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.axis{{stroke:#6e7681}}\
         .line{{stroke:#58a6ff}}}}</style>\n",
        end / 60.0
    );
    for (n, (title, values)) in charts.iter().enumerate() {
        let top = (HEIGHT + ABOVE) * n as f64 + ABOVE;
        let most = values.iter().copied().fold(0.0_f64, f64::max).max(1.0);
        let x = |time: f64| LEFT + WIDTH * time / end;
        let y = |value: f64| top + HEIGHT * (1.0 - value / most);
        let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{}\">{title}</text>", top - 8.0);
        let _ = writeln!(
            out,
            "<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {top}v{HEIGHT}h{WIDTH}\"/>\n\
             <text x=\"{0}\" y=\"{1}\" text-anchor=\"end\">{most:.0}</text>\n\
             <text x=\"{0}\" y=\"{2}\" text-anchor=\"end\">0</text>",
            LEFT - 6.0,
            top + 10.0,
            top + HEIGHT
        );
        let points: Vec<String> = times
            .iter()
            .zip(values)
            .map(|(time, value)| format!("{:.1},{:.1}", x(*time), y(*value)))
            .collect();
        let _ = writeln!(out, "<polyline class=\"line\" points=\"{}\"/>", points.join(" "));
    }
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{0}\">0</text>\n<text x=\"{1}\" y=\"{0}\" text-anchor=\"end\">{2:.1} min</text>\n</svg>",
        height - 10.0,
        LEFT + WIDTH,
        end / 60.0
    );
    Ok(out)
}

/// Hundredths of a second of CPU time as percent of a core. They begin anew where the daemon was restarted.
fn rates(times: &[f64], ticks: &[f64]) -> Vec<f64> {
    let before = std::iter::once((0.0, 0.0))
        .chain(times.iter().copied().zip(ticks.iter().copied()))
        .collect::<Vec<_>>();
    let pairs = before.iter().zip(times.iter().zip(ticks));
    let rate = |((then, old), (now, new)): (&(f64, f64), (&f64, &f64))| {
        let old = if old > new { &0.0 } else { old };
        (new - old) / (now - then).max(0.1)
    };
    pairs.map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_drawn() {
        let head = "seconds\tresident KiB\tanonymous KiB\tCPU ticks\tfiles\tlost\tfindings\tpods\n";
        let rows = "1.0\t2048\t1024\t50\t30\t0\t0\t1\n2.0\t4096\t1024\t60\t31\t5\t1\t2\n";
        let picture = svg(&format!("{head}{rows}")).unwrap();
        assert_eq!(picture.matches("<polyline").count(), 7);
        // Twice the memory: half of the height, and the top.
        assert!(picture.contains("points=\"490.0,79.0 920.0,34.0\""), "{picture}");
        assert!(svg(head).is_err());
        assert!(svg(&format!("{head}1.0\t2048\n")).is_err());
    }

    #[test]
    fn a_restart_begins_the_cpu_time_anew() {
        assert_eq!(rates(&[1.0, 2.0, 3.0], &[50.0, 60.0, 10.0]), [50.0, 10.0, 10.0]);
    }
}
