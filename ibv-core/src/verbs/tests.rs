//! The handles over a replaced library: everything destroyed exactly once and in order, whatever fails.
#![allow(unsafe_code)]
//! # Safety
//! The fake library's objects obey the same rules as the real one's.

use super::{fake, *};
use crate::memory::{Access, Registration};
use fake::MockLibrary;
use ibv_sys::{ibv_ah_attr, ibv_qp_init_attr};
use mockall::{Sequence, predicate::eq};
use std::{cell::Cell, ptr::NonNull, rc::Rc, sync::Arc};

mod discovery;
mod events;
mod states;

/// A library that fails the call at position `n` with `code`; `usize::MAX` fails none. The cell counts.
pub(super) fn failing(n: usize, code: i32) -> (MockLibrary, Rc<Cell<usize>>) {
    let calls = Rc::new(Cell::new(0));
    let (mut library, seen) = (MockLibrary::new(), calls.clone());
    let answer = move |_: &'static str| {
        let at = seen.replace(seen.get() + 1);
        if at == n { code } else { 0 }
    };
    library.expect_call().returning_st(answer);
    (library, calls)
}

/// A library that fails every call of one verb.
pub(super) fn refusing(verb: &'static str, code: i32) -> MockLibrary {
    let mut library = MockLibrary::new();
    library.expect_call().returning(move |v| if v == verb { code } else { 0 });
    library
}

pub(super) fn open() -> Arc<Context> {
    Context::open(fake::library(), "fake1").unwrap()
}

pub(super) fn queue_pair(pd: &Arc<Pd>, cq: &Arc<Cq>) -> Result<Qp, Error> {
    let mut attr =
        ibv_qp_init_attr { send_cq: cq.as_ptr(), recv_cq: cq.as_ptr(), ..ibv_qp_init_attr::default() };
    // SAFETY: domain and queues are alive.
    let raw = unsafe { pd.context().verbs().ibv_create_qp(pd.as_ptr(), &mut attr) };
    let raw = NonNull::new(raw).ok_or_else(|| Error::from_errno("create_qp", errno()))?;
    // SAFETY: just created, and nobody else has it.
    Ok(unsafe { Qp::from_raw(raw, pd.clone(), cq.clone(), cq.clone()) })
}

/// One of everything, and what keeps it.
struct All {
    ah: Option<Ah>,
    mr: Option<Mr>,
    qp: Option<Qp>,
    cq: Option<Arc<Cq>>,
    pd: Option<Arc<Pd>>,
    context: Option<Arc<Context>>,
}

fn one_of_each(memory: &mut [u8]) -> Result<All, Error> {
    let context = Context::open(fake::library(), "fake1")?;
    let pd = Pd::alloc(&context)?;
    let cq = Cq::create(&context, 16, true)?;
    let qp = queue_pair(&pd, &cq)?;
    // SAFETY: the fake touches no memory.
    let mr = unsafe { Mr::register(&pd, NonNull::from(&mut *memory), Access::ALL) }?;
    let ah = Ah::create(&pd, &mut ibv_ah_attr::default())?;
    Ok(All { ah: Some(ah), mr: Some(mr), qp: Some(qp), cq: Some(cq), pd: Some(pd), context: Some(context) })
}

impl All {
    fn drop_nth(&mut self, n: usize) {
        match n {
            0 => drop(self.ah.take()),
            1 => drop(self.mr.take()),
            2 => drop(self.qp.take()),
            3 => drop(self.cq.take()),
            4 => drop(self.pd.take()),
            _ => drop(self.context.take()),
        }
    }
}

