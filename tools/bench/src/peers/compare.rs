//! `hps-bench compare`: which engine is how fast at which workload, in one run?
//!
//! - Rounds are interleaved: each workload goes through all engines before the next one.
//! - Before each cell the page cache of its files is dropped and the device is probed; the model
//!   of that cell uses that probe.
//! - A cell is a process of its own: this program again, with `--phase`. It enters a memory cgroup
//!   first; without one the run goes on, and says so on stderr and in the table.
//! - A cell that fails is in the table with its reason; the others go on.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde_json::{Value, json};

use super::cgroup::{Cap, enter};
use super::matrix::{Cell, Phase, Workload, number};
use super::table::{Entry, Report};
use super::{Kind, Place, ROW_BYTES, child};
use crate::args::Usage;
use crate::keys::Distribution;
use crate::limits::device::{LongReads, RandomProbe, disk, random_reads, sequential_write};
use crate::machine::describe;
use crate::model::Ideal;

/// Compares hps with other stores: the same work, the same memory, one run.
///
/// Rows have 64 weights and 64 AdaGrad accumulators (512 bytes). Every row that is pulled is
/// checked. Each engine runs in a process of its own, inside a memory cgroup that counts the page
/// cache; that takes root, or a delegated cgroup. RocksDB and hps want a --dir with O_DIRECT.
///
/// Exit codes: 0 done, 8 could not run or a row was wrong, 16 wrong arguments.
#[derive(Parser, Debug, Clone)]
#[command(name = "compare", max_term_width = 100)]
pub struct CompareArgs {
    /// Rows of the stores out of memory.
    #[arg(long, value_name = "N", default_value_t = 8_000_000,
        value_parser = clap::value_parser!(u64).range(1000..=1 << 31))]
    pub rows: u64,
    /// Memory of a process out of memory, page cache included, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024,
        value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    pub memory_mib: u64,
    /// Rows of W4.
    #[arg(long, value_name = "N", default_value_t = 2_000_000,
        value_parser = clap::value_parser!(u64).range(1000..=1 << 31))]
    pub memory_rows: u64,
    /// Memory of a process of W4, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 4096,
        value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    pub memory_rows_mib: u64,
    /// Seconds measured in each cell.
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds of the same work before what is measured. [default: as --seconds]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub warm_seconds: Option<f64>,
    /// Seconds of loading in W1 at most; a slower engine is loaded in key order for the rest.
    #[arg(long, value_name = "S", default_value_t = 12.0, value_parser = seconds)]
    pub load_seconds: f64,
    /// Keys of a batch of a load out of memory, of W1 as well; no more than fit into an eighth of what the engine
    /// has. [default: what fits into a 32nd, 65536 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1024..=1 << 22))]
    pub load_batch: Option<u32>,
    /// Seconds of the device's probe before each cell.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    pub probe_seconds: f64,
    /// Samples of a batch, before duplicates are taken out.
    #[arg(long, value_name = "SAMPLES", default_value_t = 32_768,
        value_parser = clap::value_parser!(u32).range(16..=1 << 22))]
    pub batch: u32,
    /// Rounds over all engines.
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,
    /// Engines to compare.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "hps,rocksdb,lmdb,mmap,hashmap"
    )]
    pub engines: Vec<Kind>,
    /// Workloads to run, in this order.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "w1,w3,w2a,w2b,w4,w5"
    )]
    pub workloads: Vec<Workload>,
    /// Directory of the stores, made if missing; what the run put there is removed.
    /// [default: a temporary one]
    #[arg(long, value_name = "PATH")]
    pub dir: Option<PathBuf>,
    /// Cache of hps in MiB. [default: the memory less 13 bytes a row and a constant]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub hps_cache_mib: Option<u64>,
    /// Batches told ahead to an engine that can fetch them (hps); 0: none, as for the others. Above
    /// 0 time is by the clock on the wall, drawing and checking included.
    #[arg(long, value_name = "BATCHES", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=64))]
    pub depth: u8,
    /// Seed of keys and draws.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print, as the last line, a JSON array with one object per engine and workload.
    #[arg(long)]
    pub json: bool,
    /// Internal: what this process does for a cell.
    #[arg(long, value_enum, hide = true, requires = "dir")]
    pub phase: Option<Phase>,
    /// Internal: the cgroup to enter.
    #[arg(long, hide = true)]
    pub cgroup: Option<PathBuf>,
    /// Internal: exponent of the draw.
    #[arg(long, hide = true, default_value_t = 0.0)]
    pub theta: f64,
    /// Internal: number of the stream of keys.
    #[arg(long, hide = true, default_value_t = 0)]
    pub stream: u64,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if (0.0..=86_400.0).contains(&x) => Ok(x),
        _ => Err("must be a number from 0 to 86400".to_owned()),
    }
}

