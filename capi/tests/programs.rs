//! Do programs in C and C++ get from the library what hps.h and docs/C.md promise?
//!
//! The library is installed by `tools/install_c.sh` into a folder of the target directory; programs
//! are compiled against that, as a user's are. Needed: `cc`, `c++`, `pkg-config`, `nm`.
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Runs a command to its end and gives what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}{err}",
        output.status
    );
    out
}

/// Where the library is installed.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        // target/PROFILE/deps/this.
        let this = std::env::current_exe().unwrap();
        let built = this.ancestors().nth(2).unwrap();
        let name = built.file_name().and_then(OsStr::to_str).unwrap();
        let profile = if name == "debug" { "dev" } else { name };
        let prefix = built.join("capi-prefix");
        let mut install = Command::new(root().join("tools/install_c.sh"));
        install.args(["--profile", profile]).arg(&prefix);
        run(install.env("CARGO_TARGET_DIR", built.parent().unwrap()));
        prefix
    })
}

fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("hps");
    let flags = run(command.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig")));
    flags.split_whitespace().map(str::to_owned).collect()
}

/// Compiles one file with the shared library.
fn compile(source: &Path, program: &Path) {
    let is_c = source.extension() == Some(OsStr::new("c"));
    let (compiler, standard) = if is_c {
        ("cc", "-std=c99")
    } else {
        ("c++", "-std=c++17")
    };
    let mut command = Command::new(compiler);
    command
        .arg(standard)
        .args(STRICT)
        .args(["-O1", "-g"])
        .arg(source);
    command
        .args(pkg_config(&["--cflags", "--libs"]))
        .args(["-lpthread", "-lm"]);
    run(command.arg("-o").arg(program));
}

/// A program with what it needs to find the library.
fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env("LD_LIBRARY_PATH", prefix().join("lib"));
    command
}

/// Compiles a program of tests/c and runs it with an empty directory.
fn compile_and_run(name: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let source = root().join("capi/tests/c").join(name);
    let (path, stores) = (place.path().join("program"), place.path().join("stores"));
    fs::create_dir(&stores).unwrap();
    compile(&source, &path);
    run(program(&path).arg(&stores))
}

fn header() -> String {
    fs::read_to_string(root().join("capi/include/hps.h")).unwrap()
}

/// Names that begin with `hps_` and are followed by a parenthesis, in declarations or calls.
fn functions_in(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text
        .lines()
        .filter(|line| !line.trim_start().starts_with(['/', '*']))
    {
        let mut rest = line;
        while let Some(at) = rest.find("hps_") {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let after = &rest[at..];
            let end = after.find(|c| !is_part(c)).unwrap_or(after.len());
            if after[end..].starts_with('(') {
                found.insert(after[..end].to_owned());
            }
            rest = &after[end..];
        }
    }
    found
}

#[test]
fn the_header_is_c99_and_cpp17() {
    let place = tempfile::tempdir().unwrap();
    let languages = [
        ("cc", "-std=c99", "one.c", "hps.h"),
        ("cc", "-std=c11", "one.c", "hps.h"),
        ("c++", "-std=c++17", "one.cpp", "hps.h"),
        ("c++", "-std=c++17", "one.cpp", "hps.hpp"),
        ("c++", "-std=c++17", "one.cpp", "hps_passes.hpp"),
        ("c++", "-std=c++20", "one.cpp", "hps_storage.hpp"),
    ];
    for (compiler, standard, name, header) in languages {
        let source = place.path().join(name);
        // Twice: its guard holds.
        let text =
            format!("#include <{header}>\n#include <{header}>\nint main(void) {{ return 0; }}\n");
        fs::write(
            &source,
            text.replace("(void)", if compiler == "cc" { "(void)" } else { "()" }),
        )
        .unwrap();
        let mut command = Command::new(compiler);
        command
            .arg(standard)
            .args(STRICT)
            .args(["-Wshadow", "-Wconversion", "-fsyntax-only"]);
        run(command.args(pkg_config(&["--cflags"])).arg(&source));
    }
}

#[test]
fn every_call_does_what_it_says_right_and_wrong() {
    assert_eq!(compile_and_run("all_calls.c"), "all calls made\n");
}

#[test]
fn checkpoints_are_kept_walked_and_gone_back_to() {
    assert_eq!(compile_and_run("history.c"), "all history told\n");
}

#[test]
fn handles_outlive_their_store_and_do_nothing_in_a_child() {
    assert_eq!(compile_and_run("lifetimes.c"), "all handles freed\n");
}

