//! Forked children: they get the machine in a consistent state, let go of it, and are not taken for their parent.
//!
//! A child has no device of its own: inherited contexts answer `EIO`, as a real device's do (`ibv_fork_init(3)`: what the
//! parent opened is the parent's). It must not keep the parent's sockets open either, or peers would not notice the parent's
//! death. Under `LD_PRELOAD` it may open devices anew, and then has a machine of its own.
//!
//! # Safety
//!
//! The handlers run around `fork` in the thread that calls it: `before` takes the locks, so nobody is inside the machine,
//! and `in_parent` or `in_child` gives them back in the same thread. Between them only that thread touches [`HELD`].
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::{MutexGuard, Once};

use crate::drive;
use crate::host::Host;
use crate::preload;

type Locks = (MutexGuard<'static, u32>, MutexGuard<'static, Option<Host>>);

struct Held(UnsafeCell<Option<Locks>>);

// SAFETY: see the module: one thread at a time, the one that holds the locks themselves.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Has the handlers called at every later `fork`.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    // SAFETY: plain functions that live as long as the process.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

extern "C" fn before() {
    let locks = (preload::gate(), drive::lock());
    // SAFETY: see the module.
    unsafe { *HELD.0.get() = Some(locks) };
}

extern "C" fn in_parent() {
    // SAFETY: see the module.
    drop(unsafe { (*HELD.0.get()).take() });
}

extern "C" fn in_child() {
    // SAFETY: see the module.
    let Some((gate, mut host)) = (unsafe { (*HELD.0.get()).take() }) else { return };
    if let Some(host) = host.take() {
        for fd in host.engine.shared.fabric.session().map(|s| s.descriptors()).unwrap_or_default() {
            // SAFETY: descriptors of the session, which the child forgets on the next line.
            unsafe { libc::close(fd) };
        }
        // Its memory and its other descriptors are copies that hurt nobody; taking them down would cost the child time.
        std::mem::forget(host);
    }
    preload::disown();
    drop((gate, host));
}
