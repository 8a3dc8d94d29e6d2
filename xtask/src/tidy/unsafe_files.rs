//! The files that may hold unsafe code, against the committed list `xtask/unsafe-files.txt`: a new one
//! is a decision, not an accident.

use super::Tracked;
use std::collections::BTreeSet;

pub(super) fn check(files: &[Tracked], list: &str) -> Vec<String> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let listed: BTreeSet<&str> = lines.collect();
    let rust = || files.iter().filter(|file| file.is_rust());
    let found: BTreeSet<&str> =
        rust().filter(|f| f.text.lines().any(opens_file)).map(|f| f.path.as_str()).collect();
    let new = found.difference(&listed).map(|path| {
        format!("{path}: allows unsafe code and is not in xtask/unsafe-files.txt; add it if it has to")
    });
    let gone = listed.difference(&found).map(|path| {
        format!("{path}: is in xtask/unsafe-files.txt and allows no unsafe code; remove it there")
    });
    let inner = rust()
        .filter(|f| f.text.lines().any(opens_item))
        .map(|f| format!("{}: allows unsafe code for an item; it is opened file by file", f.path));
    let silent = rust()
        .filter(|f| found.contains(f.path.as_str()) && !f.text.contains("# Safety"))
        .map(|f| format!("{}: allows unsafe code without a module-level \"# Safety\"", f.path));
    new.chain(gone).chain(inner).chain(silent).collect()
}

fn opens_file(line: &str) -> bool {
    line.trim_start().starts_with("#![allow(") && line.contains("unsafe_code")
}

fn opens_item(line: &str) -> bool {
    line.trim_start().starts_with("#[allow(") && line.contains("unsafe_code")
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
        assert!(check(&[file("a.rs", "")], "a.rs")[0].contains("remove it"));
    }

    #[test]
    fn it_is_opened_for_a_file_and_with_a_reason() {
        assert!(check(&[file("a.rs", "  #[allow(unsafe_code)]\n")], "")[0].contains("file by file"));
        assert!(check(&[file("a.rs", "#![allow(unsafe_code)]\n")], "a.rs")[0].contains("# Safety"));
    }
}
