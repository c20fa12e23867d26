//! How does a pointer of C become a reference?
//!
//! By the types of this file, which have the layout of a pointer and stand for one in the signature
//! of an exported function. Nothing but a call from C makes one, so what the top of hps.h asks of a
//! caller holds for it: it is NULL, or it points to as many values of its type as the call says,
//! which live until the call returns and which nobody writes meanwhile; a handle is one that a call
//! of this library gave and that was not freed.
//!
//! - NULL is an error (`HPS_NULL_POINTER`) that names the argument, except for an array of length
//!   0.
//! - An array that is not aligned, or longer than memory, is `HPS_INVALID_ARGUMENT`.
//! - Where a handle is given back, it is NULL until the call succeeds.
#![expect(
    unsafe_code,
    reason = "pointers that C passes are dereferenced here, and nowhere else"
)]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::changes::{ChangesHandle, DeltaInfo};
use crate::checkpoint::{
    BytesHandle, CheckpointInfo, CheckpointTicketHandle, HoldHandle, Identity,
};
use crate::descriptor::{DescriptorHandle, TableInfo};
use crate::error::{ErrorHandle, Fault, Result};
use crate::lease::LeaseHandle;
use crate::many::{PrefetchPart, PullPart, PushPart};
use crate::options::{Hyper, OptionsHandle};
use crate::passes::{PassHandle, PassPart, PassReport, PassTableReport, PassTicketHandle};
use crate::rows::RowsHandle;
use crate::stats::StatsHandle;
use crate::store_calls::StoreHandle;
use crate::table_options::TableOptionsHandle;
use crate::ticket::TicketHandle;
use crate::update::{PushReport, PutReport, Update};

/// Checks the pointer of an array that is not empty.
fn check<T>(pointer: *const T, name: &'static str, len: usize) -> Result<()> {
    if pointer.is_null() {
        return Err(Fault::null(name));
    }
    if !pointer.is_aligned() {
        let why = format!("{name}: not aligned to {} bytes", align_of::<T>());
        return Err(Fault::other(why));
    }
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(Fault::other(format!(
            "{name}: {len} values do not fit in memory"
        ))),
    }
}

fn slice<'a, T>(pointer: *const T, name: &'static str, len: usize) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(pointer, name, len)?;
    // SAFETY: not NULL, aligned and of a possible length (`check`); the caller of the exported
    // function vouches for `len` values that live, and that nobody writes, until the call returns.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

fn slice_mut<'a, T>(pointer: *mut T, name: &'static str, len: usize) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(pointer, name, len)?;
    // SAFETY: as in `slice`; the caller vouches that nothing else of the call overlaps it. Any bits
    // are a value of the types in this file, so it does not matter what C has left in it.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

fn reference<'a, T>(pointer: *const T, name: &'static str) -> Result<&'a T> {
    check(pointer, name, 1)?;
    // SAFETY: not NULL and aligned (`check`); the caller vouches for what it points to.
    Ok(unsafe { &*pointer })
}

fn place<'a, T>(pointer: *mut T, name: &'static str) -> Result<&'a mut MaybeUninit<T>> {
    check(pointer, name, 1)?;
    // SAFETY: not NULL and aligned (`check`); the caller vouches for room of one value that nothing
    // else of the call overlaps, and nobody reads what is in it before.
    Ok(unsafe { &mut *pointer.cast() })
}

/// Arrays that a call reads: `slice`.
macro_rules! inputs {
    ($($name:ident: $type:ty;)*) => {$(
        #[doc = concat!("An array of `", stringify!($type), "` that the call reads.")]
        #[repr(transparent)]
        #[derive(Clone, Copy)]
        pub struct $name<'a>(*const $type, PhantomData<&'a [$type]>);

        impl<'a> $name<'a> {
            pub fn slice(self, name: &'static str, len: usize) -> Result<&'a [$type]> {
                slice(self.0, name, len)
            }
        }
    )*};
}

/// An array that a call writes.
pub trait Output<'a, T: 'a>: Sized + Copy {
    /// The pointer: for this file.
    fn pointer(self) -> Pointer<T>;

