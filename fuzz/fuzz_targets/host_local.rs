//! The bytes as a reservation of host-local.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::host_local(bytes));
