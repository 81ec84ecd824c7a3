//! Long loops, for kernels without `bpf_loop` (5.17).
//!
//! The verifier walks through every turn of a loop, and gives up at 8,192 branches that it has yet to come back to
//! (`BPF_COMPLEXITY_LIMIT_JMP_SEQ`). But a function with global linkage is verified once, by itself, and a call of it
//! is one instruction to the caller (`do_check_subprogs`, kernel/bpf/verifier.c, 5.6). So a turn is a function without
//! arguments, whose state is in a map, and two loops of calls around it reach 4,096 turns and more.

/// Turns that one function calls.
pub const SOME: usize = 64;

/// What a turn says: go on.
pub const NEXT: u64 = 0;
/// What a turn says: that was the last one.
pub const END: u64 = 1;

/// `$all()` takes `$step`, a global function, up to `$most` times, a multiple of [`SOME`], until it says [`END`]. `$some` is the
/// name of the global function between them.
macro_rules! steps {
    ($all:ident, $some:ident, $step:ident, $most:expr) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $some() -> u64 {
            for _ in 0..$crate::steps::SOME {
                if $step() != $crate::steps::NEXT {
                    return $crate::steps::END;
                }
            }
            $crate::steps::NEXT
        }

        #[inline(always)]
        fn $all() {
            for _ in 0..$most / $crate::steps::SOME {
                if $some() != $crate::steps::NEXT {
                    return;
                }
            }
        }
    };
}

pub(crate) use steps;
