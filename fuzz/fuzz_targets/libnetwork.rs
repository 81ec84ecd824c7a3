//! The bytes as a document of libnetwork, of each kind.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::libnetwork(bytes));
