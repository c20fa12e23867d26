//! How are key blocks read while those before them are used?
//!
//! - A [`Reader`] is a thread that reads what it is asked for, in that order. Whoever asked takes the
//!   bytes when it needs them, and waits only if they have not come by then.
//! - Nobody has to have one: without it everything is read when it is needed.
//! - It ends when all who could ask it are gone.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::data_file::DataFile;
use super::pieces::read_exact;
use crate::error::{Error, Result};
use crate::io::AlignedBuffer;
use crate::sync::thread;

struct Request {
    file: Arc<DataFile>,
    offset: u64,
    bytes: usize,
    buffer: AlignedBuffer,
    answer: Sender<(AlignedBuffer, Result<()>)>,
}

/// Reads ahead.
#[derive(Clone, Debug)]
pub struct Reader {
    requests: Sender<Request>,
}

/// Bytes that were asked for.
#[derive(Debug)]
pub struct Asked {
    answer: Receiver<(AlignedBuffer, Result<()>)>,
}

impl Reader {
    /// Starts the thread; `None` where no thread is to be had.
    pub fn start<'scope>(scope: &'scope thread::Scope<'scope, '_>) -> Option<Reader> {
        let (requests, asked) = channel::<Request>();
        let work = move || {
            for mut request in asked {
                let file = &request.file;
                let bytes = &mut request.buffer[..request.bytes];
                let result = read_exact(&*file.file, &file.path, bytes, request.offset);
                // Nobody waits for it where the open has failed.
                let _gone = request.answer.send((request.buffer, result));
            }
        };
        let thread = thread::Builder::new().name(String::from("hps-open-read"));
        let started = thread.spawn_scoped(scope, work);
        started.ok().map(|_| Reader { requests })
    }

    /// Asks for the bytes at an offset of a file, in a buffer that has as many or more.
    pub fn ask(
        &self,
        file: &Arc<DataFile>,
        offset: u64,
        bytes: usize,
        buffer: AlignedBuffer,
    ) -> Asked {
        let (sender, answer) = channel();
        let request = Request {
            file: Arc::clone(file),
            offset,
            bytes,
            buffer,
            answer: sender,
        };
        // Without its thread the answer says so.
        let _sent = self.requests.send(request);
        Asked { answer }
    }
}

impl Asked {
    /// The buffer, filled.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn take(self, file: &DataFile) -> Result<AlignedBuffer> {
        let (buffer, result) = self.answer.recv().map_err(|_| {
            let ended = std::io::Error::other("the thread that reads ahead has ended");
            Error::io("read", &file.path, ended)
        })?;
        result.map(|()| buffer)
    }
}
