//! Do memory and disk stay inside their bounds while a trainer runs on and on?
//!
//! `cargo bench --bench churn -- [--minutes M] [--rows N] [--tables N] [--cache-mib N]
//! [--checkpoint-every N]` runs a child that trains on zipf-like keys of so many tables with rows of
//! different sizes, and prints its stats; the parent reads the child's
//! peak memory from the kernel and checks each reading. Fails if a bound was broken, or if with
//! a cache of 1 GiB or more memory is not within 5 % of what the stats sum up.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "a benchmark"
)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hps::{CreateOptions, Result, RuntimeOptions, Store, TableDescriptor, TableId, Update, mix64};

/// Weights of a row, by table: what one table gives up another takes.
const DIMS: [usize; 3] = [64, 16, 100];
const BATCH: usize = 8192;
/// Batches after which another table is asked for most keys.
const PHASE: u64 = 400;

struct Args {
    seconds: u64,
    rows: u64,
    tables: usize,
    cache_mib: u64,
    checkpoint_every: u64,
    child: Option<String>,
}

fn args() -> Args {
    let tiny = cfg!(debug_assertions);
    let mut args = Args {
        seconds: if tiny { 10 } else { 120 },
        rows: if tiny { 300_000 } else { 4_000_000 },
        tables: DIMS.len(),
        cache_mib: if tiny { 16 } else { 256 },
        checkpoint_every: 0,
        child: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().expect("a value");
        match word.as_str() {
            "--minutes" => args.seconds = value().parse::<u64>().expect("a number") * 60,
            "--seconds" => args.seconds = value().parse().expect("a number"),
            "--rows" => args.rows = value().parse().expect("a number"),
            "--tables" => args.tables = value().parse().expect("a number"),
            "--cache-mib" => args.cache_mib = value().parse().expect("a number"),
            "--checkpoint-every" => args.checkpoint_every = value().parse().expect("a number"),
            "--child" => args.child = Some(value()),
            _ => {} // cargo's own
        }
    }
    let fits = (1..=DIMS.len()).contains(&args.tables);
    assert!(fits, "--tables: 1 to {}", DIMS.len());
    args
}

/// Which table has a key: most of those of one phase are one table's.
fn table_of(key: u64, batches: u64, tables: u64) -> usize {
    let chance = mix64(key);
    let own = chance % tables;
    let hot = batches / PHASE % tables;
    let table = if (chance >> 32).is_multiple_of(2) {
        hot
    } else {
        own
    };
    usize::try_from(table).unwrap()
}

