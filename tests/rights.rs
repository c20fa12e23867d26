//! Who may read a store, and what is said where the system does not let us?
//!
//! - Files are 0600 and directories 0700 whatever the umask; those of an export too.
//! - A file or directory that may not be read, or not be written, is an error that says so; what
//!   may be read is read. Nothing is lost: once the rights are back the store is whole.
//!
//! The super-user may do all, so its rights are dropped in a child process, with `setpriv`. Where
//! that is not to be had the tests say SKIPPED.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/child.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod child;
#[path = "../fuzz/src/forge.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forge;
#[path = "common/forging.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forging;
#[path = "common/oracle.rs"]
mod oracle;
#[path = "common/real.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod real;
#[path = "common/skip.rs"]
mod skip;
#[path = "../fuzz/src/tiny.rs"]
#[expect(dead_code, clippy::expect_used, reason = "other tests use the rest")]
mod tiny;

use skip::skipped;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use child::{Child, role_of_this_process, say};
use forging::{STORE, fix, identity, put_u64, u32_at, u64_at};
use hps::*;
use nix::sys::stat::{Mode, umask};
use real::{Sample, is_root};

/// The user and group "nobody".
const NOBODY: u32 = 65534;

/// What a child process does.
#[test]
fn role() {
    let Some((role, place)) = role_of_this_process() else {
        return;
    };
    let sample = Sample::new();
    match role.as_str() {
        "ask" => {
            say(&real::look(&sample, &place));
            say(&sample.open(&place, true));
            say(&sample.open(&place, false));
            say(&sample.go_on(&place));
        }
        "make" => make(&place),
        other => panic!("no role {other}"),
    }
}

/// Makes a store with a file of every kind, and an export, under an umask that forbids nothing.
fn make(place: &Path) {
    umask(Mode::empty());
    let create = CreateOptions::new().data_directories(vec!["a".into(), place.join("elsewhere")]);
    let options = RuntimeOptions::new().cache_bytes(4 << 20).threads(1);
    let store = Store::create(&place.join("store"), create, options).unwrap();
    let table = store.create_table(&TableDescriptor::new("t", 16)).unwrap();
    for step in 1..4u64 {
        let keys: Vec<u64> = (step * 10_000..step * 10_000 + 10_000).collect();
        for keys in keys.chunks(1000) {
            let mut out = vec![0.0; keys.len() * 16];
            let lease = store.pull(table, keys, &mut out).unwrap();
            store.push(&lease, Update::weights(&out)).unwrap();
        }
        store.checkpoint(step, b"meta").unwrap();
    }
    let last = store.last_checkpoint().unwrap().id;
    let parts = [place.join("export-a"), place.join("export-b")];
    store.export(last, &place.join("export"), &parts).unwrap();
    store.close().unwrap();
    say("made");
}

/// Everything below a directory, with its mode.
fn modes(directory: &Path) -> BTreeMap<PathBuf, (bool, u32)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let info = fs::symlink_metadata(&path).unwrap();
        if info.is_dir() {
            found.extend(modes(&path));
        }
        found.insert(path, (info.is_dir(), info.mode() & 0o7777));
    }
    found
}

#[test]
fn files_are_for_their_owner_only_whatever_the_umask() {
    let directory = tempfile::tempdir().unwrap();
    let mut maker = Child::start("make", directory.path());
    assert_eq!(maker.listen().as_deref(), Some("made"));
    assert!(maker.end().success());
    let found = modes(directory.path());
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for (path, (is_dir, mode)) in found {
        let expected = if is_dir { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{} is {mode:o}", path.display());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        *kinds
            .entry(name.rsplit('.').next().unwrap().to_owned())
            .or_default() += 1;
    }
    println!("{kinds:?}");
    for kind in [
        "CURRENT", "LOCK", "PART", "STORE", "copy", "manifest", "meta", "rows", "snapshot",
    ] {
        assert!(kinds.contains_key(kind), "no {kind}: {kinds:?}");
    }
}

/// A way to run this test without the rights of the super-user; `None` where there is none.
struct Dropper {
    directory: tempfile::TempDir,
    program: PathBuf,
}

impl Dropper {
    fn new() -> Option<Dropper> {
        let directory = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        if !is_root() {
            return Some(Dropper { directory, program });
        }
        set_mode(directory.path(), 0o755);
        // Where others may not go, nobody can start this program: a copy.
        let copy = directory.path().join("program");
        fs::copy(&program, &copy).unwrap();
        set_mode(&copy, 0o755);
        let dropper = Dropper {
            directory,
            program: copy,
        };
        match dropper.command().arg("--list").output() {
            Ok(output) if output.status.success() => Some(dropper),
            other => {
                skipped(&format!(
                    "root can't drop its rights with setpriv: {other:?}"
                ));
                None
            }
        }
    }

    fn command(&self) -> Command {
        if !is_root() {
            return Command::new(&self.program);
        }
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--",
        ]);
        command.arg(&self.program);
        command
    }

    /// A store that belongs to whom [`Dropper::command`] runs as.
    fn store(&self, sample: &Sample) -> PathBuf {
        let store = self.directory.path().join("store");
        if store.exists() {
            fs::remove_dir_all(&store).unwrap();
        }
        sample.write(&store);
        for (path, (is_dir, _)) in modes(&store) {
            set_mode(&path, if is_dir { 0o700 } else { 0o600 });
            give(&path);
        }
        set_mode(&store, 0o700);
        give(&store);
        store
    }

    /// What an inspection, a reader, a writer and a checkpoint say.
    fn ask(&self, store: &Path) -> [String; 4] {
        let mut child = Child::from_command(self.command(), "ask", store);
        let said = [(); 4].map(|()| child.listen().expect("an answer"));
        assert!(child.end().success(), "{said:?}");
        said
    }
}

