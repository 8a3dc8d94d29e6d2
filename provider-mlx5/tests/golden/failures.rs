//! Failed requests: the status and the vendor's detail that `ibv_poll_cq` reports, of the cause and of what flushes
//! behind it.

use super::*;
use ibv_core::{IbvRemoteMemoryRegionView, WcStatus};

/// Beyond the region, which is of 4096 bytes.
const FAR: u16 = 60_000;

fn put(ranges: (u16, u16), remote: u16, op: Op) -> Spec {
    let (ranges, inline) = (vec![ranges], None);
    Spec { op, ranges, inline, remote, signaled: true, fence: false, solicited: false }
}

#[test]
fn failures_are_what_libmlx5_says() {
    let mut nic = nic();
    let domain = seed_domain();
    // A queue pair that is its own peer fails as the one that was asked, and flushes as the one that asks.
    for (op, at, remote, want) in [
        (Op::Write, 0, FAR, WcStatus::WR_FLUSH_ERR),
        (Op::Read, 0, FAR, WcStatus::WR_FLUSH_ERR),
        (Op::Write, FAR, 0, WcStatus::LOC_PROT_ERR),
        (Op::Read, FAR, 0, WcStatus::LOC_PROT_ERR),
    ] {
        let mut ours = Ours::new(&domain);
        let mut twin = Twin::new(&ours);
        ours.qp.post_recv(&[ours.receive.view()]).unwrap();
        twin.post_recv();
        let (local, there) = (ours.region.view(), ours.region.remote());
        let views = [IbvMemoryRegionView::from_raw_parts(local.addr() + u64::from(at), 8, local.lkey())];
        let addr = there.addr + 2048 + u64::from(remote);
        let target = IbvRemoteMemoryRegionView { addr, len: 8, rkey: there.rkey };
        let mut batch = ours.qp.batch();
        let _ids = batch.push(&Request::new(op, target, Payload::Sges(&views))).unwrap();
        let _ids = batch.put(there, view(&ours.region, (0, 8))).unwrap();
        batch.ring().unwrap();
        twin.post(&[put((at, 8), remote, op), put((0, 8), 0, Op::Write)]);
        nic.run();
        nic.take_trace();
        let (mine, theirs) = (ours.poll(), twin.poll());
        assert_eq!((mine[0].len(), mine[1].len()), (2, 1), "{op:?}");
        for (mine, theirs) in mine.iter().zip(&theirs) {
            let ours = mine.iter().map(|wc| (wc.status.0, wc.vendor_err));
            assert!(ours.eq(theirs.iter().map(|wc| (wc.status.0, wc.vendor_err))), "{op:?}: {mine:?}");
        }
        assert_eq!((mine[0][0].status, mine[0][1].status), (want, WcStatus::WR_FLUSH_ERR), "{op:?}");
    }
}
