//! Compiles `proto/` in Rust, without `protoc`.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["proto/producer.proto", "proto/worker.proto"];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    // Payloads and results are slices of the received bytes, not copies. The server reads the streams itself, to limit
    // their memory.
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .codec_path("crate::codec::Checked")
        .compile_fds(descriptors)?;
    Ok(())
}
