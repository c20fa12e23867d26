//! When is an index image written, and how does it give its room back?
//!
//! An image is a cache: it takes room that nobody else needs.
//!
//! Invariants:
//! - No rows, meta file or manifest fail for want of room that an image has: it is removed, or the
//!   one being written is broken off, and they are tried once more.
//! - Each time that happens, the next image wants twice as much room beside it: an image that is
//!   written only to be removed is not written again and again.
//! - Lock order: `work`, then `manifest`.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::Ssd;
use super::commit::Captured;
use super::edits::{Commit, ImageRef};
use super::manifest::{ManifestWriter, image_edit};
use crate::error::{ArgumentError, Error, Result};
use crate::format::{FileKind, file_name};
use crate::options::Thresholds;
use crate::sync::Mutex;

/// Most times that the room asked for is doubled.
const DOUBLED_MAX: u32 = 16;

/// No image is more than this part of the bytes flushed since the one before.
const FLUSHED_PART: u64 = 10;

/// The room that images take.
#[derive(Debug, Default)]
pub struct ImageRoom {
    /// Held from the first byte of an image until it is in force, or gone.
    work: Mutex<()>,
    /// Whoever writes an image is to break it off.
    stop: AtomicBool,
    /// An image that was being written when it was asked to stop has ended, one way or the other.
    stopped: AtomicBool,
    in_force_bytes: AtomicU64,
    writing_bytes: AtomicU64,
    /// How often an image gave way.
    gave_way: AtomicU32,
    /// Bytes flushed since the last image that was put in force.
    flushed_bytes: AtomicU64,
    /// Whoever writes an image rests as long as he works: somebody trains, and nobody waits.
    paced: AtomicBool,
}

impl ImageRoom {
    /// With this image in force.
    pub fn new(image: Option<ImageRef>) -> ImageRoom {
        let room = ImageRoom::default();
        room.put_in_force(image);
        room
    }

