//! Which files has a sparse model folder of HugeCTR, and what looks like one and is none?
//!
//! - `key` int64 `[N]`, `emb_vector` f32 `[N, D]`, `slot_id` u64 `[N]` of localized embeddings, state f32
//!   `[N, D]`; without headers. D stands nowhere.
//! - Momentum and Nesterov hold `-lr * v` there, where ours is `v`. All other state is the same to the bit.

use std::path::Path;

use hps::Optimizer;

use super::CONVENTIONAL;

/// Keys.
pub const KEY: &str = "key";
/// Weights.
pub const WEIGHTS: &str = "emb_vector";
/// Slots of localized embeddings.
pub const SLOT: &str = "slot_id";

/// A file of optimizer state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateFile {
    /// Its name.
    pub name: &'static str,
    /// The column of ours.
    pub column: &'static str,
    /// Whether it holds `-lr` times ours.
    pub is_scaled: bool,
}

const fn file(name: &'static str, column: &'static str) -> StateFile {
    StateFile {
        name,
        column,
        is_scaled: false,
    }
}

const fn scaled(name: &'static str) -> StateFile {
    StateFile {
        name,
        column: "v",
        is_scaled: true,
    }
}

/// The state files of each optimizer that HugeCTR has. (`momtentum` is the real name.)
pub const STATE: &[(Optimizer, &[StateFile])] = &[
    (Optimizer::Momentum, &[scaled("MomentumSGD.momtentum")]),
    (Optimizer::Nesterov, &[scaled("Nesterov.accm")]),
    (Optimizer::Adagrad, &[file("AdaGrad.accm", "a")]),
    (Optimizer::Adam, &[file("Adam.m", "m"), file("Adam.v", "v")]),
    (Optimizer::Ftrl, &[file("Ftrl.z", "z"), file("Ftrl.n", "n")]),
];

/// The state files of an optimizer; of one without state, or that HugeCTR lacks, none.
#[must_use]
pub fn state_files(optimizer: Optimizer) -> &'static [StateFile] {
    let found = STATE.iter().find(|(of, _)| *of == optimizer);
    found.map_or(&[], |(_, files)| files)
}

/// Why a path is a file or folder of HugeCTR's that can't be imported.
#[must_use]
pub fn why_refused(path: &Path) -> Option<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.contains("_opt_sparse_") {
        return Some(format!(
            "{}: HugeCTR's optimizer state outside of its training cache: whole tensors of each GPU without keys, \
             which fit only the GPUs that they come from; import the sparse model folder, whose rows then \
             begin with the state of a key never pushed",
            path.display()
        ));
    }
    let collection = |path: &Path| {
        let is_named = path.file_name().is_some_and(|name| {
            let name = name.to_string_lossy();
            name.starts_with("embedding_collection_")
        });
        is_named || (path.join("meta_data").is_file() && path.join("key0").is_file())
    };
    let below = || {
        let entries = std::fs::read_dir(path).ok()?;
        let mut entries = entries.flatten().map(|entry| entry.path());
        entries.find(|entry| collection(entry))
    };
    let found = if collection(path) {
        Some(path.to_path_buf())
    } else {
        below()
    };
    found.map(|found| {
        format!(
            "{}: a dump of an embedding collection, which has no optimizer state, and whose weights HugeCTR writes \
             to wrong places where several processes write; {CONVENTIONAL}",
            found.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::columns::state_of;

    #[test]
    fn state_files_are_whole_columns_of_the_optimizer() {
        for (optimizer, files) in STATE {
            let columns = state_of(*optimizer, 6);
            for file in *files {
                let column = columns.iter().find(|(name, _)| *name == file.column);
                assert_eq!(column.map(|c| c.1), Some(6), "{optimizer:?} {file:?}");
            }
        }
        assert!(state_files(Optimizer::Sgd).is_empty());
        assert!(state_files(Optimizer::RowwiseAdagrad).is_empty());
    }

    #[test]
    fn files_that_look_like_a_model_are_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let of = |path: &Path| why_refused(path).unwrap_or_default();
        assert!(of(&root.join("wdl0_opt_sparse_2000.model")).contains("without keys"));
        assert_eq!(of(&root.join("wdl0_sparse_2000.model")), "");
        let dump = root.join("dump/embedding_collection_0");
        std::fs::create_dir_all(&dump).unwrap();
        assert!(of(&dump).contains("no optimizer state"));
        assert!(of(&root.join("dump")).contains("embedding_collection_0: a dump"));
        let renamed = root.join("renamed");
        std::fs::create_dir_all(&renamed).unwrap();
        for name in ["meta_data", "key0", "weight0"] {
            std::fs::write(renamed.join(name), b"").unwrap();
        }
        assert!(of(&renamed).contains("a dump"));
    }
}
