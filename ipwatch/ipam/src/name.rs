//! The container id of a parked reservation.
//!
//! The delegate stores a parked reservation under an id that no runtime uses. If the state file is lost, the id still tells
//! whether the reservation can be released: it names the boot in which it was parked and the netns that has the IP.

/// The prefix of the container id of every parked reservation.
pub const PREFIX: &str = "ipwatch-parked-";
/// The interface name of every parked reservation.
pub const IFNAME: &str = "ipwparked";
/// How many characters of the boot id an id contains.
const BOOT: usize = 8;

/// The parts of the id of a parked reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// The beginning of the boot id.
    pub boot: String,
    /// `net->net_cookie` of the netns that has the IP; 0: unknown.
    pub cookie: u64,
    /// Makes the id unique within the boot.
    pub nonce: u64,
}

impl Parked {
    /// Parses an id. `None`: it is not the id of a parked reservation.
    #[must_use]
    pub fn read(id: &str) -> Option<Self> {
        let mut parts = id.strip_prefix(PREFIX)?.split('-');
        let (boot, cookie, nonce) = (parts.next()?, parts.next()?, parts.next()?);
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let whole = parts.next().is_none() && boot.len() == BOOT && hex(boot).is_some();
        whole.then_some(())?;
        Some(Self { boot: boot.to_owned(), cookie: hex(cookie)?, nonce: hex(nonce)? })
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{PREFIX}{}-{:x}-{:x}", self.boot, self.cookie, self.nonce)
    }
}

/// Whether this is the container id of a parked reservation.
#[must_use]
pub fn is_parked(id: &str) -> bool {
    Parked::read(id).is_some()
}

/// The part of a boot id (`/proc/sys/kernel/random/boot_id`) that an id contains.
#[must_use]
pub fn boot_of(boot_id: &str) -> Option<String> {
    let short = boot_id.get(..BOOT)?;
    short.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| short.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_what_it_was_made_of() {
        let parked = Parked { boot: "0f3c9a12".into(), cookie: 4711, nonce: u64::MAX };
        let id = parked.id();
        assert_eq!(Parked::read(&id), Some(parked));
        // The characters that libcni allows in a container id.
        assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)));
        assert!(IFNAME.len() < 16);
        for other in ["", "abc", PREFIX, "ipwatch-parked-0f3c9a12-1", "ipwatch-parked-x-1-1"] {
            assert_eq!(Parked::read(other), None, "{other}");
        }
        assert_eq!(boot_of("0f3c9a12-8c4d-4d1e-9a51-0242ac120002").as_deref(), Some("0f3c9a12"));
        assert_eq!(boot_of("short"), None);
    }
}
