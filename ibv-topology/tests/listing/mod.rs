//! Lays a machine out below a folder, as sysfs would show it, from a listing of one line for each device:
//! the kernel's path, then `; NAME=TEXT` for each file in that folder. `driver`, `infiniband` and `net` are no
//! files: they become the links that the kernel makes of them. Lines that begin with `#` are for people.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Writes `listing` below `root`.
pub fn lay_out(listing: &str, root: &Path) {
    for line in listing.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut fields = line.split("; ");
        let path = PathBuf::from(fields.next().unwrap());
        let dir = root.join(path.strip_prefix("/").unwrap());
        fs::create_dir_all(&dir).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.starts_with("/sys/devices/virtual/infiniband") {
            link(root, "sys/class/infiniband", name, &path);
        } else if name.contains('.') {
            link(root, "sys/bus/pci/devices", name, &path);
        }
        for (key, value) in fields.map(|field| field.split_once('=').unwrap()) {
            file(root, &path, key, value);
        }
    }
}

fn file(root: &Path, path: &Path, key: &str, value: &str) {
    let dir = root.join(path.strip_prefix("/").unwrap());
    match key {
        "driver" => symlink(Path::new("/sys/bus/pci/drivers").join(value), dir.join(key)).unwrap(),
        "infiniband" | "net" => {
            let child = dir.join(key).join(value);
            fs::create_dir_all(&child).unwrap();
            symlink("../..", child.join("device")).unwrap();
            link(root, &format!("sys/class/{key}"), value, &path.join(key).join(value));
        }
        _ => fs::write(dir.join(key), format!("{value}\n")).unwrap(),
    }
}

/// `FOLDER/NAME` leads to `path`, by a relative way as in sysfs.
fn link(root: &Path, folder: &str, name: &str, path: &Path) {
    let at = root.join(folder);
    fs::create_dir_all(&at).unwrap();
    let up = "../".repeat(Path::new(folder).components().count());
    symlink(Path::new(&up).join(path.strip_prefix("/").unwrap()), at.join(name)).unwrap();
}
