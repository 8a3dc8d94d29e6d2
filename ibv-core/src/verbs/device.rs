//! The devices that libibverbs sees, and what can be said about each: attributes, ports, GID tables. Which
//! of them a provider drives is the provider's.
#![allow(unsafe_code)]
//! # Safety
//! The list and its entries live until the list is freed, once, by its owner; text in them ends with a
//! zero byte inside its array, and is read no further than that. The GID union is plain bytes.

use crate::{
    device::{DeviceKind, GidEntry, IbvDeviceInfo, IbvPort, PortState},
    error::{Error, ErrorKind},
    gid::{Gid, GidType, LinkLayer, Mtu},
    verbs::{ForkPolicy, VerbsLibrary, errno, gid::GidTable, handles::Context, sysfs::DeviceDir},
};
use ibv_sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET,
    IBV_LINK_LAYER_INFINIBAND, ibv_device, ibv_gid, ibv_gid_entry, ibv_mtu, ibv_node_type, ibv_port_attr,
    ibv_transport_type,
};
use std::ffi::{c_char, c_int};

/// A device as the library lists it, not opened.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name: `mlx5_0`.
    pub name: String,
    /// Its directory in sysfs.
    pub dir: DeviceDir,
    /// What kind of node it is.
    pub node_type: ibv_node_type,
    /// What it speaks below the verbs.
    pub transport: ibv_transport_type,
}

/// The devices that the library lists; empty where the kernel has no RDMA subsystem.
///
/// # Errors
/// `PermissionDenied` or `OutOfResources`, as the library says.
pub fn list(verbs: VerbsLibrary) -> Result<Vec<Device>, Error> {
    Ok(RawList::new(verbs)?.iter().map(|(_, device)| device).collect())
}

/// Every device with what an open one tells. One that can not be opened is listed with what sysfs tells,
/// and without ports; [`Context::open`] has the reason. `fork` is in force before the first is opened.
///
/// # Errors
/// As [`list`]; as [`ForkPolicy::apply`], where there is a device.
pub fn describe_all(verbs: VerbsLibrary, fork: ForkPolicy) -> Result<Vec<IbvDeviceInfo>, Error> {
    let devices = list(verbs)?;
    if !devices.is_empty() {
        fork.apply(verbs)?;
    }
    let describe = |device: Device| match Context::open(verbs, &device.name) {
        Ok(context) => describe(&context),
        Err(_) => IbvDeviceInfo { kind: kind(&device.dir, 0), ..IbvDeviceInfo::new(device.name) },
    };
    Ok(devices.into_iter().map(describe).collect())
}

/// What an open device tells about itself. A port or a table that can not be read is left out.
pub fn describe(context: &Context) -> IbvDeviceInfo {
    let attr = &context.attr().orig_attr;
    let ports = (1..=context.ports()).filter_map(|n| Port::query(context, n).ok());
    IbvDeviceInfo {
        name: context.name().into(),
        kind: kind(context.dir(), attr.vendor_id),
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        fw_ver: text(&attr.fw_ver),
        node_guid: u64::from_be(attr.node_guid),
        ports: ports.map(|port| port.info()).collect(),
    }
}

/// What stands behind a device. The kernel's software devices say so by their vendor numbers (Soft-RoCE
/// 0xffffff: drivers/infiniband/sw/rxe/rxe_param.h; Soft-iWARP 0x626d74: sw/siw/siw.h). This project's own
/// take a real vendor's number, so that the vendor's library drives them, and a board name that none has.
fn kind(dir: &DeviceDir, vendor_id: u32) -> DeviceKind {
    const RXE: u32 = 0xff_ffff;
    const SIW: u32 = 0x62_6d74;
    match vendor_id {
        _ if dir.board_id().is_some_and(|board| board.starts_with("SOFTNIC")) => DeviceKind::SoftwareUser,
        RXE | SIW => DeviceKind::SoftwareKernel,
        _ if dir.driver().is_some() => DeviceKind::Hardware,
        _ => DeviceKind::Unknown,
    }
}

