//! One call of the plugin: its input, which part serves it, and its answer.

use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, getppid};
use serde_json::Value;

use crate::ask::Question;
use crate::cni::{self, Code, Command, Environment, Failure};
use crate::config::{self, Config};
use crate::delegate::{self, Answer, NoAnswer};
use crate::state::{Lock, is_taken};
use crate::tally::{self, Event};
use crate::{gate, name, park, parked};

/// A call of the plugin.
#[derive(Debug)]
pub struct Call {
    /// The CNI variables of the environment.
    pub environment: Environment,
    /// The configuration from the standard input.
    pub config: Config,
    /// The part of the boot id that the ids of parked reservations contain. Read by the first call that needs it: most meet
    /// neither a held nor a parked address.
    pub(crate) boot: OnceCell<Option<String>>,
    /// The parent process when this process began: the main plugin.
    pub(crate) parent: Option<Pid>,
    /// Whether the delegate has reserved addresses for the runtime's container in this call, or may have, and not freed them.
    pub(crate) reserved: Cell<bool>,
    /// Whether the delegate's environment must be set. True in tests only; otherwise it inherits this process's.
    pub(crate) set: bool,
}

/// Serves one call from the environment and the standard input.
#[must_use]
pub fn main() -> ExitCode {
    let parent = getppid();
    let input = match read_input() {
        Ok(input) => input,
        Err(failure) => return answer(Err(failure), "").0,
    };
    let call = match read(&input, parent) {
        Ok(call) => call,
        Err(failure) => return answer(Err(failure), &config::version_of(&input)).0,
    };
    let (code, is_heard) = answer(call.serve(), &call.config.version);
    call.take_back_unless(is_heard);
    code
}

fn read_input() -> Result<Vec<u8>, Failure> {
    let mut input = Vec::new();
    let limit = config::LONGEST as u64 + 1;
    let read = io::stdin().lock().take(limit).read_to_end(&mut input);
    read.map_err(|error| {
        Failure::new(
            Code::Io,
            format!("cannot read the network configuration from standard input: {error}"),
        )
    })?;
    if input.len() > config::LONGEST {
        let msg = "the network configuration is longer than a mebibyte";
        return Err(Failure::new(Code::Decode, msg));
    }
    Ok(input)
}

/// Writes the answer, at once: [`io::Stdout`] would write its last line apart. Returns whether it could be written.
fn answer(answer: Result<Answer, Failure>, version: &str) -> (ExitCode, bool) {
    let (code, text) = match answer {
        Ok(Answer { code, stdout }) => (code, stdout),
        Err(failure) => (1, failure.json(version)),
    };
    match write_all(&text) {
        Ok(()) => (ExitCode::from(code), true),
        Err(_) => (ExitCode::FAILURE, false),
    }
}

