//! A context: one opening of a device file, with its register pages and event channels. Its other objects live in the engine.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use crate::description::Kind;
use crate::efa::pages::DeviceMemory;
use crate::event::EventChannel;
use crate::mlx5::uar::{STATIC_DYNAMIC_BASE, STATIC_DYNAMIC_PAGES, STATIC_PAGES, UarPages};
use crate::uverbs::Errno;

/// What a program maps of its device.
#[derive(Debug)]
pub enum DeviceFile {
    /// The register pages of mlx5.
    Registers(UarPages),
    /// The rings and doorbells of EFA.
    Memory(DeviceMemory),
}

/// One opening of a device file.
#[derive(Debug)]
pub struct Context {
    /// Index of the device in the description.
    pub device: usize,
    /// What the program maps.
    pub file: DeviceFile,
    /// Where asynchronous events go, once the program asked for a channel.
    pub async_channel: Option<EventChannel>,
    /// How many registers the program has on fixed pages; 0 if its pages are UAR objects.
    pub static_registers: u32,
    /// Completion channels by the program's descriptor.
    channels: BTreeMap<RawFd, EventChannel>,
    next_register: u32,
}

impl Context {
    /// Opens a device.
    pub fn new(device: usize, kind: Kind) -> io::Result<Self> {
        let file = match kind {
            Kind::Mlx5 => DeviceFile::Registers(UarPages::new()?),
            Kind::Efa => DeviceFile::Memory(DeviceMemory::new()?),
        };
        let channels = BTreeMap::new();
        Ok(Self { device, file, async_channel: None, static_registers: 0, channels, next_register: 0 })
    }

    /// Another descriptor of the device's file, for the program.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        match &self.file {
            DeviceFile::Registers(pages) => pages.descriptor(),
            DeviceFile::Memory(memory) => memory.descriptor(),
        }
    }

    /// The register pages, if the device has such.
    pub fn pages(&mut self) -> Result<&mut UarPages, Errno> {
        match &mut self.file {
            DeviceFile::Registers(pages) => Ok(pages),
            DeviceFile::Memory(_) => Err(Errno::PROTONOSUPPORT),
        }
    }

    /// The memory of rings and doorbells, if the device has such.
    pub fn memory(&mut self) -> Result<&mut DeviceMemory, Errno> {
        match &mut self.file {
            DeviceFile::Memory(memory) => Ok(memory),
            DeviceFile::Registers(_) => Err(Errno::PROTONOSUPPORT),
        }
    }

    /// Makes the channel of asynchronous events; answers the program's descriptor.
    pub fn open_async(&mut self) -> Result<RawFd, Errno> {
        let channel = EventChannel::new()?;
        let fd = channel.program_fd();
        self.async_channel = Some(channel);
        Ok(fd)
    }

    /// Makes a completion channel; answers the program's descriptor. A number that the program closed is reused.
    pub fn open_channel(&mut self) -> Result<RawFd, Errno> {
        let channel = EventChannel::new()?;
        let fd = channel.program_fd();
        self.channels.insert(fd, channel);
        Ok(fd)
    }

    /// A completion channel.
    pub fn channel(&mut self, fd: RawFd) -> Option<&mut EventChannel> {
        self.channels.get_mut(&fd)
    }

    /// Sends events that had no room before.
    pub fn flush_channels(&mut self) {
        self.channels.values_mut().chain(&mut self.async_channel).for_each(EventChannel::flush);
    }

    /// The page of a register that the program names by its index among a static context's thread-domain registers.
    pub fn static_dynamic_page(&self, register: u32) -> Option<usize> {
        let page = register as usize / 2;
        (page < STATIC_DYNAMIC_PAGES).then_some(STATIC_DYNAMIC_BASE + page)
    }

    /// Picks a register for a queue pair that named none; answers libmlx5's index of it and its page. Register 0 is kept
    /// for the completion queues, as the kernel does.
    pub fn pick_static_register(&mut self) -> Result<(u32, usize), Errno> {
        let usable = self.static_registers.checked_sub(1).filter(|n| *n > 0).ok_or(Errno::INVAL)?;
        let register = 1 + self.next_register % usable;
        self.next_register = self.next_register.wrapping_add(1);
        // Four registers a page, of which two are usable.
        Ok((register / 2 * 4 + register % 2, register as usize / 2))
    }

    /// Fixes the register pages, as asked for and as far as there are any.
    pub fn fix_registers(&mut self, wanted: u32) -> u32 {
        self.static_registers = (wanted & !1).clamp(2, 2 * STATIC_PAGES as u32);
        self.static_registers
    }
}
