//! What an EFA device's attributes amount to in `Caps`. Pure; what only a trial can tell comes in as [`Found`].

use ibv_core::{Caps, Support, verbs::limits::MAX_MSG_SIZE};
use ibv_sys::{
    EFADV_DEVICE_ATTR_CAPS_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE, EFADV_DEVICE_ATTR_CAPS_RNR_RETRY,
    efadv_device_attr, ibv_device_attr, ibv_port_attr,
};

/// What no query tells and an attempt does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// libefa builds puts of inline bytes.
    pub(crate) inline_write: bool,
    /// Requests between two doorbells; 0 is no limit, or a libefa that does not say.
    pub(crate) max_batch: u32,
    /// The driver registers dma-bufs.
    pub(crate) dmabuf: bool,
    /// The device raises completion events.
    pub(crate) channels: bool,
}

/// Inline bytes of the largest request that libefa builds (`EFA_IO_TX_DESC_INLINE_MAX_SIZE_128`).
const MAX_INLINE: u32 = 80;

/// The capabilities of SRD queue pairs.
///
/// Sends and RDMA have limits of their own: a send is one packet, so the port's MTU; a put or get is
/// `max_rdma_size`. One range per request, since RDMA takes no more. Nothing is in order. How many gets may
/// be outstanding EFA does not bound, so the number is the largest there is.
///
/// Two queue pairs of one device: adapters differ in whether they reach each other and drop silently where
/// they do not, and no query tells. So it is not promised.
pub(crate) fn srd_caps(
    device: &ibv_device_attr,
    efa: &efadv_device_attr,
    ports: &[ibv_port_attr],
    found: &Found,
) -> Caps {
    let native = |yes: bool| if yes { Support::Native } else { Support::Absent };
    let has = |bit| efa.device_caps & bit != 0;
    let rdma = efa.max_rdma_size > 0;
    let write = native(rdma && has(EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE));
    let max_recv_sge = u32::from(efa.max_rq_sge).clamp(1, 32);
    let mut caps = Caps::default();
    (caps.write, caps.write_with_imm) = (write, write);
    caps.read = native(rdma && has(EFADV_DEVICE_ATTR_CAPS_RDMA_READ));
    (caps.send, caps.send_with_imm) = (Support::Native, Support::Native);
    (caps.dmabuf, caps.cq_channel) = (native(found.dmabuf), native(found.channels));
    caps.events = Support::Native;
    caps.rnr_retry = has(EFADV_DEVICE_ATTR_CAPS_RNR_RETRY);
    caps.max_msg_size = efa.max_rdma_size.min(MAX_MSG_SIZE) as usize;
    caps.max_send_size = ports.iter().map(|p| p.max_msg_sz).min().unwrap_or(0) as usize;
    (caps.max_send_sge, caps.max_recv_sge) = (1, max_recv_sge);
    caps.max_inline = max_inline(efa, write.present(), found);
    caps.max_send_wr = efa.max_sq_wr.min(count(device.max_qp_wr));
    caps.max_recv_wr = efa.max_rq_wr;
    caps.max_cqe = count(device.max_cqe);
    caps.max_batch = found.max_batch;
    caps.max_mr_size = device.max_mr_size;
    caps.max_rd_atomic = u8::MAX;
    caps
}

/// Core has one number for puts and sends, so where puts exist and libefa can not inline them there is none.
fn max_inline(efa: &efadv_device_attr, write: bool, found: &Found) -> u32 {
    if write && !found.inline_write {
        return 0;
    }
    // An older libefa leaves the second one at 0.
    u32::from(efa.inline_buf_size_ex.max(efa.inline_buf_size)).min(MAX_INLINE)
}

/// A count of the C struct, which is never negative on a sane device.
fn count(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn efa(device_caps: u32) -> efadv_device_attr {
        efadv_device_attr {
            max_sq_wr: 512,
            max_rq_wr: 2048,
            max_sq_sge: 2,
            max_rq_sge: 3,
            inline_buf_size: 32,
            device_caps,
            max_rdma_size: 1 << 20,
            ..efadv_device_attr::default()
        }
    }

    fn caps(device_caps: u32, found: Found) -> Caps {
        let device = ibv_device_attr { max_qp_wr: 256, max_cqe: 4096, ..ibv_device_attr::default() };
        let port = ibv_port_attr { max_msg_sz: 8928, ..ibv_port_attr::default() };
        srd_caps(&device, &efa(device_caps), &[port], &found)
    }

    #[test]
    fn only_what_library_and_device_have_is_claimed() {
        let of = |bits| {
            let c = caps(bits, Found::default());
            (c.read.present(), c.write.present(), c.write_with_imm.present(), c.rnr_retry)
        };
        assert_eq!(of(0), (false, false, false, false));
        assert_eq!(of(1), (true, false, false, false));
        assert_eq!(of(1 | 2 | 8), (true, true, true, true));
        let none = srd_caps(
            &ibv_device_attr::default(),
            &efadv_device_attr { max_rdma_size: 0, ..efa(9) },
            &[],
            &Found::default(),
        );
        assert!(!none.read.present() && !none.write.present(), "RDMA of no bytes");
    }

    #[test]
    fn nothing_is_in_order_and_no_atomic_is_there() {
        let c = caps(u32::MAX, Found::default());
        assert!(!c.completions_in_order && !c.messages_in_order && !c.bytes_in_order);
        assert!(!c.atomics.present() && !c.fence.present() && !c.solicited && !c.loopback);
    }

    #[test]
    fn sends_and_rdma_have_limits_of_their_own() {
        let c = caps(9, Found::default());
        assert_eq!((c.max_msg_size, c.max_send_size), (1 << 20, 8928));
        assert_eq!((c.max_send_sge, c.max_recv_sge), (1, 3));
        assert_eq!((c.max_send_wr, c.max_recv_wr), (256, 2048), "the smaller of two limits counts");
    }

    #[test]
    fn inline_bytes_are_offered_where_puts_take_them_too() {
        let inline = |bits, inline_write| caps(bits, Found { inline_write, ..Found::default() }).max_inline;
        assert_eq!((inline(1, false), inline(9, false), inline(9, true)), (32, 0, 32));
        let wide = efadv_device_attr { inline_buf_size_ex: 200, ..efa(1) };
        assert_eq!(max_inline(&wide, false, &Found::default()), MAX_INLINE);
    }
}