    /// Bytes of the image in force and of one being written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let in_force = self.in_force_bytes.load(Ordering::Relaxed);
        in_force + self.writing_bytes.load(Ordering::Relaxed)
    }

    /// Says what was flushed since the last image before this process opened the store.
    pub fn begin_flushed(&self, bytes: u64) {
        self.flushed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Notes that rows were flushed.
    pub fn add_flushed(&self, bytes: u64) {
        self.flushed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes flushed since the last image that was put in force.
    pub fn flushed_bytes(&self) -> u64 {
        self.flushed_bytes.load(Ordering::Relaxed)
    }

    /// Whether an image is to be written slowly.
    pub fn pace(&self, paced: bool) {
        self.paced.store(paced, Ordering::Relaxed);
    }

    pub(super) fn is_paced(&self) -> bool {
        self.paced.load(Ordering::Relaxed)
    }

    fn put_in_force(&self, image: Option<ImageRef>) {
        let bytes = image.map_or(0, |image| image.bytes);
        self.in_force_bytes.store(bytes, Ordering::Relaxed);
        self.writing_bytes.store(0, Ordering::Relaxed);
    }
}

/// Whether a new image pays: opening would read many key blocks beside the old one, and images
/// stay a small part of what is written, unless they are small themselves.
pub(super) fn is_due(
    limits: &Thresholds,
    (old_bytes, new_bytes): (u64, u64),
    young_bytes: u64,
    flushed_bytes: u64,
) -> bool {
    let many = old_bytes / limits.image_young_part + limits.image_young_bytes;
    let cheap = new_bytes <= limits.image_small_bytes || flushed_bytes / FLUSHED_PART >= new_bytes;
    young_bytes > many && cheap
}

impl Ssd {
    /// Brings the index image up to a checkpoint that is durable, if it is worth it. The image is a
    /// cache: nobody waits for it, and a failure only leaves the old one in force.
    pub fn refresh_image(&self, captured: &Captured) {
        let _renewing = tracing::debug_span!("image", checkpoint = captured.id.0).entered();
        let work = self.images.work.lock();
        let _work = work.unwrap_or_else(PoisonError::into_inner);
        let flushed_bytes = self.images.flushed_bytes();
        let renew = || match self.renew_image(captured)? {
            Some(image) => {
                self.put_in_force(image)?;
                let flushed = &self.images.flushed_bytes;
                flushed.fetch_sub(flushed_bytes, Ordering::Relaxed);
                Ok(())
            }
            None => Ok(()),
        };
        let result = self.check_writable().and_then(|()| renew());
        self.images.writing_bytes.store(0, Ordering::Relaxed);
        if self.images.stop.load(Ordering::Acquire) {
            self.images.stopped.store(true, Ordering::Release);
        }
        if let Err(error) = result {
            tracing::warn!(%error, "no new index image; the next open reads more key blocks");
        }
    }

    fn put_in_force(&self, image: ImageRef) -> Result<()> {
        let name = file_name(FileKind::Image, image.number);
        let mut manifest = self.manifest();
        self.check_writable()?;
        self.sync_names(&*self.root)?;
        let commit = Commit {
            edits: vec![image_edit(image)],
            recorded: Vec::new(),
        };
        let mut current = manifest.current;
        let roll = manifest.files.is_none();
        let result = if roll {
            // The next checkpoint starts a new manifest; it will make an image again.
            Err(ArgumentError::Other {
                what: String::from("the manifest is to be started afresh"),
            }
            .into())
        } else {
            self.write_edits(&mut manifest, &mut current, &commit, false)
                .and_then(|()| self.write_current(&mut manifest, current))
        };
        if let Err(e) = result {
            // After a rename of unknown outcome nothing is unlinked.
            if self.check_writable().is_ok() {
                self.unlink(&*self.root, &name);
            }
            return Err(e);
        }
        self.images.put_in_force(Some(image));
        if let Some(old) = manifest.image.replace(image) {
            self.unlink(&*self.root, &file_name(FileKind::Image, old.number));
        }
        Ok(())
    }

    /// Fails unless an image that has, or will have, `bytes` leaves room for as much again, and
    /// when it is to be broken off.
    ///
    /// # Errors
    /// `NoSpace`, `Cancelled`, `Io`.
    pub(super) fn check_image_room(&self, written: u64, bytes: u64) -> Result<()> {
        let images = &self.images;
        images.writing_bytes.store(written, Ordering::Relaxed);
        if images.stop.load(Ordering::Acquire) {
            return Err(Error::Cancelled);
        }
        let doubled = images.gave_way.load(Ordering::Relaxed).min(DOUBLED_MAX);
        let asked_bytes = bytes.saturating_sub(written) + bytes.saturating_mul(1 << doubled);
        if self.disk_bytes_max != 0 {
            let usage = self.usage();
            let used_bytes = usage.current_bytes + usage.pinned_bytes + images.bytes();
            if used_bytes.saturating_add(asked_bytes) > self.disk_bytes_max {
                return Err(self.no_root_space(used_bytes, asked_bytes, self.disk_bytes_max));
            }
        }
        self.check_root_space_as_it_is(asked_bytes)
    }

    /// Removes the index image, and breaks off one being written, so that somebody else has their
    /// room; false if there was none. An open reads key blocks instead.
    pub fn take_image_room(&self) -> bool {
        let images = &self.images;
        if self.check_writable().is_err() {
            return false;
        }
        let before = images.gave_way.load(Ordering::Acquire);
        images.stop.store(true, Ordering::Release);
        let work = images.work.lock();
        let _work = work.unwrap_or_else(PoisonError::into_inner);
        images.stop.store(false, Ordering::Release);
        let stopped = images.stopped.swap(false, Ordering::AcqRel);
        let removed = self.remove_image(&mut self.manifest());
        if stopped || removed {
            images.gave_way.fetch_add(1, Ordering::AcqRel);
            tracing::warn!("the index image gave its room to what had none");
        }
        // Perhaps another one made it go meanwhile.
        images.gave_way.load(Ordering::Acquire) != before
    }

    fn remove_image(&self, manifest: &mut ManifestWriter) -> bool {
        if self.check_writable().is_err() {
            return false;
        }
        let Some(image) = manifest.image.take() else {
            return false;
        };
        // The next commit starts a manifest without it; until then one is named that is not there.
        manifest.files = None;
        self.images.put_in_force(None);
        let name = file_name(FileKind::Image, image.number);
        self.unlink(&*self.root, &name);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As docs/decisions/0023 has it, for a million keys: rows flushed per key before an image is
    /// due beside one of the same size.
    #[test]
    fn wide_rows_wait_for_young_keys_and_narrow_ones_for_a_tenth_of_what_is_flushed() {
        let (keys, limits) = (1_000_000, Thresholds::default());
        let image = 16 * keys;
        let due = |row_bytes: u64, per_mille: u64| {
            let flushed = keys * per_mille / 1000;
            is_due(&limits, (image, image), flushed * 12, flushed * row_bytes)
        };
        assert!(!due(546, 660) && due(546, 680));
        assert!(!due(240, 660) && due(240, 680));
        assert!(!due(94, 1700) && due(94, 1710));
        assert!(!due(46, 3470) && due(46, 3480));
        // The first one, and small ones.
        assert!(is_due(&limits, (0, image), 12 * keys, 160 * keys));
        assert!(!is_due(&limits, (0, image), 12 * keys, 159 * keys));
        assert!(!is_due(&limits, (0, 1 << 20), 64 << 10, 0));
        assert!(is_due(&limits, (0, 1 << 20), (64 << 10) + 1, 0));
    }
}
