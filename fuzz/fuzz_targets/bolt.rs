//! The bytes as a bolt file, with each of the stores that are kept in one.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::bolt(bytes));
