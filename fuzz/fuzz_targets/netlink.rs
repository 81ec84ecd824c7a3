//! The bytes as a datagram of netlink's.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::netlink(bytes));
