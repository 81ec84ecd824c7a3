//! `ipwatch cni`: installs `ipwatch-ipam` in the node's network configurations, uninstalls it, shows its status and
//! releases parked addresses. `ipwatch_ipam::{install, wrap, parked}` do the work; this file prints it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use ipwatch_ipam::config::Config;
use ipwatch_ipam::install::{self, Named, Network};
use ipwatch_ipam::state::{Entry, State};
use ipwatch_ipam::wrap::Standing;
use ipwatch_ipam::{config, name, parked, tally};

use super::args::{CniCommand, CniPlaces, CniWhat, Global};
use super::output::Out;
use super::{Failure, Outcome};
use crate::escape::escape;

/// Where a package installs the plugin's program, if the directory of this program is not known.
const PROGRAM: &str = "/usr/bin/ipwatch-ipam";

/// The directories and files that the commands use.
struct Places {
    conf: Vec<PathBuf>,
    /// Directories of configurations that are known and were not named: the commands change nothing there.
    others: Vec<PathBuf>,
    /// What was named on the command line, and is remembered by an installation.
    named: Named,
    /// Every directory that may contain plugins.
    bin: Vec<PathBuf>,
    /// The directories in which each runtime looks for plugins.
    looked: Vec<Vec<PathBuf>>,
    parked: PathBuf,
    cache: PathBuf,
    socket: PathBuf,
}

impl Places {
    fn of(global: &Global, named: CniPlaces) -> Self {
        Self::below(Path::new("/"), global.socket(), named)
    }

    /// With the runtimes' configurations below `root`.
    fn below(root: &Path, socket: PathBuf, named: CniPlaces) -> Self {
        // What is remembered is used from other working directories.
        let absolute = |dir: PathBuf| std::path::absolute(&dir).unwrap_or(dir);
        let all = |dirs: Vec<PathBuf>| dirs.into_iter().map(absolute).collect::<Vec<_>>();
        let (conf_dir, bin_dir) = (all(named.conf_dir), all(named.bin_dir));
        let parked = named.parked_dir.map_or_else(|| config::STATE_DIR.into(), absolute);
        let before = Named::read(&parked);
        let or = |named: &[PathBuf], usual: &[&str], more: [Vec<PathBuf>; 2]| {
            let mut all: Vec<PathBuf> = match named.is_empty() {
                true => usual.iter().map(PathBuf::from).chain(more.into_iter().flatten()).collect(),
                false => named.to_vec(),
            };
            // A configuration may end the name with a slash.
            all = all.iter().map(|dir| dir.components().collect()).collect();
            all.sort();
            all.dedup();
            all
        };
        let mut looked = vec![bin_dir.clone()];
        if bin_dir.is_empty() {
            // The networks of the node's runtimes are wrapped as well: each must find the program.
            looked = install::runtime_dirs(root);
            looked.extend((!before.bin.is_empty()).then(|| before.bin.clone()));
        }
        let of_runtimes = looked.iter().flatten().cloned().collect();
        let bin = or(&bin_dir, &install::BIN_DIRS, [of_runtimes, before.bin]);
        let confs = [install::runtime_conf_dirs(root), before.conf];
        let conf = or(&conf_dir, &install::CONF_DIRS, confs.clone());
        let mut others = or(&[], &install::CONF_DIRS, confs);
        others.retain(|dir| !conf.contains(dir));
        Self {
            conf,
            others,
            named: Named { conf: conf_dir, bin: bin_dir },
            bin,
            looked,
            parked,
            cache: named.cache_dir.map_or_else(|| install::CACHE_DIR.into(), absolute),
            socket,
        }
    }
}

