//! Does a program get its store with its tables, whether it is the first run, the second, or the one after a
//! crash?

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::path::Path;

use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::*;
use small::{invalid, set, sgd, values};

const ROOT: &str = "/store";

fn options() -> RuntimeOptions {
    small::options().threads(1).inline(true)
}

fn tables() -> [TableDescriptor; 2] {
    [sgd("items", 4), sgd("users", 2)]
}

fn run(
    disk: &SimDisk,
    options: RuntimeOptions,
    tables: &[TableDescriptor],
) -> Result<(Store, Vec<TableId>)> {
    run_with(disk, CreateOptions::new(), options, tables)
}

fn run_with(
    disk: &SimDisk,
    create: CreateOptions,
    options: RuntimeOptions,
    tables: &[TableDescriptor],
) -> Result<(Store, Vec<TableId>)> {
    let io = Io::of(disk.clone());
    Store::open_or_create_on(io, Path::new(ROOT), create, options, tables)
}

fn names(store: &Store) -> Vec<String> {
    store.tables().into_iter().map(|(_, t)| t.name).collect()
}

#[test]
fn the_second_run_finds_what_the_first_one_made() {
    let disk = SimDisk::new(1);
    let (store, ids) = run(&disk, options(), &tables()).unwrap();
    assert_eq!(names(&store), ["items", "users"]);
    set(&store, ids[1], &[7], 1.5, 2);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();

    // In another order, one of them, and a new one.
    let others = [sgd("users", 2), sgd("ads", 3)];
    let (store, others) = run(&disk, options(), &others).unwrap();
    assert_eq!(others[0], ids[1]);
    assert_eq!(names(&store), ["items", "users", "ads"]);
    assert_eq!(store.table("ads").unwrap(), others[1]);
    assert_eq!(values(&store, others[0], &[7], 2), [1.5; 2]);
    let error = run(&disk, options(), &tables()).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    store.close_discarding();
}

#[test]
fn another_descriptor_is_refused_and_no_table_made() {
    let disk = SimDisk::new(1);
    let (store, _) = run(&disk, options(), &tables()).unwrap();
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let before = disk.paths();
    let error = run(&disk, options(), &[sgd("ads", 3), sgd("users", 3)]).unwrap_err();
    let error = invalid(error);
    let is_named = matches!(&error, ArgumentError::DescriptorChanged { name, field: "dim", .. } if name == "users");
    assert!(is_named, "{error}");
    let bad = run(&disk, options(), &[sgd("ads", 0)]).unwrap_err();
    assert!(matches!(
        invalid(bad),
        ArgumentError::Option { name: "dim", .. }
    ));
    assert_eq!(disk.paths(), before);
    let twice = [sgd("ads", 3), sgd("ads", 4)];
    let error = invalid(run(&disk, options(), &twice).unwrap_err());
    assert!(
        matches!(error, ArgumentError::DescriptorChanged { .. }),
        "{error}"
    );
    let (store, ids) = run(&disk, options(), &tables()).unwrap();
    assert_eq!(
        (names(&store), ids.len()),
        (vec!["items".to_owned(), "users".to_owned()], 2)
    );
    store.close().unwrap();
}

#[test]
fn options_for_a_table_that_there_is_not_are_refused() {
    let disk = SimDisk::new(1);
    let pinned = TableOptions::new().policy(PolicyKind::PinAll);
    let unknown = options().table("user", pinned);
    let refused = |disk: &SimDisk, known: &[&str]| {
        let error = invalid(run(disk, unknown.clone(), &tables()).unwrap_err());
        let expected = known
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>();
        let is_named = matches!(&error, ArgumentError::UnknownTable { name, known } if name == "user" && *known == expected);
        assert!(is_named, "{error:?}");
    };
    refused(&disk, &["items", "users"]);
    assert!(disk.paths().is_empty(), "nothing was made");
    let known = options().table("users", pinned);
    let (store, _) = run(&disk, known, &tables()).unwrap();
    assert_eq!(store.stats().tables[1].policy, PolicyKind::PinAll);
    store.create_table(&sgd("old", 2)).unwrap();
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    // Tables that are there and not asked for are known too.
    refused(&disk, &["items", "old", "users"]);
    let (store, _) = run(&disk, options().table("old", pinned), &tables()).unwrap();
    assert_eq!(store.stats().tables[2].policy, PolicyKind::PinAll);
    store.close().unwrap();
}

/// A create that a crash cut short left a directory that `open` took for no store and `create` for
/// no empty directory: the program did not start again until somebody emptied it.
#[test]
fn a_crash_at_every_call_leaves_what_the_next_run_opens() {
    let directories = vec!["a".into(), "/elsewhere".into()];
    let two = CreateOptions::new().data_directories(directories);
    for create in [CreateOptions::new(), two] {
        let run = |disk: &SimDisk| run_with(disk, create.clone(), options(), &tables());
        let whole = SimDisk::new(1);
        run(&whole).unwrap().0.close_discarding();
        let calls = whole.calls();
        let (mut again, mut stopped) = (0, 0);
        for call in 0..calls {
            for mode in [CrashMode::KeepAll, CrashMode::KeepNone, CrashMode::Random] {
                let disk = SimDisk::new(1);
                disk.stop_at(call);
                stopped += usize::from(run(&disk).is_err());
                let left = disk.crash(call, mode);
                let at = format!("call {call} {mode:?}: {:?}", left.paths());
                let is_store = left.paths().iter().any(|path| path.ends_with("STORE"));
                again += usize::from(!is_store && !left.paths().is_empty());
                let (store, ids) = run(&left).expect(&at);
                set(&store, ids[0], &[7], 1.5, 4);
                store.checkpoint(1, &[]).expect(&at);
                store.close().expect(&at);
                let (store, ids) = run(&left).expect(&at);
                assert_eq!(values(&store, ids[0], &[7], 4), [1.5; 4], "{at}");
                store.close().expect(&at);
            }
        }
        assert!(
            stopped > 60 && again > 20,
            "{stopped} of {calls}, {again} begun again"
        );
    }
}

/// What only looks like a create that was cut short is left alone.
#[test]
fn a_directory_with_anything_else_in_it_is_refused_and_stays() {
    let (disk, root) = (SimDisk::new(1), Path::new(ROOT));
    let (store, ids) = run(&disk, options(), &tables()).unwrap();
    set(&store, ids[0], &[7], 1.5, 4);
    store.flush().unwrap();
    drop(store);
    // Its STORE is lost: rows are left, which no checkpoint has.
    let bytes = disk.read_file(&root.join("STORE")).unwrap();
    let io = Io::of(disk.clone());
    io.disk.open_dir(root).unwrap().remove("STORE").unwrap();
    let before = disk.paths();
    let error = run(&disk, options(), &tables()).unwrap_err();
    assert!(matches!(invalid(error), ArgumentError::NotAStore { .. }));
    assert_eq!(disk.paths(), before);
    disk.write_file(&root.join("STORE"), &bytes).unwrap();
    run(&disk, options(), &tables()).unwrap().0.close().unwrap();

    let disk = SimDisk::new(1);
    let parent = Io::of(disk.clone()).disk.open_dir(Path::new("/")).unwrap();
    parent.create_dir("store".as_ref()).unwrap();
    disk.write_file(&root.join("notes.txt"), b"mine").unwrap();
    let error = run(&disk, options(), &tables()).unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
    assert_eq!(disk.read_file(&root.join("notes.txt")).unwrap(), b"mine");
}
