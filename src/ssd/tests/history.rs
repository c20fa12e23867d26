//! Numbers, versions and checkpoints of a tier.

use super::tier::{checkpoint, flush, made, names, opened, reopened};
use super::*;
use crate::format::FileKind;
use crate::io::sim::Fault;
use crate::ssd::open_files::OpenFiles;

const ALL: RangeInclusive<u64> = 0..=u64::MAX;

#[test]
fn numbers_are_reserved_before_the_last_that_are_kept_back() {
    let (disk, ssd) = made(1);
    drop(ssd);
    let few = |request: &mut OpenRequest<'_>| request.thresholds.numbers_reserved = 20;
    let ssd = opened(&disk, few).unwrap();
    let limit = || ssd.versions().number_limit;
    let first = ssd.versions().next_number;
    assert_eq!(
        (limit(), ssd.manifest().current.file_number_limit),
        (first.plus(20), first.plus(20))
    );
    for n in 0..4 {
        assert_eq!(ssd.take_number().unwrap(), first.plus(n));
        assert_eq!(limit(), first.plus(20));
    }
    assert_eq!(
        (ssd.take_number().unwrap(), limit()),
        (first.plus(4), first.plus(40))
    );
    assert_eq!(ssd.manifest().current.file_number_limit, first.plus(40));
    // Once more for whoever finds that there are too few: there are enough by now.
    let calls = disk.calls();
    ssd.reserve_numbers().unwrap();
    assert_eq!((disk.calls(), limit()), (calls, first.plus(40)));
    ssd.versions().next_number = first.plus(38);
    let reserved = || ssd.take_number_reserved();
    assert_eq!(
        (reserved().unwrap(), reserved().unwrap()),
        (first.plus(38), first.plus(39))
    );
    assert_eq!(ssd.versions().next_number, first.plus(40));
    let error = reserved().unwrap_err().to_string();
    assert!(error.contains("file numbers ran out"), "{error}");
    assert_eq!(ssd.versions().next_number, first.plus(40));
    assert_eq!(limit(), first.plus(40));
    drop(ssd);
    let again = opened(&disk, few).unwrap();
    assert_eq!(
        again.take_number().unwrap(),
        first.plus(40),
        "none is used twice"
    );
}

#[test]
fn a_tier_is_ahead_while_files_came_or_went_since_the_last_checkpoint() {
    let (_disk, ssd) = made(1);
    assert_eq!(
        (ssd.is_ahead(), ssd.last_id(), ssd.last_step()),
        (false, None, None)
    );
    let file = flush(&ssd, 0, 0..10);
    assert!(ssd.is_ahead());
    let id = checkpoint(&ssd, 17, 3);
    assert_eq!(
        (ssd.is_ahead(), ssd.last_id(), ssd.last_step()),
        (false, Some(id), Some(17))
    );
    let second = checkpoint(&ssd, 18, 3);
    assert!(!ssd.is_ahead() && second > id);
    ssd.retire(&[file.meta.number]);
    assert!(ssd.is_ahead());
    checkpoint(&ssd, 19, 3);
    assert!(!ssd.is_ahead());
    let current = ssd.manifest().current;
    assert!(ssd.snapshot_bytes() > 100 && ssd.snapshot_bytes() < current.manifest_bytes);
}

