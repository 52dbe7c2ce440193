//! Runs on the build machine: asks for the target as build scripts of crates do.
fn main() {
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    println!("cargo::rustc-check-cfg=cfg(has_sve)");
    if features.split(',').any(|name| name == "sve") {
        println!("cargo::rustc-cfg=has_sve");
    }
    assert_eq!(std::env::var("CARGO_CFG_TARGET_ARCH").unwrap(), "aarch64");
}
