//! Which files are removed, by name and number.

use super::*;
use crate::format::file_name;
use crate::ssd::tests::tier::{checkpoint, flush, made, names, opened, reopened, touch};
use crate::units::CheckpointId;

#[test]
fn what_no_checkpoint_names_is_removed_from_a_number_on() {
    let (disk, ssd) = made(2);
    let kept = [0, 1].map(|d| data_file_name(flush(&ssd, d, 0..10).meta.number));
    checkpoint(&ssd, 1, 1);
    let before = [".", "d0", "d1"].map(|d| names(&disk, d));
    let limit = ssd.versions().number_limit;
    let kinds = [
        FileKind::Meta,
        FileKind::Manifest,
        FileKind::ManifestCopy,
        FileKind::Image,
        FileKind::Rows,
    ];
    let name = |kind, number| match kind {
        FileKind::Rows => data_file_name(number),
        kind => file_name(kind, number),
    };
    let numbers = [1000, 1001, limit.0 - 1, limit.0, limit.0 + 1].map(FileNumber);
    for number in numbers {
        for kind in kinds {
            touch(&disk, &name(kind, number));
            touch(&disk, &format!("d1/{}", name(kind, number)));
        }
    }
    // Temporary files are the store's in its own directory alone; others never are.
    for place in ["", "d1/"] {
        for other in ["CURRENT.tmp", "STORE.tmp", "notes.txt", "1.rows"] {
            touch(&disk, &format!("{place}{other}"));
        }
    }
    disk.create_dir(std::path::Path::new("/store/000000001002.rows"))
        .unwrap();
    let left = |from: FileNumber| {
        ssd.remove_orphans(from).unwrap();
        let is_left = |number: FileNumber, place: &str, kind| {
            names(&disk, place).contains(&name(kind, number))
        };
        let all = |number| {
            let known = [".", "d1"].map(|place| kinds.map(|kind| is_left(number, place, kind)));
            assert!(known.as_flattened().iter().all(|left| *left == known[0][0]));
            known[0][0]
        };
        numbers.map(all)
    };
    assert_eq!(left(limit), [true; 5]);
    assert_eq!(left(FileNumber(1001)), [true, false, false, true, true]);
    assert_eq!(left(FileNumber::NONE), [false, false, false, true, true]);
    let others = ["1.rows", "notes.txt"].map(String::from);
    let extra = |place: &str, before: &[String]| {
        let beyond = |n: &String| {
            kinds
                .iter()
                .any(|k| [limit, limit.next()].map(|l| name(*k, l)).contains(n))
        };
        let mut names = names(&disk, place);
        names.retain(|name| !before.contains(name) && !beyond(name));
        names
    };
    assert_eq!(extra(".", &before[0])[..2], ["000000001002.rows", "1.rows"]);
    assert_eq!(extra(".", &before[0])[2..], ["notes.txt"]);
    let temporary = ["CURRENT.tmp", "STORE.tmp"].map(String::from);
    let mut expected = [others, temporary].concat();
    expected.sort();
    assert_eq!(extra("d1", &before[2]), expected);
    for (place, before) in [".", "d0", "d1"].iter().zip(&before) {
        assert!(before.iter().all(|name| names(&disk, place).contains(name)));
    }
    assert!(names(&disk, "d0").contains(&kept[0]) && names(&disk, "d1").contains(&kept[1]));
}

#[test]
fn a_tier_that_ends_removes_what_it_wrote_since_the_checkpoints_that_stay() {
    let (disk, ssd) = made(1);
    let first = flush(&ssd, 0, 0..10).meta.number;
    checkpoint(&ssd, 1, 2);
    let second = flush(&ssd, 0, 0..10).meta.number;
    ssd.retire(&[first]);
    checkpoint(&ssd, 2, 2);
    let third = flush(&ssd, 0, 0..10).meta.number;
    ssd.retire(&[second]);
    let there = |disk| {
        let names = names(disk, "d0");
        [first, second, third].map(|n| names.contains(&data_file_name(n)))
    };
    assert_eq!(there(&disk), [true; 3]);
    // A captured version may be durable: nobody knows.
    ssd.versions().captured = Some(CheckpointId(9));
    ssd.remove_uncommitted();
    assert_eq!(there(&disk), [true; 3]);
    ssd.versions().captured = None;
    ssd.remove_uncommitted();
    assert_eq!(there(&disk), [true, true, false]);
    drop(ssd);
    let ssd = reopened(&disk);
    let fourth = flush(&ssd, 0, 0..10).meta.number;
    ssd.poison(String::from("a sync failed"));
    ssd.remove_uncommitted();
    assert!(names(&disk, "d0").contains(&data_file_name(fourth)));
}

/// Orphans had filled the disk: CURRENT could not be written, and nothing could be removed before it.
#[test]
fn orphans_younger_than_all_that_is_named_make_room_for_a_current() {
    let (disk, ssd) = made(1);
    let kept = flush(&ssd, 0, 0..10).meta.number;
    checkpoint(&ssd, 1, 1);
    let meta = ssd.versions().checkpoints[0].meta_number;
    let newest = [kept, meta, ssd.manifest().current.manifest_number];
    let newest = newest.into_iter().max().unwrap();
    drop(ssd);
    let name = |n| std::path::Path::new("/store/d0").join(data_file_name(n));
    for n in [1, 2] {
        disk.write_file(&name(newest.plus(n)), &[7; 8192]).unwrap();
    }
    let space = disk.space().unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes);
    let ssd = opened(&disk, |_| ()).unwrap();
    let left = names(&disk, "d0");
    assert!(left.contains(&data_file_name(kept)));
    assert!(
        [1, 2]
            .iter()
            .all(|n| !left.contains(&data_file_name(newest.plus(*n))))
    );
    assert!(ssd.check_writable().is_ok());
}
