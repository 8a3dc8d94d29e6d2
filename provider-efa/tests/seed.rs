//! What the seed of `EfaQueuePair` promises, one test for each promise, under whichever libefa is loaded.
#![allow(unsafe_code)]
//! # Safety
//! `IbvQueuePair::new` is given completion queues of the domain it is given, as it asks; where it is not, it
//! says that it refuses.

mod common;

use common::{
    all_by_poll_completion, completions, domain, domain_of, fresh, nic, nic_with, pair, shallow, take_calls,
    watched, without_builders, writes,
};
use ibv_core::{ErrorKind, Gid, IbvConfig, IbvQueuePair, PostError, Provider, QpState, Transport};
use provider_efa::{EfaProvider, EfaQueuePair};
use std::sync::Arc;

#[test]
fn b1_made_by_efadv_and_driven_by_builders() {
    let mut nic = nic(2);
    let (a, b) = (domain(0), domain(1));
    let [mut near, mut far] = pair(&a, &b, &IbvConfig::default());
    let (src, dst) = (a.alloc(16).unwrap(), b.alloc(16).unwrap());
    src.write_at(0, b"by the builders!").unwrap();
    far.qp.post_recv(&[dst.view()]).unwrap();
    let ids = near.qp.send(src.view()).unwrap();
    assert_eq!(completions(&mut nic, &mut near.poller, 1)[0].wr_id, ids.first);
    assert_eq!(completions(&mut nic, &mut far.poller, 1)[0].byte_len, 16);
    assert_eq!(dst.to_vec(), b"by the builders!");
    // Without builders there is no queue pair, and the message names the flag that asks for them.
    let provider = without_builders();
    let device = provider.devices().unwrap().remove(0);
    let e = provider.open(&device).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("IBV_QP_INIT_ATTR_SEND_OPS_FLAGS"), "{e}");
}

#[test]
fn b2_a_driver_type_through_the_states_of_a_datagram() {
    for (rnr_retry, at_rts) in [(false, 0x1_0001), (true, 0x1_0801)] {
        let _nic = nic_with(1, |limits| limits.rnr_retry = rnr_retry);
        let d = domain_of(&watched(), 0);
        let (mut qp, _cq) = fresh(&d, IbvConfig::default());
        let info = qp.get_qp_info().unwrap();
        assert_eq!(info.transport, Transport::SRD);
        take_calls();
        let mut qp = qp.connect(&info).map_err(|(_, e)| e).unwrap();
        let masks = ["modify 0x71".to_owned(), "modify 0x1".into(), format!("modify {at_rts:#x}")];
        let calls: Vec<_> = take_calls().into_iter().filter(|c| c.starts_with("modify")).collect();
        assert_eq!(calls, masks, "STATE|PKEY_INDEX|PORT|QKEY, STATE, STATE|SQ_PSN and what the device knows");
        // The key that the peer was told is the key in force.
        let attributes = qp.attributes().unwrap();
        assert_eq!((attributes.state, attributes.config.qkey), (QpState::RTS, Some(info.qkey)));
    }
    // Each queue pair draws a key of its own.
    let _nic = nic(1);
    let d = domain(0);
    let mut keys: Vec<_> = (0..8).map(|_| fresh(&d, shallow(1)).0.get_qp_info().unwrap().qkey).collect();
    keys.dedup();
    assert!(keys.len() > 1 && keys.iter().all(|k| *k < 1 << 31), "{keys:x?}");
}

#[test]
fn b3_each_request_says_where_it_goes() {
    let mut nic = nic(3);
    let domains = [domain(0), domain(1), domain(2)];
    let [mut near, mut first] = pair(&domains[0], &domains[1], &IbvConfig::default());
    let (mut second, cq) = fresh(&domains[2], IbvConfig::default());
    let theirs = second.get_qp_info().unwrap();
    let peer = near.qp.add_peer(&theirs).unwrap();
    let ours = near.qp.queue_pair().get_qp_info().unwrap();
    let mut second = second.connect(&ours).map_err(|(_, e)| e).unwrap();
    let mut second_poller = cq.poller().unwrap();
    let (src, one, two) =
        (domains[0].alloc(8).unwrap(), domains[1].alloc(4).unwrap(), domains[2].alloc(4).unwrap());
    src.write_at(0, b"leftrite").unwrap();
    first.qp.post_recv(&[one.view()]).unwrap();
    second.post_recv(&[two.view()]).unwrap();
    let (left, right) = (src.view().slice(0, 4).unwrap(), src.view().slice(4, 4).unwrap());
    let mut batch = near.qp.batch();
    let _ids = batch.push_to(peer, &ibv_core::Request::send(&[right])).unwrap();
    let _ids = batch.push(&ibv_core::Request::send(&[left])).unwrap();
    batch.ring().unwrap();
    completions(&mut nic, &mut near.poller, 2);
    completions(&mut nic, &mut first.poller, 1);
    completions(&mut nic, &mut second_poller, 1);
    assert_eq!((one.to_vec(), two.to_vec()), (b"left".to_vec(), b"rite".to_vec()));
}

