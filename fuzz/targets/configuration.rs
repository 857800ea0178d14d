#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| codeq_fuzz::configuration::run(data));
