//! A bare reader of a ring buffer, beside which `tests/bench/latency.rs` measures the daemon: the same programs, loaded
//! and attached as by the daemon, and nothing but the time between the kernel's time stamp and the moment at which a
//! record is read.
//!
//! Usage: `bare_ring DIRECTORY`, the directory of CNI plugins. Prints `ready`, reads until its standard input ends, and
//! prints the number of records, and the median and the 99 % quantile of the times in ns.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::os::fd::{AsRawFd as _, BorrowedFd};

use ipwatch::clock;
use ipwatch::fact::BootNs;
use ipwatch::sources::probes::{Probes, Settings};
use ipwatch_common::{Header, Wire as _};
use rustix::event::{PollFd, PollFlags, poll};

fn main() {
    // `cargo bench` passes a flag of its own.
    let Some(dir) = std::env::args().nth(1).filter(|arg| !arg.starts_with("--")) else { return };
    let settings = Settings { plugin_dirs: vec![dir.into()], ..Settings::default() };
    let mut probes = Probes::load(&settings).unwrap();
    let mut ring = probes.ring_of_calls().unwrap();
    println!("ready");
    let mut times = Vec::new();
    // SAFETY: the ring buffer owns its map's fd and lives longer than this borrow of it.
    let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
    loop {
        let input = std::io::stdin();
        let mut fds = [PollFd::new(&fd, PollFlags::IN), PollFd::new(&input, PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        let ends = !fds[1].revents().is_empty();
        while let Some(record) = ring.next() {
            let header = Header::take(&mut &record[..]).unwrap();
            times.push(clock::now().since(BootNs(header.time)));
        }
        if ends {
            break;
        }
    }
    times.sort_unstable();
    let quantile = |share: f64| times[((times.len() as f64 * share).ceil() as usize).max(1) - 1];
    println!("{} {} {}", times.len(), quantile(0.5), quantile(0.99));
}
