//! `cargo xtask figures`: the measured figures, and the pages that show them.
//!
//! `docs/figures.json` has every figure that a benchmark or a repeated test measured: by its name the value, the goal,
//! and the commit and the kernel that it was measured with. A run replaces only what it measured. The tables and the
//! figures in README and `docs` are written from that file between comments, and a test fails where they differ:
//!
//! - `<!-- figures: TABLE -->…<!-- /figures -->`: a table ([`table`]).
//! - `<!-- figure: NAME -->…<!-- /figure -->`: the first quantity of a figure.

mod runs;
mod value;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::shell::{command, output};
use crate::{place, scale};
use runs::Runs;

/// Figures that no command writes into the file. Each was measured once and entered by hand, so that no commit is
/// known. No other entry may be without one.
const BY_HAND: [&str; 9] = [
    "ARP watch at 1,000 packets a second, CPU",
    "ARP watch at 1,000 packets a second, each a new claim, CPU",
    "ARP watch at 10,000 packets a second for 10 s",
    "a duplicate fires, after the second address",
    "a neighbour conflict fires, after the first ARP request",
    "`ipwatch check IP` with the daemon, including the start of the process",
    "idle CPU, 250 pods, in a build that polls nothing, as on a stock kernel, sweeps included",
    "runs of CNI plugins, 50 a second for 60 s",
    "runs of CNI plugins that create no device, at a load of 13",
];

/// A row of README's table of leads: what goes wrong, the case as the test names it, and the findings that warn.
struct Lead {
    text: &'static str,
    case: &'static str,
    codes: &'static [&'static str],
}

const fn lead(text: &'static str, case: &'static str, codes: &'static [&'static str]) -> Lead {
    Lead { text, case, codes }
}

const LEADS: [Lead; 10] = [
    lead(
        "the runtime loses its state, old pods fill the range",
        "runtime's state lost, range fills",
        &["netns-leaked", "ipam-range-exhausting"],
    ),
    lead(
        "nobody calls DEL, the range fills",
        "ADD without DEL, range fills",
        &["ipam-reservation-leaked", "ipam-range-exhausting"],
    ),
    lead(
        "the node crashes, reservations from before the boot fill the range",
        "reboot without DEL, range is full",
        &["ipam-range-exhausting", "ipam-reservation-leaked"],
    ),
    lead(
        "an IP is released while its holder hangs, and is assigned again",
        "freed while held, next pod gets it",
        &["ip-released-but-held"],
    ),
    lead(
        "kubelet: leaked reservations, then `FailedCreatePodSandBox`",
        "kubelet: leaks, FailedCreatePodSandBox",
        &["netns-leaked"],
    ),
    lead("", "kubelet: leaks, FailedCreatePodSandBox", &["ipam-range-exhausting"]),
    lead(
        "kubelet: a node crashes with five pods, the next pod comes 2 s after it is Ready again",
        "kubelet: a crash, the next pod at once",
        &["ipam-range-exhausting"],
    ),
    lead("the same, all five", "kubelet: a crash, the next pod at once", &["netns-leaked"]),
    lead(
        "kubelet: a force-deleted pod hangs and its IP is released; the next pod with that IP is Ready, without any Event",
        "kubelet: force-deleted, freed while held, next pod gets it",
        &["ip-released-but-held"],
    ),
    lead(
        "kubelet: a force-deleted pod hangs, then `FailedKillPod`",
        "kubelet: force-deleted pod hangs, FailedKillPod",
        &["ip-held-by-deleted-pod"],
    ),
];

/// Rows of the table of prevention: what the node has, and its figure as the test names it.
const PREVENTED: [(&str, &str); 2] = [
    ("without `ipwatch-ipam`", "kubelet: next pods that share a held IP, without ipwatch-ipam"),
    ("with `ipwatch-ipam`", "kubelet: next pods that share a held IP, with ipwatch-ipam"),
];

