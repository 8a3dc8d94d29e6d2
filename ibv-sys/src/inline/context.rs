//! From a device context to the extended operations that the library behind it has. Calls none of them.
//!
//! # Safety
//!
//! See the parent module. The extended context may be shorter than this crate's declaration of it, so no
//! reference to it is ever formed: single fields are read, after the library's own size was compared.

use crate::{ibv_context, verbs_context};

/// What `abi_compat` holds in a context that has the extended operations in front of it.
const IS_EXTENDED: usize = usize::MAX;

/// The extended context around a device context, or null if the library made none.
///
/// Its fields grow towards lower addresses from one rdma-core to the next: compare the size before reading one.
///
/// # Safety
///
/// `context` is an open device context.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller's promise.
    if unsafe { (*context).abi_compat } as usize != IS_EXTENDED {
        return core::ptr::null_mut();
    }
    context.wrapping_byte_sub(core::mem::offset_of!(verbs_context, context)).cast()
}

/// Reads an operation of the extended context, given its offset, as the header's `verbs_get_ctx_op` does.
///
/// # Safety
///
/// `context` is an open device context, and the field at `offset` in `verbs_context` is an `Option` of type `F`.
#[inline]
pub(crate) unsafe fn extended_op<F>(context: *mut ibv_context, offset: usize) -> Option<F> {
    // SAFETY: the caller's promise.
    let extended = unsafe { verbs_get_ctx(context) };
    if extended.is_null() {
        return None;
    }
    // SAFETY: `sz` lies directly before the context in every version that is extended at all.
    let size = unsafe { (&raw const (*extended).sz).read() };
    if size < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: the library's own context reaches as far as this field, of which the caller knows the type.
    unsafe { extended.wrapping_byte_add(offset).cast::<Option<F>>().read() }
}

/// An operation of the extended context, by the name of its field.
macro_rules! context_op {
    ($context:expr, $op:ident) => {{
        // SAFETY: the caller of the inline verb promises an open context; the type is the field's own.
        unsafe {
            $crate::inline::context::field_op(
                $context,
                core::mem::offset_of!($crate::verbs_context, $op),
                |extended: &$crate::verbs_context| extended.$op,
            )
        }
    }};
}

/// [`extended_op`] with the type taken from a function that is never called.
///
/// # Safety
///
/// As [`extended_op`], with the field that `_field` reads at `offset`.
#[inline]
pub(crate) unsafe fn field_op<F>(
    context: *mut ibv_context,
    offset: usize,
    _field: fn(&verbs_context) -> Option<F>,
) -> Option<F> {
    // SAFETY: the caller's promise.
    unsafe { extended_op(context, offset) }
}

pub(crate) use context_op;

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    extern "C" fn advise(
        _: *mut crate::ibv_pd,
        _: crate::ibv_advise_mr_advice,
        _: u32,
        _: *mut crate::ibv_sge,
        _: u32,
    ) -> i32 {
        7
    }

    fn extended(size: usize) -> Box<verbs_context> {
        let mut extended = Box::<verbs_context>::default();
        extended.sz = size;
        extended.advise_mr = Some(advise);
        extended.context.abi_compat = IS_EXTENDED as *mut _;
        extended
    }

    #[test]
    fn an_older_library_has_no_field_beyond_its_size() {
        let needed = size_of::<verbs_context>() - offset_of!(verbs_context, advise_mr);
        for (size, has) in [(needed - 1, false), (needed, true), (size_of::<verbs_context>() + 64, true)] {
            let mut extended = extended(size);
            let op = context_op!(&raw mut extended.context, advise_mr);
            assert_eq!(op.is_some(), has, "a context of {size} bytes");
        }
    }

    #[test]
    fn a_context_that_is_not_extended_has_no_operation() {
        let mut extended = extended(usize::MAX);
        extended.context.abi_compat = core::ptr::null_mut();
        assert!(context_op!(&raw mut extended.context, advise_mr).is_none());
    }

    #[test]
    fn a_null_operation_is_none() {
        let mut extended = extended(size_of::<verbs_context>());
        assert!(context_op!(&raw mut extended.context, alloc_null_mr).is_none());
    }
}
