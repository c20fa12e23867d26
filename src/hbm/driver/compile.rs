//! How do the kernels become code of one kind of GPU?
//!
//! NVRTC compiles the source to a CUBIN, once for each compute capability; a [`KernelCache`] keeps
//! it.
//!
//! Invariants:
//! - The name of a CUBIN holds a hash of the source and the options: one of another version is not
//!   found.
//! - The driver is given no length: only a CUBIN whose tables lie inside its bytes is handed to it.
#![expect(unsafe_code, reason = "calls NVRTC, which writes into buffers")]

use std::ffi::{CString, c_char};

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;

use super::KernelCache;
use super::library;
use crate::hbm::kernels;
use crate::units::to_usize;

/// All but the architecture. The sums are then those of the host, to the bit: nothing is
/// contracted, flushed or approximated.
const OPTIONS: &[&str] = &[
    "--std=c++17",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
];

/// Bytes of a compiler's complaint that are passed on.
const LOG_BYTES_MAX: usize = 2000;

/// The name of the compiled kernels for a compute capability.
pub fn file_name((major, minor): (i32, i32)) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for text in OPTIONS.iter().chain([&kernels::SOURCE]) {
        // FNV-1a, with an end after each text.
        for byte in text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("hps-kernels-sm_{major}{minor}-{hash:016x}.cubin")
}

/// The cached CUBIN, if it is whole.
pub fn cached(capability: (i32, i32), cache: &dyn KernelCache) -> Option<Vec<u8>> {
    let bytes = cache.load(&file_name(capability))?;
    is_whole(&bytes).then_some(bytes)
}

/// Compiles the kernels, and stores them.
pub fn compile(capability: (i32, i32), cache: &dyn KernelCache) -> Result<Vec<u8>, String> {
    let name = file_name(capability);
    if let Err(why) = library::nvrtc() {
        return Err(format!(
            "{why}; set LD_LIBRARY_PATH to a folder with libnvrtc.so.13 (pip install \
             nvidia-cuda-nvrtc puts it into nvidia/cu13/lib)"
        ));
    }
    let source = CString::new(kernels::SOURCE).map_err(|_| "the source has a NUL".to_owned())?;
    let program = result::create_program(&source, Some(c"hps.cu")).map_err(said)?;
    let cubin = build(program, capability);
    // SAFETY: made above, not yet destroyed, not used after.
    let _ = unsafe { result::destroy_program(program) };
    let cubin = cubin?;
    if !is_whole(&cubin) {
        return Err("NVRTC made a CUBIN that is not whole".to_owned());
    }
    cache.store(&name, &cubin);
    Ok(cubin)
}

fn said(error: NvrtcError) -> String {
    format!("NVRTC: {error}")
}

fn build(program: sys::nvrtcProgram, (major, minor): (i32, i32)) -> Result<Vec<u8>, String> {
    let mut options: Vec<String> = OPTIONS.iter().map(|option| (*option).to_owned()).collect();
    options.push(format!("--gpu-architecture=sm_{major}{minor}"));
    // SAFETY: the program is the caller's, not destroyed; no option has a NUL.
    let compiled = unsafe { result::compile_program(program, &options) };
    if let Err(error) = compiled {
        let log = log_of(program);
        return Err(format!(
            "NVRTC can't compile the kernels for sm_{major}{minor}: {error}; {log}"
        ));
    }
    let mut bytes = 0usize;
    // SAFETY: the program was compiled; NVRTC writes one size.
    let sized = unsafe { sys::nvrtcGetCUBINSize(program, &raw mut bytes) };
    sized.result().map_err(said)?;
    let mut cubin = vec![0u8; bytes];
    // SAFETY: the buffer has the bytes that NVRTC asked for.
    let taken = unsafe { sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast::<c_char>()) };
    taken.result().map_err(said)?;
    Ok(cubin)
}

