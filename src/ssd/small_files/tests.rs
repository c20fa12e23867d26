//! How long a file may be, and what may stand behind its end.

use std::sync::Arc;

use super::*;
use crate::ssd::tests::rows::Place;
use crate::units::FileNumber;

fn file(place: &Place, name: &str, content: &[u8]) -> Arc<dyn DiskFile> {
    let path = Path::new("/part").join(name);
    place.disk.write_file(&path, content).unwrap();
    place.directory.open(name, OpenMode::Read).unwrap()
}

#[test]
fn a_small_file_is_read_whole_up_to_its_longest() {
    let place = Place::new();
    let content: Vec<u8> = (0..100).collect();
    file(&place, "small", &content);
    let whole = |max| read_whole(&*place.directory, "small", max);
    assert_eq!(
        (whole(100).unwrap(), whole(101).unwrap()),
        (content.clone(), content.clone())
    );
    let error = whole(99).unwrap_err().to_string();
    assert!(error.contains("100 bytes long, at most 99"), "{error}");
    let start = |bytes| read_start(&*place.directory, "small", bytes);
    assert_eq!(
        (start(100).unwrap(), start(7).unwrap()),
        (content.clone(), content[..7].to_vec())
    );
    let error = start(101).unwrap_err().to_string();
    assert!(
        error.contains("100 bytes long, CURRENT commits 101"),
        "{error}"
    );
    for missing in [
        read_whole(&*place.directory, "none", 9).unwrap_err(),
        read_start(&*place.directory, "none", 9).unwrap_err(),
    ] {
        assert!(matches!(missing, Error::Corrupt { .. }), "{missing}");
    }
}

#[test]
fn what_is_written_whole_is_durable_with_its_name() {
    let place = Place::new();
    place.disk.sync_dir(Path::new("/")).unwrap();
    write_whole(&*place.directory, "small", b"content").unwrap();
    let exists = write_whole(&*place.directory, "small", b"other").unwrap_err();
    assert!(exists.to_string().contains("create"), "{exists}");
    let lost = |place: &Place| {
        let left = place.disk.crash(1, crate::io::sim::CrashMode::KeepNone);
        left.read_file(Path::new("/part/small"))
    };
    assert!(lost(&place).is_err());
    sync(&*place.directory).unwrap();
    assert_eq!(lost(&place).unwrap(), b"content");
}

#[test]
fn behind_the_recorded_length_there_are_zeros_alone() {
    let place = Place::new();
    let long = 200_000;
    let check = |from: usize, at: Option<usize>| {
        let mut content = vec![0; long];
        content[..from].fill(7);
        if let Some(at) = at {
            content[at] = 1;
        }
        let path = Place::path(1);
        drop(place.disk.remove(&path));
        place.disk.write_file(&path, &content).unwrap();
        let name = crate::format::data_file_name(FileNumber(1));
        let file = place.directory.open(&name, OpenMode::ReadDirect).unwrap();
        check_tail(&*file, &path, from as u64, long as u64)
    };
    for from in [0, 1, 4096, 5000, 65_536, 70_000, 199_999] {
        check(from, None).unwrap();
        let places = [from, from + 1, 65_535, 65_536, 131_072, 150_000, long - 1];
        for at in places.into_iter().filter(|at| (from..long).contains(at)) {
            let Error::Corrupt { offset, .. } = check(from, Some(at)).unwrap_err() else {
                panic!("not told as damage");
            };
            assert_eq!(offset, at as u64, "behind {from}");
        }
    }
    // Nothing is behind: nothing is read.
    let file = place.directory.open(
        &crate::format::data_file_name(FileNumber(1)),
        OpenMode::ReadDirect,
    );
    let file = file.unwrap();
    let path = Place::path(1);
    let (checked, reads) = place.counted(|| check_tail(&*file, &path, 4096, 4096));
    assert!(checked.is_ok() && reads == (0, 0));
    // A file that has become shorter than it was measured ends the look.
    place.disk.remove(&path).unwrap();
    place.disk.write_file(&path, &[0; 49_152]).unwrap();
    let file = place.directory.open(
        &crate::format::data_file_name(FileNumber(1)),
        OpenMode::ReadDirect,
    );
    let file = file.unwrap();
    check_tail(&*file, &path, 4096, 1 << 30).unwrap();
}
