//! An initial file system in memory, in the format that Linux calls newc. What is in it is not decided
//! here; see the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.

const TRAILER: &str = "TRAILER!!!";
const FOLDER: u32 = 0o040755;
const PROGRAM: u32 = 0o100755;
const CHARACTER_DEVICE: u32 = 0o020600;

/// Collects folders and files; ends as the bytes that a kernel unpacks.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(crate) fn folder(&mut self, path: &str) -> &mut Self {
        self.entry(path, FOLDER, (0, 0), &[])
    }

    /// A file that everybody may read and run.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) -> &mut Self {
        self.entry(path, PROGRAM, (0, 0), content)
    }

    /// The first process has no streams without `dev/console`.
    pub(crate) fn character_device(&mut self, path: &str, major: u32, minor: u32) -> &mut Self {
        self.entry(path, CHARACTER_DEVICE, (major, minor), &[])
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) -> &mut Self {
        self.entries += 1;
        let (size, name) = (content.len() as u32, path.len() as u32 + 1);
        // Inode, mode, owner, group, links, time, size, the device's numbers, rdev's, name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name, 0];
        self.bytes.extend(b"070701");
        self.bytes.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
        self.bytes.extend(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
        self
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sh::{output, program};

    #[test]
    fn cpio_reads_it_where_there_is_one() {
        let mut archive = Archive::default();
        archive.folder("a").file("a/odd", b"12345").file("b", b"");
        let path = std::env::temp_dir().join(format!("initramfs-{}.cpio", std::process::id()));
        std::fs::write(&path, archive.finish()).unwrap();
        let listed = output(&mut program("sh", ["-c", &format!("cpio -t --quiet <{}", path.display())]));
        std::fs::remove_file(&path).unwrap();
        match listed {
            Ok(names) => assert_eq!(names, "a\na/odd\nb\n"),
            Err(why) => println!("not compared: {why}"),
        }
    }

    #[test]
    fn entries_start_at_multiples_of_four_and_the_last_is_the_trailer() {
        let mut archive = Archive::default();
        archive.file("x", b"12345").character_device("dev/console", 5, 1);
        let bytes = archive.finish();
        let starts: Vec<usize> =
            (0..bytes.len() - 5).filter(|at| &bytes[*at..*at + 6] == b"070701").collect();
        assert_eq!(starts.len(), 3);
        assert!(starts.iter().all(|at| at % 4 == 0) && bytes.len() % 4 == 0, "{starts:?}");
        assert!(bytes[starts[2]..].windows(TRAILER.len()).any(|w| w == TRAILER.as_bytes()));
    }
}
