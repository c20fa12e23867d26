//! Are rows read and changed by position as they are by key, and every bit of theirs taken?

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::path::Path;

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use small::{invalid, options, sgd};

const ROOT: &str = "/store";
const DIM: usize = 5;

fn table() -> TableDescriptor {
    TableDescriptor::new("t", DIM)
        .optimizer(Optimizer::Adagrad)
        .metadata(RowMetadata::new().show(true).count(true))
}

fn create(disk: &Io, shards: usize, non_finite: NonFinite) -> Store {
    let options = options()
        .cache_bytes(4 << 20)
        .shards(shards)
        .non_finite(non_finite);
    Store::create_on(disk.clone(), Path::new(ROOT), CreateOptions::new(), options).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn all_rows(lease: &Lease, width: usize) -> Vec<f32> {
    let mut out = vec![0.0; lease.len() * width];
    lease.read_rows(&mut out).unwrap();
    out
}

/// Keys with duplicates, and positions of them: rising, falling, random, doubled.
fn keys_and_positions() -> (Vec<u64>, Vec<Vec<u32>>) {
    let keys: Vec<u64> = (0..900).map(|i| mix64(i % 700)).collect();
    let at = |i: u64| u32::try_from(mix64(i) % 900).unwrap();
    let positions = vec![
        (0..900).collect(),
        (0..900).step_by(7).collect(),
        (0..900).rev().collect(),
        (0..400).map(at).collect(),
        vec![899, 0, 899, 899, 1],
        vec![3],
        vec![],
    ];
    (keys, positions)
}

#[test]
fn rows_at_positions_are_those_of_the_whole_lease() {
    for shards in [1, 5] {
        let store = create(&Io::of(SimDisk::new(1)), shards, NonFinite::Skip);
        let (t, u) = (
            store.create_table(&table()).unwrap(),
            store.create_table(&sgd("u", 3)).unwrap(),
        );
        let (keys, choices) = keys_and_positions();
        let mut weights = vec![0.0; keys.len() * DIM];
        let lease = store.pull(t, &keys, &mut weights).unwrap();
        let gradients: Vec<f32> = (0..weights.len()).map(|i| i as f32 / 64.0).collect();
        let shows: Vec<u32> = (0..900).collect();
        let update = Update::gradients(&gradients, 0.1).shows_clicks(&shows, &shows);
        store.push(&lease, update).unwrap();
        let width = table().row_f32s();
        let whole = all_rows(&lease, width);
        let few = PrefetchPart::new(u, &keys[..10]);
        let parts = [few, PrefetchPart::new(t, &keys), few];
        let several = store.prefetch_many(&parts).unwrap().wait().unwrap();
        for positions in choices {
            let mut found = vec![0.0; positions.len() * width];
            lease.read_rows_at(&positions, &mut found).unwrap();
            let expected = positions.iter().flat_map(|p| {
                let from = *p as usize * width;
                whole[from..from + width].iter().map(|v| v.to_bits())
            });
            let expected: Vec<u32> = expected.collect();
            assert_eq!(bits(&found), expected, "{shards} shards");
            found.fill(-1.0);
            let part = several.parts().nth(1).unwrap();
            part.read_rows_at(&positions, &mut found).unwrap();
            assert_eq!(bits(&found), expected, "{shards} shards, a part");
        }
        let far = invalid(
            lease
                .read_rows_at(&[0, 900], &mut vec![0.0; 2 * width])
                .unwrap_err(),
        );
        let expected = ArgumentError::Position {
            position: 900,
            index: 1,
            rows: 900,
        };
        assert_eq!(far, expected);
        assert!(lease.read_rows_at(&[0], &mut [0.0; 3]).is_err());
    }
}

/// An update at positions does what a push to a lease of these keys does, in their order.
#[test]
fn an_update_at_positions_is_an_update_of_their_keys() {
    let (keys, choices) = keys_and_positions();
    let width = table().row_f32s();
    let [one, other] = [3, 1].map(|shards| {
        let store = create(&Io::of(SimDisk::new(2)), shards, NonFinite::Skip);
        let id = store.create_table(&table()).unwrap();
        (store, id)
    });
    let kinds: [fn(&[f32]) -> Update<'_>; 3] = [
        |values| Update::gradients(values, 0.1),
        |values| Update::deltas(values),
        |values| Update::weights(values),
    ];
    for (round, positions) in choices.iter().enumerate() {
        for (k, kind) in kinds.iter().enumerate() {
            let value = |i: usize| ((i * 13 + round) % 128) as f32 / 128.0 - 0.5;
            let mut values: Vec<f32> = (0..positions.len() * DIM).map(value).collect();
            if let Some(first) = values.get_mut(DIM) {
                *first = f32::INFINITY; // Left out, of the second position.
            }
            let shows: Vec<u32> = (0..5).cycle().take(positions.len()).collect();
            let update = kind(&values).shows_clicks(&shows, &shows);
            let mut weights = vec![0.0; keys.len() * DIM];
            let (store, id) = &one;
            let lease = store.pull(*id, &keys, &mut weights).unwrap();
            let report = store.push(&lease, update.at(positions)).unwrap();
            let found = all_rows(&lease, width);

            let chosen: Vec<u64> = positions.iter().map(|p| keys[*p as usize]).collect();
            let (store, id) = &other;
            let lease = store.prefetch(*id, &chosen).unwrap().wait().unwrap();
            assert_eq!(store.push(&lease, update).unwrap(), report, "{round}, {k}");
            let lease = store.pull(*id, &keys, &mut weights).unwrap();
            let expected = all_rows(&lease, width);
            assert_eq!(bits(&found), bits(&expected), "{round}, {k}");
        }
    }
}

/// A push of no positions, or of none that counts, made `has_changes` true, and a store that held
/// nothing new could not be closed.
#[test]
fn a_push_that_changes_no_row_is_no_change() {
    let store = create(&Io::of(SimDisk::new(4)), 1, NonFinite::Skip);
    let t = store.create_table(&table()).unwrap();
    let mut weights = [0.0; 2 * DIM];
    let lease = store.pull(t, &[1, 2], &mut weights).unwrap();
    let bad = [f32::NAN; 2 * DIM];
    for update in [Update::deltas(&[]).at(&[]), Update::weights(&bad)] {
        assert_eq!(store.push(&lease, update).unwrap().rows, 0);
        assert!(!store.has_changes());
    }
    let parts = [PushPart::new(t, Update::deltas(&weights).at(&[0, 1]))];
    assert_eq!(store.push_many(&lease, &parts).unwrap()[0].rows, 2);
    assert!(store.has_changes());
    store.close_discarding();
}

#[test]
fn verbatim_takes_every_bit_pattern_and_it_survives() {
    for non_finite in [NonFinite::Reject, NonFinite::Skip, NonFinite::Apply] {
        let disk = Io::of(SimDisk::new(3));
        let store = create(&disk, 2, non_finite);
        let t = store.create_table(&table()).unwrap();
        let width = table().row_f32s();
        let keys: Vec<u64> = (0..300).map(mix64).collect();
        let mut weights = vec![0.0; keys.len() * DIM];
        let lease = store.pull(t, &keys, &mut weights).unwrap();
        // Quiet and signalling NaNs with payloads, infinities, subnormal numbers, -0.
        let odd = [
            0x7fc1_2345,
            0x7f80_0001,
            0xffff_ffff,
            0x7f80_0000,
            0xff80_0000,
            0x8000_0000,
            1,
        ];
        let pattern = |i: usize| f32::from_bits(odd[i % odd.len()]);
        let rows: Vec<f32> = (0..keys.len() * width).map(pattern).collect();
        let report = store.push(&lease, Update::rows(&rows).verbatim()).unwrap();
        assert_eq!((report.rows, report.non_finite), (300, 0));
        assert_eq!(bits(&all_rows(&lease, width)), bits(&rows));
        let weights: Vec<f32> = (0..20 * DIM).map(|i| pattern(i + 3)).collect();
        let positions: Vec<u32> = (100..120).collect();
        let update = Update::weights(&weights).verbatim().at(&positions);
        assert_eq!(store.push(&lease, update).unwrap().non_finite, 0);
        let whole = all_rows(&lease, width);
        for (i, row) in whole[100 * width..120 * width].chunks(width).enumerate() {
            assert_eq!(bits(&row[..DIM]), bits(&weights[i * DIM..(i + 1) * DIM]));
        }
        // What is computed with is no pattern.
        for update in [Update::gradients(&weights, 0.1), Update::deltas(&weights)] {
            let error = invalid(
                store
                    .push(&lease, update.at(&positions).verbatim())
                    .unwrap_err(),
            );
            assert!(error.to_string().contains("verbatim"), "{error}");
        }
        // Without it the options decide.
        let plain = store.push(&lease, Update::weights(&weights).at(&positions));
        assert_eq!(plain.is_err(), non_finite == NonFinite::Reject);
        let now = all_rows(&lease, width);
        assert_eq!(store.stats().non_finite, plain.map_or(0, |r| r.non_finite));
        drop(lease);
        store.checkpoint(1, &[]).unwrap();
        store.close().unwrap();
        let store = Store::open_on(disk, Path::new(ROOT), options()).unwrap();
        let lease = store.prefetch(t, &keys).unwrap().wait().unwrap();
        assert_eq!(bits(&all_rows(&lease, width)), bits(&now));
    }
}
