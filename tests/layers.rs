//! Who may know whom, how long a file may be, and where `unsafe` and `std::fs` may stand.
//!
//! - The tables below are the rule; the code is read as text, without comments and strings.
//! - The checker is a pure function of (path, text), and is itself tested on planted violations.

use std::path::Path;

#[path = "common/source.rs"]
mod source;

use source::{
    Source, collect, first_path, named_after, named_after_supers, start_of_tests,
    without_comments_and_strings, words,
};

/// Modules that know only each other.
const PLAIN: &[&str] = &[
    "error", "units", "options", "stats", "observe", "batch", "fork", "pages", "keymap", "row",
    "sync", "in_use",
];

/// What each other module may know, beside plain data and itself.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("format", &[]),
    ("io", &[]),
    ("ssd", &["format", "io"]),
    ("mem", &[]),
    ("hbm", &[]),
    ("store", &["format", "io", "ssd", "mem"]),
    ("inspect", &["format", "io", "ssd"]),
    ("repair", &["format", "io", "ssd", "inspect"]),
];

/// What each part of the store may know of the others. What is named further up is locked later.
const STORE: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("workers", &["core"]),
    ("lease", &["core", "workers"]),
    ("compact", &["core"]),
    ("flush", &["core", "compact"]),
    ("pull", &["core", "workers", "lease", "flush"]),
    ("pass", &["core", "workers", "lease", "pull", "put"]),
    ("passes", &["pass"]),
    ("push", &["core", "workers", "lease"]),
    ("put", &["core", "workers", "flush", "pull"]),
    ("warm", &["core"]),
    ("checkpoint", &["core", "compact", "flush", "warm"]),
    ("rows", &["core"]),
    ("delta", &["core", "put", "rows"]),
    ("hold", &[]),
    ("unique", &["workers"]),
    ("rebuild_index", &["core"]),
    (
        "parts",
        &[
            "core",
            "workers",
            "lease",
            "compact",
            "flush",
            "pull",
            "pass",
            "push",
            "put",
            "checkpoint",
            "warm",
            "delta",
        ],
    ),
    (
        "open",
        &["core", "workers", "pull", "rows", "parts", "rebuild_index"],
    ),
    ("open_or_create", &["open"]),
    ("batches", &[]),
    ("tables", &["open"]),
    ("checkpoints", &["open"]),
    ("maintain", &["core", "compact", "parts"]),
    ("many", &["lease", "pull", "push"]),
];
/// Types that are somebody's own: behind them stands a lock, or what several threads write.
const OWNED: &[&str] = &["Mutex<", "RwLock<", "Condvar", "Atomic", "Signal"];

/// Libraries and the modules that may name them.
const HOMES: &[(&str, &str)] = &[
    ("io_uring", "io"),
    ("nix", "io"),
    ("nix", "fork"),
    ("nix", "pages"),
    ("zerocopy", "format"),
    ("xxhash_rust", "format"),
    ("pulp", "row"),
    ("cudarc", "hbm"),
    ("metrics", "observe"),
    ("parking_lot", "sync"),
    ("shuttle", "sync"),
];

const UNSAFE_FILES: &[&str] = &[
    "src/hbm/driver.rs",
    "src/hbm/driver/compile.rs",
    "src/hbm/driver/library.rs",
    "src/hbm/driver/open.rs",
    "src/hbm/emulator.rs",
    "src/io/buffer.rs",
    "src/fork.rs",
    "src/io/uring.rs",
    "src/io/uring/queue.rs",
    "src/io/uring/ring.rs",
    "src/pages.rs",
    "src/store/workers/team.rs",
    "tests/common/limits.rs",
    "tests/fork.rs",
    "tools/bench/src/peers/lmdb.rs",
    "tools/bench/src/peers/mmap.rs",
];
/// Where each file may have it: functions that C finds by their names are `unsafe` to declare.
const UNSAFE_FOLDER: &str = "capi/src/";
/// What such a file says at its top, without white space.
const UNSAFE_REASON: &str = "#![expect(unsafe_code,reason=";
const FILE_LINES_MAX: usize = 600;
const DEPTH_MAX: usize = 2;

/// Everything the files do that the tables forbid, as `path:line: what`.
fn violations(files: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            found.push(format!(
                "{}:{lines}: more than {FILE_LINES_MAX} lines",
                file.path
            ));
        }
        if file.path.ends_with(".rs") {
            check_code(file, &mut found);
        }
    }
    found.extend(fields_written_elsewhere(files));
    found
}

