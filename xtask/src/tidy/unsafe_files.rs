//! The files that may hold unsafe code, against the committed list `xtask/unsafe-files.txt`: a new one
//! is a decision, not an accident.

use super::Tracked;
use std::collections::BTreeSet;

/// Above the paths in the file.
const HEAD: &str =
    "# The files that may hold unsafe code. `cargo xtask tidy` compares; a new line is a decision.\n";

pub(super) fn check(files: &[Tracked], list: &str) -> Vec<String> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (listed, found) = (lines.collect::<BTreeSet<_>>(), found(files));
    let new = found.difference(&listed).map(|path| {
        format!("{path}: allows unsafe code and is not in xtask/unsafe-files.txt; add it if it has to")
    });
    let gone = listed.difference(&found).map(|path| {
        format!("{path}: is in xtask/unsafe-files.txt and allows no unsafe code; remove it there")
    });
    let silent = files
        .iter()
        .filter(|f| is_silent(f))
        .map(|f| format!("{}: allows unsafe code without a module-level \"# Safety\"", f.path));
    new.chain(gone).chain(silent).collect()
}

/// The list as it would have to be.
pub(super) fn list(files: &[Tracked]) -> String {
    found(files).into_iter().fold(HEAD.to_owned(), |text, path| text + path + "\n")
}

fn found(files: &[Tracked]) -> BTreeSet<&str> {
    let allows = |f: &&Tracked| f.is_rust() && f.text.lines().any(allows_unsafe);
    files.iter().filter(allows).map(|f| f.path.as_str()).collect()
}

/// For the file or for an item of it.
fn allows_unsafe(line: &str) -> bool {
    let line = line.trim_start();
    (line.starts_with("#![allow(") || line.starts_with("#[allow(")) && line.contains("unsafe_code")
}

/// A file of the product that is opened as a whole and does not argue why it may be.
fn is_silent(file: &Tracked) -> bool {
    let whole = |line: &str| line.starts_with("#![allow(") && line.contains("unsafe_code");
    let of_tests = file.path.contains("/tests/") || file.path.contains("/benches/");
    file.is_rust() && !of_tests && file.text.lines().any(whole) && !file.text.contains("# Safety")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Tracked {
        Tracked { path: path.into(), text: text.into() }
    }

    #[test]
    fn the_list_and_the_files_have_to_agree() {
        let open = "#![allow(unsafe_code)]\n//! # Safety\n";
        assert!(check(&[file("a.rs", open), file("b.rs", "")], "# why\na.rs\n").is_empty());
        assert!(check(&[file("a.rs", open)], "")[0].contains("add it"));
        assert!(check(&[file("a.rs", "  #[allow(unsafe_code)]\n")], "")[0].contains("add it"));
        assert!(check(&[file("a.rs", "")], "a.rs")[0].contains("remove it"));
    }

    #[test]
    fn a_file_of_the_product_argues_why() {
        let open = "#![allow(unsafe_code)]\n";
        assert!(check(&[file("x/src/a.rs", open)], "x/src/a.rs")[0].contains("# Safety"));
        assert!(check(&[file("x/tests/a.rs", open)], "x/tests/a.rs").is_empty());
    }

    #[test]
    fn the_list_that_is_written_passes() {
        let files =
            [file("b.rs", "#[allow(unsafe_code)]\n"), file("a.rs", "#![allow(unsafe_code)]\n# Safety\n")];
        assert!(check(&files, &list(&files)).is_empty());
    }
}
