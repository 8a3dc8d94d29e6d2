//! The kernel that guests boot: Debian's generic one, fetched as a package, never installed. How it is
//! booted is `machine.rs`'s.

use crate::{
    debian::Archive,
    sh::{Result, program, run, target},
};
use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

/// The package that depends on the suite's newest generic kernel.
const META: &str = "linux-image-amd64";
const ARCHITECTURE: &str = "amd64";

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// As `uname -r` says it.
    pub(crate) release: String,
    /// Uncompressed: QEMU enters it directly, which takes a third of the time.
    pub(crate) vmlinux: PathBuf,
    /// Has `lib/modules`, as `modprobe -d` wants it.
    pub(crate) base: PathBuf,
}

impl Kernel {
    /// Fetches and unpacks the kernel of a Debian suite, unless that was done before.
    pub(crate) fn of(suite: &str) -> Result<Self> {
        let archive = Archive::open(&target().join("debian"))?;
        let versions = archive.versions(META, ARCHITECTURE)?;
        let version = versions.iter().find(|v| v.suite == suite);
        let version = version.ok_or_else(|| format!("no {META} in the suite {suite}: {versions:?}"))?;
        let depends = archive.depends(META, version)?;
        let package = depends.iter().find(|name| name.starts_with("linux-image-"));
        let package =
            package.ok_or_else(|| format!("{META} {} names no kernel: {depends:?}", version.full))?;
        let folder = target().join("vm").join(format!("{package}_{}", version.full));
        archive.unpack(package, ARCHITECTURE, version, &folder)?;
        Self::unpacked(&folder, package.trim_start_matches("linux-image-"))
    }

    fn unpacked(folder: &Path, release: &str) -> Result<Self> {
        let base = [folder.join("usr"), folder.to_owned()].into_iter();
        let base = base.into_iter().find(|base| base.join("lib/modules").join(release).is_dir());
        let base = base.ok_or_else(|| format!("{} has no modules of {release}", folder.display()))?;
        let kernel = Self { release: release.into(), vmlinux: folder.join("vmlinux"), base };
        if !kernel.vmlinux.exists() {
            let depmod = ["-b", &kernel.base.display().to_string(), release];
            run(&mut program("depmod", depmod))?;
            let image = fs::read(folder.join("boot").join(format!("vmlinuz-{release}")))?;
            let partial = folder.join("vmlinux.partial");
            fs::write(&partial, extract(&image)?)?;
            fs::rename(partial, &kernel.vmlinux)?;
        }
        Ok(kernel)
    }

    /// What a guest has to load before it sees the host's tree, dependencies first.
    pub(crate) fn modules(&self, names: &[&str]) -> Result<Vec<Vec<u8>>> {
        let folder = self.base.join("lib/modules").join(&self.release);
        let dependencies = fs::read_to_string(folder.join("modules.dep"))?;
        let read = |path: &&str| decompressed(&fs::read(folder.join(path))?);
        load_order(&dependencies, names).iter().map(read).collect()
    }
}

/// Reads `modules.dep`: `PATH: DEPENDENCY...`. What it does not name is built in.
fn load_order<'a>(modules_dep: &'a str, names: &[&str]) -> Vec<&'a str> {
    let mut order: Vec<&str> = Vec::new();
    for name in names {
        let named = |line: &&str| {
            let file = line.split(':').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
            file.split('.').next() == Some(*name)
        };
        let Some((path, needs)) = modules_dep.lines().find(named).and_then(|line| line.split_once(':'))
        else {
            continue;
        };
        // depmod lists every transitive dependency, the deepest last.
        for path in needs.split_whitespace().rev().chain([path]) {
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    order
}

/// The ELF file within a bzImage: Documentation/arch/x86/boot.rst names the fields.
fn extract(image: &[u8]) -> Result<Vec<u8>> {
    let word = |at: usize| {
        let bytes = image.get(at..at + 4).ok_or("the kernel's image is too short")?;
        Ok::<_, Box<dyn std::error::Error>>(
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
        )
    };
    if image.get(0x202..0x206) != Some(b"HdrS") {
        return Err("the kernel's image has no boot header".into());
    }
    let setup_sectors = usize::from(image[0x1f1]);
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    let length = word(0x24c)?;
    let payload = image.get(start..start + length).ok_or("the kernel's payload is cut off")?;
    // All compressors but gzip are followed by the size that they unpack to.
    let size = word(start + length - 4)?;
    let payload = if payload.starts_with(GZIP) { payload } else { &payload[..length - 4] };
    let vmlinux = decompressed(payload)?;
    if vmlinux.starts_with(b"\x7fELF") && vmlinux.len() == size {
        return Ok(vmlinux);
    }
    Err(format!("the kernel unpacks to {} bytes, of {size}, that are no ELF file", vmlinux.len()).into())
}

const GZIP: &[u8] = b"\x1f\x8b";

/// Through the program whose magic number it begins with; as it is where it begins with none.
fn decompressed(bytes: &[u8]) -> Result<Vec<u8>> {
    let known: [(&[u8], &str); 4] =
        [(b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x02\x21\x4c\x18", "lz4"), (GZIP, "gzip")];
    let Some((_, name)) = known.iter().find(|(magic, _)| bytes.starts_with(magic)) else {
        return Ok(bytes.to_vec());
    };
    let mut command = Command::new(name);
    command.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("{name} -dc: {e}"))?;
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    let mut unpacked = Vec::new();
    let written = thread::scope(|scope| {
        // Moved, so that the pipe is closed at its end.
        let writer = scope.spawn(move || stdin.write_all(bytes));
        let read = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut unpacked));
        writer.join().unwrap_or(Ok(())).and(read)
    });
    let status = child.wait()?;
    written?;
    if status.success() { Ok(unpacked) } else { Err(format!("{name} -dc: {status}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_load_after_what_they_need_and_once() {
        let dep =
            "k/9p.ko: k/fscache.ko k/9pnet.ko k/netfs.ko\nk/9pnet.ko:\nk/9pnet_virtio.ko.xz: k/9pnet.ko\n";
        let order = load_order(dep, &["9pnet_virtio", "9p", "built_in"]);
        assert_eq!(order, ["k/9pnet.ko", "k/9pnet_virtio.ko.xz", "k/netfs.ko", "k/fscache.ko", "k/9p.ko"]);
    }

    #[test]
    fn an_image_is_unpacked_by_its_header() {
        let elf = b"\x7fELF and more".to_vec();
        let image = image(&elf, elf.len() as u32);
        assert_eq!(extract(&image).unwrap(), elf);
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let elf = b"\x7fELF and more";
        assert!(extract(&image(elf, 3)).unwrap_err().to_string().contains("of 3"));
        assert!(extract(b"MZ").unwrap_err().to_string().contains("boot header"));
        let cut = image(elf, elf.len() as u32);
        assert!(extract(&cut[..cut.len() - 1]).unwrap_err().to_string().contains("cut off"));
    }

    /// One sector of setup, and a payload that is not compressed.
    fn image(elf: &[u8], size: u32) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x24c..0x250].copy_from_slice(&(elf.len() as u32 + 4).to_le_bytes());
        image.extend(elf);
        image.extend(size.to_le_bytes());
        image
    }
}
