//! Is a struct in Thrift's compact protocol as long, as deep and of such types as it says? It is walked, and nothing of
//! it is built.
//!
//! - The library for Parquet allocates by the lengths that stand there, and reads a field by its number, whatever its
//!   type is. What was walked here has both right: each length fits what remains, and each field that Parquet's format
//!   knows has its type.
//! - Time goes with the bytes, and no call is deeper than [`DEPTH_MAX`].

use std::fmt::Debug;

/// Structs and lists in each other. Parquet's format has 8.
pub const DEPTH_MAX: usize = 32;

/// What a field, or an element of a list, is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Bool,
    Byte,
    Short,
    Int,
    Long,
    Double,
    Binary,
    List(&'static Kind),
    Struct(&'static Shape),
}

/// A struct that the format knows.
#[derive(Debug)]
pub struct Shape {
    /// Its name there.
    pub name: &'static str,
    /// Bytes that it has at least, with all that it needs.
    pub least: usize,
    /// Its fields; others are walked by the types that they say.
    pub fields: &'static [(i16, Kind)],
}

/// What stands in a struct that is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The value of a field: of integers and truths; of text its length.
    Value(&'static str, i16, i64),
    /// The end of a struct.
    End(&'static str),
}

/// What is wrong with a struct.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its place, from the begin of the struct.
    pub offset: usize,
    /// What it is.
    pub what: String,
    /// Whether the bytes end before the struct does.
    pub is_cut: bool,
}

/// Walks a struct; how many bytes it has. More may stand behind it.
///
/// # Errors
/// What is wrong with it.
pub fn walk(
    bytes: &[u8],
    shape: &'static Shape,
    see: &mut dyn FnMut(Seen),
) -> Result<usize, Fault> {
    let mut walker = Walker { bytes, at: 0, see };
    walker.fields(Some(shape), 0)?;
    Ok(walker.at)
}

struct Walker<'a> {
    bytes: &'a [u8],
    at: usize,
    see: &'a mut dyn FnMut(Seen),
}

/// Types as they stand in the bytes. A truth is one or the other; in lists either says that they are truths.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const SHORT: u8 = 4;
const INT: u8 = 5;
const LONG: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

impl Kind {
    fn told(self) -> &'static str {
        match self {
            Kind::Bool => "a truth",
            Kind::Byte => "a byte",
            Kind::Short => "16 bits",
            Kind::Int => "32 bits",
            Kind::Long => "64 bits",
            Kind::Double => "a float64",
            Kind::Binary => "text",
            Kind::List(_) => "a list",
            Kind::Struct(_) => "a struct",
        }
    }

    fn is(self, found: u8) -> bool {
        match self {
            Kind::Bool => found == TRUE || found == FALSE,
            Kind::Byte => found == BYTE,
            Kind::Short => found == SHORT,
            Kind::Int => found == INT,
            Kind::Long => found == LONG,
            Kind::Double => found == DOUBLE,
            Kind::Binary => found == BINARY,
            Kind::List(_) => found == LIST,
            Kind::Struct(_) => found == STRUCT,
        }
    }
}

/// A type, for messages.
fn told(found: u8) -> &'static str {
    match found {
        TRUE | FALSE => "a truth",
        BYTE => "a byte",
        SHORT => "16 bits",
        INT => "32 bits",
        LONG => "64 bits",
        DOUBLE => "a float64",
        BINARY => "text",
        LIST => "a list",
        SET => "a set",
        MAP => "a map",
        STRUCT => "a struct",
        _ => "another type",
    }
}

