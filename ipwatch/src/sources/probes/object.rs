//! The kernel half's object file, committed for each architecture. `cargo xtask build-ebpf` creates it.

/// The object for this architecture. Programs differ between architectures, because `pt_regs` does.
#[cfg(target_arch = "x86_64")]
pub(super) const OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!("../../../ebpf/ipwatch-ebpf.x86_64.o"));

#[cfg(target_arch = "aarch64")]
pub(super) const OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!("../../../ebpf/ipwatch-ebpf.aarch64.o"));

/// There is no object for this architecture: everything is observed through netlink and procfs.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const OBJECT: Option<&[u8]> = None;
