//! Which parts of the index snapshot are there, and which can be read?

use std::io::ErrorKind;

use super::moment::Moment;
use super::snapshot::Walk;
use super::{Inspection, Part, Severity, SnapshotPartReport};
use crate::error::{Error, Result};

impl Inspection<'_> {
    /// Reports the parts of the index snapshot in force; gives those that can be read.
    pub(super) fn snapshot(
        &mut self,
        moment: &mut Moment,
        directories: &[Part],
    ) -> Result<Vec<Walk>> {
        let mut walks = Vec::new();
        for part in std::mem::take(&mut moment.snapshot) {
            walks.extend(self.part_of_snapshot(part)?);
        }
        for part in &moment.reading.replay.snapshot {
            let home = part.home(directories.len());
            let place = home.and_then(|home| directories.get(home));
            let place = place.map_or(self.root.path(), |place| &place.path);
            let path = place.join(part.file_name());
            let walk = walks.iter().find(|walk| walk.number() == part.number);
            self.report.snapshot.push(SnapshotPartReport {
                number: part.number,
                checkpoint: walk.map(Walk::checkpoint),
                path,
                bytes: part.bytes,
                directory: part.directory.map(|d| d as usize),
            });
        }
        Ok(walks)
    }

    /// A part of the index snapshot in force, if it can be read. That it is gone is no damage:
    /// snapshots give their room back, and CURRENT learns of it only at the next checkpoint.
    fn part_of_snapshot(&mut self, part: Result<Walk>) -> Result<Option<Walk>> {
        match part {
            Err(Error::Io { path, source, .. }) if source.kind() == ErrorKind::NotFound => {
                let what = "this part of the index snapshot is not there: it gave its room to rows, or was removed; \
                            nothing is lost, the next open reads key blocks instead";
                self.report
                    .add(Severity::Leftover, &path, None, what.to_owned());
                Ok(None)
            }
            Err(error) => {
                self.report.note(Severity::Cache, error)?;
                Ok(None)
            }
            Ok(walk) => Ok(Some(walk)),
        }
    }
}
