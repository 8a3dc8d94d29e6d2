//! The rings of a queue pair by hand, as a direct provider uses them: requests, records, registers and completion entries
//! written and read as bytes.
//!
//! # Safety
//!
//! libmlx5 keeps the rings mapped until the objects are destroyed, which [`End`] does after the last use. The device reads
//! them from another thread or under a step, so they are only touched through the kernel's checked copies and atomics.

use std::ptr::null_mut;

use ibv_sys::*;
use softnic::memory;

use super::End;

/// The rings of an end.
#[derive(Debug)]
pub struct Raw {
    pub sq: u64,
    pub sq_blocks: u32,
    pub records: u64,
    pub register: u64,
    pub cq: u64,
    pub cq_entries: u32,
    pub cq_entry: u32,
    pub cq_records: u64,
    pub cq_arm: u64,
    consumer: u32,
}

impl Raw {
    pub fn of(end: &End) -> Self {
        let dv = ibv_sys::mlx5dv().expect("libmlx5 drives the device");
        // SAFETY: all-zero structures are valid; the objects are alive.
        unsafe {
            let mut qp: mlx5dv_qp = std::mem::zeroed();
            let mut cq: mlx5dv_cq = std::mem::zeroed();
            let mut obj: mlx5dv_obj = std::mem::zeroed();
            (obj.qp.in_, obj.qp.out) = (end.qp, &mut qp);
            (obj.cq.in_, obj.cq.out) = (end.cq, &mut cq);
            assert_eq!(dv.mlx5dv_init_obj(&mut obj, u64::from(MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ)), 0);
            Self {
                sq: qp.sq.buf as u64,
                sq_blocks: qp.sq.wqe_cnt,
                records: qp.dbrec as u64,
                register: qp.bf.reg as u64,
                cq: cq.buf as u64,
                cq_entries: cq.cqe_cnt,
                cq_entry: cq.cqe_size,
                cq_records: cq.dbrec as u64,
                cq_arm: cq.cq_uar as u64 + 0x20,
                consumer: 0,
            }
        }
    }

    /// The bytes of a signalled WRITE of 8 bytes in slot `index`.
    pub fn write(&self, from: &End, to: &End, index: u16) -> [u8; 64] {
        let mut w = [0; 64];
        w[1..3].copy_from_slice(&index.to_be_bytes());
        w[3] = 8;
        w[4..8].copy_from_slice(&(from.qpn() << 8 | 3).to_be_bytes());
        w[11] = 8;
        w[16..24].copy_from_slice(&to.at(0).to_be_bytes());
        w[24..28].copy_from_slice(&to.rkey().to_be_bytes());
        w[32..36].copy_from_slice(&8u32.to_be_bytes());
        w[36..40].copy_from_slice(&from.lkey().to_be_bytes());
        w[40..48].copy_from_slice(&from.at(0).to_be_bytes());
        w
    }

    /// Puts a request into the ring.
    pub fn put(&self, index: u16, wqe: &[u8; 64]) {
        let slot = u64::from(u32::from(index) & (self.sq_blocks - 1)) * 64;
        memory::write(self.sq + slot, wqe).unwrap();
    }

    /// Publishes so many basic blocks.
    pub fn publish(&self, record: u16) {
        memory::write(self.records + 4, &u32::from(record).to_be_bytes()).unwrap();
    }

    /// Writes the register: 8 bytes.
    pub fn doorbell(&self, wqe: &[u8; 64]) {
        memory::write(self.register, &wqe[..8]).unwrap();
    }

    /// Writes the register: a whole request (BlueFlame).
    pub fn blue_flame(&self, wqe: &[u8; 64]) {
        memory::write(self.register, wqe).unwrap();
    }

    /// Takes a completion entry: its 64 bytes.
    pub fn take(&mut self) -> Option<[u8; 64]> {
        let size = u64::from(self.cq_entry);
        let slot = u64::from(self.consumer & (self.cq_entries - 1)) * size + size - 64;
        let mut cqe = [0; 64];
        memory::read(self.cq + slot, &mut cqe).unwrap();
        let owner = self.consumer & self.cq_entries != 0;
        if cqe[63] >> 4 == 15 || (cqe[63] & 1 == 1) != owner {
            return None;
        }
        self.consumer += 1;
        self.set_consumer(self.consumer);
        Some(cqe)
    }

    /// Writes the consumer record.
    pub fn set_consumer(&self, consumer: u32) {
        memory::write(self.cq_records, &(consumer & 0xff_ffff).to_be_bytes()).unwrap();
    }

    /// Writes the arm record.
    pub fn arm(&self, sequence: u32) -> u32 {
        let value = sequence << 28 | self.consumer & 0xff_ffff;
        memory::write(self.cq_records + 4, &value.to_be_bytes()).unwrap();
        value
    }

    /// Writes the arm register.
    pub fn ring_arm(&self, value: u32, cqn: u32) {
        let doorbell = (u64::from(value) << 32 | u64::from(cqn)).to_be_bytes();
        memory::write(self.cq_arm, &doorbell).unwrap();
    }
}

/// No object.
pub fn none<T>() -> *mut T {
    null_mut()
}
