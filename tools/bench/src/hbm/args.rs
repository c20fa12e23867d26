//! The command line of the HBM workloads.

use clap::{Parser, ValueEnum};
use hps::hbm::Device;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// Weights of keys: look-up and copy.
    #[value(name = "hbm-get")]
    Get,
    /// Keys into an empty index, to a load of 0.6.
    #[value(name = "hbm-insert")]
    Insert,
    /// AdaGrad with distinct keys, and with zipf 1.05.
    #[value(name = "hbm-accumulate")]
    Accumulate,
    /// Rows from pinned memory into the arena.
    #[value(name = "hbm-place")]
    Place,
    /// Dirty rows into pinned memory.
    #[value(name = "hbm-pack")]
    Pack,
    /// No time: the same bits as the table in plain Rust.
    #[value(name = "hbm-check")]
    Check,
}

/// Measures rows in device memory beside the limits of the same run.
#[derive(Parser, Debug, Clone)]
#[command(name = "hps-bench")]
pub struct HbmArgs {
    /// What to run.
    #[arg(required = true, value_enum)]
    pub operations: Vec<Operation>,
    /// Where: `cpu`, `emu`, `cuda` or `cuda:N`.
    #[arg(long, default_value = "cpu", value_parser = parse_device)]
    pub device: Device,
    /// Weights of a row; AdaGrad doubles them.
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub dims: Vec<usize>,
    /// GiB of rows. [default: 8 on a GPU, 1 on the CPU]
    #[arg(long, value_name = "GIB")]
    pub gib: Option<usize>,
    /// Keys of a call.
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    pub batch: usize,
    /// Measured calls; the median is told.
    #[arg(long, value_name = "N", default_value_t = 21)]
    pub calls: usize,
    /// Small sizes: the figures mean nothing.
    #[arg(long)]
    pub tiny: bool,
    /// One JSON array as the last line.
    #[arg(long)]
    pub json: bool,
}

fn parse_device(text: &str) -> Result<Device, String> {
    match text.split_once(':') {
        None if text == "cpu" => Ok(Device::Cpu),
        None if text == "emu" => Ok(Device::Emulated(1)),
        None if text == "cuda" => Ok(Device::Cuda(0)),
        Some(("cuda", number)) => {
            let number = number.parse();
            number.map(Device::Cuda).map_err(|e| format!("cuda:N: {e}"))
        }
        _ => Err("must be cpu, emu, cuda or cuda:N".to_owned()),
    }
}

impl HbmArgs {
    /// Bytes of rows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let gib = match (self.gib, self.device) {
            (Some(gib), _) => gib,
            (None, Device::Cuda(_)) => 8,
            (None, _) => 1,
        };
        match self.tiny {
            true => 1 << 20,
            false => gib.max(1) << 30,
        }
    }

    /// Keys of a call.
    #[must_use]
    pub fn batch(&self) -> usize {
        if self.tiny { 512 } else { self.batch.max(1) }
    }

    /// Measured calls.
    #[must_use]
    pub fn calls(&self) -> usize {
        if self.tiny { 3 } else { self.calls.max(1) }
    }
}
