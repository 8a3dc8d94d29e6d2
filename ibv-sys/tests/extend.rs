//! Every struct that grows, against libraries that know less of it and more of it than this crate.

use std::ffi::c_int;

use ibv_sys::extend::{Visitor, query};
use ibv_sys::{
    EFADV_QP_FLAGS_INLINE_WRITE, EFADV_WR_EX_WITH_PROCESSING_HINTS, Efadv, Extensible, each_extensible,
    efadv_cq_init_attr, efadv_device_attr, efadv_qp_init_attr, ibv_context, ibv_port_attr, ibv_qp,
    ibv_qp_init_attr_ex, mlx5dv_context,
};

/// How rdma-core reads a struct with a length: what lies beyond what it knows must be zero (`is_ext_cleared`).
fn reads(known: usize, bytes: &[u8]) -> c_int {
    let beyond = bytes.get(known..).unwrap_or_default();
    if beyond.iter().all(|byte| *byte == 0) { 0 } else { libc::EINVAL }
}

/// How rdma-core fills a struct with a length: no more than both know.
fn fills(known: usize, bytes: &mut [u8]) {
    let both = known.min(bytes.len());
    bytes[..both].fill(0xff);
}

/// What a library may know of a struct: each size it had, and one that is yet to come.
fn known_sizes<T: Extensible>() -> impl Iterator<Item = usize> {
    T::SIZES.iter().map(|(_, size)| *size).chain([size_of::<T>() + 24])
}

/// Structs with pthread objects differ in size by target; the library makes them, they are never passed in.
fn is_by_target(name: &str) -> bool {
    cfg!(not(target_arch = "x86_64")) && ["ibv_qp_ex", "ibv_cq_ex", "ibv_wq"].contains(&name)
}

#[test]
fn sizes_only_grow_and_end_at_the_bound_one() {
    struct Sizes(usize);
    impl Visitor for Sizes {
        fn visit<T: Extensible>(&mut self) {
            self.0 += 1;
            if !is_by_target(T::NAME) {
                assert!(T::SIZES.is_sorted_by(|(_, a), (_, b)| a < b), "{}: {:?}", T::NAME, T::SIZES);
                assert_eq!(T::SIZES.last().map(|(_, size)| *size), Some(size_of::<T>()), "{}", T::NAME);
            }
        }
    }
    let mut sizes = Sizes(0);
    each_extensible(&mut sizes);
    assert!(sizes.0 > 60, "{} extensible structs", sizes.0);
}

#[test]
fn every_query_of_an_older_or_newer_library_gives_its_part_and_zeros() {
    struct Queries;
    impl Visitor for Queries {
        fn visit<T: Extensible>(&mut self) {
            for known in known_sizes::<T>() {
                let mut passed = 0;
                let answer = query::<T>(|attr, length| {
                    passed = length;
                    // SAFETY: the query gives a struct of this length.
                    let memory = unsafe { std::slice::from_raw_parts_mut(attr.cast::<u8>(), length) };
                    assert!(memory.iter().all(|byte| *byte == 0), "{}: the struct is not zeroed", T::NAME);
                    fills(known, memory);
                    // Refused, so that no value of the type is made of these bytes.
                    memory.iter().filter(|byte| **byte == 0xff).count() as c_int
                });
                assert_eq!(passed, size_of::<T>(), "{}", T::NAME);
                assert_eq!(answer.err(), Some(known.min(size_of::<T>()) as c_int), "{} at {known}", T::NAME);
            }
        }
    }
    each_extensible(&mut Queries);
}

#[test]
fn every_untouched_struct_is_as_short_as_its_first_version() {
    struct Lengths;
    impl Visitor for Lengths {
        fn visit<T: Extensible>(&mut self) {
            let untouched = T::zeroed();
            assert_eq!(untouched.used_len(), T::SIZES[0].1, "{}", T::NAME);
            assert!(!untouched.has(1u64), "{}: a bit of comp_mask is set", T::NAME);
        }
    }
    each_extensible(&mut Lengths);
}

fn bytes<T>(value: &T, length: usize) -> &[u8] {
    assert!(length <= size_of::<T>());
    // SAFETY: the structs below have no padding before the length that is asked for.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), length) }
}

