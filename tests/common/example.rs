//! Where is an example that cargo has built with the tests?

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The example beside this test: target/<profile>/examples/NAME. `cargo test` builds it; with
/// `--test` alone it must be there.
pub fn example(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.parent().and_then(Path::parent);
    let path = profile
        .context("tests lie in deps")?
        .join("examples")
        .join(name);
    ensure!(
        path.exists(),
        "{} is missing: cargo build --example {name}",
        path.display()
    );
    Ok(path)
}
