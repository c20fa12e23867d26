//! Gives libhps.so its name for the loader: it changes when the interface does so incompatibly.

fn main() {
    let out = std::io::Write::write_all(
        &mut std::io::stdout(),
        b"cargo::rerun-if-changed=build.rs\n\
          cargo::rustc-cdylib-link-arg=-Wl,-soname,libhps.so.0\n",
    );
    drop(out);
}
