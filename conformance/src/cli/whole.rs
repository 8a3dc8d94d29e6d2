//! A report that appears whole under its name, or leaves what was there.

use super::Failed;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
};

/// Fails before anything is run where the folder is none.
pub(super) fn check(path: &Path) -> Result<(), Failed> {
    fs::read_dir(folder(path)).map(drop).map_err(|e| unwritten(path, &e))
}

/// Writes beside `path` first, unless that is something else than a file, such as a pipe.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failed> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return fs::write(path, text).map_err(|e| unwritten(path, &e));
    }
    // What a link names is replaced, not the link.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let beside = beside(path);
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.map_err(|e| {
        let _ = fs::remove_file(&beside);
        unwritten(path, &e)
    })
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    folder(path).join(format!(".{name}.{}", process::id()))
}

fn unwritten(path: &Path, e: &io::Error) -> Failed {
    Failed { code: 53, why: format!("{}: the report can not be written: {e}", path.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test's own.
    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("report-{name}-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_can_not_be_written_leaves_what_was_there() {
        let folder = scratch("kept");
        let path = folder.join("suite.xml");
        write(&path, "first").map_err(|e| e.why).unwrap();
        // In the way of the file that is written first.
        fs::create_dir(beside(&path)).unwrap();
        let failed = write(&path, "second").unwrap_err();
        assert_eq!((failed.code, fs::read_to_string(&path).unwrap().as_str()), (53, "first"));
        fs::remove_dir(beside(&path)).unwrap();
        write(&path, "third").map_err(|e| e.why).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "something was left beside the report");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_is_none_and_a_full_device_are_no_wrong_usage() {
        assert_eq!(check(Path::new("/no/such/folder/x.xml")).unwrap_err().code, 53);
        assert_eq!(write(Path::new("/dev/full"), "x").unwrap_err().code, 53);
        assert!(check(Path::new("x.xml")).is_ok());
    }
}
