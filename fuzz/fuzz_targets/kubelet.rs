//! The bytes as answers of the kubelet's pod API: a list, and one pod.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::kubelet(bytes));