#[test]
fn one_of_each_is_made_and_destroyed_in_exactly_this_order() {
    let (mut library, mut order) = (MockLibrary::new(), Sequence::new());
    for verb in [
        "get_device_list",
        "open_device",
        "query_device",
        "free_device_list",
        "alloc_pd",
        "create_comp_channel",
        "create_cq",
        "create_qp",
        "reg_mr",
        "create_ah",
        "destroy_ah",
        "dereg_mr",
        "destroy_qp",
        "destroy_cq",
        "destroy_comp_channel",
        "dealloc_pd",
        "close_device",
    ] {
        library.expect_call().with(eq(verb)).times(1).in_sequence(&mut order).return_const(0);
    }
    fake::install(library);
    drop(one_of_each(&mut [0; 8]).unwrap());
    fake::assert_clean();
    fake::with(|f| f.library.checkpoint());
}

#[test]
fn whatever_call_fails_what_was_made_before_is_destroyed_once() {
    let (library, calls) = failing(usize::MAX, 0);
    fake::install(library);
    let all = one_of_each(&mut [0; 8]).unwrap();
    let makes = calls.get();
    drop(all);
    assert!(makes > 8, "the count proves that the mock was asked");
    for n in 0..makes {
        let (library, calls) = failing(n, libc::ENOMEM);
        fake::install(library);
        let made = one_of_each(&mut [0; 8]);
        // Freeing the list has no way to fail, so only there the failure goes unnoticed.
        let freeing = fake::with(|f| f.alive.values().any(|kind| *kind == "list"));
        assert_eq!(made.is_err(), !freeing, "call {n}");
        if let Err(e) = made {
            assert_eq!(
                (e.kind(), e.errno()),
                (ErrorKind::OutOfResources, Some(libc::ENOMEM)),
                "call {n}: {e}"
            );
            fake::assert_clean();
        }
        assert!(calls.get() > n);
    }
}

#[test]
fn an_object_that_can_not_be_destroyed_keeps_its_parents_and_nothing_is_destroyed_twice() {
    for (verb, left) in [
        ("destroy_ah", vec!["ah", "context", "pd"]),
        ("dereg_mr", vec!["context", "mr", "pd"]),
        ("destroy_qp", vec!["channel", "context", "cq", "pd", "qp"]),
        ("destroy_cq", vec!["channel", "context", "cq"]),
        ("destroy_comp_channel", vec!["channel", "context"]),
        ("dealloc_pd", vec!["context", "pd"]),
        ("close_device", vec!["context"]),
    ] {
        fake::install(refusing(verb, libc::EBUSY));
        drop(one_of_each(&mut [0; 8]).unwrap());
        fake::with(|f| {
            let mut alive: Vec<_> = f.alive.values().copied().collect();
            alive.sort_unstable();
            assert_eq!(alive, left, "after a failed {verb}");
            assert_eq!(f.misuse, Vec::<String>::new(), "after a failed {verb}");
        });
    }
}

/// All orders of `0..6`, by Heap's algorithm.
fn orders() -> Vec<[usize; 6]> {
    fn heap(k: usize, a: &mut [usize; 6], out: &mut Vec<[usize; 6]>) {
        if k == 1 {
            return out.push(*a);
        }
        for i in 0..k {
            heap(k - 1, a, out);
            a.swap(if k.is_multiple_of(2) { i } else { 0 }, k - 1);
        }
    }
    let mut out = Vec::new();
    heap(6, &mut [0, 1, 2, 3, 4, 5], &mut out);
    out
}

#[test]
fn in_whatever_order_the_handles_go_parents_go_last() {
    let orders = orders();
    assert_eq!(orders.len(), 720);
    for order in orders {
        fake::reset();
        let mut all = one_of_each(&mut [0; 8]).unwrap();
        for n in order {
            all.drop_nth(n);
        }
        fake::assert_clean();
        fake::with(|f| {
            let at = |verb| f.log.iter().position(|v| *v == verb).unwrap();
            for (child, parent) in [
                ("destroy_qp", "destroy_cq"),
                ("destroy_qp", "dealloc_pd"),
                ("dereg_mr", "dealloc_pd"),
                ("destroy_ah", "dealloc_pd"),
                ("destroy_cq", "destroy_comp_channel"),
                ("destroy_comp_channel", "close_device"),
                ("dealloc_pd", "close_device"),
            ] {
                assert!(at(child) < at(parent), "{order:?}: {:?}", f.log);
            }
        });
    }
}

