//! GPU memory by dma-buf: fd, offset, length and device address, with a memfd in the GPU's place.
#![allow(unsafe_code)]

mod common;

use common::{domain, nic};
use ibv_core::{Access, IbvConfig, IbvWc};
use std::{
    fs::File,
    os::{
        fd::{AsFd, FromRawFd},
        unix::fs::FileExt,
    },
};

/// Memory that has a descriptor and, here, no address.
fn buffer(len: u64) -> File {
    // SAFETY: the name is static; the descriptor is new and owned by the file.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"gpu".as_ptr(), 0)) };
    file.set_len(len).unwrap();
    file
}

#[test]
fn puts_and_gets_reach_a_buffer_at_its_own_device_address() {
    let mut nic = nic();
    let d = domain();
    let file = buffer(16384);
    const IOVA: u64 = 0x7000_0000_0000;
    // SAFETY: nobody maps the buffer.
    let gpu = unsafe { d.register_dmabuf(file.as_fd(), 4096, 8192, IOVA, Access::ALL) }.unwrap();
    assert_eq!((gpu.view().addr(), gpu.remote().addr, gpu.len()), (IOVA, IOVA, 8192));
    let cq = d.create_cq(256).unwrap();
    let mut qp = d.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
    let me = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&me).map_err(|(_, e)| e).unwrap();
    let (host, mut poller, mut wcs) = (d.alloc(300).unwrap(), cq.poller().unwrap(), [IbvWc::default(); 4]);
    host.write_at(0, &[9; 300]).unwrap();
    // Into the buffer, within it as a source, and back.
    let ids = [
        qp.put(gpu.remote().slice(100, 300).unwrap(), host.view()).unwrap(),
        qp.put(gpu.remote().slice(5000, 300).unwrap(), gpu.view().slice(100, 300).unwrap()).unwrap(),
    ];
    nic.run();
    assert_eq!(poller.poll(&mut wcs).unwrap(), 2);
    assert_eq!([wcs[0].wr_id, wcs[1].wr_id], ids.map(|i| i.first));
    assert!(wcs[..2].iter().all(IbvWc::is_valid), "{wcs:?}");
    let mut seen = vec![0; 16384];
    file.read_exact_at(&mut seen, 0).unwrap();
    let written = |i: usize| (4196..4496).contains(&i) || (9096..9396).contains(&i);
    assert!(seen.iter().enumerate().all(|(i, b)| *b == if written(i) { 9 } else { 0 }));
    file.write_all_at(&[4; 300], 4096).unwrap();
    let _ids = qp.get(host.view(), gpu.remote().slice(0, 300).unwrap()).unwrap();
    nic.run();
    assert_eq!((poller.poll(&mut wcs).unwrap(), wcs[0].is_valid()), (1, true));
    assert_eq!(host.to_vec(), [4; 300]);
}

#[test]
fn a_dead_buffer_is_out_of_reach() {
    let mut nic = nic();
    let d = domain();
    let file = buffer(4096);
    // SAFETY: nobody maps the buffer.
    let gpu = unsafe { d.register_dmabuf(file.as_fd(), 0, 4096, 0, Access::ALL) }.unwrap();
    let cq = d.create_cq(256).unwrap();
    let mut qp = d.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
    let me = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&me).map_err(|(_, e)| e).unwrap();
    let (host, mut poller, mut wcs) = (d.alloc(8).unwrap(), cq.poller().unwrap(), [IbvWc::default(); 4]);
    let remote = gpu.remote().slice(0, 8).unwrap();
    gpu.deregister().map_err(|(_, e)| e).unwrap();
    let _ids = qp.put(remote, host.view()).unwrap();
    nic.run();
    assert_eq!((poller.poll(&mut wcs).unwrap(), wcs[0].is_valid()), (1, false));
}