/// Keys of a batch of a load, where nothing else is asked for.
const LOAD_KEYS: u64 = 64 << 10;

/// What this program keeps in memory beside an engine: batches, gradients, its own code.
fn harness_bytes(cap: u64) -> u64 {
    (48 << 20).min(cap / 4)
}

/// Keys of a batch of a load, and what an engine has of so many bytes beside a longer one than the usual.
fn load_batch(asked: Option<u32>, bytes: u64) -> (u64, u64) {
    let fit = |share: u64| (bytes / share / ROW_BYTES as u64).max(1024);
    let keys = match asked {
        None => fit(32).min(LOAD_KEYS),
        Some(keys) => fit(8).min(keys.into()),
    };
    let longer = keys.saturating_sub(LOAD_KEYS) * (ROW_BYTES + size_of::<u64>()) as u64;
    (keys, bytes - longer)
}

/// Where the counts of pushes lie that go with a store.
fn counts(store: &Path) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(".counts");
    PathBuf::from(name)
}

/// Runs the comparison, or one cell of it.
///
/// # Errors
/// [`Usage`] for arguments that don't go together; what the system says; wrong rows.
pub fn run(args: &CompareArgs) -> Result<()> {
    if let Some(phase) = args.phase {
        return run_cell(args, phase);
    }
    let mut engines: Vec<&str> = args.engines.iter().map(|kind| kind.name()).collect();
    engines.sort_unstable();
    engines.dedup();
    if engines.len() != args.engines.len() {
        return Err(Usage("an engine is named twice".to_owned()).into());
    }
    let temporary = tempfile::tempdir()?;
    let dir = args
        .dir
        .clone()
        .unwrap_or_else(|| temporary.path().to_path_buf());
    std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let mut comparison = Comparison::new(args, &dir)?;
    comparison.run()?;
    comparison.clean();
    let wrong = comparison.report.wrong();
    comparison.report.print(args.json)?;
    ensure!(wrong == 0, "{wrong} rows were wrong or stale: see above");
    Ok(())
}

/// The child's side: one cell, its answer on stdout.
fn run_cell(args: &CompareArgs, phase: Phase) -> Result<()> {
    if let Some(cgroup) = &args.cgroup {
        enter(cgroup)?;
    }
    let kind = args
        .engines
        .first()
        .copied()
        .context("a cell without an engine")?;
    let dir = args.dir.clone().context("a cell without a directory")?;
    let cap = args.memory_mib << 20;
    let all = cap - harness_bytes(cap);
    let (load_keys, beside) = load_batch(args.load_batch, all);
    let memory_bytes = match phase {
        Phase::Bulk | Phase::Load => beside,
        _ => all,
    };
    let load_keys = usize::try_from(load_keys)?;
    let cell = Cell {
        kind,
        phase,
        counts: counts(&dir),
        place: Place {
            dir,
            rows: args.rows,
            memory_bytes,
            hps_cache_bytes: args.hps_cache_mib.map(|mib| mib << 20),
        },
        theta: args.theta,
        samples: usize::try_from(args.batch)?,
        seconds: args.seconds,
        warm_seconds: args.warm_seconds.unwrap_or(args.seconds),
        load_seconds: args.load_seconds,
        load_keys,
        seed: args.seed,
        stream: args.stream,
        depth: usize::from(args.depth),
    };
    let answer = child::run(&cell)?;
    writeln!(std::io::stdout().lock(), "{answer}")?;
    Ok(())
}

/// Drops the cached pages of all files under a directory, so that no engine finds what it did not
/// read itself.
fn forget(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            forget(&path);
        } else if let Ok(file) = std::fs::File::open(&path) {
            // Only clean pages can be dropped. What fails here costs accuracy, not the run.
            let _synced = file.sync_all();
            let _dropped = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
    }
}

/// The whole run.
struct Comparison<'a> {
    args: &'a CompareArgs,
    dir: PathBuf,
    write_bytes_per_s: f64,
    ideals: Vec<(Workload, Ideal)>,
    bar: ProgressBar,
    report: Report,
}

/// One process to run.
struct Job<'a> {
    kind: Kind,
    phase: Phase,
    dir: &'a Path,
    workload: Workload,
    round: u16,
}

