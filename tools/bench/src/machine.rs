//! What machine is this, and what does this process hold?
//!
//! - Everything is read from the kernel's own files; what can't be read is left out or said to be
//!   unknown, never guessed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::{Value, json};

/// A field of `/proc/self/status` or `/proc/self/smaps_rollup`, in bytes; 0 where there is none.
fn proc_bytes(file: &str, field: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    kib_field(&text, field) << 10
}

fn kib_field(text: &str, field: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(field));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Most bytes that this process ever had in memory.
#[must_use]
pub fn peak_rss_bytes() -> u64 {
    proc_bytes("/proc/self/status", "VmHWM:")
}

/// Bytes that this process has in memory.
#[must_use]
pub fn rss_bytes() -> u64 {
    proc_bytes("/proc/self/status", "VmRSS:")
}

/// Bytes of this process in memory that are of no file.
#[must_use]
pub fn anonymous_bytes() -> u64 {
    proc_bytes("/proc/self/status", "RssAnon:")
}

/// Bytes of this process in huge pages.
#[must_use]
pub fn huge_bytes() -> u64 {
    proc_bytes("/proc/self/smaps_rollup", "AnonHugePages:")
}

/// Bytes that the system can still give out; 0 where it does not say.
#[must_use]
pub fn available_bytes() -> u64 {
    proc_bytes("/proc/meminfo", "MemAvailable:")
}

/// Makes [`peak_rss_bytes`] count from now on; false where the kernel refuses.
pub fn reset_peak_rss() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Processor time of this process in seconds, user and system together.
#[must_use]
pub fn cpu_seconds() -> f64 {
    // Fields 14 and 15 after the name in brackets, in ticks of a hundredth.
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit_once(')').map_or("", |x| x.1);
    let ticks = after.split_whitespace().skip(11).take(2);
    ticks.filter_map(|x| x.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn first_field(file: &str, field: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field));
    let value = line.and_then(|line| line.split_once(':'));
    value.map_or("unknown".to_owned(), |x| x.1.trim().to_owned())
}

/// The block device under a directory, as (name, partition's parent where there is one).
pub fn device_of(directory: &Path) -> Option<String> {
    let number = fs::metadata(directory).ok()?.dev();
    let (major, minor) = (libc_major(number), libc_minor(number));
    let link = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let mut place = link.as_path();
    if !place.join("queue").is_dir() {
        place = place.parent()?;
    }
    Some(place.file_name()?.to_string_lossy().into_owned())
}

/// Seconds in which a block device had something to do, since the machine started: what `iostat` makes its
/// `%util` of. The kernel counts in ticks of a few milliseconds, so shorter pauses are lost in it.
#[must_use]
pub fn busy_seconds(device: &str) -> Option<f64> {
    Some(*counters_of(device)?.get(9)? as f64 / 1e3)
}

/// Reads and writes that a block device has done.
#[must_use]
pub fn operations_of(device: &str) -> Option<u64> {
    let counters = counters_of(device)?;
    Some(counters.first()? + counters.get(4)?)
}

/// What the kernel counts of a block device.
fn counters_of(device: &str) -> Option<Vec<u64>> {
    let text = fs::read_to_string(format!("/sys/block/{device}/stat")).ok()?;
    let fields = text.split_whitespace();
    Some(fields.map_while(|x| x.parse().ok()).collect())
}

/// The kernel's encoding of device numbers in 64 bits.
fn libc_major(number: u64) -> u64 {
    (number >> 8 & 0xfff) | (number >> 32 & !0xfff)
}

fn libc_minor(number: u64) -> u64 {
    (number & 0xff) | (number >> 12 & !0xff & 0xffff_ffff)
}

fn device(directory: &Path) -> Value {
    let Some(name) = device_of(directory) else {
        return json!("unknown");
    };
    let queue = |field: &str| {
        let text = fs::read_to_string(format!("/sys/block/{name}/queue/{field}"));
        text.map_or("unknown".to_owned(), |x| x.trim().to_owned())
    };
    json!({
        "name": name,
        "rotational": queue("rotational") == "1",
        "scheduler": queue("scheduler"),
        "logical_block_bytes": queue("logical_block_size"),
        "physical_block_bytes": queue("physical_block_size"),
    })
}

/// What the report says about the machine, for a store under `directory`.
#[must_use]
pub fn describe(directory: &Path) -> Value {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let huge = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    json!({
        "cpu": first_field("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_bytes": proc_bytes("/proc/meminfo", "MemTotal:"),
        "kernel": kernel.trim(),
        "huge_pages": huge.map_or("unknown".to_owned(), |x| x.trim().to_owned()),
        "device": device(directory),
        "version": env!("CARGO_PKG_VERSION"),
        "debug_build": cfg!(debug_assertions),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process_is_read() {
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(rss_bytes() > 64 << 20 && peak_rss_bytes() >= rss_bytes());
        assert!((64 << 20..=rss_bytes()).contains(&anonymous_bytes()));
        drop(block);
        let text = "VmHWM:\t    123 kB\nVmRSS:\t 7 kB\n";
        assert_eq!((kib_field(text, "VmRSS:"), kib_field(text, "No:")), (7, 0));
    }

    #[test]
    fn device_numbers_are_taken_apart_as_the_kernel_puts_them_together() {
        // 253:0, and a major and minor above their low bits: 0x1fd:0x12345.
        assert_eq!((libc_major(0xfd00), libc_minor(0xfd00)), (253, 0));
        let large = 0x12345u64 & 0xff | 0x1fd << 8 | (0x12345u64 & !0xff) << 12;
        assert_eq!((libc_major(large), libc_minor(large)), (0x1fd, 0x12345));
    }

    #[test]
    fn the_description_names_the_processor_and_the_cores() {
        let told = describe(Path::new("/"));
        assert!(told["cores"].as_u64() > Some(0));
        assert!(told["memory_bytes"].as_u64() > Some(0));
    }
}