#[test]
fn b4_the_endpoint_is_the_ports() {
    let _nic = nic(1);
    let d = domain(0);
    let (mut qp, _cq) = fresh(&d, IbvConfig::default());
    let (info, port) = (qp.get_qp_info().unwrap(), d.device_info().port(1).unwrap());
    assert_eq!((info.lid, info.gid), (port.lid, Some(port.gids[0].gid)), "LID, and the GID at index 0");
    assert_eq!(qp.queue_pair().gid().unwrap().entry.index, 0);
}

#[test]
fn b5_destroyed_before_what_it_is_made_of() {
    let _nic = nic(1);
    let d = domain_of(&watched(), 0);
    let (mut qp, cq) = fresh(&d, IbvConfig::default());
    let info = qp.get_qp_info().unwrap();
    let qp = qp.connect(&info).map_err(|(_, e)| e).unwrap();
    take_calls();
    // The queue pair keeps all of it alive.
    drop((cq, d));
    assert_eq!(take_calls(), [""; 0]);
    drop(qp);
    assert_eq!(take_calls(), ["destroy_qp", "destroy_ah", "destroy_cq", "dealloc_pd"]);
}

#[test]
fn b6_new_is_in_reset_and_reports_to_the_queues_it_is_given() {
    let _nic = nic(2);
    let provider = watched();
    let (d, other) = (domain_of(&provider, 0), domain_of(&provider, 1));
    let (send_cq, recv_cq) = (d.create_cq(256).unwrap(), d.create_cq(256).unwrap());
    take_calls();
    // SAFETY: both queues are the domain's.
    let mut qp =
        unsafe { EfaQueuePair::new(&d, IbvConfig::default(), send_cq.clone(), recv_cq.clone()) }.unwrap();
    assert_eq!(qp.state().unwrap(), QpState::RESET);
    assert!(!take_calls().contains(&"create_cq".to_owned()), "a completion queue was created inside");
    assert_eq!((Arc::strong_count(&send_cq), Arc::strong_count(&recv_cq)), (2, 2));
    drop(qp);
    // SAFETY: the queue is the domain's.
    let qp = unsafe { EfaQueuePair::new(&d, shallow(64), send_cq.clone(), send_cq.clone()) }.unwrap();
    assert_eq!((Arc::strong_count(&send_cq), Arc::strong_count(&recv_cq)), (3, 1));
    drop(qp);
    let foreign = other.create_cq(256).unwrap();
    // SAFETY: none: one of the queues is another domain's, which is refused before it is used.
    let e = unsafe { EfaQueuePair::new(&d, shallow(64), send_cq.clone(), foreign) }.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ForeignHandle);
    assert_eq!(Arc::strong_count(&send_cq), 1);
}

#[test]
fn b7_connect_goes_to_rts_or_leaves_it_in_reset() {
    let _nic = nic(1);
    let d = domain_of(&watched(), 0);
    let (mut qp, _cq) = fresh(&d, IbvConfig::default());
    let info = qp.get_qp_info().unwrap();
    let mut nowhere = info;
    nowhere.gid = None;
    let (mut qp, e) = qp.connect(&nowhere).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Incompatible);
    assert!(e.to_string().contains("GID"), "{e}");
    assert_eq!(qp.state().unwrap(), QpState::RESET);
    common::refuse_address_handle();
    let (mut qp, e) = qp.connect(&info).err().unwrap();
    assert!(e.to_string().contains("create_ah") && e.to_string().contains("GID"), "{e}");
    assert_eq!(qp.state().unwrap(), QpState::RESET);
    let mut qp = qp.connect(&info).map_err(|(_, e)| e).unwrap();
    assert_eq!(qp.state().unwrap(), QpState::RTS);
    let e = qp.queue_pair().connect(&info).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidState, "a second connect");
}

#[test]
fn b8_endpoint_and_state_can_be_asked_for_at_any_time() {
    let _nic = nic(1);
    let d = domain(0);
    let (mut qp, _cq) = fresh(&d, IbvConfig::default());
    let info = qp.get_qp_info().unwrap();
    assert_eq!((qp.state().unwrap().0, info.qp_num >> 24), (0, 0));
    let mut qp = qp.connect(&info).map_err(|(_, e)| e).unwrap();
    assert_eq!((qp.state().unwrap().0, qp.queue_pair().get_qp_info().unwrap()), (3, info));
    let mut closing = qp.start_close().map_err(|(_, e)| e).unwrap();
    assert_eq!(closing.state().unwrap().0, 6);
}