#[test]
fn passes_bring_rows_keep_them_and_become_blocks() {
    assert_eq!(compile_and_run("passes.c"), "all passes ended\n");
}

#[test]
fn changes_are_told_and_copies_take_deltas() {
    assert_eq!(compile_and_run("deltas.c"), "all deltas taken\n");
}

#[test]
fn classes_free_throw_and_serve_a_cache_above() {
    assert_eq!(compile_and_run("wrapper.cpp"), "all classes used\n");
}

#[test]
fn a_program_linked_with_the_static_library_runs_alone() {
    let place = tempfile::tempdir().unwrap();
    let (path, stores) = (place.path().join("program"), place.path().join("stores"));
    fs::create_dir(&stores).unwrap();
    let mut command = Command::new("cc");
    command
        .args(["-std=c99", "-g"])
        .arg(root().join("capi/tests/c/all_calls.c"));
    command.args(pkg_config(&["--cflags"])).arg("-l:libhps.a");
    let libraries = pkg_config(&["--libs", "--static"]);
    command.args(libraries.iter().filter(|flag| *flag != "-lhps"));
    run(command.args(["-lm", "-o"]).arg(&path));
    assert_eq!(run(Command::new(&path).arg(&stores)), "all calls made\n");
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"])
        .arg(prefix().join("lib/libhps.so"));
    let listed = run(&mut nm);
    let symbols = listed
        .lines()
        .map(|line| line.split_whitespace().last().unwrap().to_owned());
    let symbols: BTreeSet<String> = symbols.collect();
    // A typedef of a function is no function.
    let mut declared = functions_in(&header());
    declared.remove("hps_log_callback");
    assert!(declared.len() > 100, "{} functions", declared.len());
    assert_eq!(symbols, declared);
    let readelf = run(Command::new("readelf")
        .arg("-d")
        .arg(prefix().join("lib/libhps.so")));
    assert!(readelf.contains("[libhps.so.0]"), "{readelf}");
}

#[test]
fn every_function_is_called_by_a_test() {
    let mut called = BTreeSet::new();
    for name in [
        "all_calls.c",
        "history.c",
        "lifetimes.c",
        "passes.c",
        "deltas.c",
        "check.h",
    ] {
        let text = fs::read_to_string(root().join("capi/tests/c").join(name)).unwrap();
        called.append(&mut functions_in(&text));
    }
    let mut left: BTreeSet<String> = functions_in(&header());
    left.retain(|name| !called.contains(name));
    assert!(left.is_empty(), "no test calls {left:?}");
}

/// What a number meant once, it means for good.
#[test]
fn numbers_of_constants_stay() {
    let fixed = [
        "HPS_OK = 0",
        "HPS_INVALID_ARGUMENT = 1",
        "HPS_CORRUPT = 2",
        "HPS_MISSING_DIRECTORY = 3",
        "HPS_IO = 4",
        "HPS_NO_SPACE = 5",
        "HPS_OVER_BUDGET = 6",
        "HPS_LOCKED = 7",
        "HPS_UNSUPPORTED = 8",
        "HPS_UNSUPPORTED_TABLE = 9",
        "HPS_POISONED = 10",
        "HPS_UNCHECKPOINTED = 11",
        "HPS_CANCELLED = 12",
        "HPS_READ_ONLY = 13",
        "HPS_DEADLINE = 14",
        "HPS_DEVICE = 15",
        "HPS_DEVICE_MEMORY = 16",
        "HPS_REFUSED_CALL = 17",
        "HPS_FORKED = 18",
        "HPS_NULL_POINTER = 100",
        "HPS_PANIC = 101",
        "HPS_OTHER = 102",
        "HPS_IO_URING = 0",
        "HPS_IO_PREAD = 1",
        "HPS_POLICY_BILEVEL = 0",
        "HPS_POLICY_LRU = 1",
        "HPS_POLICY_FIFO = 2",
        "HPS_POLICY_PIN_ALL = 3",
        "HPS_POLICY_STAGED = 4",
        "HPS_KEYS_I64 = 0",
        "HPS_KEYS_U32 = 1",
        "HPS_NON_FINITE_SKIP = 0",
        "HPS_NON_FINITE_REJECT = 1",
        "HPS_NON_FINITE_APPLY = 2",
        "HPS_SGD = 0",
        "HPS_MOMENTUM = 1",
        "HPS_NESTEROV = 2",
        "HPS_ADAGRAD = 3",
        "HPS_ROWWISE_ADAGRAD = 4",
        "HPS_ADAM = 5",
        "HPS_FTRL = 6",
        "HPS_INIT_ZERO = 0",
        "HPS_INIT_CONSTANT = 1",
        "HPS_INIT_UNIFORM = 2",
        "HPS_INIT_NORMAL = 3",
        "HPS_METADATA_SHOW = 1",
        "HPS_METADATA_CLICK = 2",
        "HPS_METADATA_COUNT = 4",
        "HPS_METADATA_LAST_STEP = 8",
        "HPS_GRADIENTS = 0",
        "HPS_DELTAS = 1",
        "HPS_WEIGHTS = 2",
        "HPS_ROWS = 3",
        "HPS_VERBATIM = 1",
        "HPS_AT_POSITIONS = 2",
        "HPS_LOG_ERROR = 1",
        "HPS_LOG_WARN = 2",
        "HPS_LOG_INFO = 3",
        "HPS_LOG_DEBUG = 4",
        "HPS_LOG_TRACE = 5",
    ];
    let header = header();
    let constants = header.lines().map(str::trim);
    let constants = constants.filter(|line| line.starts_with("HPS_") && line.contains(" = "));
    let constants: BTreeSet<&str> = constants.map(|line| line.trim_end_matches(',')).collect();
    assert_eq!(constants, BTreeSet::from(fixed));
}

