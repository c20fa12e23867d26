//! What does one run of a build cost, seen from outside?
//!
//! - A build is only asked for what every build knows: workloads, flags and `--json`.
//! - Where a build reports processor time and device reads of its measured window, its report is
//!   taken. For `load` and `checkpoint`, whose reports have none, the process is watched: the
//!   window begins and ends with files that appear in its directory, looked for every 2 ms.
//! - Processor time is the kernel's, of all threads, to the nanosecond; device operations are those
//!   of the whole device, so nothing else may use it.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use hps_tools::cli::Interrupt;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde_json::Value;

use crate::fixture::Fixture;
use crate::machine;

const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Lines of a failed build's stderr that are passed on.
const LINES_MAX: usize = 5;

/// One of the two builds.
#[derive(Clone, Debug)]
pub struct Build {
    /// `OLD` or `NEW`.
    pub role: &'static str,
    /// Its binary.
    pub binary: PathBuf,
    /// The first line of its `--version`.
    pub version: String,
}

/// What is watched from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Nothing: the report has all.
    Report,
    /// From the store's directory to the end of the process.
    Load,
    /// From the first file of rows to the next `CURRENT`.
    Checkpoint,
}

/// What happened between two moments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    /// Processor time of all threads, user and system.
    pub processor_seconds: f64,
    /// Bytes that the process had written to the device.
    pub written_bytes: f64,
    /// Operations of the whole device; none where the system does not say.
    pub device_operations: Option<f64>,
}

/// What came of one run.
#[derive(Debug)]
pub struct Run {
    /// The objects of the build's report.
    pub report: Vec<Value>,
    /// What was watched; zeros for [`Watch::Report`].
    pub costs: Costs,
}

impl Build {
    /// A binary that says that it is `hps-bench`.
    ///
    /// # Errors
    /// It is not there, can't be run, or is something else.
    pub fn find(role: &'static str, binary: &Path) -> Result<Build> {
        let path = binary.display();
        let there = fs::metadata(binary).with_context(|| format!("{role}: no build at {path}"))?;
        if !there.is_file() {
            bail!("{role}: {path} is not a file");
        }
        // A plain name would be looked for in PATH.
        let binary = fs::canonicalize(binary).with_context(|| format!("{role}: {path}"))?;
        let output = Command::new(&binary)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("{role}: run {path}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().unwrap_or_default().to_owned();
        if !output.status.success() || !version.starts_with("hps-bench ") {
            bail!("{role}: {path} is no hps-bench: --version says {version:?}");
        }
        Ok(Build {
            role,
            binary,
            version,
        })
    }

    /// Runs it in a directory of its own and waits for its end.
    ///
    /// # Errors
    /// It failed, with what it said; its report can't be read; the user asked to end.
    pub fn run(
        &self,
        words: &[String],
        dir: &Path,
        watch: Watch,
        interrupt: &Interrupt,
    ) -> Result<Run> {
        let mut out = tempfile::tempfile().context("make a temporary file")?;
        let mut err = tempfile::tempfile().context("make a temporary file")?;
        let child = Command::new(&self.binary)
            .args(words)
            .arg("--dir")
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(err.try_clone()?)
            .spawn()
            .with_context(|| format!("{}: run {}", self.role, self.binary.display()))?;
        let mut watched = Watched::new(child, dir, watch)?;
        watched.wait(interrupt)?;
        let status = watched.child.wait()?;
        if !status.success() {
            let said = last_lines(&mut err)?;
            let (role, path) = (self.role, self.binary.display());
            bail!(
                "{role}: {path} {} failed ({status}): {said}",
                words.join(" ")
            );
        }
        let text = whole(&mut out)?;
        let report = text.lines().last().unwrap_or_default();
        let report = serde_json::from_str(report)
            .with_context(|| format!("{}: its last line is no report", self.role))?;
        let costs = watched.costs().with_context(|| {
            format!("{}: {watch:?} was not seen in {}", self.role, dir.display())
        })?;
        Ok(Run { report, costs })
    }
}

/// A process with the readings at both ends of its window.
struct Watched {
    child: Child,
    pid: Pid,
    watch: Watch,
    dir: PathBuf,
    device: Option<String>,
    begin: Option<(Reading, Option<Identity>)>,
    end: Option<Reading>,
}

/// What tells one `CURRENT` from the next.
type Identity = (u64, SystemTime);

impl Watched {
    fn new(child: Child, dir: &Path, watch: Watch) -> Result<Watched> {
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        let above = dir.ancestors().find(|path| path.is_dir());
        Ok(Watched {
            child,
            pid,
            watch,
            dir: dir.to_path_buf(),
            device: above.and_then(machine::device_of),
            begin: None,
            end: None,
        })
    }

