//! A file system in a file, mounted on a loop device: how do tests get one, and rid of it?

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::disks::say;

/// How long a mount may be busy: the kernel lets go of a ring's files some time after its end.
const BUSY: Duration = Duration::from_secs(120);

/// Runs a command; why it failed, as text.
pub fn run<S: AsRef<std::ffi::OsStr>>(program: &str, args: &[S]) -> Result<(), String> {
    end_of(Command::new(program).args(args))
}

fn end_of(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Err(error) => Err(format!("{:?}: {error}", command.get_program())),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).trim().to_owned();
            Err(format!("{command:?}: {said}"))
        }
    }
}

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
    Btrfs,
}

impl Kind {
    /// Its name for `mount`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }
}

/// Tools of root are where a user's PATH may not lead.
fn tool(name: &str) -> String {
    let there = |directory: &&str| Path::new(directory).join(name).exists();
    let found = ["/usr/sbin", "/sbin"].into_iter().find(there);
    found.map_or(name.to_owned(), |directory| format!("{directory}/{name}"))
}

/// A new file system in a file that is there; `options` are those of its mkfs.
pub fn make(kind: Kind, file: &Path, options: &[&str]) -> Result<(), String> {
    let quick: &[&str] = match kind {
        Kind::Ext4 => &["-q", "-F"],
        Kind::Xfs | Kind::Btrfs => &["-q", "-f"],
    };
    let file = file.to_str().ok_or("a path that is no text")?;
    let args = [quick, options, &[file]].concat();
    let mut command = Command::new(tool(&format!("mkfs.{}", kind.name())));
    if kind == Kind::Xfs {
        // Its own tests make file systems of less than 300 MB so.
        for name in ["TEST_DIR", "TEST_DEV", "QA_CHECK_FS"] {
            command.env(name, "1");
        }
    }
    end_of(command.args(&args))
}

/// What the checker has to say against the file system in a file, without changing it.
pub fn check(kind: Kind, file: &Path) -> Result<(), String> {
    let (name, args): (_, &[&str]) = match kind {
        Kind::Ext4 => ("e2fsck", &["-fn"]),
        Kind::Xfs => ("xfs_repair", &["-n"]),
        Kind::Btrfs => ("btrfs", &["check", "--readonly", "--force"]),
    };
    end_of(Command::new(tool(name)).args(args).arg(file))
}

/// A mounted file system; its loop device goes with the mount.
pub struct Mounted {
    place: PathBuf,
    gone: bool,
}

impl Mounted {
    /// Mounts the file at a directory that is there; this replays the journal.
    pub fn new(kind: Kind, file: &Path, place: &Path, options: &str) -> Result<Mounted, String> {
        let options = format!("loop,{options}");
        let kind = ["-t", kind.name(), "-o", &options].map(std::ffi::OsStr::new);
        let mut args = kind.to_vec();
        args.extend([file.as_os_str(), place.as_os_str()]);
        run("mount", &args)?;
        Ok(Mounted {
            place: place.to_path_buf(),
            gone: false,
        })
    }

    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Unmounts it, once nobody holds it.
    pub fn unmount(mut self) -> Result<(), String> {
        self.try_unmount()
    }

    fn try_unmount(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + BUSY;
        while !self.gone {
            match run("umount", &[&self.place]) {
                Ok(()) => self.gone = true,
                Err(error) if !error.contains("busy") || Instant::now() > deadline => {
                    return Err(error);
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.try_unmount() {
            say(&format!("umount: {error}"));
            drop(run("umount", &["--lazy".as_ref(), self.place.as_os_str()]));
        }
    }
}