    fn slice(self, name: &'static str, len: usize) -> Result<&'a mut [T]> {
        slice_mut(self.pointer().0, name, len)
    }

    /// Where the array may be left out: no room then.
    fn slice_or_none(self, name: &'static str, len: usize) -> Result<&'a mut [T]> {
        match self.pointer().0.is_null() {
            true => Ok(&mut []),
            false => self.slice(name, len),
        }
    }
}

/// Room for one value that a call gives.
pub trait Room<'a, T: 'a>: Sized + Copy {
    /// The pointer: for this file.
    fn pointer(self) -> Pointer<T>;

    fn place(self, name: &'static str) -> Result<&'a mut MaybeUninit<T>> {
        place(self.pointer().0, name)
    }

    /// Where the room may be left out.
    fn optional(self, name: &'static str) -> Result<Option<&'a mut MaybeUninit<T>>> {
        match self.pointer().0.is_null() {
            true => Ok(None),
            false => self.place(name).map(Some),
        }
    }
}

/// A pointer that only this file can make, or look into.
pub struct Pointer<T>(*mut T);

/// Arrays that a call writes: [`Output`].
macro_rules! outputs {
    ($($name:ident: $type:ty;)*) => {$(
        #[doc = concat!("An array of `", stringify!($type), "` that the call writes.")]
        #[repr(transparent)]
        #[derive(Clone, Copy)]
        pub struct $name<'a>(*mut $type, PhantomData<&'a mut [$type]>);

        impl<'a> Output<'a, $type> for $name<'a> {
            fn pointer(self) -> Pointer<$type> {
                Pointer(self.0)
            }
        }
    )*};
}

/// Handles and structs that a call reads: `get`.
macro_rules! references {
    ($($name:ident: $type:ty;)*) => {$(
        #[doc = concat!("A pointer to a `", stringify!($type), "` that the call reads.")]
        #[repr(transparent)]
        #[derive(Clone, Copy)]
        pub struct $name<'a>(*const $type, PhantomData<&'a $type>);

        impl<'a> $name<'a> {
            pub fn get(self, name: &'static str) -> Result<&'a $type> {
                reference(self.0, name)
            }
        }
    )*};
}

/// Room for one value that a call gives: [`Room`].
macro_rules! places {
    ($($name:ident: $type:ty;)*) => {$(
        #[doc = concat!("Room for a `", stringify!($type), "` that the call gives.")]
        #[repr(transparent)]
        #[derive(Clone, Copy)]
        pub struct $name<'a>(*mut $type, PhantomData<&'a mut $type>);

        impl<'a> Room<'a, $type> for $name<'a> {
            fn pointer(self) -> Pointer<$type> {
                Pointer(self.0)
            }
        }
    )*};
}

/// Room for a handle that a call gives: `place`, in which NULL stands at once.
macro_rules! handle_places {
    ($($name:ident: $type:ty;)*) => {$(
        #[doc = concat!("Room for a `", stringify!($type), "` that the call gives.")]
        #[repr(transparent)]
        #[derive(Clone, Copy)]
        pub struct $name<'a>(*mut Option<Box<$type>>, PhantomData<&'a mut $type>);

        impl<'a> $name<'a> {
            pub fn place(
                self,
                name: &'static str,
            ) -> Result<&'a mut MaybeUninit<Option<Box<$type>>>> {
                let place = place(self.0, name)?;
                place.write(None);
                Ok(place)
            }
        }
    )*};
}

inputs! {
    Keys: u64;
    Words: u32;
    Floats: f32;
    Bytes: u8;
    Texts: Text<'a>;
    Descriptors: DescriptorRef<'a>;
    PullParts: PullPart<'a>;
    PrefetchParts: PrefetchPart<'a>;
    PushParts: PushPart<'a>;
    PassParts: PassPart<'a>;
}

outputs! {
    KeysOut: u64;
    WordsOut: u32;
    FloatsOut: f32;
    BytesOut: u8;
    CheckpointInfosOut: MaybeUninit<CheckpointInfo>;
    TableInfosOut: MaybeUninit<TableInfo>;
    PushReportsOut: MaybeUninit<PushReport>;
    PassTableReportsOut: MaybeUninit<PassTableReport>;
}

references! {
    StoreRef: StoreHandle;
    LeaseRef: LeaseHandle;
    TicketRef: TicketHandle;
    PassTicketRef: PassTicketHandle;
    PassRef: PassHandle;
    CheckpointTicketRef: CheckpointTicketHandle;
    RowsRef: RowsHandle;
    ChangesRef: ChangesHandle;
    StatsRef: StatsHandle;
    OptionsRef: OptionsHandle;
    TableOptionsRef: TableOptionsHandle;
    DescriptorRef: DescriptorHandle;
    BytesRef: BytesHandle;
    ErrorRef: ErrorHandle;
    HyperRef: Hyper;
    UpdateRef: Update<'a>;
}

places! {
    U64Out: u64;
    U32Out: u32;
    I32Out: i32;
    SizeOut: usize;
    CheckpointInfoOut: CheckpointInfo;
    TableInfoOut: TableInfo;
    PushReportOut: PushReport;
    PutReportOut: PutReport;
    PassReportOut: PassReport;
    IdentityOut: Identity;
    DeltaInfoOut: DeltaInfo;
    HyperOut: Hyper;
}

