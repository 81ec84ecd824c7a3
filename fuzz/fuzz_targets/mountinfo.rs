//! The bytes as lines of mountinfo.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::mountinfo(bytes));