fn check_code(file: &Source, found: &mut Vec<String>) {
    let code = without_comments_and_strings(&file.text);
    let mut report = |at: usize, what: String| {
        let line = code[..at].iter().filter(|c| **c == '\n').count() + 1;
        found.push(format!("{}:{line}: {what}", file.path));
    };
    let uses_unsafe = words(&code, "unsafe");
    let may = UNSAFE_FILES.contains(&file.path.as_str()) || file.path.starts_with(UNSAFE_FOLDER);
    if !may {
        for at in uses_unsafe {
            report(at, format!("unsafe is for {UNSAFE_FILES:?}"));
        }
    } else if let Some(at) = uses_unsafe.first()
        && !file
            .text
            .split_whitespace()
            .collect::<String>()
            .contains(UNSAFE_REASON)
    {
        report(
            *at,
            "the file must say why: #![expect(unsafe_code, reason = …)]".to_owned(),
        );
    }
    let Some(inside) = file.path.strip_prefix("src/") else {
        return;
    };
    let parts: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
    if parts.len() > DEPTH_MAX + 1 {
        report(0, format!("deeper than {DEPTH_MAX} directories under src"));
    }
    let module = parts[0];
    if module == "lib" {
        return;
    }
    if !PLAIN.contains(&module) && MAY_KNOW.iter().all(|(name, _)| *name != module) {
        report(0, format!("module {module} is not in the table"));
        return;
    }
    let depth = parts.len() - usize::from(parts.ends_with(&["mod"]));
    if module == "store" && parts.len() > 1 && !parts.ends_with(&["tests"]) {
        check_store(&code, parts[1], depth, &mut report);
    }
    let known = known_to(module);
    let mut named = named_after(&code, "crate");
    named.extend(named_after_supers(&code, depth));
    for (at, name) in named {
        let other_module =
            PLAIN.contains(&name.as_str()) || MAY_KNOW.iter().any(|(module, _)| *module == name);
        if other_module && !known.contains(&name.as_str()) {
            report(at, format!("{module} must not know {name}"));
        }
    }
    for (library, home) in HOMES {
        let at_home = HOMES.contains(&(library, module));
        if !at_home && let Some(at) = first_path(&code, library) {
            report(at, format!("{library} has its home in {home}"));
        }
    }
    let test_code = if parts.contains(&"tests") {
        0
    } else {
        start_of_tests(&code)
    };
    for (at, name) in named_after(&code, "std") {
        if name == "fs" && module != "io" && at < test_code {
            report(at, "std::fs is for io".to_owned());
        }
    }
}

/// A part of the store knows the parts that it may, and keeps its locks to itself.
fn check_store(code: &[char], part: &str, depth: usize, report: &mut impl FnMut(usize, String)) {
    let end = start_of_tests(code);
    if part != "mod" {
        let Some((_, known)) = STORE.iter().find(|(name, _)| *name == part) else {
            report(0, format!("store::{part} is not in the table"));
            return;
        };
        let mut named = named_after(code, "store");
        named.extend(named_after_supers(code, depth - 1));
        for (at, name) in named {
            let is_part = STORE.iter().any(|(other, _)| *other == name);
            if at < end && is_part && name != part && !known.contains(&name.as_str()) {
                report(at, format!("store::{part} must not know store::{name}"));
            }
        }
    }
    let mut at = 0;
    for line in code[..end].split(|c| *c == '\n') {
        let text: String = line.iter().collect();
        let is_given = given_field(&text, depth).is_some();
        if is_given && OWNED.iter().any(|owned| text.contains(owned)) {
            report(
                at,
                format!("store::{part} gives a lock or a shared number away"),
            );
        }
        at += line.len() + 1;
    }
}

/// A field of a part of the store that another part writes.
fn fields_written_elsewhere(files: &[Source]) -> Vec<String> {
    let part_of = |file: &Source| -> Option<String> {
        let inside = file.path.strip_prefix("src/store/")?;
        Some(inside.trim_end_matches(".rs").split('/').next()?.to_owned())
    };
    let read = |file: &Source| {
        let code = without_comments_and_strings(&file.text);
        let end = start_of_tests(&code);
        let text: String = code[..end].iter().collect();
        // `Stats` is nobody's: each part fills in its own counters.
        let depth = file.path.trim_end_matches("/mod.rs").split('/').count() - 1;
        part_of(file).map(|part| (part, depth, text.replace("stats.", "")))
    };
    let parts: Vec<(String, usize, String)> = files.iter().filter_map(read).collect();
    let mut found = Vec::new();
    for (owner, depth, text) in &parts {
        for field in text.lines().filter_map(|line| given_field(line, *depth)) {
            for (part, _, other) in parts.iter().filter(|(part, ..)| part != owner) {
                let own = [format!(" {field}: "), format!("({field}: ")];
                if own.iter().any(|own| other.contains(own)) {
                    continue;
                }
                let writes = |sign: &str| other.contains(&format!(".{field} {sign} "));
                if ["=", "+=", "-=", "|="].into_iter().any(writes) {
                    found.push(format!("store::{part} writes {field} of store::{owner}"));
                }
            }
        }
    }
    found
}

