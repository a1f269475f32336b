//! Compiles `mesh/v1/*.proto` without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FILES: [&str; 6] = [
        "mesh/v1/status.proto",
        "mesh/v1/membership.proto",
        "mesh/v1/inference.proto",
        "mesh/v1/stage.proto",
        "mesh/v1/weights.proto",
        "mesh/v1/admin.proto",
    ];
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["."])?;
    // A manifest is as large as a vocabulary: its fields share the memory of the message.
    tonic_prost_build::configure().bytes(".mesh.v1.Manifest").compile_fds(descriptors)?;
    Ok(())
}