pub(super) fn cni(global: &Global, out: &Out, command: CniCommand) -> Result<Outcome, Failure> {
    let places = Places::of(global, command.places);
    let mut text = String::new();
    let done = match command.what {
        CniWhat::Install { program_only: true, .. } => update(&places, &mut text),
        CniWhat::Install { dry_run, .. } => put(&places, dry_run, &mut text),
        CniWhat::Uninstall { dry_run } => take(&places, dry_run, &mut text),
        CniWhat::Status => {
            status(&places, &mut text);
            Ok(Outcome::Fine)
        }
        CniWhat::Release { network, force } => release(&places, network, force, &mut text),
    };
    out.raw(text.as_bytes())?;
    done.map_err(Failure::Other)
}

pub(super) fn say(text: &mut String, line: &str) {
    // Writing to a String never fails.
    let _ = writeln!(text, "{}", escape(line));
}

/// The index and the new text of every configuration to be changed. Adds to `text` which cannot be changed, and why.
fn plan(networks: &[Network], wrapped: bool, text: &mut String) -> Vec<(usize, String)> {
    let mut plan = Vec::new();
    for (at, network) in networks.iter().enumerate() {
        match network.changed(wrapped) {
            Ok(Some(new)) => plan.push((at, new)),
            Ok(None) if wrapped && !network.is_wrapped() => {
                for standing in network.standings() {
                    if let Standing::Refused(why) = standing {
                        say(text, &format!("{}: not changed: {why}", network.path.display()));
                    }
                }
            }
            Ok(None) => {}
            Err(why) => say(text, &format!("{}: not changed: {why}", network.path.display())),
        }
    }
    plan
}

fn put(places: &Places, dry_run: bool, text: &mut String) -> anyhow::Result<Outcome> {
    let networks = install::networks(&places.conf);
    let plan = plan(&networks, true, text);
    if plan.is_empty() && !networks.iter().any(Network::is_wrapped) {
        return Err(anyhow!(
            "no network configuration has an IPAM plugin that ipwatch-ipam can wrap (host-local or whereabouts). If the \
             configurations are in another directory, name it with --conf-dir"
        ));
    }
    let homes = install::homes(&networks, &places.looked).map_err(|why| anyhow!(why))?;
    let program = program()?;
    if dry_run {
        for home in &homes {
            say(text, &format!("would install {}", home.join(config::OWN).display()));
        }
        show(&networks, &plan, text);
        return Ok(Outcome::Fine);
    }
    // The program must be there before a configuration names it.
    for home in &homes {
        let put = install::put_program(&program, home);
        let what = home.join(config::OWN).display().to_string();
        if put.with_context(|| format!("cannot install {what}"))? {
            say(text, &format!("installed {what}"));
        }
    }
    install::unmark(&places.parked);
    Named::add(&places.parked, &places.named.conf, &places.named.bin)
        .with_context(|| format!("cannot write to {}", places.parked.display()))?;
    let whereabouts = |one: &Standing| match one {
        Standing::Plain(kind) | Standing::Wrapped(kind) => kind == "whereabouts",
        Standing::Refused(_) => false,
    };
    if networks.iter().flat_map(Network::standings).any(whereabouts) {
        say(text, "with whereabouts only a DEL is put off; addresses are not parked");
    }
    let done = change(places, &networks, &plan, text)?;
    unmark_all(&install::networks(&places.conf));
    Ok(done)
}

/// Lets these networks park again, each in the state directory that its configuration names.
fn unmark_all(networks: &[Network]) {
    for config in networks.iter().flat_map(Network::configs) {
        install::unmark(&config.state_dir);
        install::unmark_network(&config.state_dir, &config.name);
    }
}

/// Replaces the copies of the program that are there by the program of this version.
fn update(places: &Places, text: &mut String) -> anyhow::Result<Outcome> {
    let program = program()?;
    for copy in copies(places) {
        let Some(dir) = copy.parent() else { continue };
        let put = install::put_program(&program, dir);
        if put.with_context(|| format!("cannot replace {}", copy.display()))? {
            say(text, &format!("replaced {}", copy.display()));
        }
    }
    Ok(Outcome::Fine)
}

