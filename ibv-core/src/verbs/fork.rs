//! What becomes of verbs objects when the process forks: a policy for opening, and the memory of which
//! process an object belongs to. Forking itself is the caller's.
#![allow(unsafe_code)]
//! # Safety
//! Two functions without pointers are called.

use crate::{error::Error, verbs::VerbsLibrary};
use ibv_sys::IBV_FORK_UNNEEDED;

/// What to do about registered memory and forks before the first device is opened.
///
/// A registered page is pinned for the device. After a fork, whichever process writes it first gets a
/// copy, and if that is the parent, the device goes on with a page that nobody sees any more. Linux 5.12
/// and later copies pinned pages for the child at the fork itself; older kernels need `Protect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForkPolicy {
    /// Change nothing: right where the kernel copies at fork, or nobody forks.
    #[default]
    Leave,
    /// Call `ibv_fork_init` unless the kernel makes it unnecessary. It has to come before the first
    /// registration of the process, makes every registration slower (`madvise` on its pages), and
    /// registered pages are then missing from a child.
    Protect,
}

impl ForkPolicy {
    /// Puts the policy into force for the process.
    ///
    /// # Errors
    /// The library's: EINVAL where memory has been registered already.
    pub fn apply(self, verbs: VerbsLibrary) -> Result<(), Error> {
        if self == Self::Leave {
            return Ok(());
        }
        // SAFETY: no arguments; a library too old to know answers "disabled".
        if unsafe { verbs.ibv_is_fork_initialized() } == IBV_FORK_UNNEEDED {
            return Ok(());
        }
        // SAFETY: no arguments.
        match unsafe { verbs.ibv_fork_init() } {
            0 => Ok(()),
            code => Err(Error::from_errno("fork_init", code)
                .context("protecting registered memory from forks; do it before the first registration")),
        }
    }
}

/// The process that an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeProcess(u32);

impl HomeProcess {
    /// This one.
    pub fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether this is still it, and not a forked child.
    pub fn is_here(self) -> bool {
        self == Self::this()
    }
}
