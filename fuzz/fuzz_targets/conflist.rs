//! The bytes as a network configuration.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::conflist(bytes));