/// Figures of `ipwatch-ipam` on its page: what it adds to an ADD, and what it leaves open.
const OF_PLUGIN: [&str; 11] = [
    "ipwatch-ipam, added to an ADD of host-local",
    "ipwatch-ipam, CPU time added to an ADD of host-local",
    "ipwatch-ipam, its own time in an ADD, without the delegate",
    "an IP is up after its release by a DEL of macvlan",
    "ADDs during a DEL whose device goes 30 ms later that return the IP while it is up, with ipwatch-ipam",
    "ADDs during a DEL whose device goes 30 ms later that return the IP while it is up, without",
    "ADDs during a DEL whose device goes 400 ms later that return the IP while it is up, with ipwatch-ipam",
    "ADDs during a DEL whose device goes 400 ms later that return the IP while it is up, without",
    "ADDs at once after a release by hand that return the IP",
    "ADDs whose main plugin is killed that leave a reservation, with ipwatch-ipam",
    "ADDs whose main plugin is killed that leave a reservation, without ipwatch-ipam",
];

impl Lead {
    /// Names of the figures for the first word and for the firing finding.
    fn names(&self) -> [String; 2] {
        lead_names(self.case, &self.codes.join(", "))
    }
}

fn lead_names(case: &str, codes: &str) -> [String; 2] {
    ["first word", "fires"].map(|what| format!("lead: {case}: {codes}: {what}"))
}

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    measured: String,
    goal: String,
    /// Absent where the goal cannot be compared with the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reached: Option<bool>,
    /// Of the build that was measured; absent only for [`BY_HAND`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kernel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    date: Option<String>,
}

type Figures = BTreeMap<String, Figure>;

/// Name, value and goal.
type Line = (String, String, String);

/// Reads figures from the output of benchmarks and tests, line by line.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    lines: Vec<Line>,
    /// Whether the table of leads has begun.
    in_leads: bool,
    /// By case and finding: the leads of the first word and of the firing finding, in their units.
    leads: BTreeMap<(String, String), [String; 2]>,
    /// Counts of a test that is repeated, by name and goal.
    counts: BTreeMap<(String, String), Runs>,
}

impl Reader {
    pub(crate) fn read(&mut self, line: &str) {
        let line = line.trim().strip_prefix("FIGURE ").unwrap_or(line.trim());
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
        if let [name, measured, goal] = cells[..]
            && let Some(goal) = goal.strip_prefix("goal ")
        {
            self.add(name, measured, goal);
        } else if let Some(rest) = line.strip_prefix("false alarms: ") {
            self.add("false alarms of a healthy run", rest, "0");
        } else if line.starts_with("lead time: case") {
            self.in_leads = true;
        } else if let [case, code, machine, human, _] = cells[..]
            && self.in_leads
        {
            let lead = [machine.to_owned(), human.to_owned()];
            self.leads.insert((case.to_owned(), code.to_owned()), lead);
        } else {
            self.in_leads = false;
        }
    }

    fn add(&mut self, name: &str, measured: &str, goal: &str) {
        if let Some(run) = Runs::one(measured) {
            self.counts.entry((name.to_owned(), goal.to_owned())).or_default().add(&run);
            return;
        }
        self.lines.push((name.to_owned(), measured.to_owned(), goal.to_owned()));
    }

    /// The leads of the rows in [`LEADS`]: of several findings in one row the shortest.
    fn leads(&self) -> impl Iterator<Item = Line> {
        LEADS
            .iter()
            .flat_map(|row| {
                let of = |code: &&str| self.leads.get(&(row.case.to_owned(), (*code).to_owned()));
                let found: Option<Vec<_>> = row.codes.iter().map(of).collect();
                let shortest = |which: usize| {
                    let size =
                        |lead: &&str| value::Quantity::first(lead).map_or(f64::MIN, |q| q.value);
                    let all = found.as_ref()?.iter().map(|lead| lead[which].as_str());
                    all.min_by(|a, b| size(a).total_cmp(&size(b))).map(str::to_owned)
                };
                let [word, fires] = row.names();
                [(word, shortest(0)), (fires, shortest(1))]
                    .map(|(name, lead)| lead.map(|lead| (name, lead, "> 0 s".to_owned())))
            })
            .flatten()
    }