#[test]
fn b9_as_many_requests_as_max_msg_size_says() {
    const MAX: usize = 4096;
    let mut nic = nic(2);
    let provider = EfaProvider::default().with_max_msg_size(MAX as u32);
    let (a, b) = (domain_of(&provider, 0), domain_of(&provider, 1));
    let [mut near, _far] = pair(&a, &b, &IbvConfig::default());
    drop(near.poller);
    let (ours, theirs) = (a.alloc(4 * MAX).unwrap(), b.alloc(4 * MAX).unwrap());
    let put = writes(&a);
    assert_eq!(near.qp.queue_pair().max_msg_size(), MAX);
    for n in [0, 1, MAX - 1, MAX, MAX + 1, 2 * MAX, 3 * MAX + 1, 4 * MAX] {
        let (local, remote) = (ours.view().slice(0, n).unwrap(), theirs.remote().slice(0, n).unwrap());
        let qp = near.qp.queue_pair();
        let ids = if put { qp.put(remote, local) } else { qp.get(local, remote) }.unwrap();
        assert_eq!(ids.len(), n.div_ceil(MAX).max(1), "requests for {n} bytes");
        assert_eq!(all_by_poll_completion(&mut nic, qp), ids);
    }
    drop(nic);
    let _nic = nic_with(1, |limits| limits.max_rdma_size = 12345);
    assert_eq!(domain(0).caps().max_msg_size, 12345, "the device's, where nobody asks for less");
}

#[test]
fn b10_all_or_nothing_and_consecutive_ids() {
    const MAX: usize = 1024;
    let mut nic = nic(2);
    let provider = EfaProvider::default().with_max_msg_size(MAX as u32);
    let (a, b) = (domain_of(&provider, 0), domain_of(&provider, 1));
    let [mut near, _far] = pair(&a, &b, &shallow(4));
    drop(near.poller);
    let (ours, theirs) = (a.alloc(5 * MAX).unwrap(), b.alloc(5 * MAX).unwrap());
    theirs.write_at(0, &[7; 5 * MAX]).unwrap();
    let qp = near.qp.queue_pair();
    let e = qp.get(ours.view(), theirs.remote()).unwrap_err();
    assert_eq!(e.post_error(), Some(PostError::QueueFull));
    assert!(e.to_string().contains("4 of 4 slots free, 5 needed"), "{e}");
    let e = qp.get(ours.view().slice(0, 8).unwrap(), theirs.remote()).unwrap_err();
    assert!(e.to_string().contains("(8)") && e.to_string().contains(&format!("({})", 5 * MAX)), "{e}");
    assert_eq!(all_by_poll_completion(&mut nic, qp), [0u64; 0], "nothing was posted");
    assert_eq!(ours.to_vec(), [0; 5 * MAX]);
    let ids = qp.get(ours.view(), theirs.remote().slice(0, 4 * MAX).unwrap()).unwrap();
    assert!(ids.windows(2).all(|w| w[1] == w[0] + 1), "{ids:x?}");
    assert_eq!((ids.len(), all_by_poll_completion(&mut nic, qp)), (4, ids));
    assert_eq!(ours.to_vec()[..4 * MAX], [7; 4 * MAX]);
}

#[test]
fn b11_completions_are_found_by_number_on_a_shared_queue() {
    let mut nic = nic(2);
    let (a, b) = (domain(0), domain(1));
    let cq = a.create_cq(4 * 16).unwrap();
    let (mine, theirs) = (a.alloc(8).unwrap(), b.alloc(8).unwrap());
    let mut links: Vec<_> = (0..2)
        .map(|_| {
            let mut near = a.create_queue_pair(shallow(16), &cq, &cq).unwrap();
            let (mut far, far_cq) = fresh(&b, shallow(16));
            let (ours, theirs) = (near.get_qp_info().unwrap(), far.get_qp_info().unwrap());
            let far = far.connect(&ours).map_err(|(_, e)| e).unwrap();
            (near.connect(&theirs).map_err(|(_, e)| e).unwrap(), ours.qp_num, far, far_cq)
        })
        .collect();
    let mut want: Vec<_> = [0, 1, 1, 0, 1]
        .iter()
        .map(|i| {
            let (qp, number, ..) = &mut links[*i];
            (*number, qp.get(mine.view(), theirs.remote()).unwrap().first)
        })
        .collect();
    let mut poller = cq.poller().unwrap();
    let mut got: Vec<_> =
        completions(&mut nic, &mut poller, 5).iter().map(|wc| (wc.qp_num, wc.wr_id)).collect();
    want.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, want);
}

/// That it is not `Clone` is a test in its documentation.
#[test]
fn b12_it_prints_in_every_state() {
    let _nic = nic(1);
    let d = domain(0);
    let (mut qp, _cq) = fresh(&d, IbvConfig::default());
    assert!(format!("{:?}", qp.queue_pair()).contains("EfaQueuePair"));
    let mut info = qp.get_qp_info().unwrap();
    info.gid = info.gid.map(|g| Gid(g.0));
    let mut qp = qp.connect(&info).map_err(|(_, e)| e).unwrap();
    assert!(format!("{:?}", qp.queue_pair()).contains("EfaQueuePair"));
    assert!(!format!("{:?}", qp.start_close().map_err(|(_, e)| e).unwrap()).is_empty());
}
