//! The bytes as one object of the API server, taken for each kind that `ipwatch cluster` reads, and judged.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::cluster(bytes));