    /// Merges what was read into `docs/figures.json` and rewrites the pages. Leads and counts only `with_leads`: those of
    /// a single run are not those of ten.
    pub(crate) fn keep(&self, with_leads: bool, measured_with: &Origin) -> Result<()> {
        let mut figures = stored()?;
        let counts = self.counts.iter();
        let counts =
            counts.map(|((name, goal), runs)| (name.clone(), runs.to_string(), goal.clone()));
        let repeated = self.leads().chain(counts).filter(|_| with_leads);
        let mut count = 0;
        for (name, measured, goal) in self.lines.iter().cloned().chain(repeated) {
            figures.insert(name, measured_with.figure(measured, goal));
            count += 1;
        }
        fs::write(file(), serde_json::to_string_pretty(&figures)? + "\n")?;
        println!("{count} figures are in docs/figures.json");
        rewrite(&figures)
    }
}

/// What figures were measured with.
#[derive(Debug)]
pub(crate) struct Origin {
    commit: String,
    kernel: String,
    date: String,
}

impl Origin {
    /// This checkout and this machine, now.
    pub(crate) fn here() -> Result<Self> {
        let git = |words: &[&str]| {
            let mut git = command(&["git"]);
            output(git.args(words).current_dir(place::repository()))
        };
        let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
        let mut commit = git(&["rev-parse", "--short=7", "HEAD"])?.trim().to_owned();
        // The figures themselves do not change what is measured.
        if changed.lines().any(|line| !line.contains(" docs/") && !line.ends_with("README.md")) {
            commit.push_str(" with changes");
        }
        Self::of(commit)
    }

    /// Another commit, measured on this machine today.
    fn of(commit: String) -> Result<Self> {
        let kernel = output(&mut command(&["uname", "-r"]))?;
        // Without what a vendor appends.
        let kernel = kernel.trim().split('-').next().unwrap_or_default().to_owned();
        let date = output(&mut command(&["date", "-u", "+%F"]))?.trim().to_owned();
        Ok(Self { commit, kernel, date })
    }

    fn figure(&self, measured: String, goal: String) -> Figure {
        Figure {
            reached: value::is_reached(&measured, &goal),
            measured,
            goal,
            commit: Some(self.commit.clone()),
            kernel: Some(self.kernel.clone()),
            date: Some(self.date.clone()),
        }
    }
}

fn file() -> PathBuf {
    place::repository().join("docs/figures.json")
}

fn stored() -> Result<Figures> {
    let text = fs::read_to_string(file()).context("docs/figures.json")?;
    serde_json::from_str(&text).context("docs/figures.json")
}

/// `figures`: rewrites the pages. `figures FILE COMMIT`: merges the saved output of a run of that commit first; leads
/// count only if their tests ran ten times.
pub(crate) fn command_line(words: &[&str]) -> Result<()> {
    match words {
        [] => rewrite(&stored()?),
        [path, commit] => {
            let mut reader = Reader::default();
            fs::read_to_string(path)?.lines().for_each(|line| reader.read(line));
            reader.keep(true, &Origin::of((*commit).to_owned())?)
        }
        _ => bail!("usage: cargo xtask figures [FILE COMMIT]"),
    }
}

