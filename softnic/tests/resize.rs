//! Completion queues that change under way, and registered memory that does: through unmodified libibverbs and libmlx5.

mod rig;

use ibv_sys::*;
use rig::*;

const OK: ibv_wc_status = IBV_WC_SUCCESS;

fn resize(rig: &Rig, cq: *mut ibv_cq, cqe: i32) -> i32 {
    // SAFETY: the queue is alive.
    unsafe { rig.v().ibv_resize_cq(cq, cqe) }
}

#[test]
fn a_queue_grows_and_shrinks_with_completions_in_it() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { cq_depth: 30, depth: 64, ..Shape::default() });
        let (mut posted, mut done) = (0u64, 0u64);
        // Sizes up and down, at fills and ring positions of all kinds, so that owner bits of both sides differ.
        for (round, cqe) in [40, 100, 20, 300, 60, 31, 63, 500, 33].into_iter().cycle().take(90).enumerate() {
            for _ in 0..round % 17 {
                a.post(&a.request(posted, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
                posted += 1;
            }
            rig.fill(a.cq, (posted - done) as u32);
            assert_eq!(resize(rig, a.cq, cqe), 0, "round {round}");
            // SAFETY: the queue is alive.
            assert!(unsafe { (*a.cq).cqe } >= cqe);
            while done < posted {
                rig.expect(a.cq, done, OK);
                done += 1;
            }
            assert!(poll(a.cq).is_none());
        }
    });
}

#[test]
fn a_queue_that_is_smaller_than_its_completions_is_refused() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { cq_depth: 200, ..Shape::default() });
        for id in 0..40 {
            a.post(&a.request(id, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        }
        rig.fill(a.cq, 40);
        assert_eq!(resize(rig, a.cq, 15), libc::EINVAL);
        assert_ne!(resize(rig, a.cq, 1 << 23), 0, "more than the device holds");
        for id in 0..40 {
            rig.expect(a.cq, id, OK);
        }
    });
}

#[test]
fn events_wait_for_as_many_completions_as_asked() {
    both(|rig| {
        let v = rig.v();
        // SAFETY: what is made is destroyed once, users first; all-zero attributes are valid.
        unsafe {
            let channel = v.ibv_create_comp_channel(rig.context);
            let cq = v.ibv_create_cq(rig.context, 64, raw::none(), channel, 0);
            let mut a = rig.end(Shape::default());
            let b = rig.end(Shape::default());
            a.destroy_qp();
            assert_eq!(v.ibv_destroy_cq(std::mem::replace(&mut a.cq, cq)), 0);
            a.qp = rig.qp(cq, rig.pd, Shape::default());
            rig.connect(&a, &b, Shape::default());
            let moderate = |count, period| {
                let mut attr: ibv_modify_cq_attr = std::mem::zeroed();
                attr.attr_mask = IBV_CQ_ATTR_MODERATE;
                (attr.moderate.cq_count, attr.moderate.cq_period) = (count, period);
                ibv_modify_cq(cq, &mut attr)
            };
            let readable = || {
                let mut p = libc::pollfd { fd: (*channel).fd, events: libc::POLLIN, revents: 0 };
                libc::poll(&mut p, 1, 0) == 1
            };
            assert_eq!(moderate(3, 0), 0);
            assert_eq!(ibv_req_notify_cq(cq, 0), 0);
            for id in 0..3 {
                assert!(!readable(), "{id} completions");
                a.post(&a.request(id, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
                rig.expect(cq, id, OK);
                rig.settle();
            }
            rig.until("an event", |_| readable().then_some(()));
            // A single completion, and no second one: the time passes it.
            assert_eq!(moderate(100, 50), 0);
            let (mut from, mut context) = (raw::none(), raw::none());
            assert_eq!(v.ibv_get_cq_event(channel, &mut from, &mut context), 0);
            v.ibv_ack_cq_events(cq, 1);
            assert_eq!(ibv_req_notify_cq(cq, 0), 0);
            a.post(&a.request(3, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
            rig.expect(cq, 3, OK);
            rig.until("an event", |_| readable().then_some(()));
            drop(a);
            assert_eq!(v.ibv_destroy_comp_channel(channel), 0);
        }
    });
}

#[test]
fn a_region_changes_its_rights_its_range_and_its_domain_under_its_key() {
    both(|rig| {
        let v = rig.v();
        let (a, b) = rig.pair(Shape { retry: 7, ..Shape::default() });
        let (first, second) = (Memory::new(4096), Memory::new(4096));
        let mr = rig.reg(first.addr(), 4096, ALL);
        // SAFETY: the region is alive until the last line; a refused change leaves it as it was.
        unsafe {
            let write = |rig: &mut Rig, a: &End, memory: &Memory| {
                let mut send = a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0);
                send.remote = (memory.addr(), (*mr).rkey);
                a.post(&send);
                rig.wait(a.cq).status
            };
            a.memory.put(0, &[9; 8]);
            let translation = IBV_REREG_MR_CHANGE_TRANSLATION as i32;
            let moved = v.ibv_rereg_mr(mr, translation, raw::none(), second.addr() as *mut _, 4096, 0);
            assert_eq!(moved, 0, "{}", std::io::Error::last_os_error());
            assert_eq!(write(rig, &a, &second), OK);
            assert_eq!(second.get(0, 8), [9; 8]);
            let access = IBV_REREG_MR_CHANGE_ACCESS as i32;
            let odd = v.ibv_rereg_mr(mr, access, raw::none(), raw::none(), 0, IBV_ACCESS_REMOTE_WRITE as i32);
            assert_ne!(odd, 0, "remote writing without local writing");
            assert_eq!(write(rig, &a, &second), OK);
            assert_eq!(v.ibv_rereg_mr(mr, access, raw::none(), raw::none(), 0, LOCAL as i32), 0);
            assert_eq!(write(rig, &a, &second), IBV_WC_REM_ACCESS_ERR);
            assert_eq!(v.ibv_dereg_mr(mr), 0);
        }
    });
}

#[test]
fn relaxed_ordering_is_taken_and_paging_on_demand_is_not() {
    let Some(rig) = Rig::start(softnic::Config::steps(1)) else { return };
    let memory = Memory::new(4096);
    // SAFETY: the device checks the range by itself; what is made is destroyed once.
    unsafe {
        let v = rig.v();
        let reg = |access| v.ibv_reg_mr_iova2(rig.pd, memory.addr() as *mut _, 4096, memory.addr(), access);
        let relaxed = reg(ALL | IBV_ACCESS_RELAXED_ORDERING);
        assert!(!relaxed.is_null(), "{}", std::io::Error::last_os_error());
        assert_eq!(v.ibv_dereg_mr(relaxed), 0);
        assert!(reg(ALL | IBV_ACCESS_ON_DEMAND).is_null());
        let mut attr: ibv_device_attr_ex = std::mem::zeroed();
        assert_eq!(v.ibv_query_device_ex(rig.context, no(), &mut attr), 0);
        assert_eq!(attr.odp_caps.general_caps, 0, "the device says that it has none");
        assert!(attr.cq_mod_caps.max_cq_count > 0);
    }
}