#[test]
fn each_checkpoint_has_the_files_of_its_version() {
    let (disk, ssd) = made(2);
    let number = |directory, hashes| flush(&ssd, directory, hashes).meta.number;
    let first = number(0, 0..10);
    let one = checkpoint(&ssd, 1, 3);
    let second = number(1, 0..10);
    ssd.retire(&[first]);
    let two = checkpoint(&ssd, 2, 3);
    let third = number(0, 5..9);
    let three = checkpoint(&ssd, 3, 3);
    let files = |ssd: &Ssd, id| -> Vec<FileNumber> {
        let files = ssd.version_files(id, &ALL, 0).unwrap();
        files.iter().map(|f| f.meta.number).collect()
    };
    let all = |ssd: &Ssd| [one, two, three].map(|id| files(ssd, id));
    let expected = [vec![first], vec![second], vec![second, third]];
    assert_eq!(all(&ssd), expected);
    assert!(ssd.version_files(three.next(), &ALL, 0).is_err());
    let within = |low, high| {
        let files = ssd.version_files(three, &(low..=high), 0).unwrap();
        files.iter().map(|f| f.meta.number).collect::<Vec<_>>()
    };
    assert_eq!((within(0, 4), within(9, 99)), (vec![second], vec![second]));
    assert_eq!(
        (within(0, 5), within(8, 99)),
        (vec![second, third], vec![second, third])
    );
    assert!(within(10, 99).is_empty());
    let unlisted = number(0, 0..10);
    assert_eq!(all(&ssd), expected);
    drop(ssd);
    let ssd = reopened(&disk);
    assert_eq!(all(&ssd), expected);
    let current: Vec<FileNumber> = ssd.versions().current().map(|f| f.meta.number).collect();
    assert_eq!(current, [second, third]);
    assert!(!names(&disk, "d0").contains(&data_file_name(unlisted)));
    // The oldest goes with a fourth, and what only it had.
    checkpoint(&ssd, 4, 3);
    assert!(ssd.version_files(one, &ALL, 0).is_err());
    assert!(!names(&disk, "d0").contains(&data_file_name(first)));
    assert_eq!([two, three].map(|id| files(&ssd, id)), expected[1..]);
    // Nobody needs what came and went between two checkpoints.
    let brief = flush(&ssd, 0, 0..10);
    assert!(names(&disk, "d0").contains(&data_file_name(brief.meta.number)));
    ssd.retire(&[brief.meta.number]);
    assert!(!names(&disk, "d0").contains(&data_file_name(brief.meta.number)));
}

#[test]
fn a_manifest_is_started_afresh_once_it_is_longer_than_two_snapshots_and_the_bound() {
    let (disk, ssd) = made(1);
    let mut ssd = ssd;
    checkpoint(&ssd, 1, 1);
    let state = |ssd: &Ssd| {
        let manifest = ssd.manifest();
        let current = manifest.current;
        (
            current.manifest_number,
            current.manifest_bytes,
            manifest.snapshot_bytes,
        )
    };
    let (number, bytes, snapshot) = state(&ssd);
    assert_eq!(bytes, snapshot, "the first one after an open is new");
    for step in 2..12 {
        checkpoint(&ssd, step, 1);
    }
    let (same, bytes, snapshot) = state(&ssd);
    assert!(
        same == number && bytes > 2 * snapshot,
        "{bytes} and {snapshot}"
    );
    ssd.thresholds.manifest_roll_bytes = bytes - 2 * snapshot;
    checkpoint(&ssd, 12, 1);
    let (same, bytes, snapshot) = state(&ssd);
    assert_eq!(same, number);
    ssd.thresholds.manifest_roll_bytes = bytes - 2 * snapshot - 1;
    checkpoint(&ssd, 13, 1);
    let (next, bytes, snapshot) = state(&ssd);
    assert!(next > number && bytes == snapshot);
    let manifests = crate::format::manifest_names(number);
    assert!(
        manifests
            .iter()
            .all(|name| !names(&disk, ".").contains(name))
    );
}

#[test]
fn a_parameter_file_is_the_one_that_the_manifest_names_or_damaged() {
    let (disk, ssd) = made(1);
    let meta = flush(&ssd, 0, 0..1000).meta;
    let open = |change: &dyn Fn(&mut FileMeta)| {
        let mut meta = meta;
        change(&mut meta);
        ssd.open_data(&meta, FileSlot::default())
            .map(|file| file.entries())
    };
    assert_eq!(open(&|_| ()).unwrap(), 1000);
    let other = "not the one that the manifest recorded";
    let told = |change: &dyn Fn(&mut FileMeta)| open(change).unwrap_err().to_string();
    assert!(told(&|meta| meta.footer_checksum += 1).contains(other));
    assert!(told(&|meta| meta.rows -= 1).contains(other));
    assert!(told(&|meta| meta.tombstones = 1).contains(other));
    let longer = told(&|meta| meta.bytes += 1);
    assert!(longer.contains("bytes long, the manifest says"), "{longer}");
    assert!(told(&|meta| meta.number.0 += 100).contains("it is missing"));
    // Zeros behind the end are what a reservation leaves; anything else is not.
    let path = ssd.data_path(&meta);
    let mut content = disk.read_file(&path).unwrap();
    content.resize(content.len() + 5000, 0);
    let write = |content: &[u8]| {
        disk.remove(&path).unwrap();
        disk.write_file(&path, content).unwrap();
    };
    write(&content);
    assert_eq!(open(&|_| ()).unwrap(), 1000);
    let last = content.len() - 1;
    content[last] = 1;
    write(&content);
    let told = open(&|_| ()).unwrap_err();
    let Error::Corrupt { offset, .. } = told else {
        panic!("{told}");
    };
    assert_eq!(offset, last as u64);
    let io = |errno| missing(&path, std::io::Error::from_raw_os_error(errno));
    assert!(matches!(io(2), Error::Corrupt { .. }) && matches!(io(5), Error::Io { .. }));
}

