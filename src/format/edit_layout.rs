//! Which bytes does the payload of each edit have?
//!
//! - Structures of a version stay as they are; a change gets a structure of its own.

use zerocopy::little_endian::{F32, U32, U64};

use super::layout::layout;

layout! {
    /// Payload of edit 1.
    TimelineEdit = 24 {
        uuid: [u8; 16],
        parent_checkpoint: U64,
    }
}

layout! {
    /// Payload of edit 3.
    FileEdit = 104 {
        number: U64,
        rank: U64,
        bytes: U64,
        footer_offset: U64,
        footer_checksum: U64,
        rows: U64,
        tombstones: U64,
        hash_min: U64,
        hash_max: U64,
        added: U64,
        removed: U64,
        directory: U32,
        interval_min: U32,
        interval_max: U32,
        zero: U32,
    }
}

layout! {
    /// Payload of edit 4.
    RemoveEdit = 16 {
        number: U64,
        removed: U64,
    }
}

layout! {
    /// Payload of edits 5 and 8: a file number, a checkpoint id.
    NumberEdit = 8 {
        number: U64,
    }
}

layout! {
    /// Payload of edit 6.
    ImageEdit = 24 {
        number: U64,
        bytes: U64,
        image_checksum: U64,
    }
}

layout! {
    /// Payload of edit 7.
    CheckpointEditV1 = 88 {
        id: U64,
        step: U64,
        next_rank: U64,
        meta_number: U64,
        meta_bytes: U64,
        meta_checksum: U64,
        unix_seconds: U64,
        interval: U32,
        momentum: F32,
        epsilon: F32,
        beta1: F32,
        beta2: F32,
        ftrl_beta: F32,
        lambda1: F32,
        lambda2: F32,
    }
}

layout! {
    /// Payload of edit 9.
    CheckpointEdit = 64 {
        id: U64,
        step: U64,
        next_rank: U64,
        meta_number: U64,
        meta_bytes: U64,
        meta_checksum: U64,
        unix_seconds: U64,
        interval: U32,
        zero: U32,
    }
}

layout! {
    /// Payload of edit 10.
    HyperEdit = 32 {
        table: U32,
        momentum: F32,
        epsilon: F32,
        beta1: F32,
        beta2: F32,
        ftrl_beta: F32,
        lambda1: F32,
        lambda2: F32,
    }
}

layout! {
    /// Payload of edit 11.
    DropTableEdit = 16 {
        table: U32,
        zero: U32,
        dropped: U64,
    }
}

layout! {
    /// Payload of edit 12; the name follows.
    RenameTableEdit = 16 {
        table: U32,
        name_bytes: U32,
        renamed: U64,
    }
}

layout! {
    /// Payload of edit 13; the name follows.
    CursorEdit = 16 {
        checkpoint: U64,
        name_bytes: U32,
        interval: U32,
    }
}

layout! {
    /// Payload of edit 14.
    SnapshotEdit = 32 {
        directory: U32,
        zero: U32,
        number: U64,
        bytes: U64,
        snapshot_checksum: U64,
    }
}
