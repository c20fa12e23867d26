//! Thrift's compact protocol, field by field, for headers that no writer makes.

/// A number of 7 bits a byte.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).unwrap();
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

fn signed(number: i64) -> Vec<u8> {
    varint((number << 1 ^ number >> 63).cast_unsigned())
}

/// The begin of a field of a type, with its number.
pub fn field(kind: u8, id: i16) -> Vec<u8> {
    [vec![kind], signed(id.into())].concat()
}

pub fn int(id: i16, value: i64) -> Vec<u8> {
    [field(5, id), signed(value)].concat()
}

pub fn long(id: i16, value: i64) -> Vec<u8> {
    [field(6, id), signed(value)].concat()
}

pub fn text(id: i16, bytes: &[u8]) -> Vec<u8> {
    let length = varint(bytes.len().try_into().unwrap());
    [field(8, id), length, bytes.to_vec()].concat()
}

/// Fields, and the end of a struct.
pub fn ended(fields: &[Vec<u8>]) -> Vec<u8> {
    [fields.concat(), vec![0]].concat()
}

/// A field that is a struct.
pub fn under(id: i16, fields: &[Vec<u8>]) -> Vec<u8> {
    [field(12, id), ended(fields)].concat()
}

/// A field that is a list of structs.
pub fn list(id: i16, elements: &[Vec<u8>]) -> Vec<u8> {
    let count = varint(elements.len().try_into().unwrap());
    [field(9, id), vec![0xfc], count, elements.concat()].concat()
}
