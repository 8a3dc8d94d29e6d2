//! Pointer conversions between this crate's types and those of the rdma-sys crate, for programs that use both.
//! Converts no struct by value: a struct of rdma-sys may be of another rdma-core than this crate's.

/// A pointer that rdma-sys has a type of its own for.
///
/// Free: both are pointers to the same C object.
pub trait ToRdmaSys {
    /// The pointer type of rdma-sys.
    type Pointer;

    /// The same pointer in rdma-sys' type.
    fn to_rdma_sys(self) -> Self::Pointer;
}

/// A pointer of rdma-sys that this crate has a type of its own for.
pub trait ToIbvSys {
    /// The pointer type of this crate.
    type Pointer;

    /// The same pointer in this crate's type.
    fn to_ibv_sys(self) -> Self::Pointer;
}

macro_rules! same_object {
    ($($ty:ident),* $(,)?) => {
        $(
            impl ToRdmaSys for *mut crate::$ty {
                type Pointer = *mut rdma_sys::$ty;

                fn to_rdma_sys(self) -> Self::Pointer {
                    self.cast()
                }
            }

            impl ToIbvSys for *mut rdma_sys::$ty {
                type Pointer = *mut crate::$ty;

                fn to_ibv_sys(self) -> Self::Pointer {
                    self.cast()
                }
            }
        )*
    };
}

same_object!(
    ibv_device,
    ibv_context,
    ibv_pd,
    ibv_mr,
    ibv_mw,
    ibv_dm,
    ibv_ah,
    ibv_cq,
    ibv_cq_ex,
    ibv_comp_channel,
    ibv_srq,
    ibv_qp,
    ibv_qp_ex,
    ibv_wq,
    ibv_xrcd,
    ibv_td,
    ibv_flow,
    ibv_counters,
    ibv_wc,
    ibv_sge,
    ibv_send_wr,
    ibv_recv_wr,
);
