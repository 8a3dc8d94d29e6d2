use std::arch::asm;
use std::os::fd::AsRawFd;

use super::*;
use crate::memory::memory_file;

/// A counted page, as a program has it.
struct Counted {
    at: *mut c_void,
    file: std::os::fd::OwnedFd,
}

impl Counted {
    fn new() -> Self {
        let file = memory_file("softnic-test", COUNTED as u64).unwrap();
        // SAFETY: a fresh mapping of a file that has the tallies.
        let at = unsafe { map(std::ptr::null_mut(), PAGE, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { at, file }
    }

    fn word(&self, n: usize) -> *mut u32 {
        self.at.cast::<u32>().wrapping_add(n)
    }

    /// Value, times and widest step of a doorbell.
    fn told(&self, n: usize) -> [u32; 3] {
        let read = |at: usize| {
            let mut bytes = [0; 4];
            rustix::io::pread(&self.file, &mut bytes, at as u64).unwrap();
            u32::from_ne_bytes(bytes)
        };
        [read(n * 4), read(PAGE + n * TALLY), read(PAGE + n * TALLY + 4)]
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, used by nobody any more.
        assert_eq!(unsafe { unmap(self.at, PAGE) }, 0);
    }
}

#[test]
fn every_kind_of_store_arrives_and_is_counted() {
    let page = Counted::new();
    let at = page.word(0);
    // SAFETY: stores to words of the page, each by one instruction.
    unsafe {
        asm!("mov [{}], {:e}", in(reg) page.word(0), in(reg) 5u32);
        asm!("mov dword ptr [{}], 6", in(reg) page.word(1));
        asm!("mov [{} + {}*4], r9d", in(reg) at, in(reg) 2usize, in("r9") 7u32);
        asm!("mov [r13 + 12], r15d", in("r13") at, in("r15") 8u32);
        asm!("mov [{} + 0x200], {:e}", in(reg) at, in(reg) 9u32);
        asm!("movnti [r12], {:e}", in(reg) 10u32, in("r12") page.word(5));
        asm!("mov dword ptr [{} + {}*4 + 0x300], 0x80000001", in(reg) at, in(reg) 1usize);
        page.word(7).write_volatile(11);
        AtomicU32::from_ptr(page.word(8)).store(12, Ordering::Release);
        AtomicU32::from_ptr(page.word(8)).store(13, Ordering::SeqCst);
        assert_eq!(AtomicU32::from_ptr(page.word(8)).swap(14, Ordering::Relaxed), 13);
    }
    let told = [0, 1, 2, 3, 128, 5, 193, 7].map(|n| page.told(n));
    let values = [5, 6, 7, 8, 9, 10, 0x8000_0001, 11];
    assert_eq!(told, values.map(|v: u32| [v, 1, v & 0xffff]));
    assert_eq!(page.told(8), [14, 3, 12]);
    assert_eq!(page.told(4), [0, 0, 0]);
}

#[test]
fn steps_wrap_as_the_doorbells_do() {
    let page = Counted::new();
    for value in [0xfff0, 3, 4] {
        // SAFETY: a word of the page.
        unsafe { page.word(3).write_volatile(value) };
    }
    assert_eq!(page.told(3), [4, 3, 0xfff0]);
    // SAFETY: as above.
    unsafe { page.word(4).write_volatile(0xffff) };
    assert_eq!(page.told(4), [0xffff, 1, 0xffff]);
}

#[test]
fn no_write_of_any_thread_is_missed() {
    const THREADS: usize = 4;
    const TIMES: u32 = 2000;
    let (page, other) = (Counted::new(), Counted::new());
    let places = [page.word(0) as usize, other.word(0) as usize];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for value in 0..TIMES {
                    let own = (places[thread % 2] as *mut u32).wrapping_add(1 + thread);
                    // SAFETY: words of the pages; the first is written by two threads.
                    unsafe {
                        (places[thread % 2] as *mut u32).write_volatile(value);
                        own.write_volatile(value + 1);
                    }
                }
            });
        }
        // Pages come and go meanwhile.
        (0..50).for_each(|_| drop(Counted::new()));
    });
    for thread in 0..THREADS {
        let page = [&page, &other][thread % 2];
        assert_eq!(page.told(0)[1], 2 * TIMES);
        assert_eq!(page.told(1 + thread), [TIMES, TIMES, 1]);
    }
}

#[test]
fn a_page_that_is_given_up_is_an_ordinary_one() {
    let page = Counted::new();
    let at = page.at as usize;
    assert!(place(at).is_some());
    drop(page);
    assert!(place(at).is_none());
}

#[test]
fn nothing_that_is_given_up_gives_up_nothing() {
    let page = Counted::new();
    let alias = place(page.at as usize).unwrap().alias.load(Ordering::Relaxed) as *mut c_void;
    drop(page);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: at a free place, or nowhere.
    let other = unsafe { bare_mmap(alias, COUNTED, libc::PROT_READ, flags, -1, 0) };
    if other != alias {
        println!("skipped: another thread was faster to take the place");
        return;
    }
    // libefa of rdma-core 65 does so for a completion queue without a doorbell.
    // SAFETY: nothing is mapped there; and our own mapping, once.
    unsafe {
        unmap(std::ptr::null_mut(), PAGE);
        assert_eq!(libc::msync(alias, COUNTED, libc::MS_ASYNC), 0, "it is still there");
        assert_eq!(bare_munmap(alias, COUNTED), 0);
    }
}

/// In a child, which a fault ends: what the parent learns of it.
fn in_child(act: impl FnOnce()) -> c_int {
    // SAFETY: the child calls what is given, which faults, and else leaves at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            act();
            libc::_exit(7);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    }
}

#[test]
fn other_faults_end_the_process_as_ever() {
    let page = Counted::new();
    let word = page.word(0);
    let killed = |status| libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV;
    // SAFETY: each faults, in a child.
    unsafe {
        assert!(killed(in_child(|| (0x10 as *mut u32).write_volatile(1))), "nothing is there");
        assert!(killed(in_child(|| word.cast::<u64>().write_volatile(1))), "64 bits");
        assert!(killed(in_child(sent_and_not_handled)), "sent by kill");
    }
    let rings = in_child(|| {
        // SAFETY: a word of the page, which the child shares.
        unsafe { word.write_volatile(9) };
    });
    assert_eq!((libc::WEXITSTATUS(rings), page.told(0)), (7, [9, 1, 9]));
}

/// In a child: nobody handled the signal before, and it is sent.
fn sent_and_not_handled() {
    // SAFETY: an all-zero structure is the default; the child has no other thread.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        BEFORE.store(&mut before, Ordering::Release);
        libc::raise(libc::SIGSEGV);
    }
}

extern "C" fn earlier(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: ends the process, here a child.
    unsafe { libc::_exit(3) };
}

#[test]
fn the_handler_before_gets_what_is_not_a_doorbells() {
    let _page = Counted::new();
    let status = in_child(|| {
        // SAFETY: as `watch` does it; the child has no other thread.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            before.sa_sigaction = earlier as *const () as usize;
            before.sa_flags = libc::SA_SIGINFO;
            BEFORE.store(&mut before, Ordering::Release);
            (0x10 as *mut u32).write_volatile(1);
        }
    });
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 3));
}