fn give(path: &Path) {
    if is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn denied(said: &str) -> bool {
    said.starts_with("Io: ") && said.contains("Permission denied")
}

#[test]
fn a_file_that_may_not_be_read_is_an_error_and_the_store_is_whole_with_its_rights_back() {
    let Some(dropper) = Dropper::new() else {
        return;
    };
    let sample = Sample::new();
    for name in sample.names() {
        let owners: &[bool] = if is_root() { &[false, true] } else { &[false] };
        for &of_another in owners {
            let store = dropper.store(&sample);
            let path = store.join(&name);
            match of_another {
                true => chown(&path, Some(0), Some(0)).unwrap(),
                false => set_mode(&path, 0),
            }
            let [looked, reader, writer, went_on] = dropper.ask(&store);
            let what = format!("{name}: {looked}; {reader}; {writer}; {went_on}");
            match name.rsplit('.').next().unwrap() {
                "LOCK" => {
                    assert!(
                        reader == "opens" && denied(&writer) && denied(&went_on),
                        "{what}"
                    );
                    assert!(looked == "clean" || denied(&looked), "{what}");
                }
                "snapshot" | "copy" => {
                    assert!(denied(&looked) || looked == "cache", "{what}");
                    assert!(reader == "opens" && writer == "opens", "{what}");
                }
                "meta" => {
                    assert!(denied(&looked), "{what}");
                    assert!(denied(&reader) || reader == "opens (meta: Io)", "{what}");
                    assert_eq!(writer, "opens (meta: Io)", "{what}");
                }
                _ => {
                    let all = [&looked, &reader, &writer, &went_on];
                    assert!(all.into_iter().all(|said| denied(said)), "{what}");
                }
            }
            // A writer that went on has replaced the copy of its manifest.
            if path.exists() {
                give(&path);
                set_mode(&path, 0o600);
            }
            if went_on == "went on" {
                // It is another store now.
                let looked = real::look(&sample, &store);
                assert!(
                    ["clean", "leftover"].contains(&&*looked),
                    "{name}: {looked}"
                );
                continue;
            }
            let [looked, reader, writer, again] = dropper.ask(&store);
            assert_eq!(
                [looked, reader, writer],
                ["clean", "opens", "opens"],
                "{name}"
            );
            assert_eq!(again, "went on", "{name}");
        }
    }
}

#[test]
fn a_directory_without_rights_is_read_as_far_as_it_may_and_never_damaged() {
    let Some(dropper) = Dropper::new() else {
        return;
    };
    let sample = Sample::new();
    let both = ["", "part-0"];
    let cases: [(&[&str], u32); 6] = [
        (&[""], 0o500),
        (&["part-0"], 0o500),
        (&both, 0o500),
        (&[""], 0),
        (&["part-0"], 0),
        (&[""], 0o300),
    ];
    for (names, mode) in cases {
        let store = dropper.store(&sample);
        names
            .iter()
            .rev()
            .for_each(|name| set_mode(&store.join(name), mode));
        let said = dropper.ask(&store);
        println!("{names:?} {mode:o}: {said:?}");
        let [looked, reader, writer, went_on] = &said;
        assert!(denied(went_on), "{names:?} {mode:o}: {went_on}");
        if mode == 0o500 {
            assert_eq!(
                (looked.as_str(), reader.as_str()),
                ("clean", "opens"),
                "{names:?}"
            );
            let only_part = names == ["part-0"];
            assert!(
                if only_part {
                    writer == "opens"
                } else {
                    denied(writer)
                },
                "{writer}"
            );
        } else {
            assert!(
                [looked, reader, writer]
                    .into_iter()
                    .all(|said| denied(said)),
                "{said:?}"
            );
        }
        names
            .iter()
            .for_each(|name| set_mode(&store.join(name), 0o700));
        let said = dropper.ask(&store);
        assert_eq!(
            said,
            ["clean", "opens", "opens", "went on"],
            "{names:?} {mode:o}"
        );
    }
}
