//! How are the trainer's own bytes of a checkpoint read back?
//!
//! Invariants:
//! - They may be as long as a file can be. A reader that only verifies them has one piece in memory.
//! - Memory is asked for only after the header was verified and fits the length of the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::pieces::read_exact;
use super::{Ssd, missing};
use crate::error::{Error, Result};
use crate::format::manifest::CheckpointMeta;
use crate::format::meta::{META_HEADER_BYTES, MetaHead, encode_meta_header};
use crate::format::{FileIdentity, FileKind, file_name};
use crate::io::{Directory, DiskFile, OpenMode};
use crate::units::{CheckpointId, FileNumber, to_usize};

/// Bytes read at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// A meta file whose header is verified.
struct MetaFile {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    head: MetaHead,
}

impl Ssd {
    /// The bytes that the trainer gave to a retained checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Corrupt`, `Io`.
    pub fn read_meta(&self, id: CheckpointId) -> Result<Vec<u8>> {
        let checkpoint = self.retained(id)?;
        open(&*self.root, &self.store, &checkpoint)?.read()
    }
}

/// Verifies a checkpoint's meta file, in pieces.
///
/// # Errors
/// `Corrupt`, `Unsupported`, `Io`.
pub(crate) fn check_meta_file(
    root: &dyn Directory,
    store: &[u8; 16],
    checkpoint: &CheckpointMeta,
) -> Result<()> {
    open(root, store, checkpoint)?.check()
}

fn open(root: &dyn Directory, store: &[u8; 16], checkpoint: &CheckpointMeta) -> Result<MetaFile> {
    let name = file_name(FileKind::Meta, checkpoint.meta_number);
    let path = root.path().join(&name);
    let file = root
        .open(&name, OpenMode::Read)
        .map_err(|e| missing(&path, e))?;
    let identity = FileIdentity::new(*store, checkpoint.meta_number);
    let head = read_head(&*file, &path, &identity)?;
    if head.checksum != checkpoint.meta_checksum || head.checkpoint_id != checkpoint.id {
        let what = "not the meta file that the manifest names";
        return Err(Error::corrupt(&path, 0, what));
    }
    Ok(MetaFile { file, path, head })
}

fn read_head(file: &dyn DiskFile, path: &Path, identity: &FileIdentity) -> Result<MetaHead> {
    let bytes = file.bytes().map_err(|e| Error::io("measure", path, e))?;
    let mut header = [0; META_HEADER_BYTES];
    let held = usize::try_from(bytes).map_or(META_HEADER_BYTES, |b| b.min(META_HEADER_BYTES));
    read_exact(file, path, &mut header[..held], 0)?;
    MetaHead::decode(&header[..held], bytes, identity).map_err(|e| e.at(path))
}

impl MetaFile {
    fn read(mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        let bytes = to_usize(self.head.body_bytes);
        body.try_reserve_exact(bytes).map_err(|_| {
            let source = std::io::ErrorKind::OutOfMemory.into();
            Error::io("allocate memory for", &self.path, source)
        })?;
        self.each_piece(|piece| body.extend_from_slice(piece))?;
        Ok(body)
    }

    fn check(mut self) -> Result<()> {
        self.each_piece(|_| ())
    }

    fn each_piece(&mut self, mut take: impl FnMut(&[u8])) -> Result<()> {
        let bytes = self.head.body_bytes;
        let size = to_usize(bytes.min(PIECE_BYTES));
        let mut piece = vec![0; size];
        let mut done = 0;
        while done < bytes {
            let size = to_usize((bytes - done).min(PIECE_BYTES));
            let piece = &mut piece[..size];
            let offset = META_HEADER_BYTES as u64 + done;
            read_exact(&*self.file, &self.path, piece, offset)?;
            self.head.update(piece);
            take(piece);
            done += size as u64;
        }
        self.head.finish().map_err(|e| e.at(&self.path))
    }
}

impl Ssd {
    /// Writes the trainer's bytes of a checkpoint, durably but for the name; gives length and checksum.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`.
    pub(super) fn write_meta(
        &self,
        number: FileNumber,
        checkpoint: CheckpointId,
        body: &[u8],
    ) -> Result<(u64, u64)> {
        let _writing = tracing::debug_span!("meta", bytes = body.len()).entered();
        let name = file_name(FileKind::Meta, number);
        let path = self.root.path().join(&name);
        self.check_root_space(body.len() as u64 + 4096)?;
        let (header, checksum) = encode_meta_header(&self.identity(number), checkpoint, body);
        let full = |e| self.full(&path, body.len() as u64, e);
        let file = self.create_in_root(&name).map_err(full)?;
        let written = file
            .write_at(&header, 0)
            .and_then(|()| file.write_at(body, header.len() as u64));
        if let Err(e) = written {
            self.unlink(&*self.root, &name);
            return Err(full(e));
        }
        let synced = file.sync();
        self.fatal("sync", &path, synced)?;
        Ok(((header.len() + body.len()) as u64, checksum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A file whose body is zeros, as long as is said.
    #[derive(Debug)]
    struct Long {
        header: [u8; META_HEADER_BYTES],
        bytes: u64,
    }

    impl DiskFile for Long {
        fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
            let left = to_usize(self.bytes - offset);
            let held = bytes.len().min(left);
            bytes[..held].fill(0);
            if offset == 0 {
                let head = held.min(META_HEADER_BYTES);
                bytes[..head].copy_from_slice(&self.header[..head]);
            }
            Ok(held)
        }
        fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
        fn bytes(&self) -> io::Result<u64> {
            Ok(self.bytes)
        }
        fn align_bytes(&self) -> usize {
            1
        }
        fn is_direct(&self) -> bool {
            false
        }
        fn raw_fd(&self) -> Option<std::os::fd::RawFd> {
            None
        }
    }

    fn check(file: Long, identity: &FileIdentity) -> Result<()> {
        let path = PathBuf::from("/store/000000000001.meta");
        let head = read_head(&file, &path, identity)?;
        let file = Arc::new(file);
        MetaFile { file, path, head }.check()
    }

    /// A dense model with its optimizer's state is longer than 4 GiB: it was written, and then
    /// nobody could read it.
    #[test]
    fn a_meta_file_of_more_than_4_gib_is_verified_in_pieces() {
        let identity = FileIdentity::new([7; 16], FileNumber(1));
        let body_bytes = (1_u64 << 32) + 4711;
        // Pages of zeros that are only read are none.
        let zeros = vec![0_u8; usize::try_from(body_bytes).unwrap()];
        let (header, _) = encode_meta_header(&identity, CheckpointId(3), &zeros);
        drop(zeros);
        let bytes = META_HEADER_BYTES as u64 + body_bytes;
        check(Long { header, bytes }, &identity).unwrap();
        let bytes = bytes - 1;
        let error = check(Long { header, bytes }, &identity).unwrap_err();
        assert!(error.to_string().contains("another length"), "{error}");
    }

    #[test]
    fn nothing_is_allocated_for_a_length_that_the_header_does_not_say() {
        let identity = FileIdentity::new([7; 16], FileNumber(1));
        let (header, _) = encode_meta_header(&identity, CheckpointId(3), b"four");
        let bytes = u64::MAX / 2;
        let error = check(Long { header, bytes }, &identity).unwrap_err();
        assert!(error.to_string().contains("another length"), "{error}");
    }
}
