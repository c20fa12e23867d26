//! Compiles the kernels as host code, for the feature `emu`. Does nothing else.
//!
//! `HPS_EMU_SANITIZE` is for `tools/emu_sanitizers.sh`: `undefined` or `thread` builds the kernels with
//! that sanitizer and its library.

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-env-changed=HPS_EMU_SANITIZE");
    #[cfg(feature = "emu")]
    emulator();
}

#[cfg(feature = "emu")]
fn emulator() {
    let sanitizer = std::env::var("HPS_EMU_SANITIZE").unwrap_or_default();
    let files = |all: &[&str]| {
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .files(all)
            .flag("-std=c++17")
            .flag("-ffp-contract=off")
            .flag("-Wno-unknown-pragmas")
            .opt_level(1);
        build
    };
    // Every access of a kernel becomes a call, which races.cpp answers.
    let mut kernels = files(&["kernels/emu/kernels.cpp"]);
    kernels.flag("-fsanitize=thread").flag("-fno-exceptions");
    let mut rest = files(&["kernels/emu/schedule.cpp", "kernels/emu/races.cpp"]);
    rest.opt_level(2);
    match sanitizer.as_str() {
        "undefined" => {
            kernels.flag("-fsanitize=undefined");
            kernels.flag("-fno-sanitize-recover=undefined");
            // Arrays that are not there may begin anywhere, in tests of far offsets: told, and gone on from.
            kernels.flag("-fsanitize-recover=pointer-overflow");
            println!("cargo::rustc-link-lib=ubsan");
        }
        "thread" => {
            rest.define("EMU_TSAN", None);
            println!("cargo::rustc-link-lib=tsan");
        }
        _ => {}
    }
    // In this order for the linker: schedule.cpp calls into kernels.cpp.
    rest.compile("hps_emu");
    kernels.compile("hps_emu_kernels");
}