fn write_all(mut rest: &[u8]) -> rustix::io::Result<()> {
    while !rest.is_empty() {
        match rustix::io::write(io::stdout().as_fd(), rest) {
            Ok(0) => return Err(rustix::io::Errno::IO),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read(input: &[u8], parent: Option<Pid>) -> Result<Call, Failure> {
    let environment = Environment::read(|name| std::env::var_os(name))?;
    let config = match environment.command {
        // libcni gives no configuration with VERSION.
        Command::Version => Config::none(&config::version_of(input)),
        _ => Config::read(input)?,
    };
    let (boot, reserved) = (OnceCell::new(), Cell::new(false));
    Ok(Call { environment, config, boot, parent, reserved, set: false })
}

fn boot() -> Option<String> {
    let file = std::fs::File::open("/proc/sys/kernel/random/boot_id").ok()?;
    let mut text = String::new();
    file.take(64).read_to_string(&mut text).ok()?;
    name::boot_of(&text)
}

impl Call {
    /// Serves the call.
    ///
    /// # Errors
    /// An error of this plugin. An error of the delegate is an answer.
    pub fn serve(&self) -> Result<Answer, Failure> {
        for doubt in &self.config.doubts {
            self.say(doubt);
        }
        match self.environment.command {
            Command::Add => park::add(self),
            Command::Del => gate::del(self),
            Command::Gc => self.gc(),
            Command::Status => self.status(),
            Command::Check => Ok(self.run("CHECK")?),
            Command::Version => {
                let stdout = cni::version_answer(&self.config.version);
                Ok(Answer { code: 0, stdout })
            }
        }
    }

    /// The part of the boot id that the ids of parked reservations contain. `None`: it cannot be read.
    pub(crate) fn boot(&self) -> Option<&str> {
        self.boot.get_or_init(boot).as_deref()
    }

    /// Runs the delegate's ADD unless the main plugin has ended: the runtime's DEL may have run by then, and nothing would
    /// free what this ADD reserves. If the main plugin ends during the ADD, [`main`] frees the reservation.
    pub(crate) fn add(&self) -> Result<Answer, Failure> {
        let orphan = || Err(Failure::new(Code::TryAgain, "the plugin that called has ended"));
        if self.is_orphan() {
            return orphan();
        }
        let answer = self.run("ADD");
        if self.is_orphan() { orphan() } else { Ok(answer?) }
    }

    /// Whether the main plugin has ended: on a timeout the runtime kills the main plugin, but not this process.
    fn is_orphan(&self) -> bool {
        self.parent.is_some() && getppid() != self.parent
    }

    /// Frees what this ADD reserved if its result was not read. A main plugin that still runs has read the result, because it
    /// waits for the end of this process; the runtime's DEL follows later. What another ADD reserved stays: a runtime may
    /// repeat a call under the same id, and host-local then refuses the second reservation.
    fn take_back_unless(&self, is_heard: bool) {
        if self.reserved.get() && (!is_heard || self.is_orphan()) {
            self.say("the plugin that called has ended without the result of this ADD: its reservation is freed");
            let _ = self.run("DEL");
        }
    }

    /// Runs the delegate's GC with the parked reservations among the valid attachments, because the runtime does not know
    /// them. Under the lock nothing is parked meanwhile.
    fn gc(&self) -> Result<Answer, Failure> {
        if !self.config.is_named() {
            return Ok(self.run("GC")?);
        }
        let lock = Lock::take(&self.config.state_dir, &self.config.name);
        if lock.as_ref().is_err_and(is_taken) {
            return Err(Failure::new(
                Code::TryAgain,
                "another call of ipwatch-ipam is running for this network",
            ));
        }
        let parked = parked::known(self).map_err(|error| {
            Failure::new(
                Code::Io,
                format!("cannot find the addresses that ipwatch-ipam has parked: {error}"),
            )
        })?;
        let parked = parked.parked.iter().map(|entry| (entry.id.as_str(), entry.ifname.as_str()));
        Ok(self.run_with("GC", &self.config.for_gc(parked), delegate::PATIENCE)?)
    }

    /// Runs the delegate's STATUS. A delegate older than CNI 1.1 does not know STATUS but serves ADDs. The text of its error
    /// depends on its version, so it is asked for the versions that it supports.
    fn status(&self) -> Result<Answer, Failure> {
        let answer = self.run("STATUS")?;
        if !answer.is_ok() && !self.knows_status() {
            return Ok(Answer { code: 0, stdout: Vec::new() });
        }
        Ok(answer)
    }

    /// Whether the delegate knows STATUS. True also if it does not say which versions it supports.
    fn knows_status(&self) -> bool {
        let versions =
            self.run_with("VERSION", br#"{"cniVersion":"1.1.0"}"#, delegate::PATIENCE).ok();
        let versions = versions.and_then(|answer| {
            let answer: Value = serde_json::from_slice(&answer.stdout).ok()?;
            answer.get("supportedVersions")?.as_array().cloned()
        });
        versions.is_none_or(|versions| versions.iter().any(|version| version == "1.1.0"))
    }

    /// Runs the delegate as the runtime would, under the runtime's id and interface.
    pub(crate) fn run(&self, command: &str) -> Result<Answer, NoAnswer> {
        self.run_within(command, delegate::PATIENCE)
    }

    /// [`Call::run`] with another timeout.
    pub(crate) fn run_within(&self, command: &str, patience: Duration) -> Result<Answer, NoAnswer> {
        let answer = self.run_with(command, &self.config.for_delegate(), patience);
        match (command, &answer) {
            ("ADD", Ok(answer)) if answer.is_ok() => self.reserved.set(true),
            // It may have made its reservation before.
            ("ADD", Err(NoAnswer::Cut(_))) => self.reserved.set(true),
            ("DEL", Ok(answer)) if answer.is_ok() => self.reserved.set(false),
            _ => {}
        }
        answer
    }

    fn run_with(
        &self,
        command: &str,
        input: &[u8],
        patience: Duration,
    ) -> Result<Answer, NoAnswer> {
        let Environment { container, netns, ifname, args, path, .. } = &self.environment;
        let program = delegate::find(&self.config.kind, path).map_err(NoAnswer::NotStarted)?;
        let mut set: Vec<(&str, &OsStr)> = vec![("CNI_COMMAND", command.as_ref())];
        let joined = std::env::join_paths(path).unwrap_or_default();
        if self.set {
            set.push(("CNI_PATH", &joined));
            set.push(("CNI_CONTAINERID", container.as_ref()));
            set.push(("CNI_NETNS", netns.as_ref()));
            set.push(("CNI_IFNAME", ifname.as_ref()));
            set.push(("CNI_ARGS", args.as_ref()));
        }
        delegate::run_within(&program, &set, input, patience)
    }

    /// A question to the daemon about this call, without addresses.
    pub(crate) fn question<'a>(&'a self, call: &'a str) -> Question<'a> {
        Question {
            call,
            store: &self.config.kind,
            network: &self.config.name,
            container: &self.environment.container,
            ifname: &self.environment.ifname,
            ips: &[],
            netns: None,
            parked: &[],
        }
    }

    /// Writes a line to the standard error, which the runtime logs.
    pub(crate) fn say(&self, text: &str) {
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = format!("ipwatch-ipam: network {}: {text}\n", self.config.name.escape_debug());
        // One write: standard error has no buffer, and the runtime may have the lines of others in the same log.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }

    pub(crate) fn count(&self, event: Event) {
        tally::count(&self.config.state_dir, event);
    }
}

#[cfg(test)]
mod tests;