#[test]
fn the_used_length_is_the_least_that_holds_what_is_set() {
    let mut attr = efadv_qp_init_attr::zeroed();
    assert_eq!(attr.used_len(), 16, "rdma-core 44 knows 16 bytes");
    attr.flags = EFADV_QP_FLAGS_INLINE_WRITE as u16;
    attr.sl = 3;
    assert_eq!(attr.used_len(), 16, "the flags were reserved bytes before");
    attr.wr_flags = u64::from(EFADV_WR_EX_WITH_PROCESSING_HINTS);
    assert_eq!(attr.used_len(), 24);

    let mut attr = efadv_cq_init_attr::zeroed();
    assert_eq!(attr.used_len(), 16);
    attr.ext_mem_dmabuf.fd = 5;
    assert_eq!(attr.used_len(), 56);
    assert_eq!(ibv_port_attr::default().used_len(), 52);
}

/// libefa 44 in one table: it knows 16 bytes of the attributes and refuses what it does not know.
extern "C" fn create_qp_44(
    _: *mut ibv_context,
    _: *mut ibv_qp_init_attr_ex,
    attr: *mut efadv_qp_init_attr,
    inlen: u32,
) -> *mut ibv_qp {
    // SAFETY: the caller passes a struct of at least this length.
    let given = unsafe { std::slice::from_raw_parts(attr.cast::<u8>(), inlen as usize) };
    if reads(16, given) == 0 { std::ptr::dangling_mut() } else { std::ptr::null_mut() }
}

#[test]
fn an_older_libefa_creates_a_plain_queue_pair_and_refuses_what_it_does_not_know() {
    let efa = Efadv { efadv_create_qp_ex: create_qp_44, ..Efadv::unsupported() };
    let create = |attr: &mut efadv_qp_init_attr| {
        let length = attr.used_len() as u32;
        // SAFETY: the function above reads the attributes alone.
        let qp = unsafe { efa.efadv_create_qp_ex(std::ptr::null_mut(), std::ptr::null_mut(), attr, length) };
        (length, !qp.is_null())
    };
    let mut attr = efadv_qp_init_attr::zeroed();
    assert_eq!(create(&mut attr), (16, true));
    attr.wr_flags = 1;
    assert_eq!(create(&mut attr), (24, false));
    assert_eq!(bytes(&attr, 24)[16], 1);
}

extern "C" fn query_device_older(_: *mut ibv_context, attr: *mut efadv_device_attr, inlen: u32) -> c_int {
    // SAFETY: the caller passes a struct of this length.
    fills(24, unsafe { std::slice::from_raw_parts_mut(attr.cast(), inlen as usize) });
    0
}

extern "C" fn query_device_newer(_: *mut ibv_context, attr: *mut efadv_device_attr, inlen: u32) -> c_int {
    // SAFETY: as above.
    fills(1000, unsafe { std::slice::from_raw_parts_mut(attr.cast(), inlen as usize) });
    0
}

#[test]
fn a_query_gives_what_the_library_knows_and_zeros() {
    let ask = |function| {
        let efa = Efadv { efadv_query_device: function, ..Efadv::unsupported() };
        // SAFETY: the functions above only fill the struct.
        query::<efadv_device_attr>(|attr, length| unsafe {
            efa.efadv_query_device(std::ptr::null_mut(), attr, length as u32)
        })
    };
    let older = ask(query_device_older).unwrap();
    assert_eq!((older.inline_buf_size, older.device_caps, older.max_rdma_size), (0xffff, 0, 0));
    let newer = ask(query_device_newer).unwrap();
    assert_eq!((newer.device_caps, newer.max_rdma_size), (u32::MAX, u32::MAX));
    assert_eq!(ask(Efadv::unsupported().efadv_query_device).unwrap_err(), libc::EOPNOTSUPP);
}

#[test]
fn comp_mask_tells_which_fields_came_back() {
    let mut context = mlx5dv_context::zeroed();
    assert!(!context.has(ibv_sys::MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS));
    context.comp_mask =
        u64::from(ibv_sys::MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS | ibv_sys::MLX5DV_CONTEXT_MASK_STRIDING_RQ);
    assert!(context.has(ibv_sys::MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS));
    assert!(!context.has(ibv_sys::MLX5DV_CONTEXT_MASK_DCI_STREAMS));
    assert_eq!(ibv_port_attr::default().comp_mask(), None, "a struct without a mask has none");
}