/// The field that a line of the store declares for other parts to see, be it all or some. In a file of
/// a part's folder (at depth 3) `super` is the part itself.
fn given_field(line: &str, depth: usize) -> Option<&str> {
    let rest = line.trim().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(some) => {
            let (whom, rest) = some.split_once(')')?;
            (depth < 3 || whom != "super").then_some(rest)?
        }
        None => rest,
    };
    let (name, _) = rest.strip_prefix(' ')?.split_once(": ")?;
    name.chars()
        .all(|c| c.is_alphanumeric() || c == '_')
        .then_some(name)
}

fn known_to(module: &str) -> Vec<&str> {
    let more = MAY_KNOW
        .iter()
        .find(|(name, _)| *name == module)
        .map_or(&[][..], |(_, more)| more);
    PLAIN.iter().chain(more).copied().chain([module]).collect()
}

#[test]
fn every_file_keeps_the_layers_and_limits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in [
        "src", "tests", "tools", "examples", "benches", "python", "capi",
    ] {
        collect(root, &root.join(folder), &mut files).unwrap();
    }
    let modules = files.iter().filter(|f| f.path.starts_with("src/")).count();
    assert!(
        modules > 20,
        "only {modules} files found under {}/src",
        root.display()
    );
    let found = violations(&files);
    assert!(
        found.is_empty(),
        "{} violations:\n{}",
        found.len(),
        found.join("\n")
    );
}

fn found_in(path: &str, text: &str) -> Vec<String> {
    violations(&[Source {
        path: path.to_owned(),
        text: text.to_owned(),
    }])
}

