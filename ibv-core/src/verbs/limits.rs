//! What device attributes amount to in `Caps`, and the clamps of MTU and sizes. Pure; what only a trial
//! can tell comes in as [`Probed`].

use crate::{
    caps::{Caps, Support},
    gid::Mtu,
};
use ibv_sys::{IBV_ATOMIC_NONE, ibv_device_attr, ibv_port_attr};

/// The most that one work request moves, whatever the device says: a power of two below the 2^31 of the
/// specification, so that no length comes near the sign bit.
pub const MAX_MSG_SIZE: u32 = 1 << 30;

/// What no query tells and an attempt does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// Bytes that a queue pair with one range takes inline.
    pub max_inline: u32,
    /// The driver registers dma-bufs.
    pub dmabuf: bool,
    /// Library and device know relaxed ordering.
    pub relaxed_ordering: bool,
    /// The device raises completion events.
    pub channels: bool,
}

/// The MTU a queue pair can offer: what was asked for, at most what the port uses.
pub fn path_mtu(asked: Mtu, active: Option<Mtu>) -> Mtu {
    active.map_or(asked, |active| asked.min(active))
}

/// A count of the C struct, which is never negative on a sane device.
fn count(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

/// The capabilities of reliable connections on a device with these attributes and ports.
///
/// The specification makes all operations mandatory for reliable connections but atomics. Ordering is
/// its too: completions in posting order, each message before the next; bytes within a message it leaves
/// open, so they are not promised.
pub fn rc_caps(device: &ibv_device_attr, ports: &[ibv_port_attr], probed: &Probed) -> Caps {
    let native = |yes: bool| if yes { Support::Native } else { Support::Absent };
    let atomics = native(device.atomic_cap != IBV_ATOMIC_NONE);
    let largest = ports.iter().map(|p| p.max_msg_sz).filter(|n| *n > 0).min().unwrap_or(MAX_MSG_SIZE);
    let max_msg_size = largest.min(MAX_MSG_SIZE) as usize;
    Caps {
        write: Support::Native,
        read: Support::Native,
        write_with_imm: Support::Native,
        send: Support::Native,
        send_with_imm: Support::Native,
        atomics,
        fence: Support::Native,
        dmabuf: native(probed.dmabuf),
        cq_channel: native(probed.channels),
        solicited: probed.channels,
        events: Support::Native,
        relaxed_ordering: native(probed.relaxed_ordering),
        completions_in_order: true,
        messages_in_order: true,
        bytes_in_order: false,
        loopback: true,
        rnr_retry: true,
        max_msg_size,
        max_send_size: max_msg_size,
        max_send_sge: send_sge(device),
        max_recv_sge: count(device.max_sge).clamp(1, MAX_SGE),
        max_inline: probed.max_inline,
        max_send_wr: count(device.max_qp_wr),
        max_recv_wr: count(device.max_qp_wr),
        max_cqe: count(device.max_cqe),
        max_batch: 0,
        max_mr_size: device.max_mr_size,
        max_rd_atomic: rd_atomic(device),
    }
}

/// The same with puts and gets of at most `most` bytes each, where anything is said.
pub fn narrowed(caps: Caps, most: Option<u32>) -> Caps {
    let max_msg_size = most.map_or(caps.max_msg_size, |most| caps.max_msg_size.min(most as usize));
    Caps { max_msg_size, ..caps }
}

/// Core splits no request into more ranges than this.
const MAX_SGE: u32 = 32;

/// Gets have a limit of their own on some devices; core has one for all, so the smaller counts. 0 says
/// that the driver has nothing to say.
fn send_sge(device: &ibv_device_attr) -> u32 {
    let all = count(device.max_sge);
    let reads = Some(count(device.max_sge_rd)).filter(|n| *n > 0);
    reads.map_or(all, |reads| all.min(reads)).clamp(1, MAX_SGE)
}

/// Both directions, since core has one number: what the device starts and what it answers.
fn rd_atomic(device: &ibv_device_attr) -> u8 {
    let both = count(device.max_qp_rd_atom).min(count(device.max_qp_init_rd_atom));
    u8::try_from(both).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::IbvConfig;
    use ibv_sys::IBV_ATOMIC_HCA;
    use proptest::prelude::*;

    fn device() -> ibv_device_attr {
        ibv_device_attr {
            max_qp_wr: 16384,
            max_sge: 32,
            max_sge_rd: 30,
            max_cqe: 4096,
            max_mr_size: u64::MAX,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 128,
            atomic_cap: IBV_ATOMIC_HCA,
            ..ibv_device_attr::default()
        }
    }

    fn port(max_msg_sz: u32) -> ibv_port_attr {
        ibv_port_attr { max_msg_sz, ..ibv_port_attr::default() }
    }

    #[test]
    fn the_smallest_port_bounds_a_message_and_nothing_exceeds_a_gigabyte() {
        let size = |ports: &[ibv_port_attr]| rc_caps(&device(), ports, &Probed::default()).max_msg_size;
        assert_eq!(size(&[port(1 << 31)]), 1 << 30);
        assert_eq!(size(&[port(1 << 31), port(0x80_0000)]), 0x80_0000);
        assert_eq!(size(&[port(0)]), 1 << 30, "a port that does not say");
        assert_eq!(size(&[]), 1 << 30);
    }

    #[test]
    fn the_smaller_of_two_limits_counts() {
        let caps = rc_caps(&device(), &[port(1 << 30)], &Probed::default());
        assert_eq!((caps.max_send_sge, caps.max_recv_sge, caps.max_rd_atomic), (30, 32, 16));
        let silent = ibv_device_attr { max_sge_rd: 0, ..device() };
        assert_eq!(rc_caps(&silent, &[], &Probed::default()).max_send_sge, 32);
    }

    #[test]
    fn only_what_the_device_has_is_claimed() {
        let none =
            rc_caps(&ibv_device_attr { atomic_cap: IBV_ATOMIC_NONE, ..device() }, &[], &Probed::default());
        assert_eq!(
            (none.atomics, none.dmabuf, none.cq_channel),
            (Support::Absent, Support::Absent, Support::Absent)
        );
        let probed = Probed { dmabuf: true, channels: true, max_inline: 220, relaxed_ordering: true };
        let all = rc_caps(&device(), &[], &probed);
        assert_eq!((all.dmabuf, all.cq_channel, all.max_inline), (Support::Native, Support::Native, 220));
    }

    proptest! {
        #[test]
        fn the_default_configuration_fits_any_device_with_128_requests(
            wr in 128..i32::MAX, sge in any::<i32>(), sge_rd in any::<i32>(), rd in any::<i32>(), msg in any::<u32>(),
        ) {
            let device = ibv_device_attr { max_qp_wr: wr, max_sge: sge, max_sge_rd: sge_rd, max_qp_rd_atom: rd, ..device() };
            let caps = rc_caps(&device, &[port(msg)], &Probed::default());
            prop_assert!(IbvConfig::default().validate(&caps).is_ok());
            prop_assert!(caps.max_msg_size > 0 && caps.max_msg_size <= 1 << 30);
        }

        #[test]
        fn an_offered_mtu_is_never_more_than_either(asked in 1u8..=5, active in 0u8..=7) {
            let (asked, active) = (Mtu::from_code(asked).unwrap(), Mtu::from_code(active));
            let got = path_mtu(asked, active);
            prop_assert!(got <= asked && active.is_none_or(|a| got <= a));
            prop_assert!(got == asked || Some(got) == active);
        }
    }
}
