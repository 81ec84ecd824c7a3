//! Finds the parked reservations in host-local's store after the state file was lost, by their container ids.
//!
//! Only host-local keeps a file for each address, in a directory that its configuration names. Parked reservations of
//! another delegate are listed by `ipwatch query ipam` and removed with the delegate's own tools.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::files::read_small;
use crate::name;

/// Maximum number of entries of the directory: those of a /16 and a few other files. Reading them takes half a second.
const MOST: usize = 70_000;
/// Longest reservation, in bytes: a container id and an interface name.
const LONGEST: usize = 1024;

/// Every parked id in host-local's directory of a network, with its interface and address.
///
/// # Errors
/// The directory cannot be read, or has too many entries. A directory that does not exist has no parked reservations.
pub fn in_host_local(dir: &Path) -> std::io::Result<Vec<(String, String, IpAddr)>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for (at, entry) in entries.enumerate() {
        if at >= MOST {
            return Err(std::io::Error::other(format!(
                "{} has more than {MOST} files",
                dir.display()
            )));
        }
        let entry = entry?;
        // On Linux host-local writes the colons of an IPv6 address as they are. `lock` and `last_reserved_ip.0` are no
        // addresses.
        let Some(ip) = entry.file_name().to_str().and_then(|name| name.parse::<IpAddr>().ok())
        else {
            continue;
        };
        let Ok(Some(bytes)) = read_small(&entry.path(), LONGEST) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines().map(str::trim);
        let id = lines.next().unwrap_or_default();
        if name::is_parked(id) {
            let ifname = lines.next().filter(|line| !line.is_empty()).unwrap_or(name::IFNAME);
            found.push((id.to_owned(), ifname.to_owned(), ip));
        }
    }
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn they_are_told_from_containers() {
        let dir = tempfile::tempdir().unwrap();
        let id = "ipwatch-parked-0f3c9a12-1-1";
        for (file, text) in [
            ("10.1.0.2", format!("{id}\r\nipwparked")),
            ("10.1.0.3", "0a1b2c\r\neth0".to_owned()),
            ("10.1.0.4", "ipwatch-parked-\r\neth0".to_owned()),
            ("last_reserved_ip.0", "10.1.0.4".to_owned()),
            ("lock", String::new()),
        ] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        let ip = "10.1.0.2".parse().unwrap();
        assert_eq!(
            in_host_local(dir.path()).unwrap(),
            [(id.to_owned(), "ipwparked".to_owned(), ip)]
        );
        assert_eq!(in_host_local(&dir.path().join("nowhere")).unwrap(), []);
    }
}
