//! How does a test run a part of itself as somebody who may do little?
//!
//! - The super-user may lock memory and start processes without bound: the child is somebody else,
//!   with a number of his own, so that no other process counts for his limits.
//! - A role sets its limits itself: [`Limits::set`], and forbids system calls: [`forbid`].
#![expect(clippy::unwrap_used, clippy::panic, reason = "used by tests")]
#![expect(unsafe_code, reason = "filters of system calls are set by libc")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::child::Child;
use crate::skip::skipped;

/// Of the users that this process has made up.
static USERS: AtomicU32 = AtomicU32::new(0);

/// Somebody without rights, and a directory of his.
pub struct Somebody {
    directory: tempfile::TempDir,
    program: PathBuf,
    /// His number; `None` where this process is nobody special itself.
    user: Option<u32>,
}

impl Somebody {
    /// `None`, and said so, where the super-user can't become somebody else.
    pub fn new() -> Option<Somebody> {
        let directory = tempfile::tempdir().unwrap();
        let this = std::env::current_exe().unwrap();
        // SAFETY: the call only gives a number.
        if unsafe { libc::geteuid() } != 0 {
            let (program, user) = (this, None);
            return Some(Somebody {
                directory,
                program,
                user,
            });
        }
        let user =
            20_000 + std::process::id() % 1000 * 40 + USERS.fetch_add(1, Ordering::Relaxed) % 40;
        let set_mode = |path: &Path| {
            fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        };
        // Where others may not go, nobody can start this program: a copy.
        let program = directory.path().join("program");
        fs::copy(&this, &program).unwrap();
        set_mode(&program);
        set_mode(directory.path());
        chown(directory.path(), Some(user), Some(user)).unwrap();
        let somebody = Somebody {
            directory,
            program,
            user: Some(user),
        };
        let started = || somebody.command().arg("--list").output();
        let is_busy = |output: &Output| output.stderr.ends_with(b"Text file busy\n");
        let mut last = started();
        // A child that another test has just forked may still have the copy open for writing.
        for _ in 0..500 {
            if !last.as_ref().is_ok_and(is_busy) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            last = started();
        }
        match last {
            Ok(output) if output.status.success() => Some(somebody),
            other => {
                skipped(&format!(
                    "root can't drop its rights with setpriv: {other:?}"
                ));
                None
            }
        }
    }

    fn command(&self) -> Command {
        let Some(user) = self.user else {
            return Command::new(&self.program);
        };
        let mut command = Command::new("setpriv");
        let user = user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]);
        command.arg(&self.program);
        command
    }

    /// Plays a role and gives what was said.
    pub fn plays(&self, role: &str) -> Vec<String> {
        let mut child = Child::from_command(self.command(), role, self.directory.path());
        let mut said = Vec::new();
        while let Some(line) = child.listen() {
            said.push(line);
        }
        assert!(child.end().success(), "{role}: {said:?}");
        said
    }
}

/// Limits by their names, as `memlock=65536 nofile=64`; words without `=` are left alone.
pub struct Limits(Vec<(Resource, u64)>);

impl Limits {
    pub fn of(words: &str) -> Limits {
        let pairs = words.split(' ').filter_map(|word| word.split_once('='));
        let limit = |(name, value): (&str, &str)| {
            let resource = match name {
                "memlock" => Resource::RLIMIT_MEMLOCK,
                "nofile" => Resource::RLIMIT_NOFILE,
                "as" => Resource::RLIMIT_AS,
                _ => return None,
            };
            Some((resource, value.parse().unwrap()))
        };
        Limits(pairs.filter_map(limit).collect())
    }

    /// For good.
    pub fn set(&self) {
        for (resource, value) in &self.0 {
            setrlimit(*resource, *value, *value).unwrap();
        }
    }
}

/// Lets this process have so many threads more than it has now; `None`: as many as it may.
pub fn threads_more(more: Option<u64>) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NPROC).unwrap();
    let now = || fs::read_dir("/proc/self/task").unwrap().count() as u64;
    let soft = more.map_or(hard, |more| (now() + more).min(hard));
    setrlimit(Resource::RLIMIT_NPROC, soft, hard).unwrap();
}

/// Has the kernel refuse these system calls of all threads of this process, for good.
pub fn forbid(calls: &[libc::c_long], errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: 0,
        k,
    };
    // The number of the call is the first word of what a filter sees.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    let refuse = libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap();
    for call in calls {
        let number = u32::try_from(*call).unwrap();
        filter.push(libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number)
        });
        filter.push(statement(libc::BPF_RET | libc::BPF_K, refuse));
    }
    let allow = libc::SECCOMP_RET_ALLOW;
    filter.push(statement(libc::BPF_RET | libc::BPF_K, allow));
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap(),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: a flag of this process, and no pointers.
    let code = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(code, 0, "no_new_privs");
    let (operation, flags) = (
        libc::SECCOMP_SET_MODE_FILTER,
        libc::SECCOMP_FILTER_FLAG_TSYNC,
    );
    // SAFETY: the program and its statements live until the call returns; the kernel copies them.
    let code = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program) };
    match code {
        0 => {}
        _ => panic!("seccomp: {}", std::io::Error::last_os_error()),
    }
}