/// The compiler's complaint, cut.
fn log_of(program: sys::nvrtcProgram) -> String {
    let mut bytes = 0usize;
    // SAFETY: the program is not destroyed; NVRTC writes one size.
    let sized = unsafe { sys::nvrtcGetProgramLogSize(program, &raw mut bytes) };
    let mut log = vec![0u8; bytes.max(1)];
    if sized.result().is_ok() && bytes > 0 {
        // SAFETY: the buffer has the bytes that NVRTC asked for.
        let taken = unsafe { sys::nvrtcGetProgramLog(program, log.as_mut_ptr().cast::<c_char>()) };
        if taken.result().is_err() {
            return "it gives no log".to_owned();
        }
    }
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let shown = end.min(LOG_BYTES_MAX);
    String::from_utf8_lossy(&log[..shown]).trim().to_owned()
}

/// Whether bytes are an ELF file of 64 bits whose tables, and the sections with code, symbols and
/// names, lie inside of it.
fn is_whole(bytes: &[u8]) -> bool {
    check(bytes).is_some()
}

fn check(bytes: &[u8]) -> Option<()> {
    // ELF, 64 bits, little-endian.
    if bytes.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let inside = |start: u64, length: u64| {
        let end = start.checked_add(length)?;
        (end <= bytes.len() as u64).then_some(())
    };
    let (segments, sections) = (number(bytes, 32, 8)?, number(bytes, 40, 8)?);
    let (segment_bytes, segment_count) = (number(bytes, 54, 2)?, number(bytes, 56, 2)?);
    let (section_bytes, section_count) = (number(bytes, 58, 2)?, number(bytes, 60, 2)?);
    inside(segments, segment_bytes * segment_count)?;
    inside(sections, section_bytes * section_count)?;
    if section_bytes < 64 || section_count == 0 {
        return None;
    }
    for section in 0..section_count {
        let header = sections + section * section_bytes;
        let kind = number(bytes, header + 4, 4)?;
        // 1: code and data, 2: symbols, 3: names. Others may take no bytes of the file.
        if (1..=3).contains(&kind) {
            inside(
                number(bytes, header + 24, 8)?,
                number(bytes, header + 32, 8)?,
            )?;
        }
    }
    Some(())
}

/// A little-endian number of so many bytes.
fn number(bytes: &[u8], at: u64, length: usize) -> Option<u64> {
    let field = bytes.get(to_usize(at)..)?.get(..length)?;
    let digits = field.iter().rev();
    Some(digits.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_the_capability_and_the_source() {
        let name = file_name((9, 0));
        assert!(name.starts_with("hps-kernels-sm_90-"), "{name}");
        assert!(name.ends_with(".cubin"), "{name}");
        assert_eq!(name.len(), "hps-kernels-sm_90-.cubin".len() + 16);
        assert_ne!(name, file_name((10, 0)));
    }

    /// The driver reads as far as the tables say: a file that lost its end would be read beyond it.
    #[test]
    fn a_cubin_cut_anywhere_is_not_whole() {
        let mut cubin = vec![0u8; 64 + 16 + 2 * 64];
        cubin[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        cubin[40] = 80; // where the section headers begin
        cubin[58] = 64; // bytes of each
        cubin[60] = 2; // how many
        cubin[80 + 64 + 4] = 1; // the second has code,
        cubin[80 + 64 + 24] = 64; // here,
        cubin[80 + 64 + 32] = 16; // so many bytes
        assert!(is_whole(&cubin));
        for length in 0..cubin.len() {
            assert!(!is_whole(&cubin[..length]), "{length}");
        }
        cubin[80 + 64 + 33] = 1;
        assert!(!is_whole(&cubin), "a section beyond the end");
        assert!(!is_whole(b"// PTX"));
    }

    /// With NVRTC at hand it compiles; without, the error names the way out.
    #[test]
    fn kernels_compile_or_the_way_out_is_told() {
        match compile((9, 0), &()) {
            Ok(cubin) => assert!(cubin.len() > 1000),
            Err(why) => {
                assert!(why.contains("LD_LIBRARY_PATH"), "{why}");
                assert!(why.contains("nvidia-cuda-nvrtc"), "{why}");
            }
        }
    }
}
