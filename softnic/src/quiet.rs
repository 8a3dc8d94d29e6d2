//! What a helper thread in somebody else's process must do: leave the signals to the program, wake up on time.
//!
//! # Safety
//!
//! Plain calls on the calling thread itself, with memory of this frame.
#![allow(unsafe_code)]

/// Makes the calling thread a quiet guest.
pub(crate) fn prepare_thread() {
    // SAFETY: see the module.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
    ask_for_short_slices();
}

/// `struct sched_attr` in its first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Kernels since 6.12 run a waking thread with a short slice before busy ones with the usual slice: a program that polls
/// for a completion then gets it after microseconds, not after its own slice. Others ignore the wish.
fn ask_for_short_slices() {
    let attr = SchedAttr {
        size: 48,
        policy: 0,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: 100_000,
        deadline: 0,
        period: 0,
    };
    // SAFETY: thread 0 is the caller; the structure lives through the call. A refusal changes nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}
