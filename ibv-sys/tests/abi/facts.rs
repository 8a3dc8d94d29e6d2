//! What is known of each type, field and constant: from the bindings by `size_of` and `offset_of`, from C by the
//! probe's output. Compares nothing.

use std::collections::BTreeMap;

/// Size and alignment of a type, in bytes.
pub type TypeFact = (usize, usize);

/// Everything known from one side, by name.
#[derive(Debug, Default)]
pub struct Facts {
    pub types: BTreeMap<String, TypeFact>,
    /// Offset and size in bytes by `type.path.of.the.field`; size 0 is a flexible array.
    pub fields: BTreeMap<String, (usize, usize)>,
    /// Value, extended to 64 bits, and the bytes that it has in Rust (8 from C, which does not tell).
    pub values: BTreeMap<String, (u64, usize)>,
}

/// The bindings' own facts.
pub fn ours() -> Facts {
    let mut facts = Facts::default();
    super::table::aggregates(&mut facts);
    super::table::values(&mut facts);
    facts
}

/// The bindings' facts for aarch64: those of this target, with what the generated layouts for aarch64 say instead.
///
/// The layouts name sizes of types and offsets of fields, not sizes of fields: those stay unknown.
pub fn ours_on_aarch64() -> Facts {
    let mut facts = ours();
    let layouts = include_str!("../../src/generated/layout_aarch64.rs");
    let (_, body) = layouts.split_once("layout! {").expect("the file has one macro call");
    for entry in body.split('}').filter_map(|entry| entry.split_once('{')) {
        let (name, measures) = entry.0.trim().split_once(':').expect("a type has measures");
        let numbers: Vec<usize> = measures.split(',').map(|number| number.trim().parse().unwrap()).collect();
        facts.types.insert(name.to_owned(), (numbers[0], numbers[1]));
        for field in entry.1.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let (field, offset) = field.split_once(' ').expect("a field has an offset");
            facts.fields.insert(format!("{name}.{}", c_path(field)), (offset.parse().unwrap(), UNKNOWN));
        }
    }
    facts
}

/// The size of a field of which only the offset is known.
pub const UNKNOWN: usize = usize::MAX;

/// Reads what the probe printed.
pub fn parse(text: &str) -> Facts {
    let mut facts = Facts::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().unwrap_or_else(|error| panic!("{line}: {error}"));
        let bytes = |word: &str| number(word) as usize;
        match words[..] {
            ["type", name, size, align] => {
                facts.types.insert(name.to_owned(), (bytes(size), bytes(align)));
            }
            ["field", name, field, offset, size] => {
                facts.fields.insert(format!("{name}.{field}"), (bytes(offset), bytes(size)));
            }
            ["value", name, value] => {
                facts.values.insert(name.to_owned(), (number(value), 8));
            }
            _ => panic!("the probe printed {line:?}"),
        }
    }
    facts
}

impl Facts {
    pub fn field(&mut self, ty: &str, path: &str, offset: usize, size: usize) {
        self.fields.insert(format!("{ty}.{}", c_path(path)), (offset, size));
    }
}

/// C's name of a field: without bindgen's names for anonymous members and its underscore
/// behind a keyword of Rust.
fn c_path(path: &str) -> String {
    let path = path.replace(' ', "");
    let segments = path.split('.').filter(|segment| !segment.starts_with("__bindgen_anon_"));
    let unescape = |segment| match segment {
        "type_" => "type",
        "in_" => "in",
        "priv_" => "priv",
        other => other,
    };
    segments.map(unescape).collect::<Vec<_>>().join(".")
}

/// The size of what a field's pointer points to.
pub fn size_behind<T, F>(_field: fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

/// An integer constant, of whatever type.
pub trait Constant: Copy {
    fn widened(self) -> u64;
}

macro_rules! constants {
    ($($ty:ty),*) => { $(impl Constant for $ty { fn widened(self) -> u64 { self as i64 as u64 } })* };
}
constants!(u32, i32, u64);
