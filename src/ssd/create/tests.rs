//! A create that is begun again where one was cut short.

use super::*;
use crate::io::OpenMode;
use crate::io::sim::{Fault, SimDisk};

const ROOT: &str = "/store";

/// A directory in which a create left these files.
fn left(names: &[&str]) -> SimDisk {
    let (disk, root) = (SimDisk::new(1), Path::new(ROOT));
    disk.create_dir(root).unwrap();
    for name in names {
        disk.open(&root.join(name), OpenMode::Create).unwrap();
    }
    disk
}

fn begin_again(disk: &SimDisk) -> Result<()> {
    let root = Path::new(ROOT);
    create(disk, root, &[], ([1; 16], [2; 16]), Unfinished::BegunAgain).map(drop)
}

#[test]
fn what_a_create_left_is_removed_as_far_as_it_is_there_and_a_failure_is_told() {
    begin_again(&left(&[])).unwrap();
    let leftovers = [CURRENT_NAME, STORE_TEMPORARY_NAME];
    begin_again(&left(&leftovers)).unwrap();
    let disk = left(&leftovers);
    begin_again(&disk).unwrap();
    let calls = disk.calls() - left(&leftovers).calls();
    let mut refused = 0;
    for call in 0..calls {
        let disk = left(&leftovers);
        disk.fail_at(disk.calls() + call, Fault::Error(5), false);
        let Err(error) = begin_again(&disk) else {
            continue;
        };
        refused += usize::from(error.to_string().contains("remove"));
        // What failed once is done the next time, unless it was done.
        let done = |e: &crate::Error| e.to_string().contains("already");
        assert!(begin_again(&disk).err().is_none_or(|e| done(&e)), "{error}");
    }
    let names = root_leftovers().len() + 1;
    assert_eq!(refused, names, "one for each name that may be left");
}
