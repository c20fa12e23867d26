//! What does docs/FORMAT.md say of each structure?

const DOCUMENT: &str = include_str!("../../docs/FORMAT.md");

/// A field of a structure.
#[derive(Clone, Debug)]
pub struct Field {
    pub offset: usize,
    pub bytes: usize,
    pub name: String,
    pub meaning: String,
}

/// A structure on disk.
#[derive(Clone, Debug)]
pub struct Structure {
    pub name: String,
    pub fields: Vec<Field>,
}

/// The structures of the document, in its order.
pub fn structures() -> Vec<Structure> {
    let mut found: Vec<Structure> = Vec::new();
    let mut inside = false;
    for line in DOCUMENT.lines() {
        if let Some(title) = line.strip_prefix("#### `") {
            let (name, _) = title.split_once("`: ").expect("a name and a size");
            found.push(Structure {
                name: name.to_owned(),
                fields: Vec::new(),
            });
            inside = true;
        } else if line.starts_with('#') {
            inside = false;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, offset, bytes, field, meaning, _] = cells[..] else {
            continue;
        };
        if let (true, Ok(offset), Ok(bytes)) = (inside, offset.parse(), bytes.parse()) {
            let fields = &mut found.last_mut().expect("a structure").fields;
            fields.push(Field {
                offset,
                bytes,
                name: field.trim_matches('`').to_owned(),
                meaning: meaning.to_owned(),
            });
        }
    }
    found
}

/// The numbers in a field, as offsets and widths from the start of the structure: one, but the ends
/// of an array; none for a structure inside the structure, which has a table of its own.
pub fn numbers(structure: &Structure, all: &[Structure]) -> Vec<(String, usize, usize)> {
    let mut out = Vec::new();
    for field in &structure.fields {
        let nested = |s: &Structure| field.meaning.contains(&format!("`{}`", s.name));
        if all.iter().any(nested) {
            continue;
        }
        let width = match field.bytes {
            4 => 4,
            _ if field.meaning.contains("u32 [") => 4,
            _ => 8,
        };
        let last = field.bytes - width;
        for at in if last == 0 { vec![0] } else { vec![0, last] } {
            out.push((format!("{}+{at}", field.name), field.offset + at, width));
        }
    }
    out
}
