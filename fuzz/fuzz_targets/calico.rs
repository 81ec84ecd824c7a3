//! The bytes as a value of Calico's keys, a block or an endpoint, and as a key.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::calico(bytes));