/// Trains until the time is over; prints a line of figures twice a second.
fn child(args: &Args, dir: &Path) {
    let options = RuntimeOptions::new()
        .cache_bytes(args.cache_mib << 20)
        .threads(2);
    let store = Store::create(dir, CreateOptions::new(), options).unwrap();
    let dims = &DIMS[..args.tables];
    let create = |(i, dim): (usize, &usize)| {
        store.create_table(&TableDescriptor::new(&format!("table {i}"), *dim))
    };
    let tables: Vec<TableId> = dims
        .iter()
        .enumerate()
        .map(create)
        .collect::<Result<_>>()
        .unwrap();
    let most = BATCH * DIMS.iter().max().unwrap();
    let gradients = vec![0.01f32; most];
    let mut out = vec![0.0f32; most];
    let (start, mut said) = (Instant::now(), Instant::now());
    let (mut state, mut next, mut batches) = (1u64, 0u64, 0u64);
    while start.elapsed() < Duration::from_secs(args.seconds) || next < args.rows {
        let mut keys: Vec<u64> = (0..BATCH as u64)
            .map(|i| {
                if next < args.rows && i % 2 == 0 {
                    next += 1; // first every row once, beside training
                    return next - 1;
                }
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let u = (mix64(state) >> 11) as f64 / (1u64 << 53) as f64;
                // Density falls as 1 / x: zipf with exponent 1.
                let x = ((args.rows as f64).ln() * u).exp();
                let rank = x.min(args.rows as f64 - 1.0).max(0.0);
                mix64(rank.to_bits() >> 20) % args.rows
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let mut by_table = vec![Vec::new(); tables.len()];
        for key in keys {
            by_table[table_of(key, batches, tables.len() as u64)].push(key);
        }
        // All of a batch's rows are leased before the first is changed.
        let mut leases = Vec::new();
        for ((table, dim), keys) in tables.iter().zip(dims).zip(&by_table) {
            let n = keys.len() * dim;
            leases.push((n, store.pull(*table, keys, &mut out[..n]).unwrap()));
        }
        for (n, lease) in &leases {
            let learn = Update::gradients(&gradients[..*n], 0.01);
            store.push(lease, learn).unwrap();
        }
        drop(leases);
        batches += 1;
        if args.checkpoint_every > 0 && batches.is_multiple_of(args.checkpoint_every) {
            store.checkpoint(batches, &[]).unwrap();
        }
        if said.elapsed() > Duration::from_millis(500) {
            said = Instant::now();
            let s = store.stats();
            println!(
                "{} {} {} {} {} {} {} {} {} {} {}",
                s.cache_bytes + s.buffer_bytes,
                s.index_bytes,
                s.lease_bytes,
                s.current_bytes,
                s.live_bytes,
                s.files,
                s.index_keys,
                s.compactions,
                s.written_bytes,
                s.bytes_pushed,
                batches
            );
        }
    }
    store.close_discarding();
}

fn status_kib(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text
        .lines()
        .find(|l| l.starts_with(field))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|w| w.parse().ok())
        .unwrap_or(0)
}

fn main() {
    let args = args();
    if let Some(dir) = &args.child {
        return child(&args, Path::new(dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--child", &dir.path().join("store").to_string_lossy()])
        .args([
            "--seconds",
            &args.seconds.to_string(),
            "--rows",
            &args.rows.to_string(),
        ])
        .args(["--tables", &args.tables.to_string()])
        .args(["--cache-mib", &args.cache_mib.to_string()])
        .args(["--checkpoint-every", &args.checkpoint_every.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = process.id();
    let file_bytes = (32u64 << 20).min(((args.cache_mib << 20) / 8).max(1 << 20));
    let budget = args.cache_mib << 20;
    let (mut readings, mut broken, mut worst_disk) = (0u64, 0u64, 0.0f64);
    let mut worst_memory = i64::MIN;
    let mut last = Vec::new();
    let mut shares = Vec::new();
    for line in BufReader::new(process.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let f: Vec<u64> = line
            .split_whitespace()
            .filter_map(|w| w.parse().ok())
            .collect();
        let [held, index, lease, current, live, files, ..] = f[..] else {
            continue;
        };
        let peak = status_kib(pid, "VmHWM:") << 10;
        let now = status_kib(pid, "VmRSS:") << 10;
        readings += 1;
        let allowed = budget + index + (64 << 20);
        let disk_allowed = 2 * live + 2 * file_bytes + (64 << 20);
        let files_allowed = 2 * live / file_bytes + 64;
        worst_memory = worst_memory.max(peak as i64 - allowed as i64);
        worst_disk = worst_disk.max(current as f64 / disk_allowed as f64);
        shares.push(now as f64 / (held + index + lease) as f64);
        if peak > allowed || current > disk_allowed || files > files_allowed {
            broken += 1;
            println!(
                "BROKEN: peak {peak} of {allowed}, current {current} of {disk_allowed}, {files} files of {files_allowed}"
            );
        }
        last = f;
    }
    let status = process.wait().unwrap();
    let [
        held,
        index,
        _,
        current,
        live,
        files,
        keys,
        compactions,
        written,
        pushed,
        batches,
    ] = last[..]
    else {
        panic!("the child said nothing: {status}")
    };
    let mib = |b: u64| b as f64 / f64::from(1 << 20);
    println!("{readings} readings, {broken} outside a bound; {batches} batches, {keys} keys");
    println!(
        "memory: budget {:.0} MiB + index {:.1} MiB + 64 MiB; peak under that by {:.1} MiB",
        mib(budget),
        mib(index),
        -worst_memory as f64 / f64::from(1 << 20)
    );
    let share = shares.last().copied().unwrap_or(f64::NAN);
    println!(
        "resident now / stats' sum ({:.1} MiB): {share:.3}",
        mib(held + index)
    );
    println!(
        "disk: live {:.1} MiB, current {:.1} MiB in {files} files; at most {worst_disk:.3} of the bound",
        mib(live),
        mib(current)
    );
    println!(
        "{compactions} compactions; write amplification {:.3} (device bytes / row bytes pushed)",
        written as f64 / pushed.max(1) as f64
    );
    let told = args.cache_mib < 1024 || (0.95..=1.05).contains(&share);
    assert!(
        status.success() && broken == 0 && readings > 0 && told,
        "a bound was broken"
    );
}
