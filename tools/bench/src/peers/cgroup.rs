//! How is an engine kept within its memory, page cache included?
//!
//! - A memory cgroup of its own a cell, version 1 or 2, made where the kernel shows one and lets
//!   us; the process enters it before it allocates anything of size.
//! - It is removed with its pages: version 1 would hand them to the parent, where the next cell
//!   would find them without paying.
//! - Where it can't be made the reason is an error; the caller says it loudly and goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The two kinds of memory cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A memory cgroup, removed when dropped.
#[derive(Debug)]
pub struct Cap {
    dir: PathBuf,
    version: Version,
}

/// The root of the memory hierarchy in the text of `/proc/mounts`; version 1 where it has memory.
fn find(mounts: &str) -> Option<(Version, PathBuf)> {
    let mut second = None;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(place), Some(kind), Some(options)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if kind == "cgroup" && options.split(',').any(|o| o == "memory") {
            return Some((Version::One, PathBuf::from(place)));
        }
        if kind == "cgroup2" {
            second = Some((Version::Two, PathBuf::from(place)));
        }
    }
    second
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {text:?} to {}", path.display()))
}

impl Cap {
    /// Makes a cgroup whose processes may hold `bytes`.
    ///
    /// # Errors
    /// When there is no memory cgroup or it may not be made; names the step.
    pub fn new(bytes: u64) -> Result<Cap> {
        let mounts = fs::read_to_string("/proc/mounts").context("read the mounts")?;
        let Some((version, root)) = find(&mounts) else {
            bail!("no cgroup file system is mounted");
        };
        if version == Version::Two {
            let control = root.join("cgroup.controllers");
            let controllers = fs::read_to_string(&control).unwrap_or_default();
            if !controllers.split_whitespace().any(|c| c == "memory") {
                bail!("{} has no memory controller", root.display());
            }
            write(&root.join("cgroup.subtree_control"), "+memory")?;
        }
        let dir = root.join(format!("hps-compare-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        let cap = Cap { dir, version };
        match version {
            Version::One => write(&cap.dir.join("memory.limit_in_bytes"), &bytes.to_string())?,
            Version::Two => {
                write(&cap.dir.join("memory.max"), &bytes.to_string())?;
                // No way round through swap; the file is absent where there is none.
                let _absent = fs::write(cap.dir.join("memory.swap.max"), "0");
            }
        }
        Ok(cap)
    }

    /// The directory that a process enters.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it is, for the report.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.version {
            Version::One => "memory cgroup v1",
            Version::Two => "memory cgroup v2",
        }
    }

    /// Most bytes held at once, page cache included.
    #[must_use]
    pub fn peak_bytes(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        let text = fs::read_to_string(self.dir.join(file)).ok()?;
        text.trim().parse().ok()
    }

    /// Whether the kernel killed a process for memory.
    #[must_use]
    pub fn killed(&self) -> bool {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.is_some_and(|n| n.trim() != "0")
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        // A process that was just reaped may still count for a moment.
        for _ in 0..50 {
            let empty = match self.version {
                Version::One => "memory.force_empty",
                Version::Two => "memory.reclaim",
            };
            let _best = fs::write(self.dir.join(empty), "1T");
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        tracing::warn!(dir = %self.dir.display(), "a memory cgroup could not be removed");
    }
}

/// Moves this process into a cgroup.
///
/// # Errors
/// What the kernel says.
pub fn enter(dir: &Path) -> Result<()> {
    write(&dir.join("cgroup.procs"), &std::process::id().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_hierarchy_is_found_in_the_mounts() {
        let hybrid = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
            cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let one = PathBuf::from("/sys/fs/cgroup/memory");
        assert_eq!(find(hybrid), Some((Version::One, one)));
        let unified = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let two = PathBuf::from("/sys/fs/cgroup");
        assert_eq!(find(unified), Some((Version::Two, two)));
        assert_eq!(find("/dev/vda / ext4 rw 0 0\n"), None);
    }

    /// Where cgroups may be made the cap really counts; where not, the error says why.
    #[test]
    fn a_cap_is_made_and_removed_or_says_why_not() {
        match Cap::new(64 << 20) {
            Ok(cap) => {
                let dir = cap.dir().to_path_buf();
                assert!(dir.is_dir() && !cap.killed());
                drop(cap);
                assert!(!dir.exists());
            }
            Err(e) => assert!(!format!("{e:#}").is_empty()),
        }
    }
}