impl<'a> Comparison<'a> {
    fn new(args: &'a CompareArgs, dir: &Path) -> Result<Comparison<'a>> {
        let cap = Cap::new(args.memory_mib << 20);
        let capped = match &cap {
            Ok(cap) => Ok(cap.name()),
            Err(e) => Err(format!("{e:#}")),
        };
        drop(cap);
        if let Err(why) = &capped {
            let mut err = std::io::stderr().lock();
            writeln!(
                err,
                "WARNING: NOT CAPPED: no memory cgroup ({why}). Engines that use the page cache \
                 have all the memory of the machine; ratios with them mean nothing. Run as root, \
                 or in a delegated cgroup (systemd-run --scope -p Delegate=yes)."
            )?;
        }
        let cells = args.engines.len() * args.workloads.len() * usize::from(args.rounds);
        let bar = match std::io::stderr().is_terminal() {
            true => ProgressBar::new(cells as u64),
            false => ProgressBar::hidden(),
        };
        bar.set_style(ProgressStyle::with_template(
            "{bar:30} {pos}/{len} {elapsed} {msg}",
        )?);
        let draws = |workload: &Workload| {
            let distribution = Distribution::from_theta(workload.theta());
            let samples = usize::try_from(args.batch).unwrap_or(usize::MAX);
            let memory = args.memory_mib << 20;
            let ideal = Ideal::draw(args.rows, distribution, samples, memory, ROW_BYTES, 16);
            (*workload, ideal)
        };
        let modelled = args.workloads.iter().filter(|w| w.uses_base());
        Ok(Comparison {
            ideals: modelled.map(draws).collect(),
            report: Report::new(args, capped, describe(dir)),
            args,
            dir: dir.to_path_buf(),
            write_bytes_per_s: f64::NAN,
            bar,
        })
    }

    fn base(&self, kind: Kind) -> PathBuf {
        self.dir.join(format!("{}.base", kind.name()))
    }

    fn scratch(&self, kind: Kind) -> PathBuf {
        self.dir.join(format!("{}.scratch", kind.name()))
    }

    fn run(&mut self) -> Result<()> {
        let disk = disk();
        for round in 0..self.args.rounds {
            self.bar.set_message("device, sequential write");
            let bytes = (self.args.rows * ROW_BYTES as u64).clamp(64 << 20, 4 << 30);
            let probe = self.dir.join("probe");
            let found = sequential_write(&disk, &probe, bytes, &[4])?;
            self.write_bytes_per_s = found.per_second;
            self.report.write_probes.push(found.per_second);
            for workload in &self.args.workloads {
                for kind in &self.args.engines {
                    if workload.suits(*kind) {
                        self.cell(*workload, *kind, round)?;
                    }
                    self.bar.inc(1);
                }
            }
        }
        self.bar.finish_and_clear();
        Ok(())
    }

    /// One cell of the table; its failure is an entry too.
    fn cell(&mut self, workload: Workload, kind: Kind, round: u16) -> Result<()> {
        self.bar.set_message(format!(
            "round {}: {} {}",
            round + 1,
            workload.name(),
            kind.name()
        ));
        let reads = self.probe(round)?;
        let answer = self.answer(workload, kind, round);
        let mut entry = Entry {
            workload,
            kind,
            reads_per_s: reads,
            write_bytes_per_s: self.write_bytes_per_s,
            limit_rows_per_s: self.limit(workload, reads),
            answer: json!({}),
            failure: None,
        };
        match answer {
            Ok(answer) => entry.answer = answer,
            Err(e) => {
                // Pushes may be lost in the store's memory: it is loaded again when it is needed.
                self.remove(&self.base(kind));
                let failure = format!("{e:#}");
                let mut err = std::io::stderr().lock();
                writeln!(err, "{} {}: {failure}", workload.name(), kind.name())?;
                entry.failure = Some(failure);
            }
        }
        self.report.entries.push(entry);
        Ok(())
    }

    fn probe(&self, round: u16) -> Result<f64> {
        let probe = RandomProbe {
            block_bytes: 4096,
            long: LongReads::default(),
            threads: 1,
            depths: &[32],
            seconds: self.args.probe_seconds,
            seed: self.args.seed ^ u64::from(round) << 32 ^ self.report.entries.len() as u64,
        };
        Ok(random_reads(&disk(), &[self.dir.join("probe")], &probe)?.per_second)
    }

    /// What the device alone would allow, in records a second; none in memory.
    fn limit(&self, workload: Workload, reads: f64) -> Option<f64> {
        if workload == Workload::W1 {
            return Some(self.write_bytes_per_s / ROW_BYTES as f64);
        }
        let (_, ideal) = self.ideals.iter().find(|(w, _)| *w == workload)?;
        let writes = match workload {
            Workload::W3 => f64::INFINITY, // nothing is written
            _ => self.write_bytes_per_s,
        };
        Some(ideal.rows_per_second(reads, writes)).filter(|limit| limit.is_finite())
    }

    fn answer(&mut self, workload: Workload, kind: Kind, round: u16) -> Result<Value> {
        let (base, scratch) = (self.base(kind), self.scratch(kind));
        let job = |phase, dir| Job {
            kind,
            phase,
            dir,
            workload,
            round,
        };
        if workload.uses_base() && !base.is_dir() {
            let told = self.process(&job(Phase::Bulk, &base))?;
            let seconds = number(&told, "bulk_s") + number(&told, "settle_s");
            self.report.bulk_loads.push((kind, seconds));
        }
        match workload {
            Workload::W1 => {
                self.remove(&scratch);
                let answer = self.process(&job(Phase::Load, &scratch))?;
                if answer["complete"] == true && !base.is_dir() {
                    std::fs::rename(&scratch, &base)?;
                    std::fs::rename(counts(&scratch), counts(&base))?;
                }
                self.remove(&scratch);
                Ok(answer)
            }
            Workload::W4 => {
                self.remove(&scratch);
                let answer = self.process(&job(Phase::Memory, &scratch));
                self.remove(&scratch);
                answer
            }
            Workload::W3 => self.process(&job(Phase::Pull, &base)),
            Workload::W2a | Workload::W2b => self.process(&job(Phase::Train, &base)),
            Workload::W5 => {
                self.process(&job(Phase::Doomed, &base))?;
                self.process(&job(Phase::Reopen, &base))
            }
        }
    }

    fn command(&self, job: &Job, cap: Option<&Cap>) -> Result<Command> {
        let in_memory = job.phase == Phase::Memory;
        let (rows, memory_mib) = match in_memory {
            true => (self.args.memory_rows, self.args.memory_rows_mib),
            false => (self.args.rows, self.args.memory_mib),
        };
        let warm = self.args.warm_seconds.unwrap_or(self.args.seconds);
        let mut command = Command::new(std::env::current_exe()?);
        let mut flag = |name: &str, value: &dyn std::fmt::Display| {
            command.arg(name).arg(value.to_string());
        };
        flag("compare", &"--json");
        flag("--phase", &job.phase.name());
        flag("--engines", &job.kind.name());
        flag("--rows", &rows);
        flag("--memory-mib", &memory_mib);
        flag("--seconds", &self.args.seconds);
        flag("--warm-seconds", &warm);
        flag("--load-seconds", &self.args.load_seconds);
        flag("--batch", &self.args.batch);
        if let Some(keys) = self.args.load_batch {
            flag("--load-batch", &keys);
        }
        flag("--seed", &self.args.seed);
        flag("--theta", &job.workload.theta());
        // Cells of one round draw alike for every engine, and otherwise in each round.
        flag(
            "--stream",
            &(u64::from(job.round) * 16 + job.workload as u64 + 1),
        );
        if job.kind == Kind::Hps {
            flag("--depth", &self.args.depth);
            if let (false, Some(mib)) = (in_memory, self.args.hps_cache_mib) {
                flag("--hps-cache-mib", &mib);
            }
        }
        command.arg("--dir").arg(job.dir);
        if let Some(cap) = cap {
            command.arg("--cgroup").arg(cap.dir());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(command)
    }

    /// Runs one process to its end (or to its kill) and returns its answer.
    fn process(&self, job: &Job) -> Result<Value> {
        forget(job.dir);
        let mib = match job.phase {
            Phase::Memory => self.args.memory_rows_mib,
            _ => self.args.memory_mib,
        };
        let cap = match &self.report.capped {
            Ok(_) => Some(Cap::new(mib << 20)?),
            Err(_) => None,
        };
        let mut child = self
            .command(job, cap.as_ref())?
            .spawn()
            .context("start a cell")?;
        let said = listen(&mut child, job.phase);
        if said.is_err() || job.phase == Phase::Doomed {
            let _gone = child.kill(); // -9: the point of the phase, and the end of a failed one
        }
        let status = child.wait()?;
        let killed = cap.as_ref().is_some_and(Cap::killed);
        if killed {
            bail!("killed: more than {mib} MiB of memory");
        }
        let mut answer =
            said.with_context(|| format!("{} ended with {status}", job.phase.name()))?;
        let peak = cap.as_ref().and_then(Cap::peak_bytes);
        answer["peak_bytes"] = json!(peak);
        Ok(answer)
    }

    fn remove(&self, dir: &Path) {
        let _absent = std::fs::remove_dir_all(dir);
        let _absent = std::fs::remove_file(counts(dir));
    }

    fn clean(&self) {
        for kind in &self.args.engines {
            self.remove(&self.base(*kind));
            self.remove(&self.scratch(*kind));
        }
        let _absent = std::fs::remove_file(self.dir.join("probe"));
    }
}

/// Reads the answer: the last line, or the first one of a process that waits to be killed.
fn listen(child: &mut Child, phase: Phase) -> Result<Value> {
    let out = child.stdout.take().ok_or_else(|| anyhow!("no output"))?;
    let mut answer = None;
    for line in BufReader::new(out).lines() {
        answer = Some(serde_json::from_str(&line?).context("the answer of a cell")?);
        if phase == Phase::Doomed {
            break;
        }
    }
    answer.context("no answer")
}
