//! What stores does the model test make? Tables and options, by a seed.

use super::model::TableModel;
use super::rng::Rng;
use hps::*;

/// Wide rows, so that few of them fill the smallest cache, narrow ones with metadata, and some between.
pub fn descriptors(rng: &mut Rng) -> Vec<TableModel> {
    let (optimizer, dim) = match rng.below(10) {
        0 => (Optimizer::Sgd, 512),
        1 => (Optimizer::Momentum, 256),
        2 => (Optimizer::Nesterov, 256),
        3 => (Optimizer::Adam, 170),
        4 => (Optimizer::Ftrl, 170),
        _ => (Optimizer::Adagrad, 256),
    };
    let wide = TableDescriptor::new("wide", dim)
        .optimizer(optimizer)
        .accumulator(0.1)
        .seed(rng.next());
    let bits = rng.next();
    let narrow = TableDescriptor::new("narrow", 3)
        .optimizer(Optimizer::RowwiseAdagrad)
        .initialiser(Initialiser::Constant { value: 0.25 })
        .metadata(
            RowMetadata::new()
                .show(bits & 1 == 0)
                .click(bits & 2 == 0)
                .count(true)
                .last_step(bits & 4 == 0),
        );
    let (optimizer, dim) = match rng.below(3) {
        0 => (Optimizer::Sgd, 128),
        1 => (Optimizer::Adam, 16),
        _ => (Optimizer::Ftrl, 40),
    };
    let middle = TableDescriptor::new("middle", dim)
        .optimizer(optimizer)
        .accumulator(0.5)
        .seed(rng.next());
    vec![
        TableModel::new(wide, 1000),
        TableModel::new(narrow, 3000),
        TableModel::new(middle, 600),
    ]
}

/// Everything that must not change a value.
pub fn random_options(rng: &mut Rng, background: bool) -> RuntimeOptions {
    let cached = PolicyKind::Cached {
        num_blocks: rng.below(3) as u32,
        target_hit_rate: 0.5,
        max_num_evict: rng.below(6) as u64,
    };
    RuntimeOptions::new()
        .cache_bytes((1 << 20) + rng.below(1 << 18) as u64)
        .shards(1 + rng.below(4))
        .threads(1 + rng.below(2))
        .io_depth(1 + rng.below(8))
        .policy(
            [
                PolicyKind::Bilevel,
                PolicyKind::Lru,
                PolicyKind::Fifo,
                cached,
            ][rng.below(4)],
        )
        .file_bytes(1 << 20)
        .flush_step_rows(30 + rng.below(100))
        .space_bound(1.1 + 0.1 * rng.below(5) as f64)
        .retain_checkpoints(1 + rng.below(4))
        .inline(!background || rng.one_in(4))
        // A few, or as many as there are.
        .open_files_max([0, 0, 1, 3][rng.below(4)])
        .thresholds(Thresholds {
            open_files_least: 1,
            // Puts go past the cache, or the longer ones do.
            straight_rows: [0, 0, 0, 4, 20][rng.below(5)],
            ..Thresholds::default()
        })
}
