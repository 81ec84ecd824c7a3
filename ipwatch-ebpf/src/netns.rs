//! Netns are made and torn down.
//!
//! The hooks are callbacks of one `pernet_operations` each, so that the compiler cannot inline them
//! and they see every netns whatever made or held it. `netns_bpf_pernet_init` runs once the netns
//! has its cookie and its inode (`net_ns_ops`, which gives the inode, registers earlier: it is a
//! pure_initcall) and before any device is in it. When making the netns fails later on, the kernel
//! runs the exit callbacks of what was made (`setup_net`), so that what was told here is taken back.
//! At the end of a netns the order is `netns_bpf_pernet_pre_exit`, the addresses, `proc_net_ns_exit`
//! (net/core/net_namespace.c; 6.1, 6.12, 6.18).

use aya_ebpf::macros::{fentry, kprobe};
use aya_ebpf::programs::{FEntryContext, ProbeContext};
use ipwatch_common::{NetnsRecord, kind};

use crate::emit::{emit, header};
use crate::read::{self, Addr};

#[inline(always)]
fn tell(kind: u16, net: Addr) {
    let record = NetnsRecord { header: header::<NetnsRecord>(kind), netns: read::netns(net) };
    emit(kind, &record);
}

macro_rules! hook {
    ($fentry:ident, $kprobe:ident, $kind:expr) => {
        #[fentry]
        pub fn $fentry(ctx: FEntryContext) -> u32 {
            tell($kind, ctx.arg(0));
            0
        }

        #[kprobe]
        pub fn $kprobe(ctx: ProbeContext) -> u32 {
            if let Some(net) = ctx.arg(0) {
                tell($kind, net);
            }
            0
        }
    };
}

hook!(fe_netns_init, kp_netns_init, kind::NETNS_CREATED);
hook!(fe_netns_pre_exit, kp_netns_pre_exit, kind::NETNS_DYING);
hook!(fe_netns_exit, kp_netns_exit, kind::NETNS_GONE);
