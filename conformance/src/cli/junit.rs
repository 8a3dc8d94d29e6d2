//! The file of `--junit`. What is in it is `report/junit.rs`'s.

use super::Failed;
use crate::whole::Whole;
use std::{io, path::Path};

/// It appears whole under its name, or leaves what was there.
pub(super) struct Junit<'c> {
    path: &'c Path,
    file: Whole,
}

impl<'c> Junit<'c> {
    /// Fails before anything is run where there could be no such file.
    pub(super) fn create(path: &'c Path) -> Result<Self, Failed> {
        Whole::create(path).map(|file| Self { path, file }).map_err(|e| unwritten(path, &e))
    }

    pub(super) fn write(self, text: &str) -> Result<(), Failed> {
        self.file.write(text.as_bytes()).map_err(|e| unwritten(self.path, &e))
    }
}

fn unwritten(path: &Path, e: &io::Error) -> Failed {
    Failed { code: 53, why: format!("{}: the report can not be written: {e}", path.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_can_not_be_written_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("suite.xml");
        let write = |text| Junit::create(&path).and_then(|junit| junit.write(text)).map_err(|e| e.why);
        write("first").unwrap();
        // In the way of the name: the folder goes, and the file in it, before the report is written.
        let junit = Junit::create(&path).map_err(|e| e.why).unwrap();
        fs::remove_dir_all(folder.path()).unwrap();
        assert_eq!(junit.write("second").unwrap_err().code, 53);
        fs::create_dir(folder.path()).unwrap();
        write("first").unwrap();
        drop(Junit::create(&path).map_err(|e| e.why).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        write("third").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was left beside the report");
    }

    #[test]
    fn a_folder_that_is_none_and_a_full_device_are_no_wrong_usage() {
        let code = |path| Junit::create(Path::new(path)).and_then(|junit| junit.write("x")).unwrap_err().code;
        assert_eq!((code("/no/such/folder/x.xml"), code("/dev/full")), (53, 53));
        assert!(Junit::create(Path::new("x.xml")).is_ok());
    }
}
