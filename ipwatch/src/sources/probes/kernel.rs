//! This kernel's build options and lockdown level, so that a refusal is explained by facts, not by guesses.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use miniz_oxide::inflate::decompress_to_vec_with_limit;

use super::Rung;
use crate::bounded;

/// In bytes. Distributions' configurations take about 300 KiB, a fifth of that compressed.
const CONFIG_LIMIT: usize = 2 << 20;
const OWN_CONFIG: &str = "/proc/config.gz";
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
/// Trampoline programs need all of these (kernel/bpf/trampoline.c, kernel/trace/Kconfig).
const FENTRY: &[&str] = &[
    "CONFIG_BPF_JIT",
    "CONFIG_FUNCTION_TRACER",
    "CONFIG_DYNAMIC_FTRACE",
    "CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS",
];
const KPROBE: &[&str] = &["CONFIG_KPROBES", "CONFIG_KPROBE_EVENTS", "CONFIG_BPF_EVENTS"];
const TRACEPOINT: &[&str] = &["CONFIG_TRACEPOINTS", "CONFIG_BPF_EVENTS"];

/// What is known of the kernel. Each file is read at the first use: none if the kernel accepts every program.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    config: OnceLock<Option<Options>>,
    lockdown: OnceLock<Option<String>>,
}

impl Kernel {
    /// The first option that programs of this rung need and that this kernel was built without. `None` if its
    /// configuration could not be read.
    pub(super) fn lacks(&self, rung: Rung) -> Option<String> {
        let needed = match rung {
            Rung::TpBtf | Rung::RawTp => TRACEPOINT,
            Rung::Fentry => FENTRY,
            Rung::Kprobe => KPROBE,
            Rung::Socket | Rung::Snapshot => return None,
        };
        self.config.get_or_init(read_config).as_ref()?.lacks(needed)
    }

    /// The lockdown level, `integrity` or `confidentiality`, if the kernel is locked down.
    pub(super) fn lockdown(&self) -> Option<&str> {
        let read = || locked(&bounded::read_text(Path::new(LOCKDOWN), 256).ok()?);
        self.lockdown.get_or_init(read).as_deref()
    }

    #[cfg(test)]
    pub(super) fn known(config: Option<(&str, &str)>, lockdown: Option<&str>) -> Self {
        let options = config.and_then(|(from, text)| Options::of(from.to_owned(), text.to_owned()));
        Self {
            config: OnceLock::from(options),
            lockdown: OnceLock::from(lockdown.map(str::to_owned)),
        }
    }
}

/// The lockdown level as text for people.
pub(super) fn lockdown_word(level: &str) -> String {
    format!("kernel lockdown: {level}")
}

/// The level in brackets (`lockdown_read`, security/lockdown/lockdown.c, since 5.4), unless it is `none`.
fn locked(text: &str) -> Option<String> {
    let level = text.split_once('[')?.1.split_once(']')?.0;
    ["integrity", "confidentiality"].contains(&level).then(|| level.to_owned())
}

/// The kernel's configuration, and the file that it was read from.
#[derive(Debug)]
struct Options {
    from: String,
    text: String,
}

impl Options {
    /// `None` if this cannot be the configuration of a kernel that has bpf(2).
    fn of(from: String, text: String) -> Option<Self> {
        let options = Self { from, text };
        options.has("CONFIG_BPF_SYSCALL").then_some(options)
    }

    fn has(&self, option: &str) -> bool {
        self.text.lines().any(|line| {
            line.strip_prefix(option).is_some_and(|value| value == "=y" || value == "=m")
        })
    }

    fn lacks(&self, needed: &[&str]) -> Option<String> {
        let option = needed.iter().find(|option| !self.has(option))?;
        Some(format!("{option} is not set in {}", self.from))
    }
}

