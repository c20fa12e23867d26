//! Which Python runs the scripts that write and read files as others do?

use std::process::Command;

/// A python3 that has these modules; says what is `missing` where there is none.
pub fn python_with(modules: &str, missing: &str) -> Option<&'static str> {
    let has = |python: &&str| {
        let import = format!("import {modules}");
        let output = Command::new(python).args(["-c", &import]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = ["python3", "/usr/bin/python3"].into_iter().find(has);
    if found.is_none() {
        super::skip::skipped(missing);
    }
    found
}
