//! ipwatch's kernel half.
//!
//! Each program looks at one event, drops what the user half would throw away, and puts one record
//! of [`ipwatch_common`] into the ring buffer. Where kernels differ in what they allow, one event has
//! several programs (`tp_btf` and `raw_tp`, or fentry and kprobe) that share one handler; the user
//! half loads the best one that the kernel takes.
//!
//! - [`tasks`]: fork, exec, exit, release, joins, signals that kill; [`leaving`]: who is on the way out.
//! - [`netns`]: creation and teardown.
//! - [`addresses`]: IPv4, IPv6, duplicate address detection, devices that change their netns.
//! - [`neighbours`]: updates of ARP and NDP entries.
//! - [`claims`]: ARP that claims an IP.
//! - [`limit`]: how much each party may cause; [`owed`]: which netns must be read again for that.
//! - [`calls`]: runs of CNI plugins.
//! - [`snapshot`]: the walk of all netns, the task and file iterators; [`steps`]: long loops.
//!
//! Kernel memory is read in one way only, `read::at`: see there.

#![no_std]
#![no_main]

mod addresses;
mod calls;
mod claims;
mod emit;
mod leaving;
mod limit;
mod neighbours;
mod netns;
mod offsets;
mod owed;
mod read;
mod snapshot;
mod steps;
mod tasks;

/// Most helpers that read kernel memory are for GPL-compatible programs only. The text is one of
/// those that `license_is_gpl_compatible` (include/linux/license.h) knows.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Never called: nothing here panics, and the verifier would refuse the endless loop.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