/// A port as it is now.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its number, from 1.
    pub num: u8,
    /// Its attributes.
    pub attr: ibv_port_attr,
    /// Its GID table.
    pub gids: GidTable,
}

impl Port {
    /// Asks the device.
    ///
    /// # Errors
    /// As [`Context::query_port`], and the library's where the GID table can not be read.
    pub fn query(context: &Context, num: u8) -> Result<Self, Error> {
        let attr = context.query_port(num)?;
        let gids = gid_table(context, num, &attr)?;
        Ok(Self { num, attr, gids })
    }

    /// Its link layer.
    pub fn link_layer(&self) -> LinkLayer {
        match u32::from(self.attr.link_layer) {
            IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        }
    }

    /// Whether it can be used.
    pub fn is_active(&self) -> bool {
        self.attr.state.0 == PortState::ACTIVE.0
    }

    /// As core describes ports. An MTU that the specification does not know counts as the smallest.
    pub fn info(&self) -> IbvPort {
        IbvPort {
            port_num: self.num,
            state: PortState(self.attr.state.0),
            link_layer: self.link_layer(),
            active_mtu: mtu_of(self.attr.active_mtu).unwrap_or(Mtu::B256),
            lid: self.attr.lid,
            gids: self.gids.entries.clone(),
        }
    }
}

/// The library's MTU code as core's.
pub fn mtu_of(mtu: ibv_mtu) -> Option<Mtu> {
    Mtu::from_code(u8::try_from(mtu.0).ok()?)
}

/// The library's GID as core's.
pub fn gid_of(gid: &ibv_gid) -> Gid {
    // SAFETY: both members of the union are 16 plain bytes.
    Gid(unsafe { gid.raw })
}

/// A port's GID table: in one call where library and kernel have it, else entry by entry.
fn gid_table(context: &Context, port: u8, attr: &ibv_port_attr) -> Result<GidTable, Error> {
    let len = u32::try_from(attr.gid_tbl_len).unwrap_or(0);
    let entries = match whole_table(context) {
        Some(entries) => entries
            .iter()
            .filter(|e| e.port_num == u32::from(port))
            .map(|e| entry_of(context, port, e))
            .collect(),
        None => (0..len).map(|index| single(context, port, index)).collect::<Result<Vec<_>, _>>()?,
    };
    Ok(GidTable::new(len, entries))
}

/// All ports' entries, without the empty ones; `None` where the library can not say.
fn whole_table(context: &Context) -> Option<Vec<ibv_gid_entry>> {
    let slots = |n| context.query_port(n).map_or(0, |attr| usize::try_from(attr.gid_tbl_len).unwrap_or(0));
    let room: usize = (1..=context.ports()).map(slots).sum();
    let mut entries = vec![ibv_gid_entry::default(); room];
    // SAFETY: the context is open and `entries` has room for as many.
    let got = unsafe { context.verbs().ibv_query_gid_table(context.as_ptr(), entries.as_mut_ptr(), room, 0) };
    entries.truncate(usize::try_from(got).ok()?);
    Some(entries)
}

fn entry_of(context: &Context, port: u8, entry: &ibv_gid_entry) -> GidEntry {
    let gid_type = match entry.gid_type {
        t if t == IBV_GID_TYPE_IB.0 => GidType::Ib,
        t if t == IBV_GID_TYPE_ROCE_V1.0 => GidType::RoceV1,
        t if t == IBV_GID_TYPE_ROCE_V2.0 => GidType::RoceV2,
        _ => GidType::None,
    };
    let netdev = context.dir().netdev(port, entry.gid_index);
    GidEntry { index: entry.gid_index, gid: gid_of(&entry.gid), gid_type, netdev }
}

