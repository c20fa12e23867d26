//! Is an index written while it is read? Two streams are ordered only where the caller says so.
//!
//! Invariants:
//! - A clock per stream counts its calls; what a stream is known to come after is a pair of clocks.
//! - A read of an index must come after its last write; a write after its last write and all its reads.

use super::Index;
use super::shape::option;
use super::streams::{GraphId, Stream};
use crate::error::{ArgumentError, Result};

/// How far each stream has come.
type Clock = [u64; 2];

#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    /// The clock of each stream at its last write, and at its last read; 0: never.
    written: Clock,
    read: Clock,
}

/// The order of calls, as far as the caller has asked for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clocks {
    /// By stream: what it comes after.
    seen: [Clock; 2],
    uses: [Uses; 2],
}

impl Clocks {
    /// `then` comes after all of `before`.
    pub fn order(&mut self, before: Stream, then: Stream) {
        let before = self.seen[before.index()];
        for (seen, other) in self.seen[then.index()].iter_mut().zip(before) {
            *seen = other.max(*seen);
        }
    }

    /// The host has waited for `stream`: whatever is given later comes after it.
    pub fn waited(&mut self, stream: Stream) {
        for then in Stream::ALL {
            self.order(stream, then);
        }
    }

    /// A call of `stream` that reads an index.
    ///
    /// # Errors
    /// `InvalidArgument` where the index may be written meanwhile.
    pub fn read(&mut self, stream: Stream, index: Index) -> Result<()> {
        let uses = self.uses[index.place()];
        self.check(stream, uses.written, "written")?;
        self.uses[index.place()].read[stream.index()] = self.tick(stream);
        Ok(())
    }

    /// A call of `stream` that writes an index.
    ///
    /// # Errors
    /// `InvalidArgument` where the index may be read or written meanwhile.
    pub fn write(&mut self, stream: Stream, index: Index) -> Result<()> {
        let uses = self.uses[index.place()];
        self.check(stream, uses.written, "written")?;
        self.check(stream, uses.read, "read")?;
        self.uses[index.place()].written[stream.index()] = self.tick(stream);
        Ok(())
    }

    /// A recorded read is done again: on its own stream, whose order it has.
    ///
    /// # Errors
    /// `InvalidArgument`: another stream; as [`Clocks::read`].
    pub fn replay(
        &mut self,
        graph: GraphId,
        (recorded, index): (Stream, Index),
        stream: Stream,
    ) -> Result<()> {
        if stream != recorded {
            let why = format!("it was recorded on {recorded:?}, and is replayed on {stream:?}");
            return Err(option("graph", &graph.0, why));
        }
        self.read(stream, index)
    }

    fn tick(&mut self, stream: Stream) -> u64 {
        let own = &mut self.seen[stream.index()][stream.index()];
        *own += 1;
        *own
    }

    fn check(&self, stream: Stream, uses: Clock, how: &str) -> Result<()> {
        let seen = self.seen[stream.index()];
        if seen.iter().zip(uses).all(|(seen, used)| *seen >= used) {
            return Ok(());
        }
        let why = format!(
            "the index is {how} on the other stream: call order, or wait for that stream, first"
        );
        Err(ArgumentError::Option {
            name: "index",
            value: format!("{stream:?}"),
            why,
        }
        .into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_is_built_is_not_read_until_the_streams_are_ordered() {
        let mut clocks = Clocks::default();
        clocks.write(Stream::Transfer, Index::First).unwrap();
        clocks.read(Stream::Transfer, Index::First).unwrap();
        let refused = clocks.read(Stream::Train, Index::First).unwrap_err();
        assert!(refused.to_string().contains("written on the other stream"));
        clocks.read(Stream::Train, Index::Second).unwrap();
        clocks.order(Stream::Transfer, Stream::Train);
        clocks.read(Stream::Train, Index::First).unwrap();
        let refused = clocks.write(Stream::Transfer, Index::First).unwrap_err();
        assert!(refused.to_string().contains("read on the other stream"));
        clocks.waited(Stream::Train);
        clocks.write(Stream::Transfer, Index::First).unwrap();

        // What was recorded is a read whenever it is done again, of its own stream.
        let recorded = (Stream::Train, Index::Second);
        clocks.replay(GraphId(3), recorded, Stream::Train).unwrap();
        let refused = clocks.write(Stream::Transfer, Index::Second).unwrap_err();
        assert!(refused.to_string().contains("read on the other stream"));
        let other = clocks.replay(GraphId(3), recorded, Stream::Transfer);
        let other = other.unwrap_err().to_string();
        assert!(other.contains("recorded on Train"), "{other}");
    }
}
