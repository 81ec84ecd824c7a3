//! The bytes as answers of a CRI runtime, and as the JSON in them.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::cri(bytes));
