//! Do offsets beyond 2^32 find their place? Arrays of more than 4 GiB that are not there: the kernels are given
//! an address so far before a small allocation that the one element they touch lies in it. An offset that
//! is cut to 32 bits leads elsewhere, where the emulator's memory is not.

#![expect(clippy::unwrap_used, reason = "used by tests")]

use super::super::args::{Address, IndexArgs, Plain, RowsArgs, UpdateArgs};
use super::super::emulator::{Emulator, Faults};
use super::super::index::sector_of;
use super::super::launcher::{Launcher, Memory, Stream};
use super::super::shape::SMALL_BYTES;

const TRAIN: Stream = Stream::Train;
/// The last row of the largest arena.
const ROW: u32 = u32::MAX - 2;
const ROWS_MAX: u32 = u32::MAX - 1;
/// The last position of the largest batch.
const POSITION: u32 = (1 << 30) - 1;
/// As in common.cu.
const LEFT_OUT: u32 = 1 << 31;

/// Sectors of an index that no memory holds.
const SECTORS: u64 = 1 << 33;

/// A key whose entry lies beyond 2^32 sectors, and where.
fn far_key() -> (u64, u64) {
    let sectors = usize::try_from(SECTORS).unwrap();
    let keys = (0..).map(|key| (key, sector_of(key, sectors) as u64));
    let mut far = keys.filter(|(_, sector)| *sector > 1 << 32);
    far.next().unwrap()
}

/// A device, and a few bytes at a mocked place.
struct Far {
    device: Emulator,
    status: Address,
}

impl Far {
    fn new() -> Far {
        let mut device = Emulator::new(1, Faults::default());
        let status = device.allocate(Memory::Device, SMALL_BYTES).unwrap();
        device.fill(TRAIN, status, 0, SMALL_BYTES).unwrap();
        Far { device, status }
    }

    fn take<T: Plain>(&mut self, values: &[T]) -> Address {
        let bytes = size_of_val(values);
        let at = self.device.allocate(Memory::Device, bytes).unwrap();
        self.device.write(TRAIN, at, values).unwrap();
        at
    }

    fn read<T: Plain + Default>(&mut self, at: Address, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        self.device.read(TRAIN, at, &mut values).unwrap();
        values
    }

    /// No call was refused.
    fn check(&mut self) {
        let status = self.status;
        assert_eq!(self.read::<u64>(status, 1), [0]);
    }
}

/// Where an array begins whose element so many bytes on is at this address.
fn before(at: Address, bytes: u64) -> Address {
    Address(at.0.wrapping_sub(bytes))
}

fn arena_of(row: Address, stride: u32) -> Address {
    before(row, u64::from(ROW) * u64::from(stride) * 4)
}

#[test]
fn rows_of_the_last_number_are_placed_read_and_packed() {
    for (width, stride, shape) in [
        (4u32, 4u32, "wide4"),
        (32, 32, "wide8"),
        (64, 64, "wide16"),
        (24576, 24576, "wide32"),
        (3, 4, "word4"),
        (8193, 8196, "word32"),
    ] {
        let mut far = Far::new();
        let words = stride as usize;
        let row = far.take(&vec![0f32; words]);
        let dirty = far.take(&[1u8]);
        let values: Vec<f32> = (0..width).map(|c| c as f32 + 0.5).collect();
        let packed = far.take(&values);
        let rows = far.take(&[ROW]);
        let one = far.take(&[1u64]);
        let (key, sector) = far_key();
        // Both entries of the sector.
        let entry = far.take(&[key, u64::from(ROW), u64::MAX, u64::MAX]);
        let out = far.take(&vec![0f32; width as usize]);
        let keys = far.take(&[key]);
        let args = RowsArgs {
            status: far.status,
            call: 1,
            arena: arena_of(row, stride),
            dirty: before(dirty, u64::from(ROW)),
            entries: before(entry, sector * 32),
            sectors: SECTORS,
            keys,
            rows,
            packed,
            count: one,
            n: 1,
            rows_max: ROWS_MAX,
            width,
            stride,
        };
        let name = |operation: &str| {
            let name = format!("{operation}_{shape}");
            super::NAMES
                .iter()
                .copied()
                .find(|known| *known == name)
                .unwrap()
        };
        far.device.launch(TRAIN, "check_rows", 1, &args).unwrap();
        far.device.launch(TRAIN, name("place"), 1, &args).unwrap();
        far.check();
        assert_eq!(
            far.read::<f32>(row, width as usize),
            values,
            "{shape}: placed"
        );
        assert_eq!(far.read::<u8>(dirty, 1), [0], "{shape}");
        let args = RowsArgs {
            packed: out,
            ..args
        };
        far.device.launch(TRAIN, name("get"), 1, &args).unwrap();
        far.check();
        assert_eq!(far.read::<f32>(out, width as usize), values, "{shape}: get");
        far.device
            .write(TRAIN, out, &vec![0f32; width as usize])
            .unwrap();
        far.device.launch(TRAIN, name("pack"), 1, &args).unwrap();
        assert_eq!(
            far.read::<f32>(out, width as usize),
            values,
            "{shape}: packed"
        );
    }
}

