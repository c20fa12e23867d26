//! How much may be written before there is no room, and what is said then.

use super::*;
use crate::ssd::tests::tier::{flush, made, opened};

/// Used, asked and limit of a refusal, and the directory that it names.
fn refusal(result: Result<()>) -> (u64, u64, u64, String) {
    let Err(Error::NoSpace {
        path,
        used_bytes,
        asked_bytes,
        limit_bytes,
    }) = result
    else {
        panic!("{result:?}");
    };
    let path = path.to_string_lossy().into_owned();
    (used_bytes, asked_bytes, limit_bytes, path)
}

#[test]
fn a_limit_that_is_given_holds_for_all_directories_together_with_what_is_kept_back() {
    let (disk, ssd) = made(2);
    drop(ssd);
    let ssd = opened(&disk, |request| request.disk_bytes_max = 100_000).unwrap();
    let bytes: u64 = (0..2).map(|d| flush(&ssd, d, 0..100).meta.bytes).sum();
    for directory in [0, 1] {
        let check = |asked, reserve| ssd.check_space_as_it_is(directory, asked, reserve);
        let left = 100_000 - bytes;
        check(left, 0).unwrap();
        check(left - 7, 7).unwrap();
        check(0, left).unwrap();
        let part = format!("/store/d{directory}");
        let expected = (bytes, left - 6, 100_000, part.clone());
        assert_eq!(refusal(check(left - 6, 7)), expected);
        assert_eq!(refusal(check(0, left + 1)), (bytes, 0, 100_000, part));
        assert!(ssd.check_space(directory, left, 0).is_ok());
        refusal(ssd.check_space(directory, left + 1, 0));
    }
}

#[test]
fn without_a_limit_each_directory_has_85_percent_of_its_file_system() {
    let (disk, ssd) = made(2);
    let bytes = flush(&ssd, 0, 0..100).meta.bytes;
    disk.set_capacity(1_000_099);
    let limit = 850_000;
    let check = |directory, asked, reserve| ssd.check_space_as_it_is(directory, asked, reserve);
    check(0, 1000, limit - 1000 - bytes).unwrap();
    check(1, 1000, limit - 1000).unwrap();
    let part = |n| format!("/store/d{n}");
    let over = refusal(check(0, 1000, limit - 999 - bytes));
    assert_eq!(over, (bytes, 1000, limit, part(0)));
    let over = refusal(check(1, 1000, limit - 999));
    assert_eq!(over, (0, 1000, limit, part(1)));
    // What others have written there counts too.
    let space = disk.space().unwrap();
    let others = space.free_bytes - 500_000;
    disk.write_file(
        Path::new("/others"),
        &vec![0; usize::try_from(others).unwrap()],
    )
    .unwrap();
    let free = disk.space().unwrap().free_bytes;
    check(1, free, 0).unwrap();
    let over = refusal(check(1, free + 1, 0));
    let used = disk.space().unwrap().total_bytes - free;
    assert_eq!(over, (used, free + 1, free, part(1)));
    ssd.check_root_space(free).unwrap();
    let over = refusal(ssd.check_root_space(free + 1));
    assert_eq!(over, (used, free + 1, free, String::from("/store")));
}

#[test]
fn a_write_that_has_no_room_names_its_directory_and_another_error_its_file() {
    let (disk, ssd) = made(2);
    disk.set_capacity(1 << 20);
    let space = disk.space().unwrap();
    let used = space.total_bytes - space.free_bytes;
    let full = |path: &str, errno| {
        let error = io::Error::from_raw_os_error(errno);
        ssd.full(Path::new(path), 77, error)
    };
    for (path, directory) in [
        ("/store/d1/000000000001.rows", "/store/d1"),
        ("/store/000000000001.meta", "/store"),
    ] {
        for errno in [28, 122] {
            let expected = (used, 77, space.free_bytes, String::from(directory));
            assert_eq!(refusal(Err(full(path, errno))), expected);
        }
        let error = full(path, 5);
        assert!(error.to_string().contains(path), "{error}");
        assert!(matches!(error, Error::Io { .. }), "{error}");
    }
    let told = refusal(Err(ssd.no_root_space(1, 2, 3)));
    assert_eq!(told, (1, 2, 3, String::from("/store")));
}
