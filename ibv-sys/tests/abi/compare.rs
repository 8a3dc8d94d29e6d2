//! Two sides' facts against each other. Runs nothing.

use std::fmt;
use std::ops::Range;

use super::facts::{Facts, UNKNOWN};

/// What came of comparing the bindings with one version of the headers.
#[derive(Debug, Default)]
pub struct Report {
    pub label: String,
    /// How many types, fields and constants both sides know.
    pub types: usize,
    pub fields: usize,
    pub values: usize,
    /// What the headers do not know: they are older.
    pub absent: Vec<String>,
    /// Structs that are shorter in the headers: they are older.
    pub shorter: Vec<String>,
    /// Structs that are longer in the headers: they are newer.
    pub longer: Vec<String>,
    /// Reserved bytes that one side has put to use.
    pub reserved: Vec<String>,
    /// What both know and do not agree on.
    pub differences: Vec<String>,
}

/// Types that grow at their front, so that only distances from the end stay.
const GROWS_AT_THE_FRONT: [&str; 1] = ["verbs_context"];

pub fn compare(label: &str, ours: &Facts, theirs: &Facts) -> Report {
    let mut report = Report { label: label.to_owned(), ..Report::default() };
    report.compare_types(ours, theirs);
    report.compare_fields(ours, theirs);
    report.compare_values(ours, theirs);
    report
}

/// True for padding that a later version may take fields from.
fn is_reserved(field: &str) -> bool {
    let name = field.rsplit('.').next().unwrap_or_default();
    name.starts_with("reserved") || name.starts_with("rsvd")
}

fn within(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

impl Report {
    fn compare_types(&mut self, ours: &Facts, theirs: &Facts) {
        for (name, (size, align)) in &ours.types {
            let Some((their_size, their_align)) = theirs.types.get(name) else { continue };
            self.types += 1;
            if align != their_align {
                self.differences.push(format!("{name}: aligned to {their_align} in C, to {align} here"));
            }
            let sizes = format!("{name}: {their_size} bytes, bound with {size}");
            match their_size.cmp(size) {
                std::cmp::Ordering::Less => self.shorter.push(sizes),
                std::cmp::Ordering::Greater => self.longer.push(sizes),
                std::cmp::Ordering::Equal => {}
            }
        }
    }

    fn compare_fields(&mut self, ours: &Facts, theirs: &Facts) {
        for (name, (offset, size)) in &ours.fields {
            let ty = name.split('.').next().unwrap_or_default();
            let Some((their_offset, their_size)) = theirs.fields.get(name) else {
                if theirs.types.contains_key(ty) {
                    self.absent.push(name.clone());
                }
                continue;
            };
            self.fields += 1;
            let from_end = GROWS_AT_THE_FRONT.contains(&ty);
            let place =
                |offset: usize, facts: &Facts| if from_end { facts.types[ty].0 - offset } else { offset };
            let same_size = size == their_size || *size == UNKNOWN;
            if place(*offset, ours) == place(*their_offset, theirs) && same_size {
                continue;
            }
            let places = format!(
                "{name}: offset {their_offset}, {their_size} bytes in C; offset {offset}, {size} bytes here"
            );
            let (here, there) = (*offset..offset + size, *their_offset..their_offset + their_size);
            if is_reserved(name) && (within(&here, &there) || within(&there, &here)) {
                self.reserved.push(places);
            } else {
                self.differences.push(places);
            }
        }
        self.absent.extend(ours.types.keys().filter(|name| !theirs.types.contains_key(*name)).cloned());
    }

    fn compare_values(&mut self, ours: &Facts, theirs: &Facts) {
        for (name, (value, bytes)) in &ours.values {
            let Some((their_value, _)) = theirs.values.get(name) else {
                self.absent.push(name.clone());
                continue;
            };
            self.values += 1;
            // C's int and our u32 extend differently; the bytes that the constant has are what counts.
            let mask = if *bytes == 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
            if value & mask != their_value & mask {
                self.differences.push(format!("{name}: {their_value} in C, {value} here"));
            }
        }
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        let Self { label, types, fields, values, absent, shorter, longer, reserved, differences } = self;
        // Names of C and numbers only: Rust's string escapes are JSON's for these.
        format!(
            "{{\"headers\":{label:?},\"types\":{types},\"fields\":{fields},\"values\":{values},\"absent\":{absent:?},\
             \"shorter\":{shorter:?},\"longer\":{longer:?},\"reserved\":{reserved:?},\"differences\":{differences:?}}}"
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rdma-core {}: {} types, {} fields, {} values compared; {} not in these headers, {} structs shorter, \
             {} longer; {} differences",
            self.label,
            self.types,
            self.fields,
            self.values,
            self.absent.len(),
            self.shorter.len(),
            self.longer.len(),
            self.differences.len()
        )
    }
}
