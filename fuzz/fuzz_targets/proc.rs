//! The bytes as texts of the other files of `/proc` that are read.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::proc(bytes));