impl Walker<'_> {
    fn fault(&self, what: String) -> Fault {
        Fault {
            offset: self.at,
            what,
            is_cut: false,
        }
    }

    /// Goes on by so many bytes.
    fn skip(&mut self, count: u64, what: &str) -> Result<(), Fault> {
        let left = self.bytes.len() - self.at;
        match usize::try_from(count).ok().filter(|count| *count <= left) {
            Some(count) => {
                self.at += count;
                Ok(())
            }
            None => Err(Fault {
                is_cut: true,
                ..self.fault(format!("found {what} of {count} bytes, {left} are left"))
            }),
        }
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = self.bytes.get(self.at).copied();
        let byte = byte.ok_or_else(|| Fault {
            is_cut: true,
            ..self.fault(String::from("it ends before its last field"))
        })?;
        self.at += 1;
        Ok(byte)
    }

    /// A number of 7 bits a byte.
    fn varint(&mut self) -> Result<u64, Fault> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.fault(String::from("found a number of more than 64 bits")))
    }

    /// A number whose sign is its last bit; it must be one of `T`.
    fn number<T: TryFrom<i64> + Into<i64>>(&mut self) -> Result<i64, Fault> {
        let number = self.varint()?;
        let number = (number >> 1).cast_signed() ^ -(number & 1).cast_signed();
        match T::try_from(number) {
            Ok(number) => Ok(number.into()),
            Err(_) => Err(self.fault(format!("found {number}, which its type does not have"))),
        }
    }

    /// The fields of a struct and its end.
    fn fields(&mut self, shape: Option<&'static Shape>, depth: usize) -> Result<(), Fault> {
        if depth >= DEPTH_MAX {
            let what = format!("found more than {DEPTH_MAX} structs and lists in each other");
            return Err(self.fault(what));
        }
        // Fields that were there, of those that are known: each is there once.
        let (mut last, mut there): (i16, u32) = (0, 0);
        loop {
            let header = self.byte()?;
            let (delta, found) = (header >> 4, header & 15);
            if found == 0 {
                if let Some(shape) = shape {
                    (self.see)(Seen::End(shape.name));
                }
                return Ok(());
            }
            let id = match delta {
                0 => i16::try_from(self.number::<i16>()?).ok(),
                delta => last.checked_add(delta.into()),
            };
            last =
                id.ok_or_else(|| self.fault(String::from("found a field beyond all numbers")))?;
            let fields = shape.map(|shape| shape.fields).unwrap_or_default();
            let known = fields.iter().find(|(id, _)| *id == last);
            let kind = known.map(|(_, kind)| *kind);
            if let (Some(shape), Some(kind)) = (shape, kind.filter(|kind| !kind.is(found))) {
                let name = shape.name;
                let (found, kind) = (told(found), kind.told());
                let what = format!("found {found} in field {last} of {name}, expected {kind}");
                return Err(self.fault(what));
            }
            if let (Some(shape), Some(_)) = (shape, kind) {
                let bit = 1_u32.checked_shl(last.unsigned_abs().into()).unwrap_or(0);
                if there & bit != 0 {
                    let what = format!("found field {last} of {} twice", shape.name);
                    return Err(self.fault(what));
                }
                there |= bit;
            }
            let value = match found {
                TRUE | FALSE => Some(i64::from(found == TRUE)),
                found => self.value(kind, found, depth)?,
            };
            if let (Some(shape), Some(_), Some(value)) = (shape, kind, value) {
                (self.see)(Seen::Value(shape.name, last, value));
            }
        }
    }

    /// Something that is no truth; what is told of it.
    fn value(&mut self, kind: Option<Kind>, found: u8, depth: usize) -> Result<Option<i64>, Fault> {
        let told = match found {
            BYTE => Some(i64::from(self.byte()?.cast_signed())),
            SHORT => Some(self.number::<i16>()?),
            INT => Some(self.number::<i32>()?),
            LONG => Some(self.number::<i64>()?),
            DOUBLE => {
                self.skip(8, "a number")?;
                None
            }
            BINARY => {
                let length = self.varint()?;
                self.skip(length, "text")?;
                i64::try_from(length).ok()
            }
            LIST | SET => {
                let element = match kind {
                    Some(Kind::List(element)) => Some(*element),
                    _ => None,
                };
                self.list(element, depth + 1)?;
                None
            }
            MAP => {
                self.map(depth + 1)?;
                None
            }
            STRUCT => {
                let shape = match kind {
                    Some(Kind::Struct(shape)) => Some(shape),
                    _ => None,
                };
                let start = self.at;
                self.fields(shape, depth + 1)?;
                if let Some(shape) = shape.filter(|shape| self.at - start < shape.least) {
                    let (name, found) = (shape.name, self.at - start);
                    return Err(self.fault(format!("found {name} of {found} bytes, it has more")));
                }
                None
            }
            UUID => {
                self.skip(16, "a number")?;
                None
            }
            other => return Err(self.fault(format!("found type {other}, which there is not"))),
        };
        Ok(told)
    }

    /// Elements of a type. A truth among them would be a byte to some readers, and nothing to others.
    fn elements(
        &mut self,
        types: &[(u8, Option<Kind>)],
        count: u64,
        depth: usize,
    ) -> Result<(), Fault> {
        let left = (self.bytes.len() - self.at) as u64;
        if count > left || i32::try_from(count).is_err() {
            return Err(Fault {
                is_cut: true,
                ..self.fault(format!("found a list of {count} elements in {left} bytes"))
            });
        }
        if count > 0
            && types
                .iter()
                .any(|(found, _)| matches!(*found, TRUE | FALSE))
        {
            let what = "found a list of truths, which Parquet's format does not have";
            return Err(self.fault(String::from(what)));
        }
        if depth >= DEPTH_MAX {
            let what = format!("found more than {DEPTH_MAX} structs and lists in each other");
            return Err(self.fault(what));
        }
        for _ in 0..count {
            for (found, kind) in types {
                self.value(*kind, *found, depth)?;
            }
        }
        Ok(())
    }

    fn list(&mut self, element: Option<Kind>, depth: usize) -> Result<(), Fault> {
        let header = self.byte()?;
        let found = header & 15;
        let count = match header >> 4 {
            15 => self.varint()?,
            few => few.into(),
        };
        // Some write an empty list as one of no type.
        if found > UUID || (found == 0 && count > 0) {
            return Err(self.fault(format!("found a list of type {found}, which there is not")));
        }
        if let Some(element) = element.filter(|element| count > 0 && !element.is(found)) {
            let (found, element) = (told(found), element.told());
            return Err(self.fault(format!("found a list of {found}, expected {element}")));
        }
        self.elements(&[(found, element)], count, depth)
    }

    fn map(&mut self, depth: usize) -> Result<(), Fault> {
        let count = self.varint()?;
        if count == 0 {
            return Ok(());
        }
        let types = self.byte()?;
        self.elements(&[(types >> 4, None), (types & 15, None)], count, depth)
    }
}
