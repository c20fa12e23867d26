//! Compiles the kernels as host code, for the feature `emu`. Does nothing else.

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    #[cfg(feature = "emu")]
    cc::Build::new()
        .cpp(true)
        .file("kernels/emu/kernels.cpp")
        .flag("-std=c++17")
        .flag("-ffp-contract=off")
        .flag("-Wno-unknown-pragmas")
        .opt_level(1)
        .compile("hps_emu");
}