/// The pages that may show figures.
fn pages() -> Result<Vec<PathBuf>> {
    let mut pages = vec![place::repository().join("README.md")];
    for entry in fs::read_dir(place::repository().join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(pages)
}

fn rewrite(figures: &Figures) -> Result<()> {
    for page in pages()? {
        let text = fs::read_to_string(&page)?;
        let new = rendered(&text, figures).with_context(|| page.display().to_string())?;
        if new != text {
            fs::write(&page, new)?;
            println!("rewritten: {}", page.display());
        }
    }
    Ok(())
}

/// A page with its tables and figures as the file has them.
fn rendered(text: &str, figures: &Figures) -> Result<String> {
    let tables = between(text, "figures", |name| table(name, figures))?;
    between(&tables, "figure", |name| {
        let figure = figures.get(name).with_context(|| format!("no figure {name:?}"))?;
        Ok(value::shown(&figure.measured))
    })
}

/// Replaces what is between `<!-- WORD: NAME -->` and `<!-- /WORD -->`.
fn between(text: &str, word: &str, with: impl Fn(&str) -> Result<String>) -> Result<String> {
    let (begin, end) = (format!("<!-- {word}: "), format!("<!-- /{word} -->"));
    let (mut rest, mut out) = (text, String::new());
    while let Some((before, after)) = rest.split_once(&begin) {
        let (name, old) = after.split_once(" -->").context("a comment without an end")?;
        let (_, after) = old.split_once(&end).with_context(|| format!("{name}: no {end}"))?;
        out.extend([before, &begin, name, " -->", &with(name)?, &end]);
        rest = after;
    }
    Ok(out + rest)
}

/// The table with this name: `bench`, `by-hand`, `leads`, `plugin`, `prevention`, `scale` or `scale-addresses`.
fn table(name: &str, figures: &Figures) -> Result<String> {
    let rows: Vec<String> = match name {
        "bench" => {
            let of_bench = figures.iter().filter(|(name, _)| is_of_bench(name));
            of_bench.map(|(name, figure)| row((name, figure))).collect()
        }
        "by-hand" => {
            let by_hand = figures.iter().filter(|(name, _)| BY_HAND.contains(&name.as_str()));
            by_hand
                .map(|(name, it)| format!("| {name} | {} | {} |", it.measured, it.goal))
                .collect()
        }
        "scale" => rows_of(scale::PREFIX, figures),
        "scale-addresses" => rows_of(scale::PREFIX_WITH_ADDRESSES, figures),
        "leads" => LEADS.iter().map(|lead| row_of_lead(lead, figures)).collect::<Result<_>>()?,
        "plugin" => {
            OF_PLUGIN.iter().map(|name| row_of_plugin(name, figures)).collect::<Result<_>>()?
        }
        "prevention" => {
            PREVENTED.iter().map(|row| row_of_prevention(row, figures)).collect::<Result<_>>()?
        }
        _ => bail!("no table {name:?}"),
    };
    let heads = match name {
        "bench" | "scale" | "scale-addresses" => {
            "| Figure | Measured | Goal | Reached | Commit |\n|---|---|---|---|---|"
        }
        "by-hand" | "plugin" => "| Figure | Measured | Goal |\n|---|---|---|",
        "prevention" => {
            "| kubelet: a force-deleted pod hangs, its IP is released, five pods start | Next pods that share the IP | Runs with a duplicate |\n|---|---|---|"
        }
        _ => "| What goes wrong | Warned by | First word | Fires |\n|---|---|---|---|",
    };
    Ok(format!("\n\n{heads}\n{}\n", rows.join("\n")))
}

fn is_of_bench(name: &str) -> bool {
    let elsewhere = ["lead: ", scale::PREFIX, scale::PREFIX_WITH_ADDRESSES];
    !elsewhere.iter().any(|prefix| name.starts_with(prefix)) && !BY_HAND.contains(&name)
}

/// Rows of the figures whose names have this prefix, without it.
fn rows_of(prefix: &str, figures: &Figures) -> Vec<String> {
    let named =
        figures.iter().filter_map(|(name, figure)| Some((name.strip_prefix(prefix)?, figure)));
    named.map(row).collect()
}

fn row((name, figure): (&str, &Figure)) -> String {
    let reached = match figure.reached {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "",
    };
    let commit = figure.commit.as_deref().unwrap_or_default();
    format!("| {name} | {} | {} | {reached} | {commit} |", figure.measured, figure.goal)
}

fn row_of_lead(lead: &Lead, figures: &Figures) -> Result<String> {
    let [word, fires] = lead.names().map(|name| {
        let figure = figures.get(&name).with_context(|| format!("no figure {name:?}"))?;
        Ok::<_, anyhow::Error>(figure.measured.clone())
    });
    let codes: Vec<String> = lead.codes.iter().map(|code| format!("`{code}`")).collect();
    let text = if lead.text.is_empty() { String::new() } else { format!("{} ", lead.text) };
    Ok(format!("| {text}| {} | {} before | {} before |", codes.join(", "), word?, fires?))
}

fn row_of_plugin(name: &str, figures: &Figures) -> Result<String> {
    let figure = figures.get(name).with_context(|| format!("no figure {name:?}"))?;
    Ok(format!("| {name} | {} | {} |", figure.measured, figure.goal))
}

fn row_of_prevention((text, name): &(&str, &str), figures: &Figures) -> Result<String> {
    let figure = figures.get(*name).with_context(|| format!("no figure {name:?}"))?;
    let (pods, runs) = Runs::parts(&figure.measured).context("not a count of runs")?;
    Ok(format!("| {text} | {pods} | {runs} |"))
}

#[cfg(test)]
mod tests;
