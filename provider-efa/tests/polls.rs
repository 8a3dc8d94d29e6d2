//! A poll of one and a poll of many go different ways through this crate, and tell the same. Under whichever
//! libefa is loaded.

mod common;

use common::{completions, domain, nic, pair, shallow, writes};
use ibv_core::{IbvWc, Poller, WcOpcode, WcStatus};
use provider_efa::EfaDomain;
use softnic::Softnic;

/// What a completion says, but for ids.
type Told = (WcOpcode, WcStatus, bool);

fn told(wc: &IbvWc) -> Told {
    (wc.opcode, wc.status, wc.vendor_err == 0)
}

/// Takes them one by one.
fn singly(nic: &mut Softnic, poller: &mut Poller<EfaDomain>, n: usize) -> Vec<IbvWc> {
    nic.run();
    let mut seen = Vec::new();
    let mut wc = [IbvWc::default()];
    while poller.poll(&mut wc).unwrap() == 1 {
        seen.push(wc[0]);
        nic.run();
    }
    assert_eq!(seen.len(), n, "completions: {seen:?}");
    seen
}

/// Gets, one of which fails, sends, and where there are any puts: what is told of each, in the order of posting,
/// and what the receiving end is told of its own.
fn round(take: impl Fn(&mut Softnic, &mut Poller<EfaDomain>, usize) -> Vec<IbvWc>) -> [Vec<Told>; 2] {
    let mut nic = nic(2);
    let (a, b) = (domain(0), domain(1));
    let [mut near, mut far] = pair(&a, &b, &shallow(16));
    let (mine, theirs) = (a.alloc(64).unwrap(), b.alloc(64).unwrap());
    let mut ids = Vec::new();
    let _ids = far.qp.post_recv(&[theirs.view()]).unwrap();
    let mut wrong = theirs.remote();
    wrong.rkey ^= 0x5a5a_0000;
    for remote in [theirs.remote(), wrong, theirs.remote()] {
        ids.push(near.qp.get(mine.view(), remote).unwrap().first);
    }
    ids.push(near.qp.send(mine.view()).unwrap().first);
    if writes(&a) {
        ids.push(near.qp.put(theirs.remote(), mine.view()).unwrap().first);
    }
    let sent = take(&mut nic, &mut near.poller, ids.len());
    let received = take(&mut nic, &mut far.poller, 1);
    let of = |id: &u64| told(sent.iter().find(|wc| wc.wr_id == *id).expect("its completion"));
    assert_eq!(near.qp.free_slots(), 16, "all credits are back");
    assert_eq!(near.qp.first_error().map(|e| e.wr_id), Some(ids[1]));
    [ids.iter().map(of).collect(), received.iter().map(told).collect()]
}

#[test]
fn a_poll_of_one_tells_what_a_poll_of_many_tells() {
    let (one, many) = (round(singly), round(completions));
    assert_eq!(one, many);
    let [sent, received] = one;
    let good = |opcode| (opcode, WcStatus::SUCCESS, true);
    assert_eq!((sent[0], sent[2]), (good(WcOpcode::RDMA_READ), good(WcOpcode::RDMA_READ)));
    assert_eq!(sent[1], (WcOpcode::RDMA_READ, WcStatus::REM_ACCESS_ERR, false), "a failed get is a get");
    assert_eq!((sent[3], received[0]), (good(WcOpcode::SEND), good(WcOpcode::RECV)));
    assert!(sent.get(4).is_none_or(|put| *put == good(WcOpcode::RDMA_WRITE)));
}
