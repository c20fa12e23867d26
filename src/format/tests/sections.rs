//! Is each single condition of the sections of a parameter file looked at? As in `rules`.

use super::BLOCK_BYTES;
use super::footer::{Footer, Section};
use super::layout::seal;
use super::rules::{footer_of, footer_seed, panics};
use super::samples::{self, identity};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A footer of two runs and two sections, the first one of a block and a byte; where it is.
fn footer_with_sections() -> (Footer, u64) {
    let (mut footer, keys_end) = footer_of(1);
    let section = |kind, offset, bytes| Section {
        kind,
        offset,
        bytes,
        checksum: 7,
    };
    footer.sections = vec![
        section(2, keys_end, BLOCK + 1),
        section(5, keys_end + 2 * BLOCK, BLOCK),
    ];
    (footer, keys_end + 3 * BLOCK)
}

#[test]
fn every_rule_of_a_section_is_checked_alone() {
    let id = identity(samples::ROWS);
    let (footer, offset) = footer_with_sections();
    assert_eq!(footer.keys_end() + 3 * BLOCK, offset);
    let (bytes, sum) = footer.encode(&id, offset);
    assert_eq!(Footer::decode(&bytes, &id, offset), Ok((footer, sum)));
    let refused = |change: &dyn Fn(&mut Vec<Section>)| {
        let (mut footer, offset) = footer_with_sections();
        change(&mut footer.sections);
        panics(|| footer.encode(&id, offset))
    };
    assert!(!refused(&|_| {}));
    assert!(!refused(&|all| all[1].kind = u32::MAX));
    assert!(!refused(&|all| all[0].checksum = 0), "of its bytes alone");
    assert!(!refused(&|all| all[1].bytes = 1) && !refused(&|all| all[0].bytes = 2 * BLOCK));
    assert!(refused(&|all| all[0].kind = 0), "no kind");
    assert!(refused(&|all| all[1].kind = 2), "a kind twice");
    assert!(refused(&|all| all.swap(0, 1)), "out of order");
    assert!(
        refused(&|all| all[0].bytes = 0) && refused(&|all| all[1].bytes = 0),
        "empty"
    );
    assert!(refused(&|all| all[0].bytes = BLOCK) && refused(&|all| all[1].bytes = BLOCK + 1));
    assert!(refused(&|all| all[1].bytes = u64::MAX), "beyond all files");
    assert!(refused(&|all| all[0].offset += 8) && refused(&|all| all[1].offset -= BLOCK));
    assert!(refused(&|all| all.truncate(1)), "a gap before the footer");
    // On disk, under a right checksum: the number of sections, the zeros after it, and what each says.
    let (sections, at) = (80, 88 + 2 * 40);
    for field in [
        sections,
        sections + 4,
        at,
        at + 4,
        at + 8,
        at + 17,
        at + 32,
        at + 48,
    ] {
        let mut wrong = bytes.clone();
        wrong[field] ^= match field {
            // No kind, and one that is there already.
            field if field == at => 2,
            field if field == at + 32 => 7,
            _ => 0x31,
        };
        seal(&mut wrong, footer_seed(offset));
        assert!(Footer::decode(&wrong, &id, offset).is_err(), "byte {field}");
    }
}

#[test]
fn a_footer_has_up_to_64_sections() {
    let id = identity(samples::ROWS);
    let encode = |count: u32| {
        let (mut footer, mut offset) = footer_of(1);
        for kind in 1..=count {
            footer.sections.push(Section {
                kind,
                offset,
                bytes: 1,
                checksum: 0,
            });
            offset += BLOCK;
        }
        let (bytes, sum) = footer.encode(&id, offset);
        assert_eq!(Footer::decode(&bytes, &id, offset), Ok((footer, sum)));
    };
    encode(64);
    assert!(panics(|| encode(65)));
}