handle_places! {
    StoreOut: StoreHandle;
    LeaseOut: LeaseHandle;
    TicketOut: TicketHandle;
    PassTicketOut: PassTicketHandle;
    PassOut: PassHandle;
    CheckpointTicketOut: CheckpointTicketHandle;
    HoldOut: HoldHandle;
    RowsOut: RowsHandle;
    ChangesOut: ChangesHandle;
    StatsOut: StatsHandle;
    DescriptorOut: DescriptorHandle;
    BytesHandleOut: BytesHandle;
    ErrorOut: ErrorHandle;
}

#[cfg(test)]
impl<'a> ErrorOut<'a> {
    /// As C would pass it.
    pub fn of(room: &'a mut Option<Box<ErrorHandle>>) -> ErrorOut<'a> {
        ErrorOut(room, PhantomData)
    }
}

/// A string that ends with a zero byte.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text<'a>(*const c_char, PhantomData<&'a CStr>);

impl<'a> Text<'a> {
    fn c_str(self, name: &'static str) -> Result<&'a CStr> {
        check(self.0, name, 1)?;
        // SAFETY: not NULL (`check`); the caller vouches for a zero byte at its end, and that
        // nobody writes it until the call returns.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }

    /// A name: UTF-8.
    pub fn text(self, name: &'static str) -> Result<&'a str> {
        let text = self.c_str(name)?.to_str();
        text.map_err(|_| Fault::other(format!("{name}: not UTF-8")))
    }

    /// A path: any bytes.
    pub fn path(self, name: &'static str) -> Result<&'a Path> {
        let bytes = self.c_str(name)?.to_bytes();
        Ok(Path::new(OsStr::from_bytes(bytes)))
    }

    /// Where the path may be left out.
    pub fn optional_path(self, name: &'static str) -> Result<Option<&'a Path>> {
        match self.0.is_null() {
            true => Ok(None),
            false => self.path(name).map(Some),
        }
    }
}

/// What a callback is called with: the program's own, given back as it is.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct UserData(*mut c_void);

impl UserData {
    pub fn get(self) -> *mut c_void {
        self.0
    }
}

// SAFETY: it is never dereferenced here, and hps.h says that the callback gets it on any thread.
unsafe impl Send for UserData {}
// SAFETY: as above.
unsafe impl Sync for UserData {}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;
    use crate::codes::Code;

    fn code<T>(result: Result<T>) -> Code {
        match result {
            Ok(_) => Code::HPS_OK,
            Err(fault) => fault.code(),
        }
    }

    fn keys(pointer: *const u64) -> Keys<'static> {
        Keys(pointer, PhantomData)
    }

    #[test]
    fn null_is_an_array_of_no_values_and_of_no_others() {
        assert!(keys(null()).slice("keys", 0).unwrap().is_empty());
        assert_eq!(code(keys(null()).slice("keys", 1)), Code::HPS_NULL_POINTER);
        let out = KeysOut(null_mut(), PhantomData);
        assert!(out.slice("out", 0).unwrap().is_empty());
        assert_eq!(code(out.slice("out", 1)), Code::HPS_NULL_POINTER);
    }

    #[test]
    fn an_array_that_is_not_aligned_or_too_long_is_refused() {
        let values = [7u64, 8];
        let all = keys(values.as_ptr());
        assert_eq!(all.slice("keys", 2).unwrap(), values);
        let askew = keys(values.as_ptr().wrapping_byte_add(1));
        assert_eq!(code(askew.slice("keys", 1)), Code::HPS_INVALID_ARGUMENT);
        for len in [usize::MAX, isize::MAX.cast_unsigned() / 8 + 1] {
            assert_eq!(code(all.slice("keys", len)), Code::HPS_INVALID_ARGUMENT);
        }
    }

    #[test]
    fn room_for_a_handle_is_null_until_it_is_given() {
        let mut room = Some(Box::new(ErrorHandle::from(Fault::null("x"))));
        let out = ErrorOut(&raw mut room, PhantomData);
        // What was in it is C's: it is not dropped here, which this test makes up for.
        drop(room.take());
        out.place("error").unwrap();
        assert!(room.is_none());
        assert_eq!(
            code(ErrorOut(null_mut(), PhantomData).place("e")),
            Code::HPS_NULL_POINTER
        );
        let none = U64Out(null_mut(), PhantomData);
        assert!(none.optional("count").unwrap().is_none());
    }

    #[test]
    fn a_name_is_utf_8_and_a_path_any_bytes() {
        let bytes = b"caf\xe9\0";
        let text = Text(bytes.as_ptr().cast(), PhantomData);
        assert_eq!(code(text.text("name")), Code::HPS_INVALID_ARGUMENT);
        assert_eq!(
            text.path("path").unwrap().as_os_str().as_bytes(),
            b"caf\xe9"
        );
        assert_eq!(
            code(Text(null(), PhantomData).path("p")),
            Code::HPS_NULL_POINTER
        );
    }
}
