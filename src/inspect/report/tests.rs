//! Which errors are findings, and which end an inspection?

use std::io;

use super::*;

const PATH: &str = "/store/a/000000000007.rows";

fn read_error(errno: i32) -> Error {
    Error::io("read", Path::new(PATH), io::Error::from_raw_os_error(errno))
}

/// What becomes of an error that is noted as damage, once with a place.
fn noted(unreadable_is_damage: bool, severity: Severity, error: Error) -> Result<Report> {
    let mut report = Report {
        unreadable_is_damage,
        ..Report::default()
    };
    report.note_at(severity, error, Some(8192))?;
    Ok(report)
}

/// The one finding of a report.
fn finding(report: &Report) -> (Severity, Option<u64>, &str) {
    let [only] = &report.findings[..] else {
        panic!("one finding: {:?}", report.findings);
    };
    assert_eq!(only.path, Path::new(PATH));
    (only.severity, only.offset, &only.what)
}

#[test]
fn what_is_wrong_with_the_bytes_is_a_finding() {
    const ENOENT: i32 = 2;
    const EISDIR: i32 = 21;
    for severity in [Severity::Cache, Severity::Damage] {
        let corrupt = Error::corrupt(Path::new(PATH), 77, "checksum");
        let report = noted(false, severity, corrupt).unwrap();
        assert_eq!(finding(&report), (severity, Some(77), "checksum"));
        assert_eq!(report.worst(), Some(severity));
        let report = noted(false, severity, read_error(ENOENT)).unwrap();
        assert_eq!(finding(&report), (severity, None, "missing"));
        let report = noted(false, severity, read_error(EISDIR)).unwrap();
        let (found, offset, what) = finding(&report);
        assert_eq!((found, offset), (severity, None));
        assert!(what.starts_with("not a file of the store: "), "{what}");
    }
    assert_eq!(Report::default().worst(), None);
}

#[test]
fn a_newer_version_of_a_cache_is_a_finding_and_of_anything_else_an_error() {
    let newer = || Error::Unsupported {
        path: PathBuf::from(PATH),
        found: 9,
        supported: 1,
    };
    let report = noted(true, Severity::Cache, newer()).unwrap();
    let expected = (Severity::Cache, None, "of format version 9");
    assert_eq!(finding(&report), expected);
    for severity in [Severity::Leftover, Severity::Damage] {
        let error = noted(true, severity, newer()).unwrap_err();
        assert!(matches!(error, Error::Unsupported { found: 9, .. }));
    }
}

/// A repair copies what can be read; anybody else hears of the device.
#[test]
fn bytes_that_the_device_can_not_give_are_a_finding_for_a_repair_only() {
    const EIO: i32 = 5;
    const EACCES: i32 = 13;
    const ENOMEM: i32 = 12;
    let report = noted(true, Severity::Damage, read_error(EIO)).unwrap();
    let (severity, offset, what) = finding(&report);
    assert_eq!((severity, offset), (Severity::Damage, Some(8192)));
    assert!(what.starts_with("the device can't read it: "), "{what}");
    for (repairs, errno) in [
        (false, EIO),
        (false, ENOMEM),
        (true, EACCES),
        (true, ENOMEM),
    ] {
        let error = noted(repairs, Severity::Damage, read_error(errno)).unwrap_err();
        let Error::Io { source, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(source.raw_os_error(), Some(errno));
    }
    let cancelled = noted(true, Severity::Damage, Error::Cancelled);
    assert!(matches!(cancelled, Err(Error::Cancelled)));
}

#[test]
fn a_data_directory_that_is_not_there_is_a_finding_and_is_listed() {
    for (empty, expected) in [
        (true, "data directory 3 is empty"),
        (false, "data directory 3 is not there"),
    ] {
        let path = PathBuf::from(PATH);
        let missing = Error::MissingDirectory {
            index: 3,
            path: path.clone(),
            empty,
        };
        let report = noted(false, Severity::Damage, missing).unwrap();
        assert_eq!(finding(&report), (Severity::Damage, None, expected));
        let index = 3;
        let listed = MissingDirectory { index, path, empty };
        assert_eq!(report.missing_directories, [listed]);
    }
}