/// The last line of a trainer's output.
fn digest_of(trainer: &Path, store: &Path) -> String {
    let out = run(program(trainer).arg(store).args(["400", "40"]));
    let last = out.lines().last().unwrap().to_owned();
    assert!(last.contains("digest"), "{out}");
    last
}

#[test]
fn a_trainer_that_was_killed_ends_as_one_that_was_not() {
    let place = tempfile::tempdir().unwrap();
    let trainer = place.path().join("train");
    compile(&root().join("capi/examples/c/train.c"), &trainer);
    let whole = digest_of(&trainer, &place.path().join("whole"));
    let killed = place.path().join("killed");
    // After its second checkpoint, then after two more: somewhere in the batches behind them.
    for checkpoints in [2, 2] {
        let mut child = program(&trainer)
            .arg(&killed)
            .args(["400", "40"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..checkpoints {
            let line = lines.next().unwrap().unwrap();
            assert!(line.starts_with("checkpoint"), "{line}");
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
    }
    assert_eq!(digest_of(&trainer, &killed), whole);
}

/// The fenced blocks of a language in a document.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let mut found = Vec::new();
    let mut rest = document;
    while let Some(start) = rest.find(&fence) {
        let block = &rest[start + fence.len()..];
        let end = block.find("```").unwrap();
        found.push(&block[..end]);
        rest = &block[end..];
    }
    found
}

#[test]
fn programs_of_the_manual_compile_and_run() {
    let manual = fs::read_to_string(root().join("docs/C.md")).unwrap();
    let all: [(&str, &[&str]); 2] = [
        ("c", &["checkpoint ", " % hits"]),
        ("cpp", &["rows in memory"]),
    ];
    for (language, said) in all {
        let programs = blocks(&manual, language);
        assert_eq!(programs.len(), said.len(), "{language}");
        for (text, said) in programs.iter().zip(said) {
            let place = tempfile::tempdir().unwrap();
            let source = place.path().join(format!("manual.{language}"));
            let path = place.path().join("program");
            fs::write(&source, text).unwrap();
            compile(&source, &path);
            for time in ["first", "second"] {
                let out = run(program(&path).arg(place.path().join("store")));
                assert!(out.contains(said), "the {time} time: {out}");
            }
        }
    }
}

/// The manual's table names each function, or the end of its name behind one that begins like it.
#[test]
fn the_manual_names_every_function() {
    let manual = fs::read_to_string(root().join("docs/C.md")).unwrap();
    let setters = [
        "hps_options_",
        "hps_table_options_",
        "hps_descriptor_",
        "hps_hyper_",
    ];
    let mut left = functions_in(&header());
    left.remove("hps_log_callback");
    left.retain(|name| {
        let is_setter = setters.iter().any(|start| name.starts_with(start));
        let is_short = name
            .match_indices('_')
            .any(|(at, _)| at > 3 && manual.contains(&format!("`{}`", &name[at..])));
        let is_named = [format!("`{name}`"), format!("`{name}(")];
        !is_setter && !is_short && !is_named.iter().any(|named| manual.contains(named))
    });
    assert!(left.is_empty(), "docs/C.md does not name {left:?}");
}
