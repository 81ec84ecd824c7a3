//! The bytes as records of CNI calls: as they are, and with what follows their header.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::cni_call(bytes));
