//! Which process is this, and has another one ended?
//!
//! - Only what is certain counts: a process of another boot, or of another pid namespace, may live.

use std::fs;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// What tells a process from all others, as far as this system lets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
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

impl ProcessIdentity {
    /// The caller's. What the system does not tell is empty.
    pub(crate) fn this() -> ProcessIdentity {
        let line = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.trim().to_owned()
        };
        let pid = std::process::id();
        // Where /proc is of another namespace, numbers there mean other processes.
        let number = fs::read_link("/proc/self").unwrap_or_default();
        let started = match number.to_string_lossy().parse::<u32>() {
            Ok(number) if number == pid => Seen::of(pid),
            _ => Seen::Nothing,
        };
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        ProcessIdentity {
            machine: line("/proc/sys/kernel/hostname"),
            boot: line("/proc/sys/kernel/random/boot_id"),
            namespace: namespace.to_string_lossy().into_owned(),
            pid,
            started: match started {
                Seen::Running(started) => started,
                Seen::Ended | Seen::Nothing => 0,
            },
        }
    }

    /// Whether it is the caller's own, which `this` is.
    pub(crate) fn is(&self, this: &ProcessIdentity) -> bool {
        self.is_of(this) && self.pid == this.pid && self.started == this.started
    }

    /// Whether it has ended for certain, as the caller, which `this` is, can tell.
    pub(crate) fn has_ended(&self, this: &ProcessIdentity) -> bool {
        self.is_of(this)
            && match Seen::of(self.pid) {
                Seen::Running(started) => started != self.started,
                Seen::Ended => true,
                // Of another user, perhaps, where /proc is mounted with hidepid.
                Seen::Nothing => is_free(self.pid),
            }
    }

    /// Whether its number means the same as here.
    fn is_of(&self, this: &ProcessIdentity) -> bool {
        let is_told = |of: &ProcessIdentity| {
            !of.boot.is_empty() && !of.namespace.is_empty() && of.started > 0
        };
        is_told(self) && is_told(this) && self.boot == this.boot && self.namespace == this.namespace
    }
}

/// What /proc says of a number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// A process that was started then.
    Running(u64),
    /// One that waits to be reaped, and none of its threads lives.
    Ended,
    Nothing,
}

impl Seen {
    fn of(pid: u32) -> Seen {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.ok()
            .and_then(|stat| Seen::told_by(&stat))
            .unwrap_or(Seen::Nothing)
    }

    /// The state, which is the third field, and the start, which is the 22nd.
    fn told_by(stat: &str) -> Option<Seen> {
        // The program's name, in brackets, may have spaces and brackets itself.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        match fields.next()? {
            "Z" | "X" if matches!(fields.clone().nth(16), None | Some("0" | "1")) => {
                Some(Seen::Ended)
            }
            _ => fields.nth(18)?.parse().ok().map(Seen::Running),
        }
    }
}

/// Whether no process at all has this number, whoever may see it.
fn is_free(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else {
        return false;
    };
    pid > 0 && kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_has_ended_for_certain() {
        let this = ProcessIdentity::this();
        assert!(this.is(&this) && !this.has_ended(&this), "{this:?}");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let other = ProcessIdentity {
            pid: child.id(),
            started: match Seen::of(child.id()) {
                Seen::Running(started) => started,
                _ => panic!("it sleeps"),
            },
            ..this.clone()
        };
        assert!(!other.is(&this) && !other.has_ended(&this), "{other:?}");
        child.kill().unwrap();
        // A zombie until it is waited for.
        while !other.has_ended(&this) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(other.has_ended(&this));
        let elsewhere = [
            ProcessIdentity {
                boot: String::from("another"),
                ..other.clone()
            },
            ProcessIdentity {
                namespace: String::from("another"),
                ..other.clone()
            },
            ProcessIdentity {
                boot: String::new(),
                ..other.clone()
            },
            ProcessIdentity::default(),
        ];
        assert!(elsewhere.iter().all(|process| !process.has_ended(&this)));
        assert!(is_free(other.pid) && !is_free(1) && !is_free(0) && !is_free(u32::MAX));
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 2 3";
        assert!(Seen::told_by(stat) == Some(Seen::Running(4711)));
        assert!(Seen::told_by("7 (a) Z 1 7") == Some(Seen::Ended));
        let dead_leader = stat
            .replace(" S ", " Z ")
            .replace(" 20 0 1 0 4711", " 20 0 3 0 4711");
        assert!(Seen::told_by(&dead_leader) == Some(Seen::Running(4711)));
        assert!(Seen::told_by(&stat.replace(" S ", " Z ")) == Some(Seen::Ended));
        assert!(Seen::told_by("7 (a").is_none() && Seen::told_by("7 (a) S 1").is_none());
        let reused = ProcessIdentity {
            started: this.started + 1,
            ..this.clone()
        };
        assert!(reused.has_ended(&this) && !reused.is(&this));
    }
}