fn take(places: &Places, dry_run: bool, text: &mut String) -> anyhow::Result<Outcome> {
    let networks = install::networks(&places.conf);
    let plan = plan(&networks, false, text);
    let (configs, others): (Vec<Config>, _) =
        (networks.iter().flat_map(Network::configs).collect(), Others::of(places));
    if dry_run {
        show(&networks, &plan, text);
        for (network, entry) in all_parked(places) {
            let is_meant = |config: &Config| config.name == network && !others.has_network(config);
            if others.file.is_some() && !configs.iter().any(is_meant) {
                continue;
            }
            say(text, &format!("would release {}", described(&network, &entry)));
        }
        return Ok(Outcome::Fine);
    }
    change(places, &networks, &plan, text)?;
    let left = install::networks(&places.conf);
    if let Some(left) = left.iter().find(|network| network.may_name_it()) {
        return Err(anyhow!(
            "{} still names ipwatch-ipam, so nothing was released or removed: take ipwatch-ipam out of that file, and run \
             `ipwatch cni uninstall` again",
            left.path.display()
        ));
    }
    // An ADD that has read a configuration before looks for the mark in the directory that it names.
    let named = configs.iter().map(|config| &config.state_dir);
    for dir in BTreeSet::from_iter(named.chain([&places.parked])) {
        if others.park_in(dir) {
            continue;
        }
        install::mark_unwrapped(dir, !plan.is_empty())
            .with_context(|| format!("cannot write to {}", dir.display()))?;
    }
    let boot = boot();
    for config in configs.iter().filter(|config| !others.has_network(config)) {
        if others.park_in(&config.state_dir) {
            install::mark_network_unwrapped(&config.state_dir, &config.name)
                .with_context(|| format!("cannot write to {}", config.state_dir.display()))?;
        }
        let place = parked::Place {
            state_dir: &config.state_dir,
            socket: &config.socket,
            boot: boot.as_deref(),
            bin: &places.bin,
        };
        let done = parked::release_network(place, &config.name, true, Some(config));
        let dir = config.state_dir.display();
        told(&config.name, done, text).with_context(|| {
            format!("try again with `ipwatch cni release --force --parked-dir {dir}`")
        })?;
    }
    if let Some(file) = &others.file {
        // What else is parked there may be theirs, and their pods need the program.
        for program in copies(places) {
            let (program, file) = (program.display(), file.display());
            say(text, &format!("{program} stays: {file} names it"));
        }
        return Ok(Outcome::Fine);
    }
    release(places, None, true, text)?;
    if let Some(why) = install::why_needed(&places.parked, &places.cache) {
        stays(places, &why, text);
        return Ok(Outcome::Fine);
    }
    install::unmark(&places.parked);
    Named::forget(&places.parked);
    for dir in &places.bin {
        let program = dir.join(config::OWN);
        match std::fs::remove_file(&program) {
            Ok(()) => say(text, &format!("removed {}", program.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(anyhow!("cannot remove {}: {error}", program.display()));
            }
        }
    }
    Ok(Outcome::Fine)
}

/// Networks that stay wrapped, because their configurations are in directories that were not named.
struct Others {
    /// A file that names the program, if any.
    file: Option<PathBuf>,
    configs: Vec<Config>,
}

impl Others {
    fn of(places: &Places) -> Self {
        let mut networks = install::networks(&places.others);
        networks.retain(Network::may_name_it);
        let configs = networks.iter().flat_map(Network::configs).collect();
        Self { file: networks.into_iter().next().map(|network| network.path), configs }
    }

    /// Whether one of them parks in this state directory.
    fn park_in(&self, state_dir: &Path) -> bool {
        self.configs.iter().any(|config| config.state_dir == state_dir)
    }

    /// Whether one of them is the same network in the same state directory.
    fn has_network(&self, one: &Config) -> bool {
        let same =
            |config: &Config| (&config.state_dir, &config.name) == (&one.state_dir, &one.name);
        self.configs.iter().any(same)
    }
}

/// The program's copies among the plugins, which are not the package's: they outlive it.
fn copies(places: &Places) -> impl Iterator<Item = PathBuf> {
    places.bin.iter().map(|dir| dir.join(config::OWN)).filter(|program| program.exists())
}

/// Why the program stays, until when, and what removes it then, with ipwatch or without.
fn stays(places: &Places, why: &str, text: &mut String) {
    for program in copies(places) {
        say(text, &format!("{} stays: {why}", program.display()));
        say(
            text,
            "then `ipwatch cni uninstall` removes it. Where ipwatch is no longer installed, run:",
        );
        say(
            text,
            &format!("  {}", install::removal_command(&places.parked, &places.cache, &program)),
        );
    }
}

fn show(networks: &[Network], plan: &[(usize, String)], text: &mut String) {
    for (at, new) in plan {
        if let Some(Network { path, read: Ok((old, _)) }) = networks.get(*at) {
            install::diff(path, old, new).lines().for_each(|line| say(text, line));
        }
    }
    if plan.is_empty() {
        say(text, "nothing to change");
    }
}

fn change(
    places: &Places,
    networks: &[Network],
    plan: &[(usize, String)],
    text: &mut String,
) -> anyhow::Result<Outcome> {
    let backups = places.parked.join("backups");
    for (at, new) in plan {
        let Some(network) = networks.get(*at) else { continue };
        let path = network.path.display();
        install::replace(network, new, &backups)
            .with_context(|| format!("cannot change {path}"))?;
        say(text, &format!("changed {path}; a copy of the old file is in {}", backups.display()));
    }
    if plan.is_empty() {
        say(text, "nothing to change");
    }
    Ok(Outcome::Fine)
}

fn status(places: &Places, text: &mut String) {
    let networks = install::networks(&places.conf);
    for network in &networks {
        let path = network.path.display();
        match &network.read {
            Err(why) => say(text, &format!("{path}: {why}")),
            Ok((_, read)) => {
                for plugin in &read.plugins {
                    let how = match &plugin.standing {
                        Standing::Wrapped(kind) => format!("ipwatch-ipam wraps {kind}"),
                        Standing::Plain(kind) if has_backup(places, &network.path) => format!(
                            "{kind} is not wrapped: it was, but the file has been rewritten since; `ipwatch cni \
                             install` wraps it again"
                        ),
                        Standing::Plain(kind) => format!("{kind} is not wrapped"),
                        Standing::Refused(why) => format!("cannot be wrapped: {why}"),
                    };
                    say(text, &format!("{path}: network {}: {how}", read.network));
                }
            }
        }
    }
    if networks.is_empty() {
        say(text, "no network configurations found; name their directory with --conf-dir");
    }
    let is_in = |dirs: &Vec<PathBuf>| dirs.iter().any(|dir| dir.join(config::OWN).exists());
    if networks.iter().any(Network::is_wrapped) {
        for dirs in places.looked.iter().filter(|dirs| !is_in(dirs)) {
            let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            say(
                text,
                &format!(
                    "WARNING: a network is wrapped, but the program is not in {}, where a runtime looks for it: run `ipwatch \
                     cni install`",
                    dirs.join(" or ")
                ),
            );
        }
        for config in networks.iter().flat_map(Network::configs) {
            if install::is_unwrapped(&config.state_dir, &config.name) {
                say(
                    text,
                    &format!(
                        "WARNING: network {} parks nothing, because `ipwatch cni uninstall` has run since it was wrapped: run \
                         `ipwatch cni install`",
                        config.name
                    ),
                );
            }
        }
        if !is_in(&places.bin) {
            say(
                text,
                "WARNING: a network is wrapped, but the program is in no plugin directory, and no pod can start: run \
                 `ipwatch cni install`",
            );
        }
    }
    let current = program().ok();
    for copy in copies(places) {
        let same = current.as_ref().and_then(|own| install::is_same_program(own, &copy));
        let other = match same {
            Some(false) => {
                ", of another version than this ipwatch: `ipwatch cni install --program-only` replaces it"
            }
            _ => "",
        };
        say(text, &format!("program: {}{other}", copy.display()));
    }
    if !networks.iter().any(Network::may_name_it)
        && let Some(why) = install::why_needed(&places.parked, &places.cache)
    {
        stays(places, &why, text);
    }
    for (network, entry) in all_parked(places) {
        say(text, &format!("parked: {}", described(&network, &entry)));
    }
    for (what, count) in tally::read(&places.parked) {
        say(text, &format!("counted {what}: {count}"));
    }
}

/// Every parked reservation, with its network.
fn all_parked(places: &Places) -> Vec<(String, Entry)> {
    let of = |network: String| {
        let state = State::read(&places.parked, &network).unwrap_or_default();
        state.parked.into_iter().map(move |entry| (network.clone(), entry))
    };
    State::networks(&places.parked).into_iter().flat_map(of).collect()
}

fn described(network: &str, entry: &Entry) -> String {
    let ips: Vec<String> = entry.ips.iter().map(ToString::to_string).collect();
    let who = match entry.who.is_empty() {
        true => String::new(),
        false => format!(", as of when it was parked: {}", entry.who),
    };
    format!("{} of {network}{who}", ips.join(" and "))
}

/// Whether a configuration was wrapped: while it is, a copy of its old text is kept.
fn has_backup(places: &Places, path: &Path) -> bool {
    places.parked.join("backups").join(install::backup_name(path)).exists()
}

fn release(
    places: &Places,
    network: Option<String>,
    force: bool,
    text: &mut String,
) -> anyhow::Result<Outcome> {
    let boot = boot();
    let networks = network.map_or_else(|| State::networks(&places.parked), |one| vec![one]);
    let mut said = 0;
    for network in networks {
        let place = parked::Place {
            state_dir: &places.parked,
            socket: &places.socket,
            boot: boot.as_deref(),
            bin: &places.bin,
        };
        let done = parked::release_network(place, &network, force, None);
        said += told(&network, done, text)?;
    }
    if said == 0 {
        say(text, "nothing to release");
    }
    Ok(Outcome::Fine)
}

/// Adds to `text` what was released of a network and what was not. Returns the number of its parked reservations.
///
/// # Errors
/// One could not be released.
fn told(
    network: &str,
    done: Result<parked::Outcome, String>,
    text: &mut String,
) -> anyhow::Result<usize> {
    let parked::Outcome { released: all, kept } =
        done.map_err(|why| anyhow!("network {network}: {why}"))?;
    for one in &kept {
        let why = match one.is_held {
            true => "still held",
            false => "not released, because ipwatch does not know whether it is held",
        };
        say(text, &format!("{why}: {}", described(network, &one.entry)));
    }
    let failed = all.iter().filter(|one| one.outcome.is_err()).count();
    for one in &all {
        let ips: Vec<String> = one.entry.ips.iter().map(ToString::to_string).collect();
        let ips = ips.join(" and ");
        match &one.outcome {
            Ok(()) if one.still_held => say(
                text,
                &format!(
                    "released {ips} of {network}, which is still held, so that the next pod may share it: {}",
                    one.entry.who
                ),
            ),
            Ok(()) => say(text, &format!("released {ips} of {network}")),
            Err(why) => say(text, &format!("{ips} of {network} cannot be released: {why}")),
        }
    }
    if failed > 0 {
        return Err(anyhow!(
            "{failed} parked reservations of network {network} cannot be released; the reasons are above"
        ));
    }
    Ok(all.len() + kept.len())
}

fn boot() -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open("/proc/sys/kernel/random/boot_id").ok()?;
    file.take(64).read_to_string(&mut text).ok()?;
    name::boot_of(&text)
}

/// The plugin's program, which is to be installed.
fn program() -> anyhow::Result<PathBuf> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(config::OWN));
    let all = [beside, Some(PathBuf::from(PROGRAM))];
    let found = all.into_iter().flatten().find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "the program {} is neither in the directory of ipwatch nor at {PROGRAM}",
            config::OWN
        )
    })
}

#[cfg(test)]
mod tests;
