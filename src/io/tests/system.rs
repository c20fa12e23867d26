//! What only a real file system can show.

use std::os::unix::fs::{PermissionsExt, symlink};

use nix::fcntl::OFlag;

use super::*;

fn real_places() -> Vec<Place> {
    places()
        .into_iter()
        .filter(|place| place.real.is_some())
        .collect()
}

#[test]
fn links_fifos_and_devices_are_refused_without_waiting() {
    for place in real_places() {
        place.plant("file", b"bytes");
        symlink(place.path("file"), place.path("link")).unwrap();
        nix::unistd::mkfifo(&place.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let dev = place.io.disk.open_dir(Path::new("/dev")).unwrap();
        for mode in [OpenMode::Read, OpenMode::ReadDirect] {
            let error = place.directory.open("link", mode).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(40), "ELOOP");
            let error = place.directory.open("fifo", mode).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let error = dev.open("null", mode).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        symlink(place.path("none"), place.path("dangling")).unwrap();
        let error = place
            .directory
            .open("dangling", OpenMode::Create)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        for name in ["link", "fifo", "dangling"] {
            assert!(
                place
                    .directory
                    .lock(name, LockKind::Exclusive, true)
                    .is_err()
            );
        }
        assert_eq!(place.names(), ["dangling", "fifo", "file", "link"]);
        let entries = place.directory.list().unwrap();
        assert!(
            entries
                .iter()
                .all(|entry| entry.is_file == (entry.name == "file"))
        );
    }
}

#[test]
fn files_and_directories_are_private() {
    for place in real_places() {
        place.create("plain", OpenMode::Create);
        place.create("direct", OpenMode::CreateDirect);
        place.directory.create_dir("inner".as_ref()).unwrap();
        drop(
            place
                .directory
                .lock("LOCK", LockKind::Exclusive, true)
                .unwrap(),
        );
        let mode = |name| {
            std::fs::metadata(place.path(name))
                .unwrap()
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!(mode("plain"), 0o600);
        assert_eq!(mode("direct"), 0o600);
        assert_eq!(mode("LOCK"), 0o600);
        assert_eq!(mode("inner"), 0o700);
    }
}

#[test]
fn an_open_file_blocks_where_it_should() {
    // io_uring answers EAGAIN for a file with O_NONBLOCK where it would have to wait.
    for place in real_places() {
        place.plant("file", b"bytes");
        for mode in [OpenMode::Read, OpenMode::ReadDirect] {
            let file = place.create("file", mode);
            let number = file.raw_fd().unwrap();
            let path = format!("/proc/self/fdinfo/{number}");
            let info = std::fs::read_to_string(path).unwrap();
            let flags = info
                .lines()
                .find_map(|line| line.strip_prefix("flags:"))
                .unwrap();
            let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
            let flags = OFlag::from_bits_truncate(flags);
            assert!(!flags.contains(OFlag::O_NONBLOCK));
            assert!(flags.contains(OFlag::O_CLOEXEC));
            assert_eq!(flags.contains(OFlag::O_DIRECT), file.is_direct());
        }
    }
}

#[cfg(feature = "sim")]
#[test]
fn a_file_without_descriptor_is_an_error_of_its_request() {
    let Ok(io) = Io::uring() else {
        println!("skipped: no uring");
        return;
    };
    let other = super::super::sim::SimDisk::new(1);
    let file = other
        .open(Path::new("/file"), OpenMode::CreateDirect)
        .unwrap();
    let mut queue = io.engine.queue(1, 4096).unwrap();
    let buffer = queue.buffer().unwrap();
    queue.write(&file, 0, 4096, buffer, 5);
    assert_eq!(queue.in_flight(), 1);
    let completion = queue.wait().unwrap();
    assert_eq!(completion.tag, 5);
    assert_eq!(
        completion.result.unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

/// A lock is of the open file, and a child that another thread has just forked has that file open
/// until it runs its program: a store that was closed looked locked in 226 of 300 openings.
#[test]
fn a_lock_that_is_given_back_is_free_though_another_thread_forks() {
    use std::sync::atomic::{AtomicU32, Ordering};
    const FORKS: u32 = 100;
    for place in real_places() {
        let forks = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while forks.fetch_add(1, Ordering::Relaxed) < FORKS {
                    let status = std::process::Command::new("true").status();
                    assert!(status.unwrap().success());
                }
            });
            let mut refused = 0;
            while forks.load(Ordering::Relaxed) < FORKS {
                let guard = place.directory.lock("LOCK", LockKind::Exclusive, true);
                refused += u32::from(guard.is_err());
            }
            assert_eq!(refused, 0);
        });
    }
}