#[test]
fn a_region_deregisters_once_and_says_why_it_could_not() {
    fake::install(refusing("dereg_mr", libc::EBUSY));
    let pd = Pd::alloc(&open()).unwrap();
    // SAFETY: the fake touches no memory.
    let mut mr = unsafe { Mr::register(&pd, NonNull::from(&mut [0u8; 8][..]), Access::ALL) }.unwrap();
    assert_eq!((mr.lkey(), mr.rkey()), (0x11, 0x22));
    let e = mr.deregister().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InUse);
    assert!(e.to_string().contains("fake1, lkey 0x11"), "{e}");
    fake::with(|f| {
        f.library.checkpoint();
        f.library.expect_call().return_const(0);
    });
    mr.deregister().unwrap();
    mr.deregister().unwrap();
    drop((mr, pd));
    fake::with(|f| assert_eq!(f.log.iter().filter(|v| **v == "dereg_mr").count(), 1));
    fake::assert_clean();
}

#[test]
fn a_region_of_no_bytes_is_refused_before_the_device_is_asked() {
    fake::reset();
    let pd = Pd::alloc(&open()).unwrap();
    // SAFETY: nothing is registered.
    let e = unsafe { Mr::register(&pd, NonNull::from(&mut [][..]), Access::ALL) }.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidConfig);
    assert!(e.to_string().contains("a region of 0 bytes; devices register 1 or more"), "{e}");
    fake::with(|f| assert!(!f.log.iter().any(|verb| verb.starts_with("reg_mr")), "{:?}", f.log));
}

#[test]
fn relaxed_ordering_takes_the_call_that_knows_it() {
    fake::reset();
    let pd = Pd::alloc(&open()).unwrap();
    // SAFETY: the fake touches no memory.
    let mr = unsafe {
        Mr::register(&pd, NonNull::from(&mut [0u8; 8][..]), Access::ALL | Access::RELAXED_ORDERING)
    };
    assert!(mr.is_ok());
    fake::with(|f| assert!(f.log.contains(&"reg_mr_iova2") && !f.log.contains(&"reg_mr")));
}

#[test]
fn a_queue_with_too_few_entries_is_refused_and_destroyed() {
    fake::reset();
    let context = open();
    let e = Cq::create(&context, u32::MAX, false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfResources);
    drop(context);
    fake::assert_clean();
}

/// In the child, by exit code: nothing was destroyed and deregistering is refused.
#[test]
fn in_a_forked_child_dropping_does_nothing_and_deregistering_is_refused() {
    fake::reset();
    let mut all = one_of_each(&mut [0; 8]).unwrap();
    // SAFETY: the child only drops, compares and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let before = fake::with(|f| f.log.len());
        let refused = all.mr.as_mut().is_some_and(|mr| mr.deregister().is_err());
        drop(all);
        let silent = fake::with(|f| f.log.len() == before && f.misuse.is_empty());
        // SAFETY: ends this process without running what the parent will.
        unsafe { libc::_exit(if refused && silent { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child touched what is the parent's");
    drop(all);
    fake::assert_clean();
}

#[test]
fn fork_protection_is_asked_for_only_where_wanted() {
    fake::reset();
    ForkPolicy::Leave.apply(fake::library()).unwrap();
    fake::with(|f| assert!(f.log.is_empty()));
    ForkPolicy::Protect.apply(fake::library()).unwrap();
    fake::with(|f| assert_eq!(f.log, ["fork_init"]));
    fake::install(refusing("fork_init", libc::EINVAL));
    let e = ForkPolicy::Protect.apply(fake::library()).unwrap_err();
    assert!(e.to_string().contains("before the first registration"), "{e}");
}
