//! Lists the devices that libibverbs sees, and what was loaded to see them; or why it can not.

use std::error::Error;
use std::ffi::CStr;
use std::process::ExitCode;

use ibv_sys::{Verbs, verbs, versions};

fn main() -> ExitCode {
    match show() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn show() -> Result<(), Box<dyn Error>> {
    let verbs = verbs()?;
    let names = devices(verbs)?;
    println!("{} devices", names.len());
    for name in names {
        println!("  {name}");
    }
    for version in versions() {
        let newest = version.symbol_versions.last().unwrap_or(&"no known symbol version");
        println!("{} from {}, up to {newest}", version.library, version.file.display());
    }
    for variable in ibv_sys::ring_variables() {
        println!("{}={}: {}", variable.name, variable.value.to_string_lossy(), variable.effect);
    }
    Ok(())
}

/// The names of all devices.
fn devices(verbs: &Verbs) -> Result<Vec<String>, std::io::Error> {
    let mut count = 0;
    // SAFETY: `count` is valid for the call.
    let list = unsafe { verbs.ibv_get_device_list(&mut count) };
    if list.is_null() {
        let error = std::io::Error::last_os_error();
        // ENOSYS: the kernel has no RDMA, so there is no device.
        return if error.raw_os_error() == Some(libc::ENOSYS) { Ok(Vec::new()) } else { Err(error) };
    }
    let name = |index| {
        // SAFETY: the list has `count` devices, alive until it is freed; a name is a C string inside the device.
        unsafe { CStr::from_ptr(verbs.ibv_get_device_name(*list.add(index))) }.to_string_lossy().into_owned()
    };
    let names = (0..count as usize).map(name).collect();
    // SAFETY: the list came from ibv_get_device_list and nothing of it is used again.
    unsafe { verbs.ibv_free_device_list(list) };
    Ok(names)
}
