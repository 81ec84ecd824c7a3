//! A life of a node: a case, and what happens in it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::engine(bytes));