#[test]
fn a_file_is_opened_once_others_gave_their_descriptors_back() {
    let (disk, ssd) = made(1);
    let first = flush(&ssd, 0, 0..10);
    let second = flush(&ssd, 0, 0..10);
    let open = |errno| {
        disk.fail_at(disk.calls(), Fault::Error(errno), false);
        let opened = ssd
            .open_data(&second.meta, FileSlot::default())
            .map(|file| file.meta.number);
        disk.clear_faults();
        opened
    };
    assert_eq!(open(24).unwrap(), second.meta.number);
    assert!(first.file.get().is_ok());
    assert!(matches!(open(5).unwrap_err(), Error::Io { .. }));
    // None is left to be closed.
    for file in [&first, &second] {
        ssd.open_files.keep(file.meta.number).unwrap();
    }
    assert!(matches!(open(24).unwrap_err(), Error::Io { .. }));
    let fresh = OpenFiles::new(1, &ssd.poison);
    assert!(!fresh.give_back());
}

#[test]
fn iterators_that_have_ended_are_forgotten_and_locks_are_let_go_of() {
    let (disk, ssd) = made(1);
    let files = || Arc::new(vec![flush(&ssd, 0, 0..10)]);
    let (kept, ended) = (files(), files());
    ssd.iterates(&kept);
    ssd.iterates(&ended);
    assert_eq!(ssd.iterated.lock().unwrap().len(), 2);
    drop(ended);
    let third = files();
    ssd.iterates(&third);
    assert_eq!(ssd.iterated.lock().unwrap().len(), 2);
    assert!(ssd.open_files.give_back());
    assert_eq!(ssd.open_files.open(), 0);
    ssd.keep_iterated();
    assert_eq!(ssd.open_files.open(), 2);
    assert!(matches!(
        opened(&disk, |_| ()).unwrap_err(),
        Error::Locked { .. }
    ));
    ssd.release_locks();
    assert!(opened(&disk, |_| ()).is_ok());
}

#[test]
fn a_meta_file_is_the_checkpoints_own() {
    let (disk, ssd) = made(1);
    let ids = [1, 2].map(|step| checkpoint(&ssd, step, 2));
    assert_eq!(ssd.read_meta(ids[1]).unwrap(), b"meta");
    assert!(ssd.read_meta(ids[1].next()).is_err());
    let checkpoints = ssd.versions().checkpoints.clone();
    let path = |n: usize| {
        let name = crate::format::file_name(FileKind::Meta, checkpoints[n].meta_number);
        Path::new(ROOT).join(name)
    };
    let content = disk.read_file(&path(1)).unwrap();
    assert_eq!(checkpoints[1].meta_bytes, content.len() as u64);
    // A right header of another checkpoint, or with another checksum, is not the one.
    let identity = ssd.identity(checkpoints[1].meta_number);
    for (id, body) in [(ids[0], b"meta"), (ids[1], b"atem")] {
        let (header, _) = crate::format::meta::encode_meta_header(&identity, id, body);
        disk.remove(&path(1)).unwrap();
        disk.write_file(&path(1), &[&header[..], body].concat())
            .unwrap();
        let error = ssd.read_meta(ids[1]).unwrap_err().to_string();
        assert!(error.contains("not the meta file"), "{error}");
    }
    disk.remove(&path(1)).unwrap();
    disk.write_file(&path(1), &content).unwrap();
    assert_eq!(ssd.read_meta(ids[1]).unwrap(), b"meta");
    let last = content.len() as u64 - 1;
    disk.corrupt(&path(1), last, 1).unwrap();
    assert!(ssd.read_meta(ids[1]).is_err());
}