#[test]
fn planted_violations_are_found() {
    let planted = [
        (
            "src/mem/cache.rs",
            "use crate::ssd::reader;",
            "1: mem must not know ssd",
        ),
        (
            "src/mem/cache.rs",
            "\nfn f() { crate :: io::open() }",
            "2: mem must not know io",
        ),
        (
            "src/format/mod.rs",
            "use crate::{units::mix64, io::{Disk}};",
            "1: format must not know io",
        ),
        (
            "src/io/mod.rs",
            "use crate::{\n    error::Error,\n    format,\n};",
            "3: io must not know",
        ),
        (
            "src/row/mod.rs",
            "use crate::format::x;",
            "1: row must not know format",
        ),
        (
            "src/units.rs",
            "fn f(x: crate::mem::Cache) {}",
            "1: units must not know mem",
        ),
        (
            "src/ssd/mod.rs",
            "use super::mem::Cache;",
            "1: ssd must not know mem",
        ),
        (
            "src/ssd/scan.rs",
            "use super::super::store;",
            "1: ssd must not know store",
        ),
        (
            "src/io/sim/disk.rs",
            "use super::super::super::ssd;",
            "1: io must not know ssd",
        ),
        (
            "src/inspect.rs",
            "use crate::mem;",
            "1: inspect must not know mem",
        ),
        ("src/extra.rs", "", "1: module extra is not in the table"),
        (
            "src/mem/cache.rs",
            "// a\nunsafe { x() }",
            "2: unsafe is for",
        ),
        (
            "examples/ctr/main.rs",
            "unsafe fn f() {}",
            "1: unsafe is for",
        ),
        (
            "src/io/uring.rs",
            "unsafe { x() }",
            "1: the file must say why",
        ),
        (
            "capi/src/lease.rs",
            "unsafe { x() }",
            "1: the file must say why",
        ),
        (
            "python/src/lease.rs",
            "#![expect(unsafe_code, reason = \"x\")]\nunsafe { x() }",
            "2: unsafe is for",
        ),
        ("src/a/b/c/d.rs", "", "deeper than 2"),
        (
            "src/store/mod.rs",
            "use std::{fs, io};",
            "1: std::fs is for io",
        ),
        (
            "src/store/mod.rs",
            "let x = std::fs::File::open(p);",
            "1: std::fs is for io",
        ),
        (
            "src/store/mod.rs",
            "use nix::sys;",
            "1: nix has its home in io",
        ),
        (
            "src/ssd/mod.rs",
            "let h = xxhash_rust::xxh3::xxh3_64(b);",
            "xxhash_rust has its home",
        ),
        (
            "src/store/flush/pick.rs",
            "use super::super::pull::Puller;",
            "1: store::flush must not know store::pull",
        ),
        (
            "src/store/lease.rs",
            "use super::flush;",
            "1: store::lease must not know store::flush",
        ),
        (
            "src/store/core/mod.rs",
            "fn f(x: crate::store::push::Pusher) {}",
            "1: store::core must not know store::push",
        ),
        (
            "src/store/more/mod.rs",
            "",
            "1: store::more is not in the table",
        ),
        (
            "src/store/flush/mod.rs",
            "struct F {\n    pub waiting: AtomicUsize,\n}",
            "2: store::flush gives a lock",
        ),
        (
            "src/store/core/mod.rs",
            "struct C {\n    pub gate: RwLock<()>,\n}",
            "2: store::core gives a lock",
        ),
        (
            "src/store/lease/mod.rs",
            "struct L {\n    pub(super) book: Mutex<()>,\n}",
            "2: store::lease gives a lock",
        ),
        (
            "src/store/lease/part.rs",
            "struct L {\n    pub(in super::super) book: Mutex<()>,\n}",
            "2: store::lease gives a lock",
        ),
        (
            "src/store/push/mod.rs",
            "metrics::counter!(\"rows\").increment(1);",
            "1: metrics has its home in observe",
        ),
    ];
    for (path, text, expected) in planted {
        let found = found_in(path, text);
        assert!(
            found.iter().any(|x| x.contains(expected)),
            "{path}: {text:?}: found {found:?}"
        );
    }
    let source = |path: &str, text: &str| Source {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let shard = source(
        "src/store/core/shard.rs",
        "struct S {\n    pub lost: bool,\n}",
    );
    let writer = || {
        source(
            "src/store/flush/write.rs",
            "fn f() {\n    guard.lost = true;\n}",
        )
    };
    assert_eq!(
        violations(&[shard, writer()]),
        ["store::flush writes lost of store::core"]
    );
    let lease = source(
        "src/store/lease/mod.rs",
        "struct L {\n    pub(super) lost: bool,\n}",
    );
    assert_eq!(
        violations(&[lease, writer()]),
        ["store::flush writes lost of store::lease"]
    );
    let long = "\n".repeat(FILE_LINES_MAX + 1);
    for path in ["tools/check.sh", "src/mem/mod.rs", "tests/data/figures.py"] {
        assert_eq!(
            found_in(path, &long),
            [format!("{path}:601: more than 600 lines")]
        );
        assert_eq!(found_in(path, &long[1..]), [""; 0]);
    }
}

#[test]
fn what_is_allowed_is_not_reported() {
    let allowed = [
        ("src/lib.rs", "use crate::{mem, ssd}; use std::fs;"),
        (
            "src/store/mod.rs",
            "use crate::{mem::Cache, ssd, io, format, error::Error};",
        ),
        (
            "src/store/pull/mod.rs",
            "use super::super::mem; use super::flush; use super::lease;",
        ),
        (
            "src/io/pread.rs",
            "use std::fs::{self, File}; use nix::sys;",
        ),
        (
            "src/io/buffer.rs",
            "#![expect(\n    unsafe_code,\n    reason = \"x\"\n)]\nunsafe { x() }",
        ),
        (
            "src/io/sim/state.rs",
            "use super::super::format_name; use super::super::OpenMode;",
        ),
        (
            "src/mem/cache.rs",
            "//! unsafe use crate::ssd::x;\n/* crate::io:: unsafe */",
        ),
        (
            "src/mem/cache.rs",
            "let s = \"unsafe crate::ssd:: \\\" std::fs::x\"; let c = '\"'; f('\\'');",
        ),
        (
            "src/mem/cache.rs",
            "let s = r#\"unsafe \" crate::ssd::x\"#; fn f<'a>(x: &'a str) {}",
        ),
        (
            "src/mem/cache.rs",
            "#![expect(unsafe_code, reason = \"x\")]",
        ),
        ("src/mem/tests.rs", "use std::fs;"),
        (
            "src/mem/cache.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}",
        ),
        ("src/mem/cache.rs", "fn f(nix: u32) -> u32 { nix }"),
        ("tests/pull_push.rs", "use std::fs; use hps::Store;"),
        (
            "src/store/lease/part.rs",
            "struct P {\n    pub(super) rows: AtomicU64,\n}",
        ),
        (
            "src/store/push/mod.rs",
            "struct P {\n    rows: AtomicU64,\n}\npub fn add(x: &AtomicU64) {}",
        ),
        (
            "src/store/open/threads.rs",
            "use super::super::parts;\n#[cfg(test)]\nmod tests {\n    use super::super::super::pull;\n}",
        ),
    ];
    for (path, text) in allowed {
        assert_eq!(found_in(path, text), [""; 0], "{path}: {text:?}");
    }
    // After a string and a lifetime the checker is awake again.
    let found = found_in(
        "src/mem/a.rs",
        "fn f<'a>(x: &'a str, c: char) -> bool { c == 'a' }\nuse crate::ssd;",
    );
    assert_eq!(found, ["src/mem/a.rs:2: mem must not know ssd"]);
}