/// One entry, with its type from sysfs; zero where the slot is empty.
fn single(context: &Context, port: u8, index: u32) -> Result<GidEntry, Error> {
    let mut raw = ibv_gid::default();
    let at = c_int::try_from(index).unwrap_or(c_int::MAX);
    // SAFETY: the context is open and the GID writable.
    if unsafe { context.verbs().ibv_query_gid(context.as_ptr(), port, at, &mut raw) } != 0 {
        let what = format!("{} port {port} index {index}", context.name());
        return Err(Error::from_errno("query_gid", errno()).context(what));
    }
    let gid = gid_of(&raw);
    if gid.is_zero() {
        return Ok(GidEntry { index, gid, gid_type: GidType::None, netdev: None });
    }
    let gid_type = context.dir().gid_type(port, index).unwrap_or_default();
    Ok(GidEntry { index, gid, gid_type, netdev: context.dir().netdev(port, index) })
}

/// The library's list, freed when dropped.
#[derive(Debug)]
pub(super) struct RawList {
    raw: *mut *mut ibv_device,
    len: usize,
    verbs: VerbsLibrary,
}

impl RawList {
    pub(super) fn new(verbs: VerbsLibrary) -> Result<Self, Error> {
        const ENOSYS: i32 = libc::ENOSYS;
        let mut len = 0;
        // SAFETY: `len` is writable.
        let raw = unsafe { verbs.ibv_get_device_list(&mut len) };
        if raw.is_null() {
            return match errno() {
                // No RDMA subsystem in the kernel: there is no device, and that is an answer.
                ENOSYS => Ok(Self { raw, len: 0, verbs }),
                code => Err(Error::from_errno("get_device_list", code)),
            };
        }
        Ok(Self { raw, len: usize::try_from(len).unwrap_or(0), verbs })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (*mut ibv_device, Device)> {
        (0..self.len).map(|i| {
            // SAFETY: `i` is below the length that the library gave.
            let raw = unsafe { *self.raw.add(i) };
            // SAFETY: an entry of a list that has not been freed.
            (raw, device_of(unsafe { &*raw }))
        })
    }

    pub(super) fn find(&self, name: &str) -> Option<(*mut ibv_device, Device)> {
        self.iter().find(|(_, device)| device.name == name)
    }
}

impl Drop for RawList {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the library's list, freed once.
            unsafe { self.verbs.ibv_free_device_list(self.raw) };
        }
    }
}

fn device_of(raw: &ibv_device) -> Device {
    Device {
        name: text(&raw.name),
        dir: DeviceDir::new(text(&raw.ibdev_path)),
        node_type: raw.node_type,
        transport: raw.transport_type,
    }
}

/// Text up to its zero byte.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The device of that name, not opened.
///
/// # Errors
/// `NoDevice`; else as [`list`].
pub fn find(verbs: VerbsLibrary, name: &str) -> Result<Device, Error> {
    let found = list(verbs)?.into_iter().find(|device| device.name == name);
    found.ok_or_else(|| Error::new(ErrorKind::NoDevice, "get_device_list", format!("no RDMA device {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_its_zero_byte_or_its_array() {
        assert_eq!(text(&[b'a' as c_char, b'b' as c_char, 0, b'c' as c_char]), "ab");
        assert_eq!(text(&[b'a' as c_char; 3]), "aaa");
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn software_devices_are_told_from_hardware() {
        let root = std::env::temp_dir().join(format!("ibv-kind-{}", std::process::id()));
        let dir = |name: &str| DeviceDir::new(root.join(name));
        std::fs::create_dir_all(root.join("hw/device")).unwrap();
        std::os::unix::fs::symlink("/drivers/mlx5_core", root.join("hw/device/driver")).unwrap();
        std::fs::create_dir_all(root.join("user")).unwrap();
        std::fs::write(root.join("user/board_id"), "SOFTNIC_MLX5\n").unwrap();
        let kinds = [
            kind(&dir("hw"), 0x15b3),
            kind(&dir("user"), 0x15b3),
            kind(&dir("hw"), 0xff_ffff),
            kind(&dir("none"), 0x62_6d74),
            kind(&dir("none"), 0),
        ];
        std::fs::remove_dir_all(&root).unwrap();
        use DeviceKind::{Hardware, SoftwareKernel, SoftwareUser, Unknown};
        assert_eq!(kinds, [Hardware, SoftwareUser, SoftwareKernel, SoftwareKernel, Unknown]);
    }
}
