//! The kernel's side of the uverbs ABI: contexts, objects and commands, whichever way the command came (ioctl methods,
//! `INVOKE_WRITE`, `write(2)`). How a program's calls reach this is in [`crate::preload`].

pub mod abi;
pub mod ah;
pub mod call;
pub mod context;
pub mod invoke;
pub mod ioctl;
pub mod modify;
pub mod objects;
pub mod query;
pub mod rereg;
pub mod resize;
pub mod srq;
pub mod window;

/// An error number, as a failed system call reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// An argument is wrong.
    pub const INVAL: Self = Self(libc::EINVAL);
    /// A pointer is wrong.
    pub const FAULT: Self = Self(libc::EFAULT);
    /// The object is in use.
    pub const BUSY: Self = Self(libc::EBUSY);
    /// No object of that name.
    pub const NOENT: Self = Self(libc::ENOENT);
    /// Out of something.
    pub const NOMEM: Self = Self(libc::ENOMEM);
    /// The command exists, but not here.
    pub const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// The ioctl method does not exist: libraries fall back to an older way.
    pub const PROTONOSUPPORT: Self = Self(libc::EPROTONOSUPPORT);
    /// An output doesn't fit.
    pub const NOSPC: Self = Self(libc::ENOSPC);
    /// The table entry is empty.
    pub const NODATA: Self = Self(libc::ENODATA);
    /// Not an ioctl of this file.
    pub const NOTTY: Self = Self(libc::ENOTTY);
    /// The device is gone, or broken.
    pub const IO: Self = Self(libc::EIO);
}

impl From<crate::memory::Fault> for Errno {
    fn from(_: crate::memory::Fault) -> Self {
        Self::FAULT
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