fn read_config() -> Option<Options> {
    let own = bounded::read(Path::new(OWN_CONFIG), CONFIG_LIMIT);
    if let Some(text) = own.ok().filter(|read| !read.truncated).and_then(|read| gunzip(&read.bytes))
    {
        return Options::of(OWN_CONFIG.to_owned(), text);
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let path = format!("/boot/config-{release}");
    let read = bounded::read_linked(Path::new(&path), CONFIG_LIMIT);
    let whole = read.and_then(|read| {
        if read.truncated { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(read.bytes) }
    });
    Options::of(path, String::from_utf8_lossy(&whole.ok()?).into_owned())
}

/// Decompresses a gzip file with one member (RFC 1952), up to [`CONFIG_LIMIT`].
fn gunzip(bytes: &[u8]) -> Option<String> {
    const FHCRC: u8 = 2;
    const FEXTRA: u8 = 4;
    const FNAME: u8 = 8;
    const FCOMMENT: u8 = 16;
    let (head, mut rest) = bytes.split_at_checked(10)?;
    if !head.starts_with(&[0x1f, 0x8b, 8]) {
        return None;
    }
    let flags = head[3];
    if flags & FEXTRA != 0 {
        let (length, after) = rest.split_first_chunk::<2>()?;
        rest = after.get(usize::from(u16::from_le_bytes(*length))..)?;
    }
    for text in [FNAME, FCOMMENT] {
        if flags & text != 0 {
            let end = rest.iter().position(|byte| *byte == 0)?;
            rest = &rest[end + 1..];
        }
    }
    if flags & FHCRC != 0 {
        rest = rest.get(2..)?;
    }
    let text = decompress_to_vec_with_limit(rest, CONFIG_LIMIT).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "CONFIG_BPF_SYSCALL=y\n# CONFIG_KPROBES is not set\nCONFIG_HAVE_KPROBES=y\n\
                          CONFIG_TRACEPOINTS=y\nCONFIG_BPF_EVENTS=y\n";

    #[test]
    fn an_option_is_named_only_after_the_configuration_was_read() {
        let read = Kernel::known(Some(("/boot/config-6.1", CONFIG)), None);
        let lacks = read.lacks(Rung::Kprobe);
        assert_eq!(lacks.as_deref(), Some("CONFIG_KPROBES is not set in /boot/config-6.1"));
        assert_eq!(read.lacks(Rung::TpBtf), None, "it has what they need");
        assert_eq!(read.lacks(Rung::Socket), None);
        assert_eq!(Kernel::known(None, None).lacks(Rung::Kprobe), None, "not read");
        let other = Kernel::known(Some(("/boot/config-6.1", "CONFIG_SMP=y\n")), None);
        assert_eq!(other.lacks(Rung::Kprobe), None, "no configuration of this kernel");
    }

    #[test]
    fn the_level_of_a_lockdown_is_the_one_in_brackets() {
        assert_eq!(
            locked("none integrity [confidentiality]\n").as_deref(),
            Some("confidentiality")
        );
        assert_eq!(locked("none [integrity] confidentiality\n").as_deref(), Some("integrity"));
        for none in ["[none] integrity confidentiality\n", "", "none", "[", "[\u{1b}[2J]"] {
            assert_eq!(locked(none), None, "{none:?}");
        }
    }

    /// Compressed as by `gzip`, with these header flags and optional fields.
    fn packed(text: &str, flags: u8, fields: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x1f, 0x8b, 8, flags, 0, 0, 0, 0, 0, 3];
        bytes.extend_from_slice(fields);
        bytes.extend(miniz_oxide::deflate::compress_to_vec(text.as_bytes(), 6));
        bytes.extend([0; 8]);
        bytes
    }

    #[test]
    fn what_is_packed_is_read_to_a_limit() {
        assert_eq!(gunzip(&packed(CONFIG, 0, &[])).as_deref(), Some(CONFIG));
        let fields = b"\x03\x00abcname\0comment\0xx";
        assert_eq!(gunzip(&packed(CONFIG, 4 | 8 | 16 | 2, fields)).as_deref(), Some(CONFIG));
        let bomb = "x".repeat(CONFIG_LIMIT + 1);
        assert_eq!(gunzip(&packed(&bomb, 0, &[])), None);
        let whole = packed(CONFIG, 8, b"name\0");
        for length in 0..whole.len() - 8 {
            assert_eq!(gunzip(&whole[..length]), None, "cut at {length}");
        }
        assert_eq!(gunzip(b"CONFIG_BPF_SYSCALL=y\n"), None);
    }

    #[test]
    fn the_running_kernels_own_configuration_is_understood() {
        if !Path::new(OWN_CONFIG).exists() {
            return;
        }
        let options = read_config().expect("it has bpf(2), or this is not its configuration");
        assert_eq!(options.from, OWN_CONFIG);
        assert!(options.has("CONFIG_IKCONFIG_PROC"));
    }
}
