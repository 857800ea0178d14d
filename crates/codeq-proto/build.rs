//! Compiles `proto/` in Rust: no `protoc` is needed.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["proto/producer.proto", "proto/worker.proto"];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    // Payloads and results are slices of what was received: no copy on the way in.
    // The server reads the streams itself, to bound what they take.
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .codec_path("crate::codec::Checked")
        .compile_fds(descriptors)?;
    Ok(())
}
