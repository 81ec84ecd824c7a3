//! The bytes as the file of a network of podman's.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::netavark(bytes));
