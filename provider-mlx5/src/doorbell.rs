//! Doorbell records, doorbell registers and device barriers: the only MMIO of this crate, and the only
//! place where ordering towards the device is decided.
#![allow(unsafe_code)]
//! # Safety
//! Records and registers are memory that libmlx5 mapped for one queue; whoever makes a value here proves
//! that it stays mapped. Rust's fences order threads, not devices: `fence(Release)` is no instruction on
//! x86-64 and `dmb ish` on aarch64, which does not reach the device's domain. So the barriers are inline
//! assembly, named and chosen as in rdma-core's `util/udma_barrier.h`; each is also a compiler barrier,
//! because the assembly may touch memory for all the compiler knows.
//!
//! A ring is five steps in this order, once per batch (rdma-core `providers/mlx5/qp.c`, `post_send_db`):
//! WQE stores, to-device barrier, doorbell record, write-combining start, register, flush.

use std::{
    arch::asm,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("provider-mlx5 needs 8-byte stores and device barriers it knows: x86-64 or aarch64");

/// Orders all earlier stores to ordinary memory before all later ones, as a device sees them. On x86-64
/// it does not cover non-temporal stores: whoever wrote a payload with those needs an `sfence` of their
/// own.
#[inline(always)]
pub fn udma_to_device_barrier() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: no instruction.
    unsafe {
        asm!("", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches neither registers nor stack.
    unsafe {
        asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Orders an earlier load of something a device wrote before all later loads.
#[inline(always)]
pub fn udma_from_device_barrier() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a barrier touches neither registers nor stack.
    unsafe {
        asm!("lfence", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches neither registers nor stack.
    unsafe {
        asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Orders earlier stores, to ordinary and to device memory, before later write-combining ones.
#[inline(always)]
pub fn mmio_wc_start() {
    store_fence();
}

/// Pushes earlier write-combining stores out to the device, before anything later.
#[inline(always)]
pub fn mmio_flush_writes() {
    store_fence();
}

#[inline(always)]
fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a barrier touches neither registers nor stack.
    unsafe {
        asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches neither registers nor stack.
    unsafe {
        asm!("dsb st", options(nostack, preserves_flags));
    }
}

/// A queue pair's or completion queue's doorbell record: two big-endian words that the device reads.
#[derive(Debug)]
pub struct DoorbellRecord(NonNull<[AtomicU32; 2]>);

// SAFETY: all access is atomic.
unsafe impl Send for DoorbellRecord {}

/// The word of a queue pair's record that counts receives.
pub const RECEIVE: usize = 0;
/// The word of a queue pair's record that counts send-queue basic blocks.
pub const SEND: usize = 1;
/// The word of a completion queue's record that counts consumed entries.
pub const CONSUMER: usize = 0;
/// The word of a completion queue's record that arms it.
pub const ARM: usize = 1;

impl DoorbellRecord {
    /// # Safety
    /// `record` is 8 bytes of a queue's record, and stays mapped while the value is used.
    pub unsafe fn new(record: NonNull<u32>) -> Self {
        Self(record.cast())
    }

    /// Stores a count. What it makes visible must have been ordered before.
    #[inline]
    pub fn store(&self, word: usize, count: u32) {
        // SAFETY: mapped by `new`; atomics of this size are all that this process uses on it.
        let record = unsafe { self.0.as_ref() };
        record[word & 1].store(count.to_be(), Relaxed);
    }
}

/// A doorbell register: one half is written at a time, and halves alternate where there are two.
#[derive(Debug)]
pub struct Register {
    halves: NonNull<u8>,
    /// Bytes of one half; 0 where the register has one half only.
    size: usize,
    /// Offset of the half to write next: 0 or `size`.
    half: usize,
}

// SAFETY: the register is written through `&mut` only.
unsafe impl Send for Register {}

impl Register {
    /// # Safety
    /// `register` is a doorbell register of `2 * size` bytes (8 where `size` is 0), and stays mapped
    /// while the value is used. No other value writes it, unless under the same lock.
    pub unsafe fn new(register: NonNull<u8>, size: u32) -> Self {
        Self { halves: register, size: size as usize, half: 0 }
    }

    /// Where it is mapped, to tell one register from another.
    pub fn address(&self) -> NonNull<u8> {
        self.halves
    }

    /// Offset of the half that is written next.
    pub fn half(&self) -> usize {
        self.half
    }

    /// Publishes all WQEs up to `count` basic blocks: the whole sequence but for the WQE stores.
    /// `control` is the first eight bytes of the last WQE, as they lie in the ring.
    #[inline]
    pub fn ring(&mut self, record: &DoorbellRecord, count: u16, control: u64) {
        udma_to_device_barrier();
        record.store(SEND, count.into());
        mmio_wc_start();
        self.write(control);
        mmio_flush_writes();
        self.half ^= self.size;
    }

    /// The same with a BlueFlame copy: the whole of the one WQE that is rung, its 64-byte `blocks`, goes into the
    /// register, and the device need not fetch it. In ascending order, by stores of 8 bytes: write combining
    /// makes one burst of them where it can, and where it can not the first 8 bytes are a doorbell as ever.
    /// On aarch64 one burst takes 64-byte stores, so that there this is correct and no faster.
    ///
    /// `blocks` are more than none and fit [`half_size`](Self::half_size).
    #[inline]
    pub fn ring_copy<'a>(
        &mut self,
        record: &DoorbellRecord,
        count: u16,
        blocks: impl Iterator<Item = &'a [AtomicU64; 8]>,
    ) {
        udma_to_device_barrier();
        record.store(SEND, count.into());
        mmio_wc_start();
        for (i, block) in blocks.take(self.size / 64).enumerate() {
            for (j, word) in block.iter().enumerate() {
                // SAFETY: inside one half by `take`, and 8-aligned because both halves are.
                unsafe { self.word(i * 8 + j).write_volatile(word.load(Relaxed)) };
            }
        }
        mmio_flush_writes();
        self.half ^= self.size;
    }

    /// Bytes of one half, as far as copies go; 0 where there are none.
    pub fn half_size(&self) -> usize {
        self.size
    }

    /// # Safety
    /// The word is inside the half.
    #[inline(always)]
    unsafe fn word(&self, n: usize) -> *mut u64 {
        // SAFETY: as the caller promises.
        unsafe { self.halves.add(self.half).cast::<u64>().add(n).as_ptr() }
    }

    /// One 8-byte store.
    #[inline(always)]
    fn write(&self, value: u64) {
        // SAFETY: inside the register by `new`, 8-aligned because both halves are.
        unsafe { self.halves.add(self.half).cast::<u64>().write_volatile(value) };
    }
}

/// Arms a completion queue: the record first, then the register at `0x20` of the queue's UAR.
///
/// # Safety
/// `uar` is the queue's UAR page, and mapped.
pub unsafe fn arm(record: &DoorbellRecord, uar: NonNull<u8>, arm_word: u32, cqn: u32) {
    const CQ_DOORBELL: usize = 0x20;
    record.store(ARM, arm_word);
    mmio_wc_start();
    let value = (u64::from(arm_word) << 32 | u64::from(cqn)).to_be();
    // SAFETY: inside the page by contract, and 8-aligned.
    unsafe { uar.add(CQ_DOORBELL).cast::<u64>().write_volatile(value) };
    mmio_flush_writes();
}

/// A word of a ring, for `const` assertions of what the stores above assume.
const _: () = assert!(size_of::<AtomicU64>() == 8 && align_of::<[AtomicU32; 2]>() == 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_writes_record_and_register_and_alternates_halves() {
        let (mut record, mut register) = ([0u32; 2], [0u64; 4]);
        let (at, reg) = (NonNull::from(&mut record).cast(), NonNull::from(&mut register).cast());
        // SAFETY: both live to the end of the test.
        let (db, mut bf) = unsafe { (DoorbellRecord::new(at), Register::new(reg, 16)) };
        bf.ring(&db, 0x1234, 7);
        bf.ring(&db, 0x1235, 8);
        bf.ring(&db, 0x1236, 9);
        // SAFETY: as above.
        let (record, register) = unsafe { (at.cast::<[u32; 2]>().read(), reg.cast::<[u64; 4]>().read()) };
        assert_eq!(record, [0, 0x1236u32.to_be()]);
        assert_eq!(register, [9, 0, 8, 0]);
    }

    #[test]
    fn a_copy_fills_one_half_in_order_and_never_the_next() {
        let (mut record, mut register) = ([0u32; 2], [0u64; 16]);
        let (at, reg) = (NonNull::from(&mut record).cast(), NonNull::from(&mut register).cast());
        // SAFETY: both live to the end of the test.
        let (db, mut bf) = unsafe { (DoorbellRecord::new(at), Register::new(reg, 64)) };
        let block = |from: u64| std::array::from_fn(|i| AtomicU64::new(from + i as u64));
        bf.ring_copy(&db, 1, [block(10), block(20)].iter());
        bf.ring_copy(&db, 2, [block(30)].iter());
        // SAFETY: as above.
        let (record, register) = unsafe { (at.cast::<[u32; 2]>().read(), reg.cast::<[u64; 16]>().read()) };
        assert_eq!(record, [0, 2u32.to_be()]);
        assert!(register.into_iter().eq((10..18).chain(30..38)), "{register:?}");
    }

    #[test]
    fn a_register_without_halves_is_written_in_one_place() {
        let (mut record, mut register) = ([0u32; 2], [0u64; 2]);
        let (at, reg) = (NonNull::from(&mut record).cast(), NonNull::from(&mut register).cast());
        // SAFETY: both live to the end of the test.
        let (db, mut bf) = unsafe { (DoorbellRecord::new(at), Register::new(reg, 0)) };
        bf.ring(&db, 1, 7);
        bf.ring(&db, 2, 8);
        // SAFETY: as above.
        assert_eq!(unsafe { reg.cast::<[u64; 2]>().read() }, [8, 0]);
    }
}
