//! The bytes as a pod's resources in Terway's file.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::terway(bytes));