    /// Looks until the process has ended; it is still there to be asked for its status.
    fn wait(&mut self, interrupt: &Interrupt) -> Result<()> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        loop {
            let ended = waitid(Id::Pid(self.pid), flags)? != WaitStatus::StillAlive;
            self.look(ended);
            if ended {
                return Ok(());
            }
            if let Err(cancelled) = interrupt.check() {
                let _ended = self.child.kill();
                let _ended = self.child.wait();
                return Err(cancelled.into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn look(&mut self, ended: bool) {
        let scratch = self.dir.join("scratch");
        match (self.watch, &self.begin) {
            (Watch::Report, _) => {}
            (Watch::Load, None) if self.dir.join("rows").is_dir() => {
                self.begin = self.read().map(|reading| (reading, None));
            }
            (Watch::Load, Some(_)) if ended => self.end = self.read(),
            (Watch::Checkpoint, None) if !Fixture::data_files(&scratch).is_empty() => {
                self.begin = self.read().map(|reading| (reading, current(&scratch)));
            }
            (Watch::Checkpoint, Some((_, before))) if self.end.is_none() => {
                let now = current(&scratch);
                if now.is_some() && now != *before {
                    self.end = self.read();
                }
            }
            _ => {}
        }
    }

    fn read(&self) -> Option<Reading> {
        Reading::of(self.pid, self.device.as_deref())
    }

    /// What the window cost; none where it was not seen.
    fn costs(&self) -> Option<Costs> {
        if self.watch == Watch::Report {
            return Some(Costs::default());
        }
        let (begin, end) = (&self.begin.as_ref()?.0, self.end.as_ref()?);
        let operations = begin.device_operations.zip(end.device_operations);
        Some(Costs {
            processor_seconds: end.processor.saturating_sub(begin.processor).as_secs_f64(),
            written_bytes: end.written_bytes.saturating_sub(begin.written_bytes) as f64,
            device_operations: operations.map(|(a, b)| b.saturating_sub(a) as f64),
        })
    }
}

fn current(store: &Path) -> Option<Identity> {
    let data = fs::metadata(store.join("CURRENT")).ok()?;
    Some((data.ino(), data.modified().ok()?))
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    processor: Duration,
    written_bytes: u64,
    device_operations: Option<u64>,
}

impl Reading {
    fn of(pid: Pid, device: Option<&str>) -> Option<Reading> {
        let clock = ClockId::pid_cpu_clock_id(pid).ok()?;
        let io = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        let line = io.lines().find_map(|l| l.strip_prefix("write_bytes: "));
        Some(Reading {
            processor: Duration::from(clock.now().ok()?),
            written_bytes: line?.parse().ok()?,
            device_operations: device.and_then(machine::operations_of),
        })
    }
}

fn whole(file: &mut File) -> Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The end of what a build said, in one line.
fn last_lines(file: &mut File) -> Result<String> {
    let text = whole(file)?;
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let from = lines.len().saturating_sub(LINES_MAX);
    Ok(lines[from..].join(" | "))
}