#[test]
fn a_key_in_the_last_sectors_is_inserted_and_found() {
    let mut far = Far::new();
    let (key, sector) = far_key();
    let none = [u64::MAX; 4];
    let entry = far.take(&none);
    let (keys, rows) = (far.take(&[key]), far.take(&[ROW]));
    let (counts, found) = (far.take(&[0u64; 2]), far.take(&[0u32]));
    let args = IndexArgs {
        status: far.status,
        call: 1,
        entries: before(entry, sector * 32),
        sectors: SECTORS,
        keys,
        rows,
        counts,
        found,
        long_count: far.status.plus(128),
        n: 1,
        rows_max: ROWS_MAX,
        ..IndexArgs::default()
    };
    far.device.launch(TRAIN, "insert", 1, &args).unwrap();
    assert_eq!(far.read::<u64>(counts, 2), [1, 0]);
    far.device.launch(TRAIN, "rows_of", 1, &args).unwrap();
    far.check();
    assert_eq!(far.read::<u32>(found, 1), [ROW]);
}

/// The gradient of the last position of a batch at dim 8192 lies 32 TiB behind the first. One that is not finite is
/// flagged, and changes nothing; one block does it all.
#[test]
fn the_last_position_of_the_widest_batch_is_found() {
    for (rule, dim) in [
        ("sgd_wide32", 8192u32),
        ("sgd_word16", 8191),
        ("rowwise", 8192),
    ] {
        let mut far = Far::new();
        let stride = 8196;
        let row = far.take(&vec![1f32; stride as usize]);
        let mut values = vec![2f32; dim as usize];
        values[dim as usize - 1] = f32::NAN;
        let gradient = far.take(&values);
        let (rows, positions) = (far.take(&[ROW]), far.take(&[POSITION]));
        let dirty = far.take(&[0u8]);
        let args = UpdateArgs {
            status: far.status,
            call: 1,
            rows,
            positions,
            gradients: before(gradient, u64::from(POSITION) * u64::from(dim) * 4),
            arena: arena_of(row, stride),
            dirty: before(dirty, u64::from(ROW)),
            long_count: far.status.plus(128),
            n: 1,
            dim,
            stride,
            metadata_at: dim,
            skip: 1,
            lr: 0.25,
            ..UpdateArgs::default()
        };
        let look_and_step = |far: &mut Far| {
            far.device
                .launch(TRAIN, "flag_gradients", 1, &args)
                .unwrap();
            far.device.launch(TRAIN, rule, 1, &args).unwrap();
            far.check();
            far.read::<u32>(positions, 1)[0]
        };
        assert_eq!(look_and_step(&mut far), POSITION | LEFT_OUT, "{rule}");
        assert_eq!(far.read::<u32>(args.long_count.plus(8), 1), [1], "{rule}");
        assert_eq!(
            far.read::<u64>(far.status.plus(32), 1),
            [1],
            "{rule}: left out"
        );
        assert_eq!(far.read::<f32>(row, 1), [1.0], "{rule}");
        assert_eq!(far.read::<u8>(dirty, 1), [0], "{rule}");
        far.device.write(TRAIN, positions, &[POSITION]).unwrap();
        far.device
            .write(TRAIN, gradient, &vec![2f32; dim as usize])
            .unwrap();
        assert_eq!(look_and_step(&mut far), POSITION, "{rule}");
        let found = far.read::<f32>(row, dim as usize);
        assert!(
            found.iter().all(|weight| *weight < 1.0),
            "{rule}: {:?}",
            &found[..4]
        );
        assert_eq!(far.read::<u8>(dirty, 1), [1], "{rule}");
    }
}

/// A grid of one block takes giant runs, other long ones and short ones.
#[test]
fn one_block_takes_all_runs() {
    for lengths in [[700usize, 256, 1], [1, 600, 1200], [300, 1, 2]] {
        let mut far = Far::new();
        let (dim, n) = (8u32, lengths.iter().sum::<usize>());
        let arena = far.take(&[1f32; 24]);
        let dirty = far.take(&[0u8; 3]);
        let rows: Vec<u32> = (0u32..3)
            .flat_map(|row| vec![row; lengths[row as usize]])
            .collect();
        let positions: Vec<u32> = (0..u32::try_from(n).unwrap()).collect();
        let longs = n / 256;
        let args = UpdateArgs {
            status: far.status,
            call: 1,
            rows: far.take(&rows),
            positions: far.take(&positions),
            looked_at: far.take(&positions),
            gradients: far.take(&vec![0.5f32; n * 8]),
            arena,
            dirty,
            long_count: far.status.plus(128),
            long_starts: far.take(&vec![0u32; longs]),
            long_sums: far.take(&vec![0f32; longs * 8]),
            long_extra: far.take(&vec![0u32; longs * 2]),
            n: u32::try_from(n).unwrap(),
            dim,
            stride: dim,
            metadata_at: dim,
            skip: 1,
            looks: 1,
            lr: 1.0,
            ..UpdateArgs::default()
        };
        far.device.launch(TRAIN, "find_long", 1, &args).unwrap();
        far.device.launch(TRAIN, "sgd_wide4", 1, &args).unwrap();
        far.check();
        let expected = lengths.map(|length| 1.0 - length as f32 / 2.0);
        let expected: Vec<f32> = expected.iter().flat_map(|weight| [*weight; 8]).collect();
        assert_eq!(far.read::<f32>(arena, 24), expected, "{lengths:?}");
        assert_eq!(far.read::<u8>(dirty, 3), [1; 3], "{lengths:?}");
    }
}
