//! The bytes as records of the kernel half's ring buffers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::ring_records(bytes));
