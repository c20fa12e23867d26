//! What can the device's memory and its bus do?

use anyhow::Result;
use hps::TableDescriptor;
use hps::hbm::{Buffer, Device, HbmOptions, HbmTable, Kind, Memory, Stream, Values, open};
use serde_json::{Value, json};

use super::args::HbmArgs;
use super::{Numbers, describe};
use crate::figures::Spread;

const TRAIN: Stream = Stream::Train;

/// Limits of one run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes read and written a second, copying.
    pub copy: f64,
    /// Sectors of 32 bytes a second at random places: read, written.
    pub sector_reads: f64,
    /// Written.
    pub sector_writes: f64,
    /// Bytes a second from pinned memory, and to it.
    pub to_device: f64,
    /// To pinned memory.
    pub to_host: f64,
    text: String,
    device: Value,
}

impl Limits {
    /// For people.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{}\nlimits: copy {:.0} GB/s (read + written), random sectors {:.2} G/s read, {:.2} G/s \
             written, bus {:.1} GB/s in, {:.1} GB/s out",
            self.text,
            self.copy / 1e9,
            self.sector_reads / 1e9,
            self.sector_writes / 1e9,
            self.to_device / 1e9,
            self.to_host / 1e9
        )
    }

    /// For machines.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "limits": self.device,
            "copy_bytes_per_s": self.copy,
            "random_sector_reads_per_s": self.sector_reads,
            "random_sector_writes_per_s": self.sector_writes,
            "host_to_device_bytes_per_s": self.to_device,
            "device_to_host_bytes_per_s": self.to_host,
        })
    }
}

/// The median time of a call, by the device's clock.
///
/// # Errors
/// What the device says.
pub fn time(
    table: &mut dyn HbmTable,
    calls: usize,
    mut call: impl FnMut(&mut dyn HbmTable, usize) -> hps::Result<()>,
) -> hps::Result<f64> {
    let mut seconds = Vec::with_capacity(calls);
    for i in 0..calls + 2 {
        let from = table.mark(TRAIN)?;
        call(table, i)?;
        let to = table.mark(TRAIN)?;
        let taken = table.seconds(from, to)?;
        // The first two warm up.
        if i >= 2 {
            seconds.push(taken);
        }
    }
    table.wait(TRAIN)?;
    Ok(Spread::of(&seconds).median)
}

/// Measures them.
///
/// # Errors
/// What the device says.
pub fn measure(device: Device, args: &HbmArgs) -> Result<Limits> {
    let (text, object) = describe(device)?;
    let descriptor = TableDescriptor::new("limits", 8);
    let options = HbmOptions::new(1024)
        .batch_keys_max(1024)
        .staging_bytes(1 << 16);
    let mut table = open(device, &descriptor, &options)?;
    let table = table.as_mut();
    let floats = args.bytes() / 8;
    let calls = args.calls();
    let [a, b] = [(); 2].map(|()| table.allocate(Memory::Device, Kind::Floats, floats));
    let (a, b) = (a?, b?);
    let few = (floats / 8).min(64 << 20);
    let host = table.allocate(Memory::Pinned, Kind::Floats, few)?;
    fill(table, a)?;
    fill(table, host)?;
    let copied = time(table, calls, |t, _| t.copy(TRAIN, a, b, floats))?;
    let accesses = u32::try_from((floats / 8).min(32 << 20))?;
    let reads = time(table, calls, |t, _| t.probe(TRAIN, a, accesses, false))?;
    let writes = time(table, calls, |t, _| t.probe(TRAIN, b, accesses, true))?;
    let up = time(table, calls, |t, _| t.copy(TRAIN, host, a, few))?;
    let down = time(table, calls, |t, _| t.copy(TRAIN, b, host, few))?;
    let bytes = few as f64 * 4.0;
    Ok(Limits {
        copy: floats as f64 * 8.0 / copied,
        sector_reads: f64::from(accesses) / reads,
        sector_writes: f64::from(accesses) / writes,
        to_device: bytes / up,
        to_host: bytes / down,
        text,
        device: object,
    })
}

/// Random values, the same few million again and again.
///
/// # Errors
/// What the device says.
pub fn fill(table: &mut dyn HbmTable, buffer: Buffer) -> hps::Result<()> {
    let mut numbers = Numbers(1);
    let few = buffer.count().min(4 << 20);
    let values: Vec<f32> = (0..few).map(|_| numbers.float() / 2.0).collect();
    let mut at = 0;
    while at < buffer.count() {
        let count = values.len().min(buffer.count() - at);
        table.write(TRAIN, buffer, at, Values::Floats(&values[..count]))?;
        at += count;
    }
    Ok(())
}
