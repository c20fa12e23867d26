//! Which process is this, and has another one ended?
//!
//! - Only what is certain counts: a process of another boot, or of another pid namespace, may live.

use std::fs;

/// What tells a process from all others, as far as this system lets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// The machine's name: for people, it decides nothing.
    pub(crate) machine: String,
    /// Of the system's start.
    pub(crate) boot: String,
    /// The pid namespace, in which the number counts.
    pub(crate) namespace: String,
    /// Its number.
    pub(crate) pid: u32,
    /// When it was started, in clock ticks since the boot.
    pub(crate) started: u64,
}

impl Process {
    /// The caller's. What the system does not tell is empty.
    pub(crate) fn this() -> Process {
        let line = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.trim().to_owned()
        };
        let pid = std::process::id();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Process {
            machine: line("/proc/sys/kernel/hostname"),
            boot: line("/proc/sys/kernel/random/boot_id"),
            namespace: namespace.to_string_lossy().into_owned(),
            pid,
            started: started(pid).unwrap_or(0),
        }
    }

    /// Whether it is the caller's own.
    pub(crate) fn is_this(&self) -> bool {
        let this = Process::this();
        self.is_of(&this) && self.pid == this.pid && self.started == this.started
    }

    /// Whether it has ended for certain.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_of(&Process::this()) && started(self.pid) != Some(self.started)
    }

    /// Whether its number means the same as here.
    fn is_of(&self, this: &Process) -> bool {
        let is_told = !self.boot.is_empty() && !self.namespace.is_empty() && self.started > 0;
        is_told && self.boot == this.boot && self.namespace == this.namespace
    }
}

/// When a process was started, if there is one of that number; the 22nd field of its `stat`.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in brackets, may have spaces and brackets itself.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    // One that waits to be reaped has ended.
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_has_ended_for_certain() {
        let this = Process::this();
        assert!(this.is_this() && !this.has_ended(), "{this:?}");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let other = Process {
            pid: child.id(),
            started: started(child.id()).unwrap(),
            ..this.clone()
        };
        assert!(!other.is_this() && !other.has_ended(), "{other:?}");
        child.kill().unwrap();
        // A zombie until it is waited for.
        while !other.has_ended() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(other.has_ended());
        let elsewhere = [
            Process {
                boot: String::from("another"),
                ..other.clone()
            },
            Process {
                namespace: String::from("another"),
                ..other.clone()
            },
            Process {
                boot: String::new(),
                ..other.clone()
            },
            Process::default(),
        ];
        assert!(elsewhere.iter().all(|process| !process.has_ended()));
        let reused = Process {
            started: this.started + 1,
            ..this
        };
        assert!(reused.has_ended() && !reused.is_this());
    }
}
