//! The bytes as Cilium's state of an endpoint, in both shapes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::cilium(bytes));
