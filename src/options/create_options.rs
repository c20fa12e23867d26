//! What is fixed when a store is made?

use std::path::PathBuf;

/// Settings of a new store that hold for as long as there is the store; an open finds them in it.
///
/// ```
/// use hps::CreateOptions;
///
/// let one_per_ssd = vec!["/mnt/ssd-0/clicks".into(), "/mnt/ssd-1/clicks".into()];
/// let options = CreateOptions::new().data_directories(one_per_ssd);
/// assert_eq!(options.data_directories.len(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreateOptions {
    /// Data directories, one per SSD: missing or empty; relative paths are below the store's
    /// directory. Default: `part-0` in the store's directory; at most 256. Their number and order
    /// never change; where they lie later may:
    /// [`RuntimeOptions::moved_directories`](field@crate::RuntimeOptions::moved_directories).
    pub data_directories: Vec<PathBuf>,
}

impl CreateOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> CreateOptions {
        CreateOptions::default()
    }
}
