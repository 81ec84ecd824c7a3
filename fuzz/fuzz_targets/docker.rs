//! The bytes as documents of the Docker Engine API.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::docker(bytes));
