//! The inline functions and macros of the headers that also call an exported function: methods of its table.
//!
//! # Safety
//!
//! See the parent module.

use core::ffi::{c_int, c_uint, c_void};

use super::context::context_op;
use super::objects::absent;
use crate::*;

impl Verbs {
    /// Reads a port's attributes, zero where the library behind the context is too old to know them.
    ///
    /// Gives 0 or the error number. `port_cap_flags2`, `flags` and later fields are of the extended operation.
    ///
    /// # Safety
    ///
    /// The context is open and `port_attr` is writable.
    pub unsafe fn ibv_query_port(
        &self,
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
    ) -> c_int {
        if let Some(op) = context_op!(context, query_port) {
            // SAFETY: the caller's promise; the length is that of the struct.
            return unsafe { op(context, port_num, port_attr, size_of::<ibv_port_attr>()) };
        }
        // SAFETY: the caller's promise; the exported function fills the front part of the struct.
        unsafe {
            port_attr.write_bytes(0, 1);
            (self.compat_ibv_query_port)(context, port_num, port_attr.cast())
        }
    }

    /// Reads a GID table entry with its type and interface; 0 or the error number.
    ///
    /// # Safety
    ///
    /// The context is open and `entry` is writable.
    pub unsafe fn ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
    ) -> c_int {
        // SAFETY: the caller's promise; the length is that of the struct.
        unsafe {
            self._ibv_query_gid_ex(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>())
        }
    }

    /// Reads up to `max_entries` valid GID table entries; how many, or a negated error number.
    ///
    /// # Safety
    ///
    /// The context is open and `entries` has room for `max_entries`.
    pub unsafe fn ibv_query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
    ) -> isize {
        // SAFETY: the caller's promise; the length is that of the struct.
        unsafe { self._ibv_query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) }
    }

    /// Reads what a device's completion counters can do; 0 or the error number.
    ///
    /// # Safety
    ///
    /// The context is open and `caps` is writable.
    pub unsafe fn ibv_query_comp_cntr_caps(
        &self,
        context: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
    ) -> c_int {
        // SAFETY: the caller's promise; the length is that of the struct.
        unsafe { self._ibv_query_comp_cntr_caps(context, caps, size_of::<ibv_comp_cntr_caps>()) }
    }

    /// Registers memory; null with `errno` on failure.
    ///
    /// Optional access bits that the device or an older library does not know are left out, as they are meant to
    /// be: that is what makes them optional.
    ///
    /// # Safety
    ///
    /// As for `ibv_reg_mr`: the domain is alive, and the memory stays mapped until it is deregistered.
    pub unsafe fn ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_uint,
    ) -> *mut ibv_mr {
        if access & IBV_ACCESS_OPTIONAL_RANGE == 0 || self.lacks_iova2() {
            // SAFETY: the caller's promise.
            return unsafe {
                (self.ibv_reg_mr)(pd, addr, length, (access & !IBV_ACCESS_OPTIONAL_RANGE) as c_int)
            };
        }
        // SAFETY: the caller's promise.
        unsafe { self.ibv_reg_mr_iova2(pd, addr, length, addr as u64, access) }
    }

    /// Registers memory at a device address of the caller's choice; null with `errno` on failure.
    ///
    /// # Safety
    ///
    /// As [`Verbs::ibv_reg_mr`](#method.ibv_reg_mr).
    pub unsafe fn ibv_reg_mr_iova(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr {
        if access & IBV_ACCESS_OPTIONAL_RANGE == 0 || self.lacks_iova2() {
            let access = (access & !IBV_ACCESS_OPTIONAL_RANGE) as c_int;
            // SAFETY: the caller's promise.
            return unsafe { (self.ibv_reg_mr_iova)(pd, addr, length, iova, access) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.ibv_reg_mr_iova2(pd, addr, length, iova, access) }
    }

    /// libibverbs before rdma-core 28 has no function that takes optional access bits.
    fn lacks_iova2(&self) -> bool {
        core::ptr::fn_addr_eq(self.ibv_reg_mr_iova2, Self::unsupported().ibv_reg_mr_iova2)
    }

    /// Creates a shared receive queue; null with `errno` on failure.
    ///
    /// # Safety
    ///
    /// The context is open and the attributes point to valid objects.
    pub unsafe fn ibv_create_srq_ex(
        &self,
        context: *mut ibv_context,
        attr: *mut ibv_srq_init_attr_ex,
    ) -> *mut ibv_srq {
        // SAFETY: the caller's promise.
        let (mask, srq_type) = unsafe { ((*attr).comp_mask, (*attr).srq_type) };
        let basic = mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || srq_type == IBV_SRQT_BASIC;
        let known = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
        if mask & !known == 0 && mask & IBV_SRQ_INIT_ATTR_PD != 0 && basic {
            // SAFETY: the caller's promise; the plain struct is the front part of this one.
            return unsafe { self.ibv_create_srq((*attr).pd, attr.cast()) };
        }
        match context_op!(context, create_srq_ex) {
            // SAFETY: the caller's promise.
            Some(op) => unsafe { op(context, attr) },
            None => absent(),
        }
    }

    /// Creates a queue pair; null with `errno` on failure.
    ///
    /// # Safety
    ///
    /// The context is open and the attributes point to valid objects.
    pub unsafe fn ibv_create_qp_ex(
        &self,
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        // SAFETY: the caller's promise.
        if unsafe { (*attr).comp_mask } == IBV_QP_INIT_ATTR_PD {
            // SAFETY: the caller's promise; the plain struct is the front part of this one.
            return unsafe { self.ibv_create_qp((*attr).pd, attr.cast()) };
        }
        match context_op!(context, create_qp_ex) {
            // SAFETY: the caller's promise.
            Some(op) => unsafe { op(context, attr) },
            None => absent(),
        }
    }

    /// Reads a device's attributes, from the older call where the extended one is not there.
    ///
    /// Gives 0 or the error number; fields that the older call does not know are zero.
    ///
    /// # Safety
    ///
    /// The context is open, `input` is null or valid, and `attr` is writable.
    pub unsafe fn ibv_query_device_ex(
        &self,
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: the caller's promise.
        if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
            return libc::EINVAL;
        }
        if let Some(op) = context_op!(context, query_device_ex) {
            // SAFETY: the caller's promise; the length is that of the struct.
            let code = unsafe { op(context, input, attr, size_of::<ibv_device_attr_ex>()) };
            if code != libc::EOPNOTSUPP && code != libc::ENOSYS {
                return code;
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            attr.write_bytes(0, 1);
            self.ibv_query_device(context, &raw mut (*attr).orig_attr)
        }
    }
}

impl Mlx5dv {
    /// Checks an mkey after use and reads the first error of it; 0 or the error number.
    ///
    /// # Safety
    ///
    /// The mkey is alive and `err_info` is writable.
    pub unsafe fn mlx5dv_mkey_check(&self, mkey: *mut mlx5dv_mkey, err_info: *mut mlx5dv_mkey_err) -> c_int {
        // SAFETY: the caller's promise; the length is that of the struct.
        unsafe { self._mlx5dv_mkey_check(mkey, err_info, size_of::<mlx5dv_mkey_err>()) }
    }

    /// Reads mlx5's own attributes of a port; 0 or the error number.
    ///
    /// # Safety
    ///
    /// The context is an open mlx5 device and `info` is writable.
    pub unsafe fn mlx5dv_query_port(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        info: *mut mlx5dv_port,
    ) -> c_int {
        // SAFETY: the caller's promise; the length is that of the struct.
        unsafe { self._mlx5dv_query_port(context, port_num, info, size_of::<mlx5dv_port>()) }
    }

    /// Creates a flow with actions of this crate's size; null with `errno` on failure.
    ///
    /// # Safety
    ///
    /// As for `mlx5dv_create_flow`: `actions` has `num_actions` entries.
    pub unsafe fn mlx5dv_create_flow(
        &self,
        matcher: *mut mlx5dv_flow_matcher,
        match_value: *mut mlx5dv_flow_match_parameters,
        num_actions: usize,
        actions: *mut mlx5dv_flow_action_attr,
    ) -> *mut ibv_flow {
        let size = size_of::<mlx5dv_flow_action_attr>();
        // SAFETY: the caller's promise; the length is that of the struct.
        unsafe { self.__mlx5dv_create_flow(matcher, match_value, num_actions, actions, size) }
    }

    /// Reads how many bytes an exported object of each kind takes.
    ///
    /// # Safety
    ///
    /// `sizes` is writable.
    pub unsafe fn mlx5dv_get_export_sizes(&self, sizes: *mut mlx5dv_export_sizes) {
        // SAFETY: the caller's promise; the length is that of the struct.
        unsafe { self._mlx5dv_get_export_sizes(sizes, size_of::<mlx5dv_export_sizes>()) }
    }
}
