//! How is what was found shown, to people and to machines?

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::TOOL;
use super::extract::Extracted;
use crate::cli::{of, size, visible};

fn shown(path: &Path) -> String {
    visible(&path.to_string_lossy())
}

/// Of `extract`.
pub fn extracted_json(made: &Extracted) -> Value {
    let outputs = made.outputs.iter();
    json!({
        "v": 1,
        "tool": TOOL,
        "verb": "extract",
        "files": made.files,
        "bytes": made.bytes,
        "rows": made.counts.rows,
        "values": made.counts.values,
        "keys": made.outputs.iter().map(|(_, keys)| keys).sum::<u64>(),
        "runs": made.counts.runs,
        "levels": made.counts.levels,
        "outputs": outputs.map(|(path, keys)| json!({
            "path": path.to_string_lossy(), "keys": keys,
        })).collect::<Vec<_>>(),
    })
}

/// Of `extract`.
pub fn extracted(out: &mut dyn Write, made: &Extracted) -> io::Result<()> {
    for (path, keys) in &made.outputs {
        let empty = match keys {
            0 => " (empty: HugeCTR refuses such a file)",
            _ => "",
        };
        writeln!(out, "{}: {}{empty}", shown(path), of(*keys, "key"))?;
    }
    writeln!(
        out,
        "{} with {} in {}, {} read",
        of(made.counts.rows, "record"),
        of(made.counts.values, "value"),
        of(made.files as u64, "file"),
        size(made.bytes)
    )
}
