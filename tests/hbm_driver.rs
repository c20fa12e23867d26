//! Opening and using a GPU where the driver, the compiler or the device is missing, old, or fails: each has
//! an error with a name and a way out, and none prints a panic.
//!
//! Needs the feature `cuda` and a C compiler, no GPU: the libraries of CUDA are stubs (`tests/stubs/`), and a
//! child process finds them by LD_LIBRARY_PATH, which a library is looked up by once in a process.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where something goes wrong, and a child says what it met"
)]

use std::path::Path;
use std::process::{Command, Output};

use hps::hbm::{
    Device, Gradients, HbmOptions, HbmTable, Index, Kind, Memory, Stream, Values, ValuesMut, open,
};
use hps::{Error, Optimizer, Result, TableDescriptor};

const TRAIN: Stream = Stream::Train;
const N: usize = 16;
/// What the driver is asked when a table is dropped: nobody is told when that fails.
const CALLS_OF_DROP: usize = 3;

/// A folder with the libraries of a case.
struct Libraries(tempfile::TempDir);

impl Libraries {
    fn new() -> Libraries {
        Libraries(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// A stub under the name that is looked for first.
    fn stub(self, name: &str, flags: &[&str]) -> Libraries {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stubs");
        self.compile(name, &source.join(format!("{name}.c")), flags)
    }

    /// A library without a function.
    fn hollow(self, name: &str) -> Libraries {
        let source = self.path("hollow.c");
        std::fs::write(&source, "int hps_hollow;\n").unwrap();
        self.compile(name, &source, &[])
    }

    fn compile(self, name: &str, source: &Path, flags: &[&str]) -> Libraries {
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let library = self.path(&format!("{name}.so"));
        let done = Command::new(compiler)
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(library)
            .arg(source)
            .args(flags)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        self
    }

    /// Files that are no libraries, under each name that is looked for: so that the machine's own is not
    /// found.
    fn hidden(self, name: &str) -> Libraries {
        for end in ["", ".1", ".9", ".10", ".11", ".12", ".13"] {
            std::fs::write(self.path(&format!("{name}.so{end}")), "no library").unwrap();
        }
        self
    }

    fn driver() -> Libraries {
        Libraries::new().stub("libcuda", &[])
    }

    fn both() -> Libraries {
        Libraries::driver().stub("libnvrtc", &[])
    }

    /// What a child says that opens a table with these libraries and uses it.
    fn run(&self, variables: &[(&str, &str)]) -> Vec<String> {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture", "--test-threads=1"])
            .env("LD_LIBRARY_PATH", self.0.path())
            .env("HPS_TEST_ROLE", "1")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        lines_of(&child, variables)
    }
}

/// The lines of a child; it must have ended well, and have written nothing to stderr.
fn lines_of(child: &Output, variables: &[(&str, &str)]) -> Vec<String> {
    let [out, err] = [&child.stdout, &child.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(
        child.status.success() && err.is_empty(),
        "{variables:?}: {}\n{out}\n{err}",
        child.status
    );
    let lines = out.lines().filter_map(|line| line.strip_prefix('@'));
    lines.map(str::to_owned).collect()
}

/// The one error of a case: that of opening.
fn refusal(libraries: &Libraries, variables: &[(&str, &str)]) -> String {
    let lines = libraries.run(variables);
    let [first, second] = &lines[..] else {
        unreachable!("{variables:?}: {lines:?}");
    };
    assert_eq!(first, second, "{variables:?}: the second opening");
    let why = first.strip_prefix("open: ").unwrap();
    assert!(why.contains("cuda:0"), "{why}");
    why.to_owned()
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

/// Runs in a child: opens, uses, says what failed.
#[test]
fn role() {
    if std::env::var_os("HPS_TEST_ROLE").is_none() {
        return;
    }
    // The name of the test stands on the line.
    println!();
    for _ in 0..2 {
        let descriptor = TableDescriptor::new("t", 8).optimizer(Optimizer::Adagrad);
        let options = HbmOptions::new(64).batch_keys_max(512).staging_bytes(128);
        match open(Device::Cuda(0), &descriptor, &options) {
            Ok(mut table) => return use_all(table.as_mut()),
            Err(error @ (Error::Device { .. } | Error::DeviceMemory { .. })) => {
                println!("@open: {error}");
            }
            Err(other) => println!("@another error: {other:?}"),
        }
    }
}

/// Every call, whatever the ones before have said.
fn use_all(table: &mut dyn HbmTable) {
    fn told<T>(what: &str, done: Result<T>) -> Option<T> {
        done.inspect_err(|error| match error {
            Error::Device { .. } | Error::DeviceMemory { .. } => println!("@{what}: {error}"),
            other => println!("@another error: {other:?}"),
        })
        .ok()
    }
    let mut take = |memory, kind, count| told("allocate", table.allocate(memory, kind, count));
    let buffers = (
        (
            take(Memory::Device, Kind::Keys, N),
            take(Memory::Device, Kind::Keys, N),
            take(Memory::Device, Kind::Words, N),
        ),
        (
            take(Memory::Device, Kind::Floats, N * 16),
            take(Memory::Pinned, Kind::Floats, N * 16),
            take(Memory::Pinned, Kind::Words, N),
        ),
    );
    let ((Some(keys), Some(more), Some(rows)), (Some(floats), Some(packed), Some(positions))) =
        buffers
    else {
        return;
    };
    told("info", table.info());
    told("write", table.write(TRAIN, keys, 0, Values::Keys(&[7; N])));
    told(
        "write pinned",
        table.write(TRAIN, packed, 0, Values::Floats(&[0.5; N])),
    );
    told("clear", table.clear(TRAIN, Index::Second));
    told(
        "insert",
        table.insert(TRAIN, Index::First, (keys, rows, N), more),
    );
    told("inserted", table.inserted(TRAIN, Index::First));
    told("place", table.place(TRAIN, rows, packed, N));
    told("place on the device", table.place(TRAIN, rows, floats, N));
    told("get", table.get(TRAIN, Index::First, keys, N, floats));
    told(
        "get_rows",
        table.get_rows(TRAIN, Index::First, keys, N, packed),
    );
    let gradients = Gradients {
        keys,
        values: floats,
        count: N,
        shows: None,
        clicks: None,
        lr: 0.1,
        step: 1,
    };
    told(
        "accumulate",
        table.accumulate(TRAIN, Index::First, gradients),
    );
    told("pack", table.pack(TRAIN, rows, N, packed, positions));
    told("packed", table.packed(TRAIN));
    told("order", table.order(TRAIN, Stream::Transfer));
    let outputs = (more, positions, floats_as_ends(table));
    if let (more, positions, Some(ends)) = outputs {
        told(
            "split",
            table.split(Stream::Transfer, (keys, N, 2), (more, positions, ends)),
        );
    }
    told(
        "merge",
        table.merge(TRAIN, positions, (packed, floats), (N, 4)),
    );
    told("copy", table.copy(TRAIN, packed, floats, N));
    told("probe", table.probe(TRAIN, floats, 8, true));
    let graph = told(
        "record",
        table.record_get(TRAIN, Index::First, keys, N, floats),
    );
    if let Some(graph) = graph {
        told("replay", table.replay(TRAIN, graph));
    }
    let marks = [
        told("mark", table.mark(TRAIN)),
        told("mark", table.mark(TRAIN)),
    ];
    if let [Some(from), Some(to)] = marks {
        told("seconds", table.seconds(from, to));
    }
    told(
        "read",
        table.read(TRAIN, floats, 0, ValuesMut::Floats(&mut [0.0; N])),
    );
    told(
        "read pinned",
        table.read(TRAIN, packed, 0, ValuesMut::Floats(&mut [0.0; N])),
    );
    told("forget", table.forget_refusal(TRAIN));
    told("stats", table.stats());
    told("wait", table.wait(TRAIN));
    println!("@used");
}

/// One more buffer of keys.
fn floats_as_ends(table: &mut dyn HbmTable) -> Option<hps::hbm::Buffer> {
    table
        .allocate(Memory::Device, Kind::Keys, 2)
        .inspect_err(|error| println!("@ends: {error}"))
        .ok()
}

#[test]
fn no_driver() {
    let libraries = Libraries::new().hidden("libcuda").hidden("libnvcuda");
    let why = refusal(&libraries, &[]);
    assert_says(
        &why,
        &[
            "libcuda.so.1 was not found",
            "install the driver",
            "Device::Cpu",
        ],
    );
}

#[test]
fn a_libcuda_without_functions_or_without_one() {
    let why = refusal(&Libraries::new().hollow("libcuda"), &[]);
    assert_says(&why, &["has no cuInit", "too old", "Device::Cpu"]);
    let lacking = Libraries::new().stub("libcuda", &["-DLACKING"]);
    let why = refusal(&lacking, &[]);
    assert_says(&why, &["has no cuMemcpyAsync", "install a driver of CUDA"]);
}

/// As in a container with the toolkit's stub, or on a machine whose GPU is hidden.
#[test]
fn a_stub_of_libcuda_and_a_machine_without_gpus() {
    let driver = Libraries::driver();
    let why = refusal(&driver, &[("STUB_FAIL", "cuInit=100")]);
    assert_says(
        &why,
        &["CUDA_ERROR_NO_DEVICE (100)", "nvidia-smi", "Device::Cpu"],
    );
    let why = refusal(&driver, &[("STUB_DEVICES", "0")]);
    assert_says(&why, &["there are 0 GPUs"]);
    let why = refusal(&driver, &[("STUB_UNIFIED", "0")]);
    assert_says(&why, &["do not share addresses", "Device::Cpu"]);
}

#[test]
fn a_driver_older_than_the_kernels() {
    let both = Libraries::both();
    // Unknown to it: the instructions, the format, the architecture.
    for code in ["222", "200", "209"] {
        let fails = format!("cuModuleLoadData={code}");
        let why = refusal(&both, &[("STUB_VERSION", "12080"), ("STUB_FAIL", &fails)]);
        assert_says(
            &why,
            &[
                code,
                "the driver is of CUDA 12.8",
                "NVRTC 13.0",
                "install a newer driver",
            ],
        );
    }
}

#[test]
fn no_compiler_or_one_that_fails() {
    let why = refusal(&Libraries::driver().hidden("libnvrtc"), &[]);
    assert_says(
        &why,
        &[
            "compile the kernels",
            "not found",
            "nvidia-cuda-nvrtc",
            "LD_LIBRARY_PATH",
        ],
    );
    let why = refusal(&Libraries::driver().hollow("libnvrtc"), &[]);
    assert_says(&why, &["NVRTC", "too old", "has no nvrtcVersion"]);
    let both = Libraries::both();
    for function in [
        "nvrtcVersion",
        "nvrtcCreateProgram",
        "nvrtcCompileProgram",
        "nvrtcGetCUBINSize",
        "nvrtcGetCUBIN",
    ] {
        let why = refusal(&both, &[("STUB_FAIL", &format!("{function}=6"))]);
        assert_says(&why, &["compile the kernels", "NVRTC"]);
    }
    let why = refusal(&both, &[("STUB_FAIL", "nvrtcCompileProgram=6")]);
    assert_says(&why, &["sm_90", "the stub compiles nothing"]);
    for log in ["nvrtcGetProgramLogSize", "nvrtcGetProgramLog"] {
        let fails = format!("nvrtcCompileProgram=6,{log}=1");
        assert_says(&refusal(&both, &[("STUB_FAIL", &fails)]), &["sm_90"]);
    }
    assert_says(&refusal(&both, &[("STUB_CUT", "1")]), &["not whole"]);
}

#[test]
fn device_and_pinned_memory_refused() {
    let both = Libraries::both();
    let why = refusal(&both, &[("STUB_FREE", "1000")]);
    assert_says(&why, &["rows and indexes", "1000"]);
    // 16 areas of the table, then 4 buffers of the caller.
    for call in 1..=20 {
        let fails = format!("cuMemAlloc_v2=2@{call}");
        let lines = both.run(&[("STUB_FAIL", &fails)]);
        assert_says(&lines[0], &["a buffer", "cuda:0"]);
    }
    for call in 1..=2 {
        let lines = both.run(&[("STUB_FAIL", &format!("cuMemHostAlloc=2@{call}"))]);
        assert_says(&lines[0], &["allocate: ", "a pinned buffer", "cuda:0"]);
    }
}

/// How often a child calls the driver when nothing fails.
fn calls(both: &Libraries) -> usize {
    let lines = both.run(&[("STUB_COUNT", "1")]);
    let [used, calls] = &lines[..] else {
        unreachable!("{lines:?}");
    };
    assert_eq!(used, "used");
    calls.strip_prefix("calls ").unwrap().parse().unwrap()
}

/// One call of the driver fails, each in a run of its own: an error says so, and all is given back.
#[test]
fn every_call_of_the_driver_fails_once() {
    let both = Libraries::both();
    let calls = calls(&both);
    assert!(calls > 200, "{calls}");
    for call in 1..=calls {
        let lines = both.run(&[("STUB_FAIL", &format!("once=1@{call}"))]);
        let errors = lines.iter().filter(|line| *line != "used");
        let told = errors.clone().count();
        assert!(
            told > 0 || call + CALLS_OF_DROP > calls,
            "call {call}: {lines:?}"
        );
        for error in errors {
            assert_says(error, &["cuda:0"]);
        }
    }
}

/// From one call on all fail, as when the GPU falls off the bus: the first error is the one that all later
/// calls tell.
#[test]
fn the_device_is_lost_at_any_call() {
    let both = Libraries::both();
    let calls = calls(&both);
    for call in (1..=calls - CALLS_OF_DROP).step_by(3) {
        let lines = both.run(&[("STUB_FAIL", &format!("any=719@{call}"))]);
        let errors: Vec<&String> = lines.iter().filter(|line| *line != "used").collect();
        let (_, first) = errors[0].split_once(": ").unwrap();
        for error in &errors {
            assert_says(error, &["cuda:0", "CUDA_ERROR_LAUNCH_FAILED (719)"]);
            // What is opened again meets the fault where it comes.
            assert!(
                error.contains(first) || error.starts_with("open: "),
                "{error}"
            );
        }
    }
}
