//! An ext4 file system in a file, mounted on a loop device: how do tests get one, and rid of it?

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::disks::say;

/// How long a mount may be busy: the kernel lets go of a ring's files some time after its end.
const BUSY: Duration = Duration::from_secs(120);

/// Runs a command; why it failed, as text.
pub fn run<S: AsRef<std::ffi::OsStr>>(program: &str, args: &[S]) -> Result<(), String> {
    let output = Command::new(program).args(args).output();
    match output {
        Err(error) => Err(format!("{program}: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            let args: Vec<&std::ffi::OsStr> = args.iter().map(AsRef::as_ref).collect();
            let said = String::from_utf8_lossy(&said).trim().to_owned();
            Err(format!("{program} {args:?}: {said}"))
        }
    }
}

/// A new file system in a file that is there; `options` are those of mkfs.ext4.
pub fn make(file: &Path, options: &[&str]) -> Result<(), String> {
    let mut args = vec!["-q", "-F"];
    args.extend(options);
    args.push(file.to_str().ok_or("a path that is no text")?);
    run("mkfs.ext4", &args)
}

/// What e2fsck has to say against the file system in a file, without changing it.
pub fn check(file: &Path) -> Result<(), String> {
    run("e2fsck", &["-fn".as_ref(), file.as_os_str()])
}

/// A mounted file system; its loop device goes with the mount.
pub struct Mounted {
    place: PathBuf,
    gone: bool,
}

impl Mounted {
    /// Mounts the file at a directory that is there; this replays the journal.
    pub fn new(file: &Path, place: &Path, options: &str) -> Result<Mounted, String> {
        let options = format!("loop,{options}");
        let kind = ["-t", "ext4", "-o", &options].map(std::ffi::OsStr::new);
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
